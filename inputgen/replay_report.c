#include "inputgen/replay_report.h"

#include "server/protocol.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NAME_WIDTH_MAX 24

void inputgen_report_free(struct inputgen_report *report)
{
    if (!report)
        return;
    for (size_t at = 0; at < report->class_count; at++)
        free(report->classes[at].name);
    free(report->classes);
    free(report->name);
    free(report);
}

bool inputgen_report_generator_slow(const struct inputgen_report *report)
{
    return core_histogram_percentile_ns(&report->send_lateness, 99) > report->latency_bound_min_ns / 4;
}

/* ---- numbers as people read them ---- */

struct text {
    char text[32];
};

/* 1234567 -> "1,234,567" */
static struct text grouped(uint64_t number)
{
    struct text plain, out;
    int digits = snprintf(plain.text, sizeof plain.text, "%" PRIu64, number);
    char *to = out.text;
    for (int at = 0; at < digits; at++) {
        if (at > 0 && (digits - at) % 3 == 0)
            *to++ = ',';
        *to++ = plain.text[at];
    }
    *to = '\0';
    return out;
}

/* Three significant digits and the unit that suits. */
static struct text duration(core_ns time_ns)
{
    static const struct {
        double unit_ns;
        const char *name;
    } units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
    struct text out;
    double absolute = time_ns < 0 ? -(double)time_ns : (double)time_ns;
    size_t at = 0;
    while (at < 3 && absolute < units[at].unit_ns)
        at++;
    double value = (double)time_ns / units[at].unit_ns;
    double size = absolute / units[at].unit_ns;
    int decimals = at == 3 || size >= 100 ? 0 : size >= 10 ? 1 : 2;
    (void)snprintf(out.text, sizeof out.text, "%.*f %s", decimals, value, units[at].name);
    return out;
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
    (void)snprintf(sentence + used, size - used, "%s%s %s", used ? ", " : "", grouped(fault->count).text,
                   fault->count == 1 ? fault->one : fault->many);
}

static uint64_t differing_packets(const struct inputgen_figures *all)
{
    return all->planned - all->sent;
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
        {all->missed, "deadline missed", "deadlines missed"},
        {judgement->server_only ? 0 : all->late, "packet late here", "packets late here"},
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
    if (status == 0)
        (void)snprintf(
            sentence, size,
            "%s packets came back in order, byte for byte right, every one before its deadline%s%s",
            grouped(all->received).text, all->late ? "" : ", the closest by ",
            all->late ? " says the server" : duration(core_histogram_minimum_ns(&all->slack)).text);
    return status;
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
    (void)fprintf(file, "  %-*.*s %8s %8s %12s %12s %8s %8s %8s %8s %10.1f\n", width, width, name,
                  grouped(figures->opened).text, grouped(figures->refused).text, grouped(figures->sent).text,
                  grouped(figures->met).text, grouped(figures->missed).text, grouped(figures->late).text,
                  grouped(figures->lost).text, grouped(figures->mismatched + figures->disordered).text,
                  mbit_per_s(report, figures->payload_bytes));
}

static void print_figures(const struct inputgen_report *report, FILE *file)
{
    int width = name_width(report);
    (void)fprintf(file, "  %-*s %8s %8s %12s %12s %8s %8s %8s %8s %10s\n", width, "class", "streams",
                  "refused", "packets", "met", "missed", "late", "lost", "wrong", "Mbit/s");
    for (size_t at = 0; at < report->class_count; at++)
        print_figures_row(report, report->classes[at].name, width, &report->classes[at].figures, file);
    if (report->class_count > 1)
        print_figures_row(report, "all", width, &report->all, file);
}

/* A histogram knows negative values only by their number and by the least one. */
static struct text quantile(const struct core_histogram *histogram, double percent)
{
    core_ns value_ns = core_histogram_percentile_ns(histogram, percent);
    if (percent > 0 && value_ns <= 0 && core_histogram_minimum_ns(histogram) < 0)
        return (struct text){"none"};
    return duration(value_ns);
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
                  duration(cpu_ns).text,
                  report->run_ns > 0 ? 100.0 * (double)cpu_ns / (double)report->run_ns : 0,
                  duration((core_ns)((double)cpu_ns / packets)).text);
}

static void print_load(const struct inputgen_report *report, FILE *file)
{
    (void)fprintf(file, "\n  throughput  %.1f Mbit/s of payload each way, %s packets/s\n",
                  mbit_per_s(report, report->all.payload_bytes),
                  grouped((uint64_t)per_s(report, report->all.received)).text);
    (void)fprintf(file, "  admission   %s streams asked for and answered in %s, longest decision %s\n",
                  grouped(report->all.opened + report->all.refused).text, duration(report->open_ns).text,
                  duration(report->decision_max_ns).text);
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
        (void)fprintf(file, "  refused     %s streams (%s): %s\n", grouped(refusal->streams).text,
                      protocol_refusal_name((enum protocol_refusal)refusal->code), refusal->text);
    }
}

static void print_remarks(const struct inputgen_report *report, FILE *file)
{
    const struct inputgen_figures *all = &report->all;
    (void)fputc('\n', file);
    print_refusals(report, file);
    if (report->connections_failed)
        (void)fprintf(file, "  failed      %s connections, the first with: %s\n",
                      grouped(report->connections_failed).text, report->connection_error);
    if (all->policed)
        (void)fprintf(file, "  policed     %s packets came early for their contract and were held back\n",
                      grouped(all->policed).text);
    if (all->reader_late)
        (void)fprintf(file, "  reader      %s results were ready in time but taken late by this generator\n",
                      grouped(all->reader_late).text);
    if (inputgen_report_generator_slow(report))
        (void)fprintf(
            file,
            "  warning     the generator did not keep its own schedule: 1 %% of the packets left more "
            "than %s late,\n              the tightest deadline is %s; what is late here may be its "
            "doing, not the server's\n",
            duration(core_histogram_percentile_ns(&report->send_lateness, 99)).text,
            duration(report->latency_bound_min_ns).text);
    if (report->interrupted)
        (void)fprintf(file, "  interrupted before the end: figures are of what was sent until then\n");
}

core_status inputgen_report_print(const struct inputgen_report *report,
                                  const struct inputgen_judgement *judgement, FILE *file)
{
    char sentence[512];
    int status = inputgen_report_judge(report, judgement, sentence, sizeof sentence);
    (void)fprintf(file, "%s: %s streams over %s connections, %s", report->name,
                  grouped(report->all.opened + report->all.refused).text, grouped(report->connections).text,
                  duration(report->run_ns).text);
    if (report->scale != 1)
        (void)fprintf(file, ", rates x %.3g", report->scale);
    (void)fprintf(file, "\n\n");
    print_figures(report, file);
    print_times(report, file);
    print_load(report, file);
    print_remarks(report, file);
    (void)fprintf(file, "%s  %s.\n", status == 0 ? "PASS" : "FAIL", sentence);
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
