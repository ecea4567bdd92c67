#include "server/admin/status_json.h"

#include <jansson.h>

#define DUMP_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(12))

static double us(core_ns time_ns)
{
    return (double)time_ns / (double)CORE_NS_PER_US;
}

static double seconds(core_ns time_ns)
{
    return (double)time_ns / (double)CORE_NS_PER_S;
}

static double share(int64_t ppb)
{
    return (double)ppb / 1e9;
}

/* Counters stay far below 2^63. */
static json_int_t whole(uint64_t count)
{
    return (json_int_t)count;
}

/* Where memory ends inside a json_pack it fails as a whole, also through its members. */
static json_t *io_json(const struct server_snapshot_io *io)
{
    const struct server_counts *counts = &io->counts;
    return json_pack("{sI sI sI sI sI sI sI sI sf sf sf sf sf sf}", "connections", whole(counts->connections),
                     "streams", whole(counts->streams), "packets", whole(counts->packets), "bytes",
                     whole(counts->bytes), "met", whole(counts->met), "missed", whole(counts->missed),
                     "reader_late", whole(counts->reader_late), "policed", whole(counts->policed),
                     "utilisation", share(io->utilisation_ppb), "cpu_s", seconds(io->cpu_ns), "turn_max_us",
                     us(io->turn_max_ns), "excess_us", us(io->excess_ns), "lost_us", us(io->lost_ns),
                     "overload_us", us(io->level_ns));
}

static json_t *worker_json(const struct server_snapshot_worker *worker, core_ns burst_bound_ns)
{
    return json_pack("{sI sf sf sI sf sI sI sI sf sf sI sf sf}", "streams", whole(worker->streams),
                     "utilisation", share(worker->utilisation_ppb), "headroom", share(worker->headroom_ppb),
                     "backups", whole(worker->backups), "reserved", share(worker->reserved_ppb), "bursts",
                     whole(worker->bursts), "pieces", whole(worker->pieces), "packets",
                     whole(worker->packets), "burst_max_us", us(worker->burst_max_ns), "burst_bound_us",
                     us(burst_bound_ns), "exceeded", whole(worker->bursts_exceeded), "excess_us",
                     us(worker->burst_excess_ns), "cpu_s", seconds(worker->cpu_ns));
}

static double percentile_us(const struct core_histogram *histogram, double percent)
{
    return us(core_histogram_percentile_ns(histogram, percent));
}

static json_t *slack_json(const struct core_histogram *slack)
{
    return json_pack("{sf sf sf sf sf}", "p0_01", percentile_us(slack, 0.01), "p1", percentile_us(slack, 1),
                     "p50", percentile_us(slack, 50), "p99", percentile_us(slack, 99), "min",
                     us(core_histogram_minimum_ns(slack)));
}

static json_t *latency_json(const struct core_histogram *latency)
{
    return json_pack("{sf sf sf sf sf}", "p50", percentile_us(latency, 50), "p99", percentile_us(latency, 99),
                     "p99_9", percentile_us(latency, 99.9), "p99_99", percentile_us(latency, 99.99), "max",
                     us(core_histogram_maximum_ns(latency)));
}

static json_t *admission_json(const struct core_histogram *admission)
{
    return json_pack("{sf sf sf}", "p50", percentile_us(admission, 50), "p99", percentile_us(admission, 99),
                     "max", us(core_histogram_maximum_ns(admission)));
}

/* Misses by cause; none has the cause none. */
static json_t *missed_by_json(const struct server_snapshot *snapshot)
{
    json_t *object = json_object();
    for (int i = SERVER_CAUSE_NONE + 1; i < SERVER_CAUSES; i++)
        if (json_object_set_new(object, server_cause_name((enum server_cause)i),
                                json_integer(whole(snapshot->missed_by[i]))) != 0)
            goto failed;
    return object;
failed:
    json_decref(object);
    return NULL;
}

static json_t *totals_json(const struct server_snapshot *snapshot)
{
    const struct server_counts *totals = &snapshot->totals;
    return json_pack(
        "{sI sI sI sI sI sI sI sI sI sI sI sI sI sI sI sI sI sI sI sI sI sI sI so so so so so}",
        "connections", whole(totals->connections), "streams", whole(totals->streams), "opened",
        whole(totals->opened), "refused", whole(totals->refused), "modified", whole(totals->modified),
        "modifies_refused", whole(totals->modifies_refused), "idled", whole(totals->idled), "packets",
        whole(totals->packets), "bytes", whole(totals->bytes), "met", whole(totals->met), "missed",
        whole(totals->missed), "reader_late", whole(totals->reader_late), "policed", whole(totals->policed),
        "rejected", whole(totals->rejected), "lost", whole(totals->lost), "errors", whole(totals->errors),
        "gpu_packets", whole(totals->gpu_packets), "diverted", whole(totals->diverted), "diverted_late",
        whole(totals->diverted_late), "guaranteed", whole(totals->guaranteed), "guaranteed_missed",
        whole(totals->guaranteed_missed), "audited", whole(totals->audited), "corrupt",
        whole(totals->corrupt), "missed_by", missed_by_json(snapshot), "slack_us",
        slack_json(&snapshot->slack), "latency_us", latency_json(&snapshot->latency), "admission_us",
        admission_json(&snapshot->admission), "in_force_us", admission_json(&snapshot->in_force));
}

