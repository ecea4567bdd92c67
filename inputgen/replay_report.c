#include "inputgen/replay_report.h"

#include "inputgen/text.h"

#include <stdlib.h>
#include <string.h>

#define NAME_WIDTH_MAX 18 /* the table of classes fits INPUTGEN_TEXT_COLUMNS */

struct inputgen_report *inputgen_report_create(const char *name, size_t class_count)
{
    struct inputgen_report *report = calloc(1, sizeof *report);
    if (!report)
        return NULL;
    report->name = strdup(name);
    report->classes = calloc(class_count, sizeof *report->classes);
    if (!report->name || !report->classes) {
        inputgen_report_free(report);
        return NULL;
    }
    report->class_count = class_count;
    report->scale = 1;
    report->server_resident_bytes = -1;
    inputgen_figures_init(&report->all);
    core_histogram_init(&report->send_lateness);
    for (size_t at = 0; at < class_count; at++)
        inputgen_figures_init(&report->classes[at].figures);
    return report;
}

void inputgen_report_free(struct inputgen_report *report)
{
    if (!report)
        return;
    for (size_t at = 0; report->classes && at < report->class_count; at++)
        free(report->classes[at].name);
    free(report->classes);
    free(report->name);
    free(report);
}

/* More kinds than the protocol has: the last one takes the rest. */
static struct inputgen_refusal *refusal_find(struct inputgen_refusal *refusals, size_t *kinds, unsigned code,
                                             unsigned constraint, const char *text)
{
    struct inputgen_refusal *refusal = refusals, *end = refusal + *kinds;
    while (refusal < end && (refusal->code != code || refusal->constraint != constraint))
        refusal++;
    if (refusal == refusals + INPUTGEN_REFUSAL_KINDS)
        return refusal - 1;
    if (refusal == end) {
        (*kinds)++;
        *refusal = (struct inputgen_refusal){.code = code, .constraint = constraint};
        (void)snprintf(refusal->text, sizeof refusal->text, "%s", text);
    }
    return refusal;
}

void inputgen_refusal_note(struct inputgen_refusal *refusals, size_t *kinds,
                           const struct millrace_refused *refused)
{
    refusal_find(refusals, kinds, refused->code, refused->constraint, refused->text)->streams++;
}

void inputgen_refusals_add(struct inputgen_refusal *target, size_t *kinds,
                           const struct inputgen_refusal *source, size_t source_kinds)
{
    for (size_t at = 0; at < source_kinds; at++)
        refusal_find(target, kinds, source[at].code, source[at].constraint, source[at].text)->streams +=
            source[at].streams;
}

bool inputgen_report_generator_slow(const struct inputgen_report *report)
{
    return core_histogram_percentile_ns(&report->send_lateness, 99) > report->latency_bound_min_ns / 4;
}

static double per_s(const struct inputgen_report *report, uint64_t count)
{
    return report->run_ns > 0 ? (double)count * 1e9 / (double)report->run_ns : 0;
}

static double mbit_per_s(const struct inputgen_report *report, uint64_t bytes)
{
    return per_s(report, bytes) * 8 / 1e6;
}

/* ---- the verdict ---- */

struct fault {
    uint64_t count;
    const char *one, *many;
};

static void sentence_add(char *sentence, size_t size, const struct fault *fault)
{
    size_t used = strlen(sentence);
    (void)snprintf(sentence + used, size - used, "%s%s %s", used ? ", " : "",
                   inputgen_text_count(fault->count).text, fault->count == 1 ? fault->one : fault->many);
}

static void sentence_end(char *sentence, size_t size, const char *what, const char *more)
{
    size_t used = strlen(sentence);
    (void)snprintf(sentence + used, size - used, "%s%s", what, more);
}

static uint64_t differing_packets(const struct inputgen_figures *all)
{
    return all->planned - all->sent;
}

