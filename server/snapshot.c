#include "server/snapshot.h"

#include "perfmodel/cpu.h"
#include "server/io.h"

#include <stdlib.h>

static struct server_counts read_counts(const struct server_stats *stats)
{
    return (struct server_counts){
        .connections = server_stats_get(&stats->connections),
        .streams = server_stats_get(&stats->streams),
        .opened = server_stats_get(&stats->opened),
        .refused = server_stats_get(&stats->refused),
        .packets = server_stats_get(&stats->packets),
        .bytes = server_stats_get(&stats->bytes),
        .met = server_stats_get(&stats->met),
        .missed = server_stats_get(&stats->missed),
        .reader_late = server_stats_get(&stats->reader_late),
        .policed = server_stats_get(&stats->policed),
        .rejected = server_stats_get(&stats->rejected),
        .lost = server_stats_get(&stats->lost),
        .errors = server_stats_get(&stats->errors),
    };
}

static void add_counts(struct server_counts *sum, const struct server_counts *counts)
{
    sum->connections += counts->connections;
    sum->streams += counts->streams;
    sum->opened += counts->opened;
    sum->refused += counts->refused;
    sum->packets += counts->packets;
    sum->bytes += counts->bytes;
    sum->met += counts->met;
    sum->missed += counts->missed;
    sum->reader_late += counts->reader_late;
    sum->policed += counts->policed;
    sum->rejected += counts->rejected;
    sum->lost += counts->lost;
    sum->errors += counts->errors;
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

        target->counts = read_counts(&io->stats);
        target->utilisation_ppb = read_signed(&server_planner_io_load(server->planner, i)->utilisation_ppb);
        target->cpu_ns = read_signed(&io->cpu_ns);
        add_counts(&snapshot->totals, &target->counts);
        core_histogram_merge(&snapshot->latency, &io->stats.latency);
        core_histogram_merge(&snapshot->slack, &io->stats.slack);
        core_histogram_merge(&snapshot->admission, &io->stats.admission);
    }
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
            .bursts = server_stats_get(&counters->bursts),
            .pieces = server_stats_get(&counters->pieces),
            .packets = server_stats_get(&counters->packets),
            .bytes = server_stats_get(&counters->bytes),
            .busy_ns = read_signed(&counters->busy_ns),
            .burst_max_ns = read_signed(&counters->burst_max_ns),
            .cpu_ns = cpu_worker_cpu_time_ns(server->workers[i]),
        };
    }
}

core_status server_snapshot_take(const struct server *server, struct server_snapshot **snapshot)
{
    struct server_snapshot *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return CORE_NO_MEMORY;
    fresh->ios = calloc(server->io_count, sizeof *fresh->ios);
    fresh->workers = calloc(server->worker_count, sizeof *fresh->workers);
    if (fresh->ios == NULL || fresh->workers == NULL) {
        server_snapshot_free(fresh);
        return CORE_NO_MEMORY;
    }
    fresh->uptime_ns = core_time_now_ns() - server->started_ns;
    fresh->process_cpu_ns = core_time_process_cpu_ns();
    fresh->draining = atomic_load_explicit(&server->draining, memory_order_relaxed);
    fresh->engine = server->engine->name;
    fresh->profile = server->profile->name;
    fresh->burst_bound_ns = perfmodel_cpu_burst_ns(server->profile);
    fresh->io_count = server->io_count;
    fresh->worker_count = server->worker_count;
    core_histogram_init(&fresh->latency);
    core_histogram_init(&fresh->slack);
    core_histogram_init(&fresh->admission);
    read_ios(server, fresh);
    read_workers(server, fresh);
    *snapshot = fresh;
    return CORE_OK;
}

void server_snapshot_free(struct server_snapshot *snapshot)
{
    if (snapshot == NULL)
        return;
    free(snapshot->ios);
    free(snapshot->workers);
    free(snapshot);
}
