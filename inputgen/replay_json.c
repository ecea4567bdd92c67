#include "inputgen/replay_report.h"

#include <jansson.h>

static json_t *integer(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *percentiles(const struct core_histogram *histogram, const double *percents,
                           const char *const *names, size_t count)
{
    json_t *object = json_object();
    for (size_t at = 0; at < count; at++)
        json_object_set_new(object, names[at],
                            json_integer(core_histogram_percentile_ns(histogram, percents[at])));
    json_object_set_new(object, "min", json_integer(core_histogram_minimum_ns(histogram)));
    json_object_set_new(object, "mean", json_integer(core_histogram_mean_ns(histogram)));
    json_object_set_new(object, "max", json_integer(core_histogram_maximum_ns(histogram)));
    return object;
}

json_t *inputgen_report_percentiles(const struct core_histogram *histogram)
{
    static const double percents[] = {50, 99, 99.9, 99.99};
    static const char *const names[] = {"p50", "p99", "p99.9", "p99.99"};
    return percentiles(histogram, percents, names, 4);
}

static json_t *low_percentiles(const struct core_histogram *histogram)
{
    static const double percents[] = {0.01, 0.1, 1, 50};
    static const char *const names[] = {"p0.01", "p0.1", "p1", "p50"};
    return percentiles(histogram, percents, names, 4);
}

static json_t *figures_json(const struct inputgen_report *report, const struct inputgen_figures *figures)
{
    const struct {
        const char *name;
        uint64_t value;
    } fields[] = {
        {"opened", figures->opened},
        {"refused", figures->refused},
        {"packets_planned", figures->planned},
        {"packets_sent", figures->sent},
        {"packets_received", figures->received},
        {"met", figures->met},
        {"missed", figures->missed},
        {"late_at_client", figures->late},
        {"reader_late", figures->reader_late},
        {"untrue", figures->untrue},
        {"fault", figures->fault},
        {"fault_missed", figures->fault_missed},
        {"gaps", figures->gaps},
        {"gap_resent", figures->resent},
        {"gap_late", figures->gap_late},
        {"gap_max_us", (uint64_t)(figures->gap_ns / CORE_NS_PER_US)},
        {"policed", figures->policed},
        {"rejected", figures->rejected},
        {"lost", figures->lost},
        {"mismatched", figures->mismatched},
        {"disordered", figures->disordered},
        {"payload_bytes", figures->payload_bytes},
        {"cipher_bytes", figures->cipher_bytes},
    };
    json_t *object = json_object();
    for (size_t at = 0; at < sizeof fields / sizeof *fields; at++)
        json_object_set_new(object, fields[at].name, integer(fields[at].value));
    double seconds = (double)report->run_ns / 1e9;
    json_object_set_new(object, "payload_mbit_per_s",
                        json_real(seconds > 0 ? (double)figures->payload_bytes * 8e-6 / seconds : 0));
    json_object_set_new(object, "packets_per_s",
                        json_real(seconds > 0 ? (double)figures->received / seconds : 0));
    json_object_set_new(object, "latency_ns", inputgen_report_percentiles(&figures->latency));
    json_object_set_new(object, "server_latency_ns", inputgen_report_percentiles(&figures->service));
    json_object_set_new(object, "slack_ns", low_percentiles(&figures->slack));
    return object;
}

json_t *inputgen_report_refusals(const struct inputgen_refusal *refusals, size_t kinds)
{
    json_t *array = json_array();
    for (size_t at = 0; at < kinds; at++) {
        const struct inputgen_refusal *refusal = &refusals[at];
        json_t *object = json_object();
        json_object_set_new(object, "code",
                            json_string(millrace_refusal_name((enum millrace_refusal)refusal->code)));
        json_object_set_new(object, "constraint", integer(refusal->constraint));
        json_object_set_new(object, "streams", integer(refusal->streams));
        json_object_set_new(object, "text", json_string(refusal->text));
        json_array_append_new(array, object);
    }
    return array;
}

static json_t *classes_json(const struct inputgen_report *report)
{
    json_t *array = json_array();
    for (size_t at = 0; at < report->class_count; at++) {
        json_t *object = figures_json(report, &report->classes[at].figures);
        json_object_set_new(object, "name", json_string(report->classes[at].name));
        json_array_append_new(array, object);
    }
    return array;
}

/* -1 stands for unknown, which JSON calls null. */
static json_t *known(int64_t value)
{
    return value < 0 ? json_null() : json_integer(value);
}

json_t *inputgen_report_document(const struct inputgen_report *report, int status, const char *sentence)
{
    json_t *root = json_object();
    json_object_set_new(root, "workload", json_string(report->name));
    json_object_set_new(root, "pass", json_boolean(status == 0));
    json_object_set_new(root, "verdict", json_string(sentence));
    json_object_set_new(root, "interrupted", json_boolean(report->interrupted));
    json_object_set_new(root, "connections", integer(report->connections));
    json_object_set_new(root, "threads", integer(report->threads));
    json_object_set_new(root, "scale", json_real(report->scale));
    json_object_set_new(root, "open_ns", json_integer(report->open_ns));
    json_object_set_new(root, "streams_on_gpus", integer(report->streams_on_gpus));
    json_object_set_new(root, "decision_max_ns", json_integer(report->decision_max_ns));
    json_object_set_new(root, "run_ns", json_integer(report->run_ns));
    json_object_set_new(root, "latency_bound_min_ns", json_integer(report->latency_bound_min_ns));
    json_object_set_new(root, "send_lateness_ns", inputgen_report_percentiles(&report->send_lateness));
    json_object_set_new(root, "generator_kept_schedule",
                        json_boolean(!inputgen_report_generator_slow(report)));
    json_object_set_new(root, "generator_cpu_ns", json_integer(report->generator_cpu_ns));
    json_object_set_new(root, "server_cpu_ns", known(report->server_cpu_ns));
    json_object_set_new(root, "server_resident_bytes", known(report->server_resident_bytes));
    json_object_set_new(root, "accounts_differ", integer(report->accounts_differ));
    json_object_set_new(root, "connections_failed", integer(report->connections_failed));
    json_object_set_new(root, "connection_error", json_string(report->connection_error));
    json_object_set_new(root, "refusals", inputgen_report_refusals(report->refusals, report->refusal_kinds));
    json_object_set_new(root, "all", figures_json(report, &report->all));
    json_object_set_new(root, "classes", classes_json(report));
    return root;
}

core_status inputgen_report_dump(json_t *document, FILE *file)
{
    int failed =
        json_dumpf(document, file, JSON_INDENT(2)) != 0 || fputc('\n', file) == EOF || fflush(file) != 0;
    json_decref(document);
    return failed ? CORE_SYSTEM : CORE_OK;
}

core_status inputgen_report_json(const struct inputgen_report *report,
                                 const struct inputgen_judgement *judgement, FILE *file)
{
    char sentence[512];
    int status = inputgen_report_judge(report, judgement, sentence, sizeof sentence);
    return inputgen_report_dump(inputgen_report_document(report, status, sentence), file);
}