static json_t *ios_json(const struct server_snapshot *snapshot)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < snapshot->io_count; i++)
        if (json_array_append_new(array, io_json(&snapshot->ios[i])) != 0)
            goto failed;
    return array;
failed:
    json_decref(array);
    return NULL;
}

static json_t *workers_json(const struct server_snapshot *snapshot)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < snapshot->worker_count; i++)
        if (json_array_append_new(array, worker_json(&snapshot->workers[i], snapshot->burst_bound_ns)) != 0)
            goto failed;
    return array;
failed:
    json_decref(array);
    return NULL;
}

static json_t *stage_json(const struct server_snapshot_stage *stage, uint64_t batches)
{
    double mean_us = batches > 0 ? us(stage->total_ns) / (double)batches : 0;
    return json_pack("{sf sf sf sf sI sf}", "bound_us", us(stage->bound_ns), "max_us", us(stage->max_ns),
                     "mean_us", mean_us, "worst", share(stage->worst_ppb), "exceeded", whole(stage->exceeded),
                     "excess_us", us(stage->excess_ns));
}

static json_t *gpu_json(const struct server_snapshot_gpu *gpu)
{
    return json_pack(
        "{ss ss sf sI ss sI sI sI sI sI sf sI sI sI sI sI sI sI sI sI sf sI sf so so so so}", "card",
        gpu->card, "state", gpu->up != 0 ? "up" : "down", "state_s", seconds(gpu->state_ns), "process",
        whole(gpu->process), "fault", gpu->fault, "faults", whole(gpu->faults), "restarts",
        whole(gpu->restarts), "streams", whole(gpu->streams), "guaranteed", whole(gpu->guaranteed), "backups",
        whole(gpu->backups), "reserved", share(gpu->reserved_ppb), "batches", whole(gpu->batches), "packets",
        whole(gpu->packets), "bytes", whole(gpu->bytes), "lost_batches", whole(gpu->lost_batches), "late",
        whole(gpu->late), "full", whole(gpu->full), "held_up", whole(gpu->held_up), "batch_bytes",
        whole(gpu->batch_bytes), "arena_bytes", whole(gpu->arena_bytes), "period_us", us(gpu->period_ns),
        "period_changes", whole(gpu->period_changes), "latency_bound_us", us(gpu->latency_ns), "copy_up",
        stage_json(&gpu->copy_up, gpu->batches), "kernel", stage_json(&gpu->kernel, gpu->batches),
        "copy_down", stage_json(&gpu->copy_down, gpu->batches), "whole",
        stage_json(&gpu->whole, gpu->batches));
}

static json_t *gpus_json(const struct server_snapshot *snapshot)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < snapshot->gpu_count; i++)
        if (json_array_append_new(array, gpu_json(&snapshot->gpus[i])) != 0)
            goto failed;
    return array;
failed:
    json_decref(array);
    return NULL;
}

static json_t *unit_json(const struct server_snapshot_unit *unit)
{
    return json_pack("{ss sI sI sI sf sf sf so}", "unit", unit->name, "packets",
                     whole(core_histogram_total(&unit->slack) + unit->reader_late), "missed",
                     whole(unit->missed), "reader_late", whole(unit->reader_late), "lost_us",
                     us(unit->lost_ns), "overload_us", us(unit->level_ns), "held_back",
                     share(unit->held_back_ppb), "slack_us", slack_json(&unit->slack));
}

static json_t *units_json(const struct server_snapshot *snapshot)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < snapshot->unit_count; i++)
        if (json_array_append_new(array, unit_json(&snapshot->units[i])) != 0)
            goto failed;
    return array;
failed:
    json_decref(array);
    return NULL;
}

static const char *holder_name(const struct server_snapshot *snapshot, uint32_t holder, char text[16])
{
    if (holder == SERVER_WORST_NOBODY)
        return "";
    if (holder < SERVER_WORST_IO)
        return snapshot->units[holder].name;
    snprintf(text, 16, "io-%u", holder - SERVER_WORST_IO);
    return text;
}

