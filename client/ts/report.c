#include "client/ts/report.h"

#include <inttypes.h>

/* ---- the table ---- */

#define DROPPED_ROW(reason)                                                                                  \
    {                                                                                                        \
        "dropped", #reason, offsetof(struct ts_counts, reason)                                               \
    }

static const struct row {
    const char *name, *reason; /* the latter: why they were dropped; NULL: they were not */
    size_t offset;             /* of a uint64_t of struct ts_counts */
} rows[] = {
    {"datagrams", NULL, offsetof(struct ts_counts, datagrams)},
    {"packets", NULL, offsetof(struct ts_counts, packets)},
    {"bytes", NULL, offsetof(struct ts_counts, bytes)},
    {"late", NULL, offsetof(struct ts_counts, late)},
    DROPPED_ROW(invalid),
    DROPPED_ROW(early),
    DROPPED_ROW(away),
    DROPPED_ROW(excess),
    DROPPED_ROW(refused),
    DROPPED_ROW(unsent),
    DROPPED_ROW(overflow),
};
#define ROWS (sizeof rows / sizeof rows[0])

static uint64_t value_of(const struct ts_counts *counts, const struct row *row)
{
    return *(const uint64_t *)(const void *)((const char *)counts + row->offset);
}

uint64_t ts_report_dropped(const struct ts_counts *counts)
{
    uint64_t dropped = 0;
    for (size_t i = 0; i < ROWS; i++)
        dropped += rows[i].reason != NULL ? value_of(counts, &rows[i]) : 0;
    return dropped;
}

struct ts_counts ts_report_sum(const struct ts_set *set)
{
    struct ts_counts sum = {0};
    for (size_t i = 0; i < set->count; i++)
        for (size_t j = 0; j < ROWS; j++)
            *(uint64_t *)(void *)((char *)&sum + rows[j].offset) +=
                value_of(&set->services[i].counts, &rows[j]);
    return sum;
}

/* By how much the longest delay of a clock reference exceeds the shortest. */
static core_ns pcr_jitter_ns(const struct ts_service *service)
{
    return core_histogram_maximum_ns(&service->pcr_delay) - core_histogram_minimum_ns(&service->pcr_delay);
}

/* ---- for Prometheus ---- */

static void write_rows(const struct ts_set *set, FILE *page)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (i == 0 || rows[i].reason == NULL || rows[i - 1].reason == NULL)
            fprintf(page, "# TYPE millrace_ts_%s_total counter\n", rows[i].name);
        for (size_t j = 0; j < set->count; j++)
            fprintf(page, "millrace_ts_%s_total{service=\"%s\"%s%s%s} %" PRIu64 "\n", rows[i].name,
                    set->services[j].config->name, rows[i].reason != NULL ? ",reason=\"" : "",
                    rows[i].reason != NULL ? rows[i].reason : "", rows[i].reason != NULL ? "\"" : "",
                    value_of(&set->services[j].counts, &rows[i]));
    }
}

static double figure(const struct ts_service *service, size_t number)
{
    const struct ts_stream *stream = &service->stream;
    const double figures[] = {(double)stream->word_count,
                              (double)stream->late_words,
                              (double)stream->words->refused,
                              (double)stream->missed,
                              stream->id != 0,
                              (double)core_histogram_maximum_ns(&service->delay) / 1e9,
                              (double)pcr_jitter_ns(service) / 1e9};
    return figures[number];
}

