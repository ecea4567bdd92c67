#include "server/calibrate/calibrate.h"

#include "core/proc.h"
#include "core/realtime.h"
#include "cpu/edf.h"
#include "cpu/measure.h"
#include "server/calibrate/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#define PROBE_SHARE      4 /* one part in so many of the time is for the I/O half */
#define MARGIN_NS_MIN    (100 * CORE_NS_PER_US)
#define IO_LIMIT_PERCENT 85
#define IO_REST_NS       (500 * CORE_NS_PER_US)
#define MARGIN_PERCENT   10
/* Above what is not real-time, below the threads of a server that runs already. */
#define MEASURE_PRIORITY 2
#define STACK_BYTES      (1 << 20)

void server_calibrate_machine(char *text, size_t size)
{
    char cpuinfo[4096], processor[128];
    struct utsname system;

    (void)core_proc_read("/proc/cpuinfo", cpuinfo, sizeof cpuinfo);
    core_proc_processor(cpuinfo, processor, sizeof processor);
    if (uname(&system) != 0)
        snprintf(system.release, sizeof system.release, "unknown");
    snprintf(text, size, "%s, %u cores, Linux %s", processor, core_cpu_count(), system.release);
}

static void report(const struct server_calibrate_options *options, const char *what, double share)
{
    if (options->progress != NULL)
        options->progress(options->progress_argument, what, share);
}

static core_status name_profile(struct config_profile *profile, const char *engine)
{
    char machine[256], date[32] = "unknown";
    time_t now = time(NULL);
    struct tm utc;

    server_calibrate_machine(machine, sizeof machine);
    if (gmtime_r(&now, &utc) != NULL)
        (void)strftime(date, sizeof date, "%Y-%m-%d", &utc);
    profile->name = strdup("measured");
    profile->machine = strdup(machine);
    profile->measured = strdup(date);
    profile->cpu.engine = strdup(engine);
    return profile->name == NULL || profile->machine == NULL || profile->measured == NULL ||
                   profile->cpu.engine == NULL
               ? CORE_NO_MEMORY
               : CORE_OK;
}

static void fill_cpu(struct config_profile_cpu *cpu, const struct cpu_cost *cost)
{
    cpu->lanes = cost->lanes;
    cpu->burst_pieces = cost->burst_pieces;
    cpu->piece_bytes = cost->piece_bytes;
    cpu->per_piece_ns = cost->per_piece_ns;
    memcpy(cpu->per_byte_fs, cost->per_byte_fs, sizeof cpu->per_byte_fs);
    memcpy(cpu->lane_ns, cost->lane_ns, sizeof cpu->lane_ns);
    cpu->decrypt_more_percent = cost->decrypt_more_percent;
    cpu->queue_granularity_ns = CPU_EDF_BUCKET_NS;
}

/* Half the lone packet's way for each side would do if both threads woke alike; either may be the slow one,
 * so each margin is the whole. */
static void fill_io(struct config_profile *profile, const struct server_probe *probe)
{
    core_ns margin_ns = core_time_max(probe->latency_p999_ns, MARGIN_NS_MIN);
    profile->io = (struct config_profile_io){.per_packet_ns = probe->per_packet_ns,
                                             .per_byte_fs = probe->per_byte_fs,
                                             .pattern_per_byte_fs = probe->pattern_per_byte_fs,
                                             .mac_per_byte_fs = probe->mac_per_byte_fs,
                                             .by_lane_per_packet_ns = probe->by_lane_per_packet_ns,
                                             .by_lane_per_byte_fs = probe->by_lane_per_byte_fs,
                                             .limit_percent = IO_LIMIT_PERCENT,
                                             .rest_max_ns = IO_REST_NS};
    profile->margins =
        (struct config_profile_margins){.in_ns = margin_ns, .out_ns = margin_ns, .percent = MARGIN_PERCENT};
}

/* cpu_measure on a thread that runs as the workers will: what is measured must not be somebody else's turn.
 */
struct measurement {
    struct cpu_measure_options options;
    struct cpu_measure_result result;
    core_status status;
    struct core_error *error;
};