/* In time, says the server, and not all were in time here. */
static void late_end(char *sentence, size_t size, const struct inputgen_figures *all)
{
    size_t used = strlen(sentence);
    (void)snprintf(sentence + used, size - used,
                   "every one before its deadline says the server; %s of them late here, the worst by %s",
                   inputgen_text_count(all->late).text,
                   inputgen_text_duration(-core_histogram_minimum_ns(&all->slack)).text);
}

int inputgen_report_judge(const struct inputgen_report *report, const struct inputgen_judgement *judgement,
                          char *sentence, size_t size)
{
    const struct inputgen_figures *all = &report->all;
    const struct fault faults[] = {
        {all->mismatched, "packet with wrong bytes", "packets with wrong bytes"},
        {all->disordered, "result out of order", "results out of order"},
        {all->lost, "packet lost", "packets lost"},
        {differing_packets(all), "packet never sent", "packets never sent"},
        {all->rejected, "packet not encrypted", "packets not encrypted"},
        {judgement->allow_missed ? 0 : all->missed, "deadline missed", "deadlines missed"},
        {judgement->server_only || judgement->allow_missed ? 0 : all->late, "packet late here",
         "packets late here"},
        {judgement->allow_refused ? 0 : all->refused, "stream refused", "streams refused"},
        {report->accounts_differ, "stream that the server counts otherwise",
         "streams that the server counts otherwise"},
        {report->connections_failed, "connection failed", "connections failed"},
    };
    int status = 0;
    sentence[0] = '\0';
    for (size_t at = 0; at < sizeof faults / sizeof *faults; at++) {
        if (faults[at].count == 0)
            continue;
        sentence_add(sentence, size, &faults[at]);
        status = 1;
    }
    if (all->opened == 0) {
        (void)snprintf(sentence + strlen(sentence), size - strlen(sentence), "%sno stream was opened",
                       status ? ", " : "");
        return 1;
    }
    if (status != 0)
        return status;
    (void)snprintf(sentence, size, "%s packets came back in order, byte for byte right, ",
                   inputgen_text_count(all->received).text);
    if (all->missed)
        sentence_end(sentence, size, inputgen_text_count(all->missed).text, " of them after the deadline");
    else if (all->late)
        late_end(sentence, size, all);
    else
        sentence_end(sentence, size, "every one before its deadline, the closest by ",
                     inputgen_text_duration(core_histogram_minimum_ns(&all->slack)).text);
    return 0;
}

/* ---- the page ---- */

static int name_width(const struct inputgen_report *report)
{
    size_t width = strlen("class");
    for (size_t at = 0; at < report->class_count; at++)
        if (strlen(report->classes[at].name) > width)
            width = strlen(report->classes[at].name);
    return width > NAME_WIDTH_MAX ? NAME_WIDTH_MAX : (int)width;
}

static void print_figures_row(const struct inputgen_report *report, const char *name, int width,
                              const struct inputgen_figures *figures, FILE *file)
{
    (void)fprintf(file, "  %-*.*s %7s %7s %11s %11s %7s %7s %7s %6s %8.1f\n", width, width, name,
                  inputgen_text_count(figures->opened).text, inputgen_text_count(figures->refused).text,
                  inputgen_text_count(figures->sent).text, inputgen_text_count(figures->met).text,
                  inputgen_text_count(figures->missed).text, inputgen_text_count(figures->late).text,
                  inputgen_text_count(figures->lost).text,
                  inputgen_text_count(figures->mismatched + figures->disordered).text,
                  mbit_per_s(report, figures->payload_bytes));
}

static void print_figures(const struct inputgen_report *report, FILE *file)
{
    int width = name_width(report);
    (void)fprintf(file, "  %-*s %7s %7s %11s %11s %7s %7s %7s %6s %8s\n", width, "class", "streams",
                  "refused", "packets", "met", "missed", "late", "lost", "wrong", "Mbit/s");
    for (size_t at = 0; at < report->class_count; at++)
        print_figures_row(report, report->classes[at].name, width, &report->classes[at].figures, file);
    if (report->class_count > 1)
        print_figures_row(report, "all", width, &report->all, file);
}

