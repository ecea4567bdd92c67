#include "server/admin/prometheus.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum unit { COUNT, SECONDS, RATIO }; /* of the member: uint64_t, core_ns, or parts per billion */

/* One figure of every I/O thread, of every worker, or of every GPU. */
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
    {"modified_total", "counter", "MODIFY answered with MODIFIED.", COUNT, IO(counts.modified)},
    {"keys_denied_total", "counter", "OPEN and QUERY with a named key that is not for who asked.", COUNT,
     IO(counts.keys_denied)},
    {"streams_idled_total", "counter", "Streams closed because they sent nothing for too long.", COUNT,
     IO(counts.idled)},
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
    {"gpu_delivered_total", "counter", "Packets encrypted by a GPU and handed to their socket.", COUNT,
     IO(counts.gpu_packets)},
    {"gpu_diverted_total", "counter", "Packets of GPU streams that went another way because of a fault.",
     COUNT, IO(counts.diverted)},
    {"gpu_fault_late_total", "counter", "Of the diverted packets, those that missed their deadline.", COUNT,
     IO(counts.diverted_late)},
    {"guaranteed_packets_total", "counter", "Packets of guaranteed streams handed to their socket.", COUNT,
     IO(counts.guaranteed)},
    {"guaranteed_missed_total", "counter", "Of these, packets that missed their deadline.", COUNT,
     IO(counts.guaranteed_missed)},
    {"gpu_audited_total", "counter", "Packets of a GPU that were encrypted again to compare.", COUNT,
     IO(counts.audited)},
    {"gpu_corrupt_total", "counter", "Audited packets that were not right.", COUNT, IO(counts.corrupt)},
    {"io_promised_ratio", "gauge", "Share of the I/O thread that is promised to streams.", RATIO,
     IO(utilisation_ppb)},
    {"io_cpu_seconds_total", "counter", "CPU time of the I/O thread.", SECONDS, IO(cpu_ns)},
    {"io_turn_excess_seconds_total", "counter", "Time that its turns took beyond their bound.", SECONDS,
     IO(excess_ns)},
    {"io_lost_seconds_total", "counter", "Time that its turns took beyond what bounds and margins allow.",
     SECONDS, IO(lost_ns)},
    {"io_overload_seconds", "gauge", "The most of that in a tenth of a second within the quiet time.",
     SECONDS, IO(level_ns)},
};

#define WORKER(member) offsetof(struct server_snapshot_worker, member)

static const struct metric worker_metrics[] = {
    {"worker_streams", "gauge", "Streams placed on the worker.", COUNT, WORKER(streams)},
    {"worker_promised_ratio", "gauge", "Share of the worker that is promised to streams.", RATIO,
     WORKER(utilisation_ppb)},
    {"worker_headroom_ratio", "gauge", "Smallest share of any window of time that is not promised.", RATIO,
     WORKER(headroom_ppb)},
    {"worker_backups", "gauge", "Streams of GPUs for whose loss the worker holds room.", COUNT,
     WORKER(backups)},
    {"worker_reserved_ratio", "gauge",
     "Share of the worker that is held for the loss of a GPU, of the worst one.", RATIO,
     WORKER(reserved_ppb)},
    {"worker_bursts_total", "counter", "Bursts encrypted.", COUNT, WORKER(bursts)},
    {"worker_pieces_total", "counter", "Pieces of packets encrypted.", COUNT, WORKER(pieces)},
    {"worker_packets_total", "counter", "Packets encrypted.", COUNT, WORKER(packets)},
    {"worker_bytes_total", "counter", "Bytes encrypted.", COUNT, WORKER(bytes)},
    {"worker_busy_seconds_total", "counter", "Time spent inside bursts.", SECONDS, WORKER(busy_ns)},
    {"worker_bursts_exceeded_total", "counter", "Bursts that took longer than their bound.", COUNT,
     WORKER(bursts_exceeded)},
    {"worker_burst_excess_seconds_total", "counter", "Time that these bursts took beyond it.", SECONDS,
     WORKER(burst_excess_ns)},
    {"worker_cpu_seconds_total", "counter", "CPU time of the worker's thread.", SECONDS, WORKER(cpu_ns)},
};

