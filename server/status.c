#include "server/status.h"

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
    return json_pack("{sI sI sI sI sI sI sI sI sf sf}", "connections", whole(counts->connections), "streams",
                     whole(counts->streams), "packets", whole(counts->packets), "bytes", whole(counts->bytes),
                     "met", whole(counts->met), "missed", whole(counts->missed), "reader_late",
                     whole(counts->reader_late), "policed", whole(counts->policed), "utilisation",
                     share(io->utilisation_ppb), "cpu_s", seconds(io->cpu_ns));
}

static json_t *worker_json(const struct server_snapshot_worker *worker, core_ns burst_bound_ns)
{
    return json_pack("{sI sf sf sI sI sI sf sf sf}", "streams", whole(worker->streams), "utilisation",
                     share(worker->utilisation_ppb), "headroom", share(worker->headroom_ppb), "bursts",
                     whole(worker->bursts), "pieces", whole(worker->pieces), "packets",
                     whole(worker->packets), "burst_max_us", us(worker->burst_max_ns), "burst_bound_us",
                     us(burst_bound_ns), "cpu_s", seconds(worker->cpu_ns));
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

static json_t *totals_json(const struct server_snapshot *snapshot)
{
    const struct server_counts *totals = &snapshot->totals;
    return json_pack("{sI sI sI sI sI sI sI sI sI sI sI sI sI so so so}", "connections",
                     whole(totals->connections), "streams", whole(totals->streams), "opened",
                     whole(totals->opened), "refused", whole(totals->refused), "packets",
                     whole(totals->packets), "bytes", whole(totals->bytes), "met", whole(totals->met),
                     "missed", whole(totals->missed), "reader_late", whole(totals->reader_late), "policed",
                     whole(totals->policed), "rejected", whole(totals->rejected), "lost", whole(totals->lost),
                     "errors", whole(totals->errors), "slack_us", slack_json(&snapshot->slack), "latency_us",
                     latency_json(&snapshot->latency), "admission_us", admission_json(&snapshot->admission));
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

static char *dump(json_t *object)
{
    char *text = object == NULL ? NULL : json_dumps(object, DUMP_FLAGS);
    json_decref(object);
    return text;
}

char *server_status_text(const struct server_snapshot *snapshot)
{
    return dump(json_pack("{ss sf ss ss ss so so so}", "version", MILLRACE_VERSION, "uptime_s",
                          seconds(snapshot->uptime_ns), "state", snapshot->draining ? "draining" : "serving",
                          "engine", snapshot->engine, "profile", snapshot->profile, "io_threads",
                          ios_json(snapshot), "workers", workers_json(snapshot), "totals",
                          totals_json(snapshot)));
}

char *server_status_stream_text(const struct server_listing_row *row)
{
    char unit[24];
    json_t *slack =
        row->slack_minimum_ns == CORE_NS_NEVER ? json_null() : json_real(us(row->slack_minimum_ns));

    snprintf(unit, sizeof unit, "cpu-%u", row->worker);
    return dump(json_pack("{sI ss sI ss sI sf sf sI sI sI sI sI so}", "connection", whole(row->connection),
                          "peer", row->peer, "stream", whole(row->stream), "unit", unit, "packet_bytes",
                          whole(row->spec.packet_bytes), "interval_us", us(row->spec.interval_ns),
                          "latency_us", us(row->spec.latency_ns), "packets", whole(row->totals.packets),
                          "bytes", whole(row->totals.bytes), "met", whole(row->totals.met), "missed",
                          whole(row->totals.missed), "policed", whole(row->policed), "slack_min_us", slack));
}