static void *measure_thread(void *argument)
{
    struct measurement *measurement = argument;
    measurement->status = cpu_measure(&measurement->options, &measurement->result, measurement->error);
    return NULL;
}

static core_status measure_cpu(const struct server_calibrate_options *options, struct config_profile_cpu *cpu,
                               core_ns time_ns, struct core_error *error)
{
    struct measurement measurement = {.options = {.ops = options->engine,
                                                  .budget_ns = time_ns,
                                                  .burst_pieces = options->burst_pieces,
                                                  .piece_bytes = options->piece_bytes},
                                      .error = error};
    struct core_thread_options thread = {.name = "calibrate",
                                         .fifo_priority =
                                             options->realtime == CONFIG_REALTIME_OFF ? 0 : MEASURE_PRIORITY,
                                         .cpu = core_cpu_number(core_cpu_count() - 1),
                                         .stack_bytes = STACK_BYTES};
    pthread_t handle;
    core_status status = core_thread_start(&handle, &thread, measure_thread, &measurement, NULL, error);
    if (status != CORE_OK)
        return status;
    pthread_join(handle, NULL);
    if (measurement.status == CORE_OK)
        fill_cpu(cpu, &measurement.result.cost);
    return measurement.status;
}

static core_status measure(const struct server_calibrate_options *options, struct config_profile *profile,
                           struct core_error *error)
{
    core_ns probe_ns = options->time_ns / PROBE_SHARE;
    struct server_probe probe = {0};

    report(options, "encryption", 0);
    core_status status = measure_cpu(options, &profile->cpu, options->time_ns - probe_ns, error);
    if (status != CORE_OK)
        return status;
    report(options, "input and output", 1 - 1.0 / PROBE_SHARE);
    status = server_probe_run(&(struct server_probe_options){.cpu = &profile->cpu,
                                                             .realtime = options->realtime,
                                                             .time_ns = probe_ns},
                              &probe, error);
    if (status != CORE_OK)
        return status;
    fill_io(profile, &probe);
    report(options, "done", 1);
    return config_profile_check(profile, error);
}

core_status server_calibrate(const struct server_calibrate_options *options, struct config_profile **profile,
                             struct core_error *error)
{
    struct config_profile *fresh = calloc(1, sizeof *fresh);
    core_status status = fresh == NULL ? CORE_NO_MEMORY : name_profile(fresh, options->engine->name);

    if (status == CORE_NO_MEMORY)
        (void)core_error_set(error, CORE_NO_MEMORY, "calibration: no memory");
    if (status == CORE_OK)
        status = measure(options, fresh, error);
    if (status != CORE_OK) {
        config_profile_free(fresh);
        return status;
    }
    *profile = fresh;
    return CORE_OK;
}

core_status server_calibrate_io_of_gpus(struct config_profile *profile, const char *gpu_program,
                                        enum config_realtime realtime, core_ns time_ns,
                                        struct config_profile_io *gpu, struct core_error *error)
{
    const struct server_probe_options options = {
        .cpu = &profile->cpu, .realtime = realtime, .time_ns = time_ns, .gpu_program = gpu_program};
    struct server_probe probe = {0};
    const core_status status = server_probe_run(&options, &probe, error);
    if (status != CORE_OK)
        return core_error_prefix(error, status, "what a GPU's packets cost an I/O thread");
    profile->io.per_packet_ns = core_time_max(profile->io.per_packet_ns, probe.per_packet_ns);
    profile->io.per_byte_fs = core_time_max(profile->io.per_byte_fs, probe.per_byte_fs);
    profile->io.by_lane_per_packet_ns =
        core_time_max(profile->io.by_lane_per_packet_ns, probe.by_lane_per_packet_ns);
    profile->io.by_lane_per_byte_fs =
        core_time_max(profile->io.by_lane_per_byte_fs, probe.by_lane_per_byte_fs);
    *gpu = (struct config_profile_io){.per_packet_ns = probe.per_packet_ns, .per_byte_fs = probe.per_byte_fs};
    return config_profile_check(profile, error);
}
