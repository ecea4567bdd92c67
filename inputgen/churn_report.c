/* The verdict on a churn, its page, and its JSON document. */
#include "inputgen/churn.h"
#include "inputgen/churn_operate.h"
#include "inputgen/text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void inputgen_churn_report_free(struct inputgen_churn_report *report)
{
    if (!report)
        return;
    inputgen_report_free(report->live);
    free(report->capacities);
    free(report);
}

/* ---- the verdict ---- */

static void CORE_PRINTF(3, 4) sentence_add(char *sentence, size_t size, const char *format, ...)
{
    size_t used = strlen(sentence);
    va_list arguments;
    va_start(arguments, format);
    if (used > 0 && used < size)
        used += (size_t)snprintf(sentence + used, size - used, ", ");
    if (used < size)
        (void)vsnprintf(sentence + used, size - used, format, arguments);
    va_end(arguments);
}

static uint64_t unanswered(const struct inputgen_churn_figures *figures)
{
    uint64_t sum = 0;
    for (size_t kind = 0; kind < INPUTGEN_OPERATION_KINDS; kind++)
        sum += figures->kinds[kind].unanswered;
    return sum;
}

static bool comparable(const struct inputgen_capacity *capacity)
{
    return !capacity->before.held_back && !capacity->after.held_back;
}

static void judge_capacities(const struct inputgen_churn_report *report, char *sentence, size_t size)
{
    for (size_t at = 0; report->probed_after && at < report->capacity_count; at++) {
        const struct inputgen_capacity *capacity = &report->capacities[at];
        const struct inputgen_probe *before = &capacity->before, *after = &capacity->after;
        bool fewer = after->streams < before->streams;
        if (comparable(capacity) && before->streams != after->streams)
            sentence_add(sentence, size, "room for %s streams of %s after it, %s before (%s: %s)",
                         inputgen_text_count(after->streams).text, capacity->class_name,
                         inputgen_text_count(before->streams).text, fewer ? "after" : "before",
                         fewer ? after->refusal : before->refusal);
    }
}

/* What the verdict may say of them where they are no fault. */
static const char *capacities_sentence(const struct inputgen_churn_report *report)
{
    if (!report->probed_after || report->capacity_count == 0)
        return "";
    for (size_t at = 0; at < report->capacity_count; at++)
        if (!comparable(&report->capacities[at]))
            return "; the capacity was not compared: part of it was withheld after an overload";
    return ", and the capacity is what it was";
}

static uint64_t standing_refused(const struct inputgen_report *live)
{
    uint64_t refused = 0;
    for (size_t at = INPUTGEN_CHURN_STANDING; at < live->class_count; at += INPUTGEN_CHURN_GUARANTEED)
        refused += live->classes[at].figures.refused;
    return refused;
}

int inputgen_churn_judge(const struct inputgen_churn_report *report,
                         const struct inputgen_churn_judgement *judgement, char *sentence, size_t size)
{
    const struct inputgen_churn_figures *figures = &report->figures;
    uint64_t refused = standing_refused(report->live);
    struct inputgen_judgement live = {
        .allow_refused = true, .server_only = true, .allow_missed = judgement->allow_missed};
    char packets[512];
    int status = inputgen_report_judge(report->live, &live, packets, sizeof packets);
    sentence[0] = '\0';
    if (status != 0)
        sentence_add(sentence, size, "%s", packets);
    if (refused && !judgement->allow_refused)
        sentence_add(sentence, size, "%s standing streams refused", inputgen_text_count(refused).text);
    if (figures->ended)
        sentence_add(sentence, size, "%s streams ended by the server",
                     inputgen_text_count(figures->ended).text);
    if (figures->accounts_differ)
        sentence_add(sentence, size, "%s closed streams that the server counts otherwise",
                     inputgen_text_count(figures->accounts_differ).text);
    if (unanswered(figures))
        sentence_add(sentence, size, "%s requests without an answer",
                     inputgen_text_count(unanswered(figures)).text);
    judge_capacities(report, sentence, size);
    if (report->remain[0])
        sentence_add(sentence, size, "%s", report->remain);
    if (sentence[0])
        return 1;
    (void)snprintf(sentence, size, "%s%s", packets, capacities_sentence(report));
    return 0;
}