void ts_report_metrics(const struct ts_set *set, FILE *page)
{
    static const char *const figures[][2] = {{"millrace_ts_words_total", "counter"},
                                             {"millrace_ts_words_late_total", "counter"},
                                             {"millrace_ts_words_refused_total", "counter"},
                                             {"millrace_ts_deadlines_missed_total", "counter"},
                                             {"millrace_ts_open", "gauge"},
                                             {"millrace_ts_delay_seconds_max", "gauge"},
                                             {"millrace_ts_pcr_jitter_seconds_max", "gauge"}};
    write_rows(set, page);
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        fprintf(page, "# TYPE %s %s\n", figures[i][0], figures[i][1]);
        for (size_t j = 0; j < set->count; j++)
            fprintf(page, "%s{service=\"%s\"} %.17g\n", figures[i][0], set->services[j].config->name,
                    figure(&set->services[j], i));
    }
    fprintf(page,
            "# TYPE millrace_ts_connected gauge\nmillrace_ts_connected %d\n"
            "# TYPE millrace_ts_reconnects_total counter\nmillrace_ts_reconnects_total %" PRIu64 "\n"
            "# TYPE millrace_ts_streams_refused_total counter\nmillrace_ts_streams_refused_total %" PRIu64
            "\n",
            set->link.connection != NULL, set->link.reconnects, set->link.refused);
}

/* ---- at the end ---- */

static void write_line(const char *name, const struct ts_counts *counts, uint64_t words,
                       const struct core_histogram *delay, core_ns jitter_ns, FILE *page)
{
    char texts[5][CORE_TEXT_BYTES];
    fprintf(page,
            "%s: %" PRIu64 " datagrams, %" PRIu64 " late, %" PRIu64 " dropped, %" PRIu64
            " words; delay %s, median %s, 99.9 %% %s, at most %s; PCR jitter added %s\n",
            name, counts->datagrams, counts->late, ts_report_dropped(counts), words,
            core_duration_format(core_histogram_minimum_ns(delay), texts[0]),
            core_duration_format(core_histogram_percentile_ns(delay, 50), texts[1]),
            core_duration_format(core_histogram_percentile_ns(delay, 99.9), texts[2]),
            core_duration_format(core_histogram_maximum_ns(delay), texts[3]),
            core_duration_format(jitter_ns, texts[4]));
}

void ts_report_text(const struct ts_set *set, FILE *page)
{
    static struct core_histogram all;
    struct ts_counts sum = ts_report_sum(set);
    core_ns jitter_ns = 0;
    uint64_t words = 0;
    core_histogram_init(&all);
    for (size_t i = 0; i < set->count; i++) {
        const struct ts_service *service = &set->services[i];
        core_histogram_merge(&all, &service->delay);
        jitter_ns = core_time_max(jitter_ns, pcr_jitter_ns(service));
        words += service->stream.word_count;
        write_line(service->config->name, &service->counts, service->stream.word_count, &service->delay,
                   pcr_jitter_ns(service), page);
    }
    if (set->count > 1)
        write_line("all", &sum, words, &all, jitter_ns, page);
}

static json_t *pack_delay(const struct core_histogram *delay)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "min", (json_int_t)core_histogram_minimum_ns(delay), "median",
                     (json_int_t)core_histogram_percentile_ns(delay, 50), "p99_9",
                     (json_int_t)core_histogram_percentile_ns(delay, 99.9), "max",
                     (json_int_t)core_histogram_maximum_ns(delay));
}

static json_t *pack_service(const struct ts_service *service)
{
    json_t *object = json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:o}", "name", service->config->name, "words",
                               (json_int_t)service->stream.word_count, "late_words",
                               (json_int_t)service->stream.late_words, "refused_words",
                               (json_int_t)service->stream.words->refused, "deadlines_missed",
                               (json_int_t)service->stream.missed, "delay_ns", pack_delay(&service->delay),
                               "pcr_delay_ns", pack_delay(&service->pcr_delay));
    json_t *dropped = json_object();
    for (size_t i = 0; i < ROWS; i++)
        json_object_set_new(rows[i].reason != NULL ? dropped : object,
                            rows[i].reason != NULL ? rows[i].reason : rows[i].name,
                            json_integer((json_int_t)value_of(&service->counts, &rows[i])));
    json_object_set_new(object, "dropped", dropped);
    return object;
}

json_t *ts_report_json(const struct ts_set *set)
{
    json_t *services = json_array();
    for (size_t i = 0; i < set->count; i++)
        json_array_append_new(services, pack_service(&set->services[i]));
    return json_pack("{s:o, s:I, s:I}", "services", services, "reconnects", (json_int_t)set->link.reconnects,
                     "streams_refused", (json_int_t)set->link.refused);
}