static json_t *worst_json(const struct server_snapshot *snapshot, const struct server_worst_packet *packet)
{
    const core_ns *stage_ns = packet->stage_ns;
    char holder[16];
    json_t *stages =
        json_pack("{sf sf sf sf sf sf}", "hand_over", us(stage_ns[SERVER_WORST_HAND_OVER]), "queue",
                  us(stage_ns[SERVER_WORST_QUEUE]), "copy_up", us(stage_ns[SERVER_WORST_COPY_UP]), "encrypt",
                  us(stage_ns[SERVER_WORST_ENCRYPT]), "copy_down", us(stage_ns[SERVER_WORST_COPY_DOWN]),
                  "delivery", us(stage_ns[SERVER_WORST_DELIVERY]));
    return json_pack("{sI sI sI ss sf sf sf sf sb ss ss sf so}", "connection", whole(packet->connection),
                     "stream", whole(packet->stream), "sequence", whole(packet->sequence), "unit",
                     snapshot->units[packet->unit].name, "slack_us", us(packet->slack_ns), "latency_us",
                     us(packet->bound_ns), "policed_us", us(packet->waited_ns), "at_s",
                     seconds(packet->at_ns - snapshot->started_ns), "diverted", packet->diverted != 0,
                     "cause", server_cause_name((enum server_cause)packet->cause), "held_by",
                     holder_name(snapshot, packet->holder, holder), "held_us", us(packet->held_ns),
                     "stages_us", stages);
}

static json_t *worsts_json(const struct server_snapshot *snapshot)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < snapshot->worst_count; i++)
        if (json_array_append_new(array, worst_json(snapshot, &snapshot->worst[i])) != 0)
            goto failed;
    return array;
failed:
    json_decref(array);
    return NULL;
}

static json_t *moves_json(const struct server_snapshot *snapshot)
{
    return json_pack("{sI sI sf}", "moved", whole(snapshot->moved), "given_up", whole(snapshot->stayed),
                     "held_max_us", us(snapshot->held_max_ns));
}

static json_t *turned_json(const struct server_snapshot *snapshot)
{
    json_t *object = json_object();
    for (int i = 0; i < SERVER_TURNED_COUNT; i++)
        if (json_object_set_new(object, server_turned_name((enum server_turned)i),
                                json_integer(whole(snapshot->turned[i]))) != 0)
            goto failed;
    return object;
failed:
    json_decref(object);
    return NULL;
}

static json_t *arrivals_json(const struct server_snapshot *snapshot)
{
    return json_pack("{sI sI so}", "tls_handshakes", whole(snapshot->handshakes), "tls_established",
                     whole(snapshot->handshakes_done), "turned", turned_json(snapshot));
}

static char *dump(json_t *object)
{
    char *text = object == NULL ? NULL : json_dumps(object, DUMP_FLAGS);
    json_decref(object);
    return text;
}

char *server_status_text(const struct server_snapshot *snapshot)
{
    return dump(json_pack(
        "{ss sf ss ss ss ss sf sf sI so so so so so so so so}", "version", MILLRACE_VERSION, "uptime_s",
        seconds(snapshot->uptime_ns), "state", snapshot->draining ? "draining" : "serving", "engine",
        snapshot->engine, "profile", snapshot->profile, "profile_doubt", snapshot->profile_doubt, "cores",
        snapshot->cores, "core_share", snapshot->core_share, "log_lost", whole(snapshot->log_lost),
        "io_threads", ios_json(snapshot), "workers", workers_json(snapshot), "gpus", gpus_json(snapshot),
        "units", units_json(snapshot), "moves", moves_json(snapshot), "arrivals", arrivals_json(snapshot),
        "worst", worsts_json(snapshot), "totals", totals_json(snapshot)));
}

static json_t *slack_counts_json(const struct server_stream_account *account)
{
    json_t *array = json_array();
    for (int i = 0; i < SERVER_SLACK_CLASSES; i++)
        if (json_array_append_new(array, json_integer(account->slack[i])) != 0)
            goto failed;
    return array;
failed:
    json_decref(array);
    return NULL;
}

char *server_status_stream_text(const struct server_listing_row *row)
{
    char unit[24], backup[24];
    json_t *slack =
        row->slack_minimum_ns == CORE_NS_NEVER ? json_null() : json_real(us(row->slack_minimum_ns));

    snprintf(unit, sizeof unit, row->on_gpu ? "gpu-%u" : "cpu-%u", row->unit);
    backup[0] = '\0';
    if (row->backed)
        snprintf(backup, sizeof backup, row->backup_on_gpu ? "gpu-%u" : "cpu-%u", row->backup);
    return dump(json_pack("{sI ss sI ss ss ss ss sI sf sf sI sI sI sI sI sI sI so so}", "connection",
                          whole(row->connection), "peer", row->peer, "stream", whole(row->stream), "unit",
                          unit, "state", server_listing_state_name(row->state), "class",
                          row->spec.guaranteed ? "guaranteed" : "standard", "backup", backup, "packet_bytes",
                          whole(row->spec.packet_bytes), "interval_us", us(row->spec.interval_ns),
                          "latency_us", us(row->spec.latency_ns), "packets", whole(row->totals.packets),
                          "bytes", whole(row->totals.bytes), "met", whole(row->totals.met), "missed",
                          whole(row->totals.missed), "policed", whole(row->policed), "reader_late",
                          whole(row->account.reader_late), "fault_late", whole(row->account.fault_late),
                          "slack_min_us", slack, "slack_counts", slack_counts_json(&row->account)));
}