/* A histogram knows negative values only by their number and by the least one. */
static struct inputgen_text quantile(const struct core_histogram *histogram, double percent)
{
    core_ns value_ns = core_histogram_percentile_ns(histogram, percent);
    if (percent > 0 && value_ns <= 0 && core_histogram_minimum_ns(histogram) < 0)
        return (struct inputgen_text){"none"};
    return inputgen_text_duration(value_ns);
}

static void print_percentiles(const char *name, const struct core_histogram *histogram,
                              const double *percents, FILE *file)
{
    (void)fprintf(file, "  %-10s", name);
    for (int at = 0; at < 5; at++)
        (void)fprintf(file, " %10s", quantile(histogram, percents[at]).text);
    (void)fputc('\n', file);
}

static void print_times(const struct inputgen_report *report, FILE *file)
{
    static const double high[] = {50, 99, 99.9, 99.99, 100}, low[] = {50, 1, 0.1, 0.01, 0};
    (void)fprintf(file, "\n  %-10s %10s %10s %10s %10s %10s\n", "", "half", "1 in 100", "1 in 1000",
                  "1 in 10^4", "worst");
    print_percentiles("latency", &report->all.latency, high, file);
    print_percentiles("in server", &report->all.service, high, file);
    print_percentiles("slack", &report->all.slack, low, file);
    print_percentiles("sent late", &report->send_lateness, high, file);
}

static void print_cpu(const struct inputgen_report *report, const char *name, core_ns cpu_ns, FILE *file)
{
    if (cpu_ns < 0) {
        (void)fprintf(file, "  CPU time    %-9s unknown (--server-pid tells whose to read)\n", name);
        return;
    }
    double packets = report->all.received ? (double)report->all.received : 1;
    (void)fprintf(file, "  CPU time    %-9s %8s, %5.1f %% of one core, %s a packet\n", name,
                  inputgen_text_duration(cpu_ns).text,
                  report->run_ns > 0 ? 100.0 * (double)cpu_ns / (double)report->run_ns : 0,
                  inputgen_text_duration((core_ns)((double)cpu_ns / packets)).text);
}

static void print_load(const struct inputgen_report *report, FILE *file)
{
    (void)fprintf(file, "\n  throughput  %.1f Mbit/s of payload each way, %s packets/s\n",
                  mbit_per_s(report, report->all.payload_bytes),
                  inputgen_text_count((uint64_t)per_s(report, report->all.received)).text);
    (void)fprintf(file, "  admission   %s streams asked for and answered in %s, longest decision %s\n",
                  inputgen_text_count(report->all.opened + report->all.refused).text,
                  inputgen_text_duration(report->open_ns).text,
                  inputgen_text_duration(report->decision_max_ns).text);
    (void)fprintf(file, "  placed      %s streams on CPU workers, %s on GPUs\n",
                  inputgen_text_count(report->all.opened - report->streams_on_gpus).text,
                  inputgen_text_count(report->streams_on_gpus).text);
    print_cpu(report, "server", report->server_cpu_ns, file);
    print_cpu(report, "generator", report->generator_cpu_ns, file);
    if (report->server_resident_bytes >= 0)
        (void)fprintf(file, "  memory      server    %.1f MiB resident\n",
                      (double)report->server_resident_bytes / (1 << 20));
}

static void print_refusals(const struct inputgen_report *report, FILE *file)
{
    for (size_t at = 0; at < report->refusal_kinds; at++) {
        const struct inputgen_refusal *refusal = &report->refusals[at];
        inputgen_text_row(file, "refused", "%s streams (%s): %s", inputgen_text_count(refusal->streams).text,
                          millrace_refusal_name((enum millrace_refusal)refusal->code), refusal->text);
    }
}

static void print_warning(const struct inputgen_report *report, FILE *file)
{
    inputgen_text_row(
        file, "warning",
        "the generator did not keep its own schedule: 1 %% of the packets left more than %s late, the "
        "tightest deadline is %s; what is late here may be its doing, not the server's",
        inputgen_text_duration(core_histogram_percentile_ns(&report->send_lateness, 99)).text,
        inputgen_text_duration(report->latency_bound_min_ns).text);
}

