#include "server/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum unit { COUNT, SECONDS, RATIO }; /* of the member: uint64_t, core_ns, or parts per billion */

/* One figure of every I/O thread or of every worker. */
struct metric {
    const char *name, *type, *help;
    enum unit unit;
    size_t offset;
};

#define IO(member) offsetof(struct server_snapshot_io, member)

static const struct metric io_metrics[] = {
    {"connections", "gauge", "Connections open now.", COUNT, IO(counts.connections)},
    {"streams", "gauge", "Streams open now.", COUNT, IO(counts.streams)},
    {"streams_opened_total", "counter", "Streams opened.", COUNT, IO(counts.opened)},
    {"requests_refused_total", "counter", "OPEN and QUERY answered with REFUSED.", COUNT, IO(counts.refused)},
    {"packets_total", "counter", "Packets encrypted and handed to their socket.", COUNT, IO(counts.packets)},
    {"bytes_total", "counter", "Bytes of ciphertext handed to their socket.", COUNT, IO(counts.bytes)},
    {"deadlines_met_total", "counter", "Packets whose deadline was met.", COUNT, IO(counts.met)},
    {"deadlines_missed_total", "counter", "Packets whose deadline was missed.", COUNT, IO(counts.missed)},
    {"reader_late_total", "counter", "Packets ready in time that only their reader kept waiting (of met).",
     COUNT, IO(counts.reader_late)},
    {"policed_total", "counter", "Packets that came faster than their contract and were held back.", COUNT,
     IO(counts.policed)},
    {"rejected_total", "counter", "Packets answered with a status other than OK.", COUNT,
     IO(counts.rejected)},
    {"lost_total", "counter", "Packets received whole and not delivered.", COUNT, IO(counts.lost)},
    {"errors_total", "counter", "ERROR frames sent.", COUNT, IO(counts.errors)},
    {"io_promised_ratio", "gauge", "Share of the I/O thread that is promised to streams.", RATIO,
     IO(utilisation_ppb)},
    {"io_cpu_seconds_total", "counter", "CPU time of the I/O thread.", SECONDS, IO(cpu_ns)},
};

#define WORKER(member) offsetof(struct server_snapshot_worker, member)

static const struct metric worker_metrics[] = {
    {"worker_streams", "gauge", "Streams placed on the worker.", COUNT, WORKER(streams)},
    {"worker_promised_ratio", "gauge", "Share of the worker that is promised to streams.", RATIO,
     WORKER(utilisation_ppb)},
    {"worker_headroom_ratio", "gauge", "Smallest share of any window of time that is not promised.", RATIO,
     WORKER(headroom_ppb)},
    {"worker_bursts_total", "counter", "Bursts encrypted.", COUNT, WORKER(bursts)},
    {"worker_pieces_total", "counter", "Pieces of packets encrypted.", COUNT, WORKER(pieces)},
    {"worker_packets_total", "counter", "Packets encrypted.", COUNT, WORKER(packets)},
    {"worker_bytes_total", "counter", "Bytes encrypted.", COUNT, WORKER(bytes)},
    {"worker_busy_seconds_total", "counter", "Time spent inside bursts.", SECONDS, WORKER(busy_ns)},
    {"worker_burst_max_seconds", "gauge", "Longest burst since the start.", SECONDS, WORKER(burst_max_ns)},
    {"worker_cpu_seconds_total", "counter", "CPU time of the worker's thread.", SECONDS, WORKER(cpu_ns)},
};

static void write_head(FILE *text, const char *name, const char *type, const char *help)
{
    fprintf(text, "# HELP millrace_%s %s\n# TYPE millrace_%s %s\n", name, help, name, type);
}

static double seconds(core_ns time_ns)
{
    return (double)time_ns / (double)CORE_NS_PER_S;
}

static void write_figure(FILE *text, enum unit unit, const void *member)
{
    if (unit == COUNT)
        fprintf(text, "%" PRIu64 "\n", *(const uint64_t *)member);
    else if (unit == SECONDS)
        fprintf(text, "%.12g\n", seconds(*(const core_ns *)member));
    else
        fprintf(text, "%.12g\n", (double)*(const int64_t *)member / 1e9);
}

static void write_threads(FILE *text, const struct metric *metric, const char *label, const void *first,
                          uint32_t count, size_t size)
{
    write_head(text, metric->name, metric->type, metric->help);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(text, "millrace_%s{%s=\"%u\"} ", metric->name, label, i);
        write_figure(text, metric->unit, (const char *)first + i * size + metric->offset);
    }
}

static void write_single(FILE *text, const char *name, const char *type, const char *help, double value)
{
    write_head(text, name, type, help);
    fprintf(text, "millrace_%s %.12g\n", name, value);
}

