#include "bench/gpu/profile.h"

#include "bench/gpu/fit.h"
#include "bench/gpu/host.h"
#include "bench/gpu/report.h"
#include "gpu/kernel.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PINNED_SHARE 4 /* of the host's memory */

static void on_progress(void *argument, const char *what, double share)
{
    (void)argument;
    fprintf(stderr, "\r\033[K%3.0f %% %s", 100 * share, what);
}

/* "...; 1 x NAME, driver VERSION, kernel FORM" */
static core_status machine_name(struct config_profile *profile, const struct config_profile_gpu *gpu,
                                const struct gpu_device_facts *facts)
{
    char *longer;
    if (asprintf(&longer, "%s; %u x %s, driver %s, kernel %s", profile->machine, gpu->count, facts->name,
                 facts->driver, facts->kernel) < 0)
        return CORE_NO_MEMORY;
    free(profile->machine);
    profile->machine = longer;
    return CORE_OK;
}

/* What was measured of one form of the kernel on all kinds of cards. */
struct measured {
    uint32_t kinds;
    struct bench_gpu_calibration calibrations[CONFIG_PROFILE_GPU_KINDS_MAX];
    struct gpu_device_facts facts[CONFIG_PROFILE_GPU_KINDS_MAX];
};

static void measured_free(struct measured *measured)
{
    for (uint32_t kind = 0; kind < measured->kinds; kind++)
        bench_gpu_calibration_free(&measured->calibrations[kind]);
    measured->kinds = 0;
}

static void raise(uint32_t *ppm, uint32_t least_ppm)
{
    if (*ppm < least_ppm)
        *ppm = least_ppm;
}

/* The calibration's figures become the profile's. */
static core_status kind_take(struct config_profile *profile, struct measured *measured, uint32_t kind,
                             core_ns packet_ns, core_ns *delay_ns)
{
    struct bench_gpu_calibration *calibration = &measured->calibrations[kind];
    const struct gpu_device_facts *facts = &measured->facts[kind];
    const core_ns kind_ns = calibration->tell_ns;
    const core_status status = machine_name(profile, &calibration->gpu, facts);
    if (status != CORE_OK)
        return status;
    calibration->gpu.host_packet_ns = packet_ns;
    calibration->gpu.kernel = strdup(facts->kernel);
    if (calibration->gpu.kernel == NULL)
        return CORE_NO_MEMORY;
    profile->gpus[profile->gpu_count++] = calibration->gpu;
    calibration->gpu = (struct config_profile_gpu){0};
    raise(&profile->margins.copies_ppm, calibration->copies.ppm);
    raise(&profile->margins.kernels_ppm, calibration->kernels.ppm);
    if (kind_ns > *delay_ns)
        *delay_ns = kind_ns;
    return CORE_OK;
}

static core_status kinds_measure(const struct bench_gpu_profile_options *options,
                                 struct bench_gpu_machine *machine, struct measured *measured, FILE *report,
                                 struct core_error *error)
{
    const struct bench_gpu_calibrate_options calibrate = {.time_ns = options->time_ns,
                                                          .progress = options->progress ? on_progress : NULL,
                                                          .journal = options->journal};
    core_status status = CORE_OK;

    for (uint32_t kind = 0; kind < bench_gpu_machine_kinds(machine) && status == CORE_OK; kind++) {
        const struct bench_gpu_measurer measurer = bench_gpu_machine_measurer(machine, kind);
        measured->facts[kind] = *bench_gpu_machine_facts(machine, kind);
        status = bench_gpu_calibrate(&measurer, &calibrate, &measured->calibrations[kind], error);
        if (options->progress)
            fputs("\r\033[K", stderr);
        if (status != CORE_OK)
            break;
        measured->kinds++;
        bench_gpu_report(report, &measured->calibrations[kind], &measured->facts[kind]);
    }
    return status;
}

/* All cards with this form of the kernel. No card: no kinds, and why. */
static core_status form_measure(const struct bench_gpu_profile_options *options, enum gpu_kernel_form form,
                                struct measured *measured, FILE *report, struct core_error *why,
                                struct core_error *error)
{
    struct bench_gpu_machine_options with = options->machine;
    struct bench_gpu_machine *machine = NULL;
    with.program.kernel_forms = UINT32_C(1) << form;
    core_status status = bench_gpu_machine_open(&machine, &with, why, error);
    if (status == CORE_OK && machine != NULL)
        status = kinds_measure(options, machine, measured, report, error);
    bench_gpu_machine_close(machine);
    return status;
}

/* Of each kind the faster form stays in `best`. Emulated cards take one table's times with any form. */
static core_status forms_measure(const struct bench_gpu_profile_options *options, struct measured *best,
                                 FILE *report, struct core_error *why, struct core_error *error)
{
    const int forms = options->machine.emulated != NULL ? 1 : GPU_KERNEL_FORMS;
    core_status status = form_measure(options, GPU_KERNEL_WHOLE, best, report, why, error);
    for (int form = 1; form < forms && status == CORE_OK && best->kinds > 0; form++) {
        struct measured other = {0};
        status = form_measure(options, (enum gpu_kernel_form)form, &other, report, why, error);
        for (uint32_t kind = 0; kind < other.kinds && kind < best->kinds; kind++) {
            if (!bench_gpu_fit_is_faster(&other.calibrations[kind].gpu, &best->calibrations[kind].gpu))
                continue;
            const struct bench_gpu_calibration slower = best->calibrations[kind];
            best->calibrations[kind] = other.calibrations[kind];
            other.calibrations[kind] = slower;
            best->facts[kind] = other.facts[kind];
        }
        measured_free(&other);
    }
    return status;
}

static uint64_t quarter_of_memory(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE) / PINNED_SHARE;
}

static core_status profile_fill(const struct bench_gpu_profile_options *options,
                                struct config_profile *profile, struct measured *measured, FILE *report,
                                struct core_error *error)
{
    core_ns delay_ns = 0, packet_ns = 0;
    core_status status = bench_gpu_host_packet_ns(&packet_ns, error);
    if (status != CORE_OK)
        return status;
    fprintf(report, "  the batcher groups a packet in %lld ns (19 of 20 batches)\n", (long long)packet_ns);
    profile->gpus = calloc(measured->kinds, sizeof *profile->gpus);
    if (profile->gpus == NULL)
        status = CORE_NO_MEMORY;
    for (uint32_t kind = 0; kind < measured->kinds && status == CORE_OK; kind++)
        status = kind_take(profile, measured, kind, packet_ns, &delay_ns);
    if (status != CORE_OK)
        return core_error_set(error, status, "no memory for a profile");
    profile->pinned_bytes = options->pinned_bytes > 0 ? options->pinned_bytes : quarter_of_memory();
    profile->margins.out_ns += delay_ns;
    return config_profile_check(profile, error);
}

core_status bench_gpu_profile_measure(const struct bench_gpu_profile_options *options,
                                      struct config_profile *profile, FILE *report, struct core_error *error)
{
    struct measured *measured = calloc(1, sizeof *measured);
    struct core_error why = {""};

    if (measured == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a profile");
    core_status status = forms_measure(options, measured, report, &why, error);
    if (status == CORE_OK && measured->kinds == 0)
        fprintf(report, "no GPU: %s\n", why.text);
    else if (status == CORE_OK)
        status = profile_fill(options, profile, measured, report, error);
    measured_free(measured);
    free(measured);
    return status;
}