static void print_remarks(const struct inputgen_report *report, FILE *file)
{
    const struct inputgen_figures *all = &report->all;
    (void)fputc('\n', file);
    print_refusals(report, file);
    if (report->connections_failed)
        inputgen_text_row(file, "failed", "%s connections, the first with: %s",
                          inputgen_text_count(report->connections_failed).text, report->connection_error);
    if (all->policed)
        inputgen_text_row(file, "policed", "%s packets came early for their contract and were held back",
                          inputgen_text_count(all->policed).text);
    if (all->fault)
        inputgen_text_row(file, "fault", "%s packets went the way round a lost device, %s of them missed",
                          inputgen_text_count(all->fault).text, inputgen_text_count(all->fault_missed).text);
    if (all->gaps)
        inputgen_text_row(
            file, "gaps",
            "%s times a stream went on at another node, within %s at most; %s packets were sent "
            "again, %s deadlines missed for it",
            inputgen_text_count(all->gaps).text, inputgen_text_duration(all->gap_ns).text,
            inputgen_text_count(all->resent).text, inputgen_text_count(all->gap_late).text);
    if (all->reader_late)
        inputgen_text_row(file, "reader", "%s results were ready in time but taken late by this generator",
                          inputgen_text_count(all->reader_late).text);
    if (all->untrue)
        inputgen_text_row(file, "untrue",
                          "%s packets were met, says the server, and took longer as seen from here, without "
                          "what this generator can have added",
                          inputgen_text_count(all->untrue).text);
    if (inputgen_report_generator_slow(report))
        print_warning(report, file);
    if (report->interrupted)
        inputgen_text_row(file, "interrupted", "before the end: figures are of what was sent until then");
}

void inputgen_report_page(const struct inputgen_report *report, FILE *file)
{
    (void)fprintf(file, "%s: %s streams over %s connections, %s", report->name,
                  inputgen_text_count(report->all.opened + report->all.refused).text,
                  inputgen_text_count(report->connections).text, inputgen_text_duration(report->run_ns).text);
    if (report->scale != 1)
        (void)fprintf(file, ", rates x %.3g", report->scale);
    (void)fprintf(file, "\n\n");
    print_figures(report, file);
    print_times(report, file);
    print_load(report, file);
    print_remarks(report, file);
}

void inputgen_report_verdict(const struct inputgen_report *report, int status, FILE *file)
{
    const struct inputgen_figures *all = &report->all;
    (void)fprintf(file, "%s  %s packets: %s wrong, %s lost, %s missed, %s late; %s streams refused\n",
                  status == 0 ? "PASS" : "FAIL", inputgen_text_count(all->sent).text,
                  inputgen_text_count(all->mismatched + all->disordered).text,
                  inputgen_text_count(all->lost).text, inputgen_text_count(all->missed).text,
                  inputgen_text_count(all->late).text, inputgen_text_count(all->refused).text);
}

core_status inputgen_report_print(const struct inputgen_report *report,
                                  const struct inputgen_judgement *judgement, FILE *file)
{
    char sentence[512];
    int status = inputgen_report_judge(report, judgement, sentence, sizeof sentence);
    inputgen_report_page(report, file);
    inputgen_text_row(file, "outcome", "%s", sentence);
    inputgen_report_verdict(report, status, file);
    return fflush(file) == 0 && !ferror(file) ? CORE_OK : CORE_SYSTEM;
}

core_status inputgen_report_hgrm(const struct inputgen_report *report, const char *path,
                                 struct core_error *error)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return core_error_errno(error, "%s", path);
    int written = core_histogram_write_hgrm(&report->all.latency, file, (double)CORE_NS_PER_US);
    if (fclose(file) != 0 || written < 0)
        return core_error_errno(error, "%s", path);
    return CORE_OK;
}
