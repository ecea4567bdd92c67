#include "server/admin/snapshot.h"

#include "core/log.h"
#include "gpu/nvml.h"
#include "perfmodel/cpu.h"
#include "server/net/io.h"
#include "server/overload/monitor.h"
#include "server/process.h"

#include <stdio.h>
#include <stdlib.h>

static void read_counts(const struct server_stats *stats, struct server_counts *counts,
                        struct server_counts *sum)
{
#define SERVER_COUNT(member, ...)                                                                            \
    counts->member = server_stats_get(&stats->member);                                                       \
    sum->member += counts->member;
#include "server/counts.def"
#undef SERVER_COUNT
}

static int64_t read_signed(const _Atomic int64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

static void read_ios(const struct server *server, struct server_snapshot *snapshot)
{
    for (uint32_t i = 0; i < server->io_count; i++) {
        const struct server_io *io = server->ios[i];
        struct server_snapshot_io *target = &snapshot->ios[i];

        read_counts(&io->stats, &target->counts, &snapshot->totals);
        target->utilisation_ppb = read_signed(&server_planner_io_load(server->planner, i)->utilisation_ppb);
        target->cpu_ns = read_signed(&io->cpu_ns);
        target->turn_max_ns = core_histogram_maximum_ns(&io->stats.turn);
        target->excess_ns = read_signed(&io->stats.turn_excess_ns);
        target->lost_ns = read_signed(&io->stats.turn_lost_ns);
        target->level_ns = server_monitor_io_level_ns(server->watch, i);
        for (int asked = 0; asked < SERVER_ASKED_COUNT; asked++)
            for (int code = 0; code < SERVER_REFUSALS; code++)
                snapshot->refused[asked][code] += server_stats_get(&io->stats.refused_by[asked][code]);
        for (int cause = 0; cause < SERVER_CAUSES; cause++)
            snapshot->missed_by[cause] += server_stats_get(&io->stats.missed_by[cause]);
        core_histogram_merge(&snapshot->turn, &io->stats.turn);
        core_histogram_merge(&snapshot->latency, &io->stats.latency);
        core_histogram_merge(&snapshot->admission, &io->stats.admission);
        core_histogram_merge(&snapshot->in_force, &io->stats.in_force);
        snapshot->worst_count =
            server_tail_latency_join(&io->stats.worst, snapshot->worst, snapshot->worst_count);
    }
}

static void name_unit(const struct server *server, uint32_t index, struct server_snapshot_unit *unit)
{
    if (index < server->worker_count)
        snprintf(unit->name, sizeof unit->name, "cpu-%u", index);
    else if (server_unit_is_gpu(server, index))
        snprintf(unit->name, sizeof unit->name, "gpu-%u", server_unit_gpu(server, index));
    else
        snprintf(unit->name, sizeof unit->name, "standby");
}

/* The overload monitor ignores the fallback worker, which guarantees nothing. */
static void read_overload(const struct server *server, uint32_t index, struct server_snapshot_unit *unit)
{
    bool gpu = server_unit_is_gpu(server, index);
    if (!gpu && index >= server->worker_count)
        return;
    unit->lost_ns =
        read_signed(gpu ? &server_gpu_figures(server->gpus[server_unit_gpu(server, index)])->lost_ns
                        : &cpu_worker_counters(server->workers[index])->lost_ns);
    unit->level_ns = server_monitor_level_ns(server->watch, index);
    unit->withheld_ppb = server_monitor_share_ppb(server->watch, index);
}

static void read_unit(const struct server *server, uint32_t index, struct server_snapshot *snapshot)
{
    struct server_snapshot_unit *unit = &snapshot->units[index];

    name_unit(server, index, unit);
    read_overload(server, index, unit);
    core_histogram_init(&unit->slack);
    core_histogram_init(&unit->lateness);
    for (uint32_t i = 0; i < server->io_count; i++) {
        const struct server_unit_stats *stats = &server->ios[i]->stats.units[index];
        unit->missed += server_stats_get(&stats->missed);
        unit->reader_late += server_stats_get(&stats->reader_late);
        core_histogram_merge(&unit->slack, &stats->slack);
        core_histogram_merge(&unit->lateness, &stats->lateness);
    }
    unit->packets = core_histogram_total(&unit->slack) + unit->reader_late;
    core_histogram_merge(&snapshot->slack, &unit->slack);
    if (server_unit_is_gpu(server, index))
        core_histogram_merge(&snapshot->gpu_slack, &unit->slack);
}

static void read_workers(const struct server *server, struct server_snapshot *snapshot)
{
    for (uint32_t i = 0; i < server->worker_count; i++) {
        const struct server_planner_load *load = server_planner_worker_load(server->planner, i);
        const struct cpu_scheduler_counters *counters = cpu_worker_counters(server->workers[i]);

        snapshot->workers[i] = (struct server_snapshot_worker){
            .streams = server_stats_get(&load->streams),
            .utilisation_ppb = read_signed(&load->utilisation_ppb),
            .headroom_ppb = read_signed(&load->headroom_ppb),
            .backups = server_stats_get(&load->backups),
            .reserved_ppb = read_signed(&load->reserved_ppb),
            .bursts = server_stats_get(&counters->bursts),
            .pieces = server_stats_get(&counters->pieces),
            .packets = server_stats_get(&counters->packets),
            .bytes = server_stats_get(&counters->bytes),
            .busy_ns = read_signed(&counters->busy_ns),
            .burst_max_ns = read_signed(&counters->burst_max_ns),
            .bursts_exceeded = server_stats_get(&counters->exceeded),
            .burst_excess_ns = read_signed(&counters->excess_ns),
            .burst_bound_ns = snapshot->burst_bound_ns,
            .cpu_ns = cpu_worker_cpu_time_ns(server->workers[i]),
        };
    }
}

static struct server_snapshot_stage read_stage(const struct server_gpu_stage_figures *stage, uint64_t batches)
{
    core_ns total_ns = read_signed(&stage->total_ns);
    return (struct server_snapshot_stage){.bound_ns = read_signed(&stage->bound_ns),
                                          .max_ns = read_signed(&stage->max_ns),
                                          .total_ns = total_ns,
                                          .mean_ns = batches > 0 ? total_ns / (core_ns)batches : 0,
                                          .worst_ppb = read_signed(&stage->worst_ppb),
                                          .exceeded = server_stats_get(&stage->exceeded),
                                          .excess_ns = read_signed(&stage->excess_ns)};
}

static void read_gpu(struct server_gpu *gpu, core_ns now_ns, struct server_snapshot_gpu *target)
{
    const struct server_gpu_figures *figures = server_gpu_figures(gpu);
    const struct gpu_arena_counters arenas = gpu_arenas_counters(server_gpu_arenas(gpu));
    const uint64_t batches = server_stats_get(&figures->batches);
    int32_t process = atomic_load_explicit(&figures->process, memory_order_relaxed);

    *target = (struct server_snapshot_gpu){
        .card = server_gpu_kind(gpu)->name,
        .uuid = server_gpu_uuid(gpu),
        .pci = server_gpu_pci(gpu),
        .up = server_gpu_in_service(gpu) ? 1 : 0,
        .process = process > 0 ? (uint64_t)process : 0,
        .state_ns = now_ns - read_signed(&figures->since_ns),
        .streams = server_stats_get(&figures->streams),
        .guaranteed = server_stats_get(&figures->guaranteed),
        .backups = server_stats_get(&figures->backups),
        .reserved_ppb = read_signed(&figures->reserved_ppb),
        .faults = server_stats_get(&figures->faults),
        .restarts = server_stats_get(&figures->restarts),
        .batches = batches,
        .packets = server_stats_get(&figures->packets),
        .bytes = server_stats_get(&figures->bytes),
        .lost_batches = server_stats_get(&figures->lost_batches),
        .late = arenas.late,
        .full = arenas.full_bytes + arenas.full_segments,
        .held_up = arenas.held_up,
        .batch_bytes = server_stats_get(&figures->batch_bytes),
        .memory_bytes = server_stats_get(&figures->memory_bytes),
        .memory_refused = server_stats_get(&figures->memory_refused),
        .arena_bytes = gpu_arenas_region(server_gpu_arenas(gpu))->shape.arena_bytes,
        .period_ns = read_signed(&figures->period_ns),
        .latency_ns = read_signed(&figures->latency_ns),
        .period_changes = server_stats_get(&figures->period_changes),
        .sm_hz = server_stats_get(&figures->sm_hz),
        .sm_most_hz = server_stats_get(&figures->sm_most_hz),
        .celsius = server_stats_get(&figures->celsius),
        .copy_up = read_stage(&figures->up, batches),
        .kernel = read_stage(&figures->kernel, batches),
        .copy_down = read_stage(&figures->down, batches),
        .whole = read_stage(&figures->batch, batches),
        .notice = read_stage(&figures->notice, batches),
    };
    const uint32_t reasons = (uint32_t)server_stats_get(&figures->reasons);
    target->throttled = (reasons & GPU_NVML_THROTTLED) != 0 ? 1 : 0;
    if (target->sm_hz > 0)
        (void)gpu_nvml_reasons_text(reasons, target->throttled_by, sizeof target->throttled_by);
    server_gpu_fault_text(gpu, target->fault, sizeof target->fault);
}

static void read_gpus(const struct server *server, struct server_snapshot *snapshot)
{
    core_ns now_ns = core_time_now_ns();
    for (uint32_t i = 0; i < server->gpu_count; i++) {
        read_gpu(server->gpus[i], now_ns, &snapshot->gpus[i]);
        core_histogram_merge(&snapshot->batch, &server_gpu_figures(server->gpus[i])->batch_ns);
    }
}

static void read_planner(const struct server *server, struct server_snapshot *snapshot)
{
    const struct server_planner_figures *figures = server_planner_figures(server->planner);
    snapshot->moved = server_stats_get(&figures->moved);
    snapshot->stayed = server_stats_get(&figures->stayed);
    snapshot->held_max_ns = read_signed(&figures->held_max_ns);
    snapshot->checked = server_stats_get(&figures->checked);
    snapshot->rejected = server_stats_get(&figures->rejected);
}

static void read_arrivals(const struct server *server, struct server_snapshot *snapshot)
{
    for (uint32_t l = 0; l < server->listener_count; l++) {
        struct server_snapshot_listener *target = &snapshot->listeners[l];
        core_address_format(&server->listeners[l].bound, target->address, sizeof target->address);
        for (int i = 0; i < SERVER_TURNED_COUNT; i++) {
            target->turned[i] = server_stats_get(&server->listeners[l].turned[i]);
            snapshot->turned[i] += target->turned[i];
        }
    }
    snapshot->handshakes = atomic_load_explicit(&server->places.handshakes, memory_order_relaxed);
    snapshot->handshakes_done = server_stats_get(&server->handshakes_done);
}

core_status server_snapshot_take(const struct server *server, struct server_snapshot **snapshot)
{
    struct server_snapshot *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return CORE_NO_MEMORY;
    fresh->ios = calloc(server->io_count, sizeof *fresh->ios);
    fresh->workers = calloc(server->worker_count, sizeof *fresh->workers);
    fresh->gpus = calloc(server->gpu_count + 1, sizeof *fresh->gpus);
    fresh->unit_count = server_units(server);
    fresh->units = calloc(fresh->unit_count, sizeof *fresh->units);
    fresh->listener_count = server->listener_count;
    fresh->listeners = calloc(fresh->listener_count, sizeof *fresh->listeners);
    if (fresh->ios == NULL || fresh->workers == NULL || fresh->gpus == NULL || fresh->units == NULL ||
        fresh->listeners == NULL) {
        server_snapshot_free(fresh);
        return CORE_NO_MEMORY;
    }
    fresh->started_ns = server->started_ns;
    fresh->started_s = server->started_s;
    fresh->uptime_ns = core_time_now_ns() - server->started_ns;
    server_process_poll(&fresh->process);
    fresh->log_lost = core_log_lost();
    fresh->draining = atomic_load_explicit(&server->draining, memory_order_relaxed);
    fresh->cores = server->cores.thousandths / 1000.0;
    fresh->core_share = server_cores_share(&server->cores) / 1000.0;
    fresh->engine = server->engine->name;
    fresh->profile = server->profile->name;
    fresh->profile_doubt = server->profile_doubt;
    fresh->burst_bound_ns = perfmodel_cpu_burst_ns(server->profile);
    fresh->io_count = server->io_count;
    fresh->worker_count = server->worker_count;
    fresh->gpu_count = server->gpu_count;
    core_histogram_init(&fresh->latency);
    core_histogram_init(&fresh->turn);
    core_histogram_init(&fresh->slack);
    core_histogram_init(&fresh->gpu_slack);
    core_histogram_init(&fresh->batch);
    core_histogram_init(&fresh->admission);
    core_histogram_init(&fresh->in_force);
    read_ios(server, fresh);
    read_workers(server, fresh);
    read_gpus(server, fresh);
    read_planner(server, fresh);
    read_arrivals(server, fresh);
    for (uint32_t unit = 0; unit < fresh->unit_count; unit++)
        read_unit(server, unit, fresh);
    *snapshot = fresh;
    return CORE_OK;
}

const struct server_snapshot_unit *server_snapshot_unit_in_row(const struct server_snapshot *snapshot,
                                                               uint32_t row)
{
    uint32_t workers = snapshot->worker_count, fallback = workers + snapshot->gpu_count;
    uint32_t unit = row < workers ? row : row == workers ? fallback : row - 1;
    return &snapshot->units[unit];
}

void server_snapshot_free(struct server_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    free(snapshot->ios);
    free(snapshot->workers);
    free(snapshot->gpus);
    free(snapshot->units);
    free(snapshot->listeners);
    free(snapshot);
}