/* ---- the page ---- */

static void print_counts(const struct inputgen_churn_report *report, FILE *file)
{
    (void)fprintf(file, "\n  %-10s %8s %8s %8s %8s\n", "operation", "asked", "granted", "refused", "unsent");
    for (size_t kind = 0; kind < INPUTGEN_OPERATION_KINDS; kind++) {
        const struct inputgen_operation_figures *figures = &report->figures.kinds[kind];
        (void)fprintf(file, "  %-10s %8s %8s %8s %8s\n",
                      inputgen_operation_name((enum inputgen_operation)kind),
                      inputgen_text_count(figures->asked).text, inputgen_text_count(figures->granted).text,
                      inputgen_text_count(figures->refused).text, inputgen_text_count(figures->unsent).text);
    }
}

static void print_times(const struct core_histogram *histogram, FILE *file)
{
    static const double percents[] = {50, 99, 100};
    (void)fputs(" |", file);
    for (size_t n = 0; n < sizeof percents / sizeof *percents; n++)
        (void)fprintf(file, " %8s",
                      core_histogram_total(histogram)
                          ? inputgen_text_duration(core_histogram_percentile_ns(histogram, percents[n])).text
                          : "-");
}

static void print_operations(const struct inputgen_churn_report *report, FILE *file)
{
    static const char *const of[] = {"decided", "in force", "answered"};
    print_counts(report, file);
    (void)fprintf(file, "\n  %-10s", "");
    for (size_t at = 0; at < sizeof of / sizeof *of; at++)
        (void)fprintf(file, " | %8s %8s %8s", of[at], "1 in 100", "worst");
    (void)fputc('\n', file);
    for (size_t kind = 0; kind < INPUTGEN_OPERATION_KINDS; kind++) {
        const struct inputgen_operation_figures *figures = &report->figures.kinds[kind];
        (void)fprintf(file, "  %-10s", inputgen_operation_name((enum inputgen_operation)kind));
        print_times(&figures->decided, file);
        print_times(&figures->in_force, file);
        print_times(&figures->round_trip, file);
        (void)fputc('\n', file);
    }
    (void)fputc('\n', file);
}

static void print_gpus(const struct inputgen_watch *watch, FILE *file)
{
    for (size_t at = 0; at < watch->gpu_count; at++) {
        const struct inputgen_watch_gpu *gpu = &watch->gpus[at];
        char label[32], faults[128] = "";
        (void)snprintf(label, sizeof label, "GPU %zu", at);
        if (gpu->faults || gpu->restarts)
            (void)snprintf(faults, sizeof faults, "; %s faults, %s restarts",
                           inputgen_text_count(gpu->faults).text, inputgen_text_count(gpu->restarts).text);
        inputgen_text_row(file, label, "%s changes of the period, seen between %s and %s%s",
                          inputgen_text_count(gpu->changes).text,
                          inputgen_text_duration(gpu->shortest_ns).text,
                          inputgen_text_duration(gpu->longest_ns).text, faults);
    }
}

static void print_watch(const struct inputgen_watch *watch, FILE *file)
{
    print_gpus(watch, file);
    if (watch->failures)
        inputgen_text_row(file, "admin", "%s of %s looks failed, the first with: %s",
                          inputgen_text_count(watch->failures).text,
                          inputgen_text_count(watch->looks + watch->failures).text, watch->failure);
}

