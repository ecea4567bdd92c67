#include "server/admin/prometheus.h"

#include "server/admin/figures.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_head(FILE *text, const char *name, const char *type, const char *help)
{
    fprintf(text, "# HELP millrace_%s %s\n# TYPE millrace_%s %s\n", name, help, name, type);
}

static double seconds(core_ns time_ns)
{
    return (double)time_ns / (double)CORE_NS_PER_S;
}

static void write_figure(FILE *text, const struct server_figure *figure, const void *of)
{
    const void *member = (const char *)of + figure->offset;
    if (figure->kind == SERVER_FIGURE_COUNT)
        fprintf(text, "%" PRIu64 "\n", *(const uint64_t *)member);
    else if (figure->kind == SERVER_FIGURE_SHARE)
        fprintf(text, "%.12g\n", (double)*(const int64_t *)member / 1e9);
    else
        fprintf(text, "%.12g\n", seconds(*(const core_ns *)member));
}

/* Figures of `count` structs of this size; each of them has its number for a label. */
static void write_figures(FILE *text, const struct server_figure *figures, const char *label,
                          const void *first, uint32_t count, size_t size)
{
    for (const struct server_figure *figure = figures; figure->help != NULL; figure++) {
        if (figure->metric == NULL)
            continue;
        write_head(text, figure->metric, figure->type, figure->help);
        for (uint32_t i = 0; i < count; i++) {
            fprintf(text, "millrace_%s{%s=\"%u\"} ", figure->metric, label, i);
            write_figure(text, figure, (const char *)first + i * size);
        }
    }
}