/* Upper edges of the buckets. The first one of slack, 0, holds the misses. */
static const core_ns edges_ns[] = {
    0,
    10 * CORE_NS_PER_US,
    25 * CORE_NS_PER_US,
    50 * CORE_NS_PER_US,
    100 * CORE_NS_PER_US,
    250 * CORE_NS_PER_US,
    500 * CORE_NS_PER_US,
    1 * CORE_NS_PER_MS,
    2500 * CORE_NS_PER_US,
    5 * CORE_NS_PER_MS,
    10 * CORE_NS_PER_MS,
    25 * CORE_NS_PER_MS,
    50 * CORE_NS_PER_MS,
    100 * CORE_NS_PER_MS,
    250 * CORE_NS_PER_MS,
    500 * CORE_NS_PER_MS,
    1 * CORE_NS_PER_S,
    10 * CORE_NS_PER_S,
};

static void write_histogram(FILE *text, const char *name, const char *help,
                            const struct core_histogram *histogram)
{
    uint64_t all = core_histogram_count_within(histogram, CORE_NS_NEVER);

    write_head(text, name, "histogram", help);
    for (size_t i = 0; i < sizeof edges_ns / sizeof edges_ns[0]; i++)
        fprintf(text, "millrace_%s_bucket{le=\"%.12g\"} %" PRIu64 "\n", name, seconds(edges_ns[i]),
                core_histogram_count_within(histogram, edges_ns[i]));
    fprintf(text, "millrace_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, all);
    fprintf(text, "millrace_%s_sum %.12g\n", name,
            seconds(atomic_load_explicit(&histogram->sum_ns, memory_order_relaxed)));
    fprintf(text, "millrace_%s_count %" PRIu64 "\n", name, all);
}

/* A label's value: backslash, quote and line end are escaped. */
static void write_label(FILE *text, const char *name, const char *value)
{
    fprintf(text, "%s=\"", name);
    for (; *value != '\0'; value++) {
        if (*value == '\\' || *value == '"')
            fprintf(text, "\\%c", *value);
        else if (*value == '\n')
            fprintf(text, "\\n");
        else
            fputc(*value, text);
    }
    fputc('"', text);
}

static void write_info(FILE *text, const struct server_snapshot *snapshot)
{
    write_head(text, "build_info", "gauge", "Always 1; what runs here is in the labels.");
    fprintf(text, "millrace_build_info{");
    write_label(text, "version", MILLRACE_VERSION);
    fputc(',', text);
    write_label(text, "engine", snapshot->engine);
    fputc(',', text);
    write_label(text, "profile", snapshot->profile);
    fprintf(text, "} 1\n");
}

static void write_all(FILE *text, const struct server_snapshot *snapshot)
{
    write_info(text, snapshot);
    write_single(text, "uptime_seconds", "gauge", "Time since the start.", seconds(snapshot->uptime_ns));
    write_single(text, "draining", "gauge", "1 while the server finishes what it accepted before it stops.",
                 snapshot->draining ? 1 : 0);
    write_single(text, "cpu_seconds_total", "counter", "CPU time of the whole process.",
                 seconds(snapshot->process_cpu_ns));
    for (size_t i = 0; i < sizeof io_metrics / sizeof io_metrics[0]; i++)
        write_threads(text, &io_metrics[i], "io", snapshot->ios, snapshot->io_count, sizeof *snapshot->ios);
    for (size_t i = 0; i < sizeof worker_metrics / sizeof worker_metrics[0]; i++)
        write_threads(text, &worker_metrics[i], "worker", snapshot->workers, snapshot->worker_count,
                      sizeof *snapshot->workers);
    write_single(text, "worker_burst_bound_seconds", "gauge",
                 "No burst may take longer: what every promise reckons with.",
                 seconds(snapshot->burst_bound_ns));
    write_histogram(text, "latency_seconds", "From a packet's eligible time to its hand-over to the socket.",
                    &snapshot->latency);
    write_histogram(text, "slack_seconds", "What was left of a packet's time at its hand-over; 0: missed.",
                    &snapshot->slack);
    write_histogram(text, "admission_seconds", "From an OPEN or QUERY to its answer.", &snapshot->admission);
}

char *server_metrics_text(const struct server_snapshot *snapshot, size_t *bytes)
{
    char *memory = NULL;
    FILE *text = open_memstream(&memory, bytes);
    if (text == NULL)
        return NULL;
    write_all(text, snapshot);
    int failed = ferror(text);
    if (fclose(text) != 0 || failed) {
        free(memory);
        return NULL;
    }
    return memory;
}