#define GPU(member) offsetof(struct server_snapshot_gpu, member)

static const struct metric gpu_metrics[] = {
    {"gpu_up", "gauge", "1 while the card is in service.", COUNT, GPU(up)},
    {"gpu_streams", "gauge", "Streams placed on the card.", COUNT, GPU(streams)},
    {"gpu_backups", "gauge", "Streams of other cards for whose loss the card holds room.", COUNT,
     GPU(backups)},
    {"gpu_reserved_ratio", "gauge",
     "Share of the card's busiest stage that is held for the loss of another one, of the worst one.", RATIO,
     GPU(reserved_ppb)},
    {"gpu_period_seconds", "gauge", "Period of its batches.", SECONDS, GPU(period_ns)},
    {"gpu_period_changes_total", "counter", "Times that the period changed to another one.", COUNT,
     GPU(period_changes)},
    {"gpu_latency_bound_seconds", "gauge", "Period and stages of a batch, at the most.", SECONDS,
     GPU(latency_ns)},
    {"gpu_batches_total", "counter", "Batches that came back.", COUNT, GPU(batches)},
    {"gpu_packets_total", "counter", "Packets in these batches.", COUNT, GPU(packets)},
    {"gpu_bytes_total", "counter", "Bytes of these packets.", COUNT, GPU(bytes)},
    {"gpu_faults_total", "counter", "Times the card went out of service.", COUNT, GPU(faults)},
    {"gpu_restarts_total", "counter", "Times it came back.", COUNT, GPU(restarts)},
    {"gpu_lost_batches_total", "counter", "Batches that were encrypted elsewhere because of a fault.", COUNT,
     GPU(lost_batches)},
    {"gpu_late_packets_total", "counter", "Packets that reached their batch too late and went into the next.",
     COUNT, GPU(late)},
    {"gpu_full_total", "counter", "Times a packet found no room in its batch.", COUNT, GPU(full)},
    {"gpu_held_up_total", "counter", "Batches that were opened late because no arena was free.", COUNT,
     GPU(held_up)},
    {"gpu_batch_bound_bytes", "gauge", "No batch may be larger.", COUNT, GPU(batch_bytes)},
    {"gpu_arena_bytes", "gauge", "Room for a batch.", COUNT, GPU(arena_bytes)},
    {"gpu_copy_up_bound_seconds", "gauge", "No copy to the card may take longer.", SECONDS,
     GPU(copy_up.bound_ns)},
    {"gpu_copy_up_seconds_total", "counter", "Time of all copies to the card.", SECONDS,
     GPU(copy_up.total_ns)},
    {"gpu_copy_up_exceeded_total", "counter", "Copies to the card that took longer than their bound.", COUNT,
     GPU(copy_up.exceeded)},
    {"gpu_kernel_bound_seconds", "gauge", "No kernel may take longer.", SECONDS, GPU(kernel.bound_ns)},
    {"gpu_kernel_seconds_total", "counter", "Time of all kernels.", SECONDS, GPU(kernel.total_ns)},
    {"gpu_kernel_exceeded_total", "counter", "Kernels that took longer than their bound.", COUNT,
     GPU(kernel.exceeded)},
    {"gpu_copy_down_bound_seconds", "gauge", "No copy back may take longer.", SECONDS,
     GPU(copy_down.bound_ns)},
    {"gpu_copy_down_seconds_total", "counter", "Time of all copies back.", SECONDS, GPU(copy_down.total_ns)},
    {"gpu_copy_down_exceeded_total", "counter", "Copies back that took longer than their bound.", COUNT,
     GPU(copy_down.exceeded)},
    {"gpu_batch_bound_seconds", "gauge", "No batch may take longer from its closing to its last byte.",
     SECONDS, GPU(whole.bound_ns)},
    {"gpu_batch_exceeded_total", "counter", "Batches that took longer than their bound.", COUNT,
     GPU(whole.exceeded)},
    {"gpu_copy_up_excess_seconds_total", "counter", "Time beyond the bound of copies to the card.", SECONDS,
     GPU(copy_up.excess_ns)},
    {"gpu_kernel_excess_seconds_total", "counter", "Time beyond the bound of kernels.", SECONDS,
     GPU(kernel.excess_ns)},
    {"gpu_copy_down_excess_seconds_total", "counter", "Time beyond the bound of copies back.", SECONDS,
     GPU(copy_down.excess_ns)},
    {"gpu_batch_excess_seconds_total", "counter", "Time beyond the bound of batches.", SECONDS,
     GPU(whole.excess_ns)},
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

/* Upper edges of the buckets. The first one of slack, 0, holds the misses, which its sum has as 0, too. */
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

/* labels: of every line, each with a comma behind it; empty: none. */
static void write_buckets(FILE *text, const char *name, const char *labels,
                          const struct core_histogram *histogram)
{
    uint64_t all = core_histogram_count_within(histogram, CORE_NS_NEVER);
    char braces[64] = "";

    if (labels[0] != '\0')
        snprintf(braces, sizeof braces, "{%.*s}", (int)strlen(labels) - 1, labels);
    for (size_t i = 0; i < sizeof edges_ns / sizeof edges_ns[0]; i++)
        fprintf(text, "millrace_%s_bucket{%sle=\"%.12g\"} %" PRIu64 "\n", name, labels, seconds(edges_ns[i]),
                core_histogram_count_within(histogram, edges_ns[i]));
    fprintf(text, "millrace_%s_bucket{%sle=\"+Inf\"} %" PRIu64 "\n", name, labels, all);
    fprintf(text, "millrace_%s_sum%s %.12g\n", name, braces,
            seconds(atomic_load_explicit(&histogram->sum_ns, memory_order_relaxed)));
    fprintf(text, "millrace_%s_count%s %" PRIu64 "\n", name, braces, all);
}

static void write_histogram(FILE *text, const char *name, const char *help,
                            const struct core_histogram *histogram)
{
    write_head(text, name, "histogram", help);
    write_buckets(text, name, "", histogram);
}

#define UNIT(member) offsetof(struct server_snapshot_unit, member)

static const struct metric unit_metrics[] = {
    {"unit_deadlines_missed_total", "counter", "Packets of the unit that missed.", COUNT, UNIT(missed)},
    {"unit_reader_late_total", "counter",
     "Packets of the unit, ready in time, that only their reader kept waiting.", COUNT, UNIT(reader_late)},
    {"unit_lost_seconds_total", "counter", "Time that the unit took beyond what bounds and margins allow.",
     SECONDS, UNIT(lost_ns)},
    {"unit_overload_seconds", "gauge", "The most of that in a tenth of a second within the quiet time.",
     SECONDS, UNIT(level_ns)},
    {"unit_held_back_ratio", "gauge", "Share of the unit that newcomers are kept from.", RATIO,
     UNIT(held_back_ppb)},
};

static void write_unit_metric(FILE *text, const struct metric *metric, const struct server_snapshot *snapshot)
{
    write_head(text, metric->name, metric->type, metric->help);
    for (uint32_t i = 0; i < snapshot->unit_count; i++) {
        const struct server_snapshot_unit *unit = &snapshot->units[i];
        fprintf(text, "millrace_%s{unit=\"%s\"} ", metric->name, unit->name);
        write_figure(text, metric->unit, (const char *)unit + metric->offset);
    }
}

static void write_unit_histogram(FILE *text, const char *name, const char *help,
                                 const struct server_snapshot *snapshot, size_t offset)
{
    write_head(text, name, "histogram", help);
    for (uint32_t i = 0; i < snapshot->unit_count; i++) {
        char label[32];
        snprintf(label, sizeof label, "unit=\"%s\",", snapshot->units[i].name);
        write_buckets(text, name, label,
                      (const struct core_histogram *)((const char *)&snapshot->units[i] + offset));
    }
}

static void write_units(FILE *text, const struct server_snapshot *snapshot)
{
    for (size_t i = 0; i < sizeof unit_metrics / sizeof unit_metrics[0]; i++)
        write_unit_metric(text, &unit_metrics[i], snapshot);
    write_unit_histogram(text, "unit_slack_seconds", "slack_seconds by the unit that encrypted the packet.",
                         snapshot, UNIT(slack));
    write_unit_histogram(text, "unit_lateness_seconds",
                         "By how much the packets of the unit that missed did so.", snapshot, UNIT(lateness));
}

static void write_worst(FILE *text, const struct server_snapshot *snapshot)
{
    static const char name[] = "worst_slack_seconds";

    write_head(text, name, "gauge", "The packets with the least slack since the start; negative: missed.");
    for (uint32_t i = 0; i < snapshot->worst_count; i++)
        fprintf(text, "millrace_%s{rank=\"%u\"} %.12g\n", name, i + 1, seconds(snapshot->worst[i].slack_ns));
}

/* A label's value: backslash, quote and line end are escaped. */
static void write_label(FILE *text, const char *name, const char *value)
{
    fprintf(text, "%s=\"", name);
    for (; *value != '\0'; value++)
        if (*value == '\\' || *value == '"')
            fprintf(text, "\\%c", *value);
        else if (*value == '\n')
            fprintf(text, "\\n");
        else
            fputc(*value, text);
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

/* The names that every exporter has, and so without ours before them. */
static void write_process(FILE *text, const struct server_snapshot *snapshot)
{
    const struct server_process *process = &snapshot->process;
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"process_cpu_seconds_total", "counter", "CPU time of the whole process.", seconds(process->cpu_ns)},
        {"process_start_time_seconds", "gauge", "Unix time of the start.", snapshot->started_s},
        {"process_resident_memory_bytes", "gauge", "Memory that is resident.",
         (double)process->resident_bytes},
        {"process_open_fds", "gauge", "Descriptors that are open.", (double)process->open_fds},
        {"process_max_fds", "gauge", "No more descriptors can be open.", (double)process->max_fds},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        fprintf(text, "# HELP %s %s\n# TYPE %s %s\n%s %.15g\n", rows[i].name, rows[i].help, rows[i].name,
                rows[i].type, rows[i].name, rows[i].value);
}

static void write_refusals(FILE *text, const struct server_snapshot *snapshot)
{
    static const char *const asked_names[] = {"open", "query", "modify"};
    write_head(text, "requests_refused_total", "counter", "REFUSED, by what was asked and why.");
    for (int asked = 0; asked < SERVER_ASKED_COUNT; asked++)
        for (int code = 1; code < SERVER_REFUSALS; code++)
            fprintf(text, "millrace_requests_refused_total{kind=\"%s\",reason=\"%s\"} %" PRIu64 "\n",
                    asked_names[asked], protocol_refusal_name((enum protocol_refusal)code),
                    snapshot->refused[asked][code]);
}

static void write_arrivals(FILE *text, const struct server_snapshot *snapshot)
{
    write_single(text, "tls_handshakes", "gauge", "TLS handshakes under way.", (double)snapshot->handshakes);
    write_single(text, "tls_handshakes_total", "counter", "TLS connections established.",
                 (double)snapshot->handshakes_done);
    write_head(text, "connections_turned_total", "counter",
               "Connections that came to nothing, by listener and reason.");
    for (uint32_t l = 0; l < snapshot->listener_count; l++)
        for (int i = 0; i < SERVER_TURNED_COUNT; i++) {
            fprintf(text, "millrace_connections_turned_total{");
            write_label(text, "listener", snapshot->listeners[l].address);
            fprintf(text, ",reason=\"%s\"} %" PRIu64 "\n", server_turned_name((enum server_turned)i),
                    snapshot->listeners[l].turned[i]);
        }
}

static void write_missed_by(FILE *text, const struct server_snapshot *snapshot)
{
    write_head(text, "missed_by_cause_total", "counter",
               "Packets that missed, by cause; together deadlines_missed_total.");
    for (int i = SERVER_CAUSE_NONE + 1; i < SERVER_CAUSES; i++)
        fprintf(text, "millrace_missed_by_cause_total{cause=\"%s\"} %" PRIu64 "\n",
                server_cause_name((enum server_cause)i), snapshot->missed_by[i]);
}

static void write_all(FILE *text, const struct server_snapshot *snapshot)
{
    write_info(text, snapshot);
    write_process(text, snapshot);
    write_single(text, "profile_doubtful", "gauge", "1 where the profile is assumed, or of another machine.",
                 snapshot->profile_doubt[0] != '\0' ? 1 : 0);
    write_single(text, "draining", "gauge", "1 while the server finishes what it accepted before it stops.",
                 snapshot->draining ? 1 : 0);
    write_single(text, "log_lost_total", "counter",
                 "Lines of the log that were lost: nobody read it in time.", (double)snapshot->log_lost);
    write_single(text, "moves_total", "counter", "Streams that went to another unit.",
                 (double)snapshot->moved);
    write_single(text, "moves_given_up_total", "counter",
                 "Streams that were to, and found no moment for it in time.", (double)snapshot->stayed);
    write_arrivals(text, snapshot);
    write_refusals(text, snapshot);
    for (size_t i = 0; i < sizeof io_metrics / sizeof io_metrics[0]; i++)
        write_threads(text, &io_metrics[i], "io", snapshot->ios, snapshot->io_count, sizeof *snapshot->ios);
    for (size_t i = 0; i < sizeof worker_metrics / sizeof worker_metrics[0]; i++)
        write_threads(text, &worker_metrics[i], "worker", snapshot->workers, snapshot->worker_count,
                      sizeof *snapshot->workers);
    for (size_t i = 0; snapshot->gpu_count > 0 && i < sizeof gpu_metrics / sizeof gpu_metrics[0]; i++)
        write_threads(text, &gpu_metrics[i], "gpu", snapshot->gpus, snapshot->gpu_count,
                      sizeof *snapshot->gpus);
    write_single(text, "worker_burst_bound_seconds", "gauge",
                 "No burst may take longer: what every promise reckons with.",
                 seconds(snapshot->burst_bound_ns));
    write_histogram(text, "latency_seconds", "From a packet's eligible time to its hand-over to the socket.",
                    &snapshot->latency);
    write_histogram(
        text, "slack_seconds",
        "What was left of a packet's time at its hand-over; 0: missed, see unit_lateness_seconds.",
        &snapshot->slack);
    write_units(text, snapshot);
    write_missed_by(text, snapshot);
    write_worst(text, snapshot);
    if (snapshot->gpu_count > 0) {
        write_histogram(text, "gpu_slack_seconds", "slack_seconds of packets encrypted by a GPU alone.",
                        &snapshot->gpu_slack);
        write_histogram(text, "gpu_batch_seconds", "From a batch's closing to its last byte.",
                        &snapshot->batch);
    }
    write_histogram(text, "io_turn_seconds",
                    "How long an I/O thread was wanted or at work, of each of its turns.", &snapshot->turn);
    write_histogram(text, "admission_seconds", "From an OPEN, QUERY or MODIFY to its decision.",
                    &snapshot->admission);
    write_histogram(text, "in_force_seconds",
                    "From an OPEN or MODIFY that was granted to its being in force.", &snapshot->in_force);
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