/* Figures of the server as a whole: without a label. */
static void write_plain_figures(FILE *text, const struct server_figure *figures,
                                const struct server_snapshot *snapshot)
{
    for (const struct server_figure *figure = figures; figure->help != NULL; figure++) {
        if (figure->metric == NULL)
            continue;
        write_head(text, figure->metric, figure->type, figure->help);
        fprintf(text, "millrace_%s ", figure->metric);
        write_figure(text, figure, snapshot);
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

static void write_unit_figure(FILE *text, const struct server_figure *figure,
                              const struct server_snapshot *snapshot)
{
    write_head(text, figure->metric, figure->type, figure->help);
    for (uint32_t i = 0; i < snapshot->unit_count; i++) {
        const struct server_snapshot_unit *unit = server_snapshot_unit_in_row(snapshot, i);
        fprintf(text, "millrace_%s{unit=\"%s\"} ", figure->metric, unit->name);
        write_figure(text, figure, unit);
    }
}

static void write_unit_histogram(FILE *text, const char *name, const char *help,
                                 const struct server_snapshot *snapshot, size_t offset)
{
    write_head(text, name, "histogram", help);
    for (uint32_t i = 0; i < snapshot->unit_count; i++) {
        char label[32];
        const struct server_snapshot_unit *unit = server_snapshot_unit_in_row(snapshot, i);
        snprintf(label, sizeof label, "unit=\"%s\",", unit->name);
        write_buckets(text, name, label, (const struct core_histogram *)((const char *)unit + offset));
    }
}

static void write_units(FILE *text, const struct server_snapshot *snapshot)
{
    for (const struct server_figure *figure = server_figures_unit; figure->help != NULL; figure++)
        if (figure->metric != NULL)
            write_unit_figure(text, figure, snapshot);
    write_unit_histogram(text, "unit_slack_seconds", "slack_seconds by the unit that encrypted the packet.",
                         snapshot, UNIT(slack));
    write_unit_histogram(text, "unit_lateness_seconds",
                         "By how much packets of the unit missed their deadline.", snapshot, UNIT(lateness));
}

static void write_worst(FILE *text, const struct server_snapshot *snapshot)
{
    static const char name[] = "worst_slack_seconds";

    write_head(text, name, "gauge", "The least slack of packets since the start; negative: missed.");
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
    write_head(text, "build_info", "gauge",
               "Always 1; the labels say which version, engine and profile run.");
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
        {"process_resident_memory_bytes", "gauge", "Resident memory.", (double)process->resident_bytes},
        {"process_open_fds", "gauge", "Descriptors that are open.", (double)process->open_fds},
        {"process_max_fds", "gauge", "The most descriptors that may be open.", (double)process->max_fds},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        fprintf(text, "# HELP %s %s\n# TYPE %s %s\n%s %.15g\n", rows[i].name, rows[i].help, rows[i].name,
                rows[i].type, rows[i].name, rows[i].value);
}

static void write_refusals(FILE *text, const struct server_snapshot *snapshot)
{
    static const char *const asked_names[] = {"open", "query", "modify", "rekey"};
    write_head(text, "requests_refused_total", "counter",
               "Requests answered with REFUSED, by kind and reason.");
    for (int asked = 0; asked < SERVER_ASKED_COUNT; asked++)
        for (int code = 1; code < SERVER_REFUSALS; code++)
            fprintf(text, "millrace_requests_refused_total{kind=\"%s\",reason=\"%s\"} %" PRIu64 "\n",
                    asked_names[asked], protocol_refusal_name((enum protocol_refusal)code),
                    snapshot->refused[asked][code]);
}

static void write_arrivals(FILE *text, const struct server_snapshot *snapshot)
{
    write_single(text, "tls_handshakes", "gauge", "TLS handshakes in progress.",
                 (double)snapshot->handshakes);
    write_single(text, "tls_handshakes_total", "counter", "TLS connections established.",
                 (double)snapshot->handshakes_done);
    write_head(text, "connections_turned_total", "counter",
               "Connections that were refused or failed, by listener and reason.");
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
               "Packets that missed their deadline, by cause; the sum is deadlines_missed_total.");
    for (int i = SERVER_CAUSE_NONE + 1; i < SERVER_CAUSES; i++)
        fprintf(text, "millrace_missed_by_cause_total{cause=\"%s\"} %" PRIu64 "\n",
                server_cause_name((enum server_cause)i), snapshot->missed_by[i]);
}

static void write_gpu_info(FILE *text, const struct server_snapshot *snapshot)
{
    write_head(text, "gpu_info", "gauge", "Always 1; the labels say which card the GPU is.");
    for (uint32_t i = 0; i < snapshot->gpu_count; i++) {
        const struct server_snapshot_gpu *gpu = &snapshot->gpus[i];
        fprintf(text, "millrace_gpu_info{gpu=\"%u\",", i);
        write_label(text, "card", gpu->card);
        fputc(',', text);
        write_label(text, "uuid", gpu->uuid);
        fputc(',', text);
        write_label(text, "pci", gpu->pci);
        fprintf(text, "} 1\n");
    }
}

static void write_gpus(FILE *text, const struct server_snapshot *snapshot)
{
    if (snapshot->gpu_count == 0)
        return;
    write_gpu_info(text, snapshot);
    write_figures(text, server_figures_gpu, "gpu", snapshot->gpus, snapshot->gpu_count,
                  sizeof *snapshot->gpus);
    for (size_t i = 0; i < SERVER_FIGURES_STAGES; i++)
        write_figures(text, server_figures_stages[i].figures, "gpu", snapshot->gpus, snapshot->gpu_count,
                      sizeof *snapshot->gpus);
}

static void write_all(FILE *text, const struct server_snapshot *snapshot)
{
    write_info(text, snapshot);
    write_process(text, snapshot);
    write_single(text, "profile_doubtful", "gauge", "1 if the profile is assumed, or of another machine.",
                 snapshot->profile_doubt[0] != '\0' ? 1 : 0);
    write_single(text, "draining", "gauge", "1 while the server finishes what it accepted before it stops.",
                 snapshot->draining ? 1 : 0);
    write_single(text, "log_lost_total", "counter",
                 "Lines of the log that were lost because it was not read fast enough.",
                 (double)snapshot->log_lost);
    write_plain_figures(text, server_figures_moves, snapshot);
    write_plain_figures(text, server_figures_plans, snapshot);
    write_arrivals(text, snapshot);
    write_refusals(text, snapshot);
    write_figures(text, server_figures_io, "io", snapshot->ios, snapshot->io_count, sizeof *snapshot->ios);
    write_figures(text, server_figures_worker, "worker", snapshot->workers, snapshot->worker_count,
                  sizeof *snapshot->workers);
    write_gpus(text, snapshot);
    write_single(text, "worker_burst_bound_seconds", "gauge",
                 "Bound on the time of one burst, which every promise takes into account.",
                 seconds(snapshot->burst_bound_ns));
    write_histogram(text, "latency_seconds", "From a packet's eligible time to its hand-over to the socket.",
                    &snapshot->latency);
    write_histogram(
        text, "slack_seconds",
        "Time left until the deadline at the hand-over to the socket; 0: missed, see unit_lateness_seconds.",
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
    write_histogram(text, "io_turn_seconds", "Length of each turn of an I/O thread, from when it was needed.",
                    &snapshot->turn);
    write_histogram(text, "admission_seconds",
                    "From reading an OPEN, QUERY or MODIFY to the planner's decision.", &snapshot->admission);
    write_histogram(text, "in_force_seconds",
                    "From reading an OPEN or MODIFY that is granted until its contract is in force.",
                    &snapshot->in_force);
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