static void print_capacities(const struct inputgen_churn_report *report, FILE *file)
{
    for (size_t at = 0; at < report->capacity_count; at++) {
        const struct inputgen_capacity *capacity = &report->capacities[at];
        char after[128] = "";
        if (report->probed_after)
            (void)snprintf(after, sizeof after, ", %s after (%s)",
                           inputgen_text_count(capacity->after.streams).text,
                           inputgen_text_count(capacity->after.on_gpus).text);
        inputgen_text_row(file, "capacity", "%-10s at %.2f Mbit/s, %s: %s%s before (%s on GPUs)%s%s",
                          capacity->class_name, core_stream_rate_bits_per_s(&capacity->spec) / 1e6,
                          inputgen_text_duration(capacity->spec.latency_ns).text,
                          capacity->before.bounded ? "" : "at least ",
                          inputgen_text_count(capacity->before.streams).text,
                          inputgen_text_count(capacity->before.on_gpus).text, after,
                          comparable(capacity) ? "" : "; some of it was withheld after an overload");
    }
}

static void print_churn(const struct inputgen_churn_report *report, FILE *file)
{
    const struct inputgen_churn_figures *figures = &report->figures;
    inputgen_text_row(file, "churn",
                      "%.6g operations a second; at most %s opened streams at once, %s of %s on GPUs",
                      report->operations_per_s, inputgen_text_count(figures->open_peak).text,
                      inputgen_text_count(figures->on_gpus).text,
                      inputgen_text_count(figures->kinds[INPUTGEN_OPERATION_OPEN].granted).text);
    for (size_t at = 0; at < figures->refusal_kinds; at++)
        inputgen_text_row(file, "refused", "%s operations (%s): %s",
                          inputgen_text_count(figures->refusals[at].streams).text,
                          millrace_refusal_name((enum millrace_refusal)figures->refusals[at].code),
                          figures->refusals[at].text);
    if (figures->notices[MILLRACE_NOTICE_DEGRADED] || figures->notices[MILLRACE_NOTICE_MOVED])
        inputgen_text_row(file, "notices", "%s degraded, %s restored, %s moved",
                          inputgen_text_count(figures->notices[MILLRACE_NOTICE_DEGRADED]).text,
                          inputgen_text_count(figures->notices[MILLRACE_NOTICE_RESTORED]).text,
                          inputgen_text_count(figures->notices[MILLRACE_NOTICE_MOVED]).text);
}

core_status inputgen_churn_print(const struct inputgen_churn_report *report,
                                 const struct inputgen_churn_judgement *judgement, FILE *file)
{
    char sentence[1024];
    int status = inputgen_churn_judge(report, judgement, sentence, sizeof sentence);
    inputgen_report_page(report->live, file);
    print_operations(report, file);
    print_churn(report, file);
    print_watch(&report->watch, file);
    print_capacities(report, file);
    inputgen_text_row(file, "outcome", "%s", sentence);
    inputgen_report_verdict(report->live, status, file);
    return fflush(file) == 0 && !ferror(file) ? CORE_OK : CORE_SYSTEM;
}

/* ---- the document ---- */

static json_t *integer(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *operations_json(const struct inputgen_churn_figures *figures)
{
    json_t *object = json_object();
    for (size_t kind = 0; kind < INPUTGEN_OPERATION_KINDS; kind++) {
        const struct inputgen_operation_figures *one = &figures->kinds[kind];
        json_t *operation = json_object();
        json_object_set_new(operation, "asked", integer(one->asked));
        json_object_set_new(operation, "granted", integer(one->granted));
        json_object_set_new(operation, "refused", integer(one->refused));
        json_object_set_new(operation, "unanswered", integer(one->unanswered));
        json_object_set_new(operation, "unsent", integer(one->unsent));
        json_object_set_new(operation, "decided_ns", inputgen_report_percentiles(&one->decided));
        json_object_set_new(operation, "in_force_ns", inputgen_report_percentiles(&one->in_force));
        json_object_set_new(operation, "round_trip_ns", inputgen_report_percentiles(&one->round_trip));
        json_object_set_new(object, inputgen_operation_name((enum inputgen_operation)kind), operation);
    }
    return object;
}

static json_t *gpus_json(const struct inputgen_watch *watch)
{
    json_t *array = json_array();
    for (size_t at = 0; at < watch->gpu_count; at++) {
        const struct inputgen_watch_gpu *gpu = &watch->gpus[at];
        json_t *object = json_object();
        json_object_set_new(object, "period_changes", integer(gpu->changes));
        json_object_set_new(object, "period_shortest_ns", json_integer(gpu->shortest_ns));
        json_object_set_new(object, "period_longest_ns", json_integer(gpu->longest_ns));
        json_object_set_new(object, "faults", integer(gpu->faults));
        json_object_set_new(object, "restarts", integer(gpu->restarts));
        json_array_append_new(array, object);
    }
    return array;
}

static json_t *probe_json(const struct inputgen_probe *probe)
{
    json_t *object = json_object();
    json_object_set_new(object, "streams", integer(probe->streams));
    json_object_set_new(object, "on_gpus", integer(probe->on_gpus));
    json_object_set_new(object, "bounded", json_boolean(probe->bounded));
    json_object_set_new(object, "held_back", json_boolean(probe->held_back));
    json_object_set_new(object, "decided_max_ns", json_integer(probe->decided_max_ns));
    json_object_set_new(object, "refusal", json_string(probe->refusal));
    return object;
}

static json_t *capacities_json(const struct inputgen_churn_report *report)
{
    json_t *array = json_array();
    for (size_t at = 0; at < report->capacity_count; at++) {
        const struct inputgen_capacity *capacity = &report->capacities[at];
        json_t *object = json_object();
        json_object_set_new(object, "class", json_string(capacity->class_name));
        json_object_set_new(object, "packet_bytes", integer(capacity->spec.packet_bytes));
        json_object_set_new(object, "interval_ns", json_integer(capacity->spec.interval_ns));
        json_object_set_new(object, "latency_ns", json_integer(capacity->spec.latency_ns));
        json_object_set_new(object, "before", probe_json(&capacity->before));
        json_object_set_new(object, "after",
                            report->probed_after ? probe_json(&capacity->after) : json_null());
        json_array_append_new(array, object);
    }
    return array;
}

static json_t *notices_json(const struct inputgen_churn_figures *figures)
{
    json_t *object = json_object();
    for (int kind = MILLRACE_NOTICE_DEGRADED; kind <= MILLRACE_NOTICE_MOVED; kind++)
        json_object_set_new(object, millrace_notice_name((enum millrace_notice_kind)kind),
                            integer(figures->notices[kind]));
    return object;
}

static json_t *churn_json(const struct inputgen_churn_report *report)
{
    const struct inputgen_churn_figures *figures = &report->figures;
    json_t *object = json_object();
    json_object_set_new(object, "operations_per_s", json_real(report->operations_per_s));
    json_object_set_new(object, "operations", operations_json(figures));
    json_object_set_new(object, "refusals",
                        inputgen_report_refusals(figures->refusals, figures->refusal_kinds));
    json_object_set_new(object, "opened_on_gpus", integer(figures->on_gpus));
    json_object_set_new(object, "opened_at_once", integer(figures->open_peak));
    json_object_set_new(object, "notices", notices_json(figures));
    json_object_set_new(object, "ended_by_server", integer(figures->ended));
    json_object_set_new(object, "accounts_differ", integer(figures->accounts_differ));
    json_object_set_new(object, "gpus", gpus_json(&report->watch));
    json_object_set_new(object, "capacities", capacities_json(report));
    json_object_set_new(object, "remain", json_string(report->remain));
    return object;
}

core_status inputgen_churn_json(const struct inputgen_churn_report *report,
                                const struct inputgen_churn_judgement *judgement, FILE *file)
{
    char sentence[1024];
    int status = inputgen_churn_judge(report, judgement, sentence, sizeof sentence);
    json_t *root = inputgen_report_document(report->live, status, sentence);
    json_object_set_new(root, "churn", churn_json(report));
    return inputgen_report_dump(root, file);
}
