/* The report of a replay whose figures are known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "inputgen/replay_report.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PACKETS 10000

static const struct inputgen_judgement strict;

/* Latencies of 1, 2, ... 10,000 us under a bound of 20 ms; 8 Mbit/s for 10 s. */
static struct inputgen_report *report_make(void)
{
    struct inputgen_report *report = calloc(1, sizeof *report);
    struct inputgen_figures *figures;
    report->name = strdup("known");
    report->classes = calloc(1, sizeof *report->classes);
    report->class_count = 1;
    report->classes[0].name = strdup("only");
    figures = &report->classes[0].figures;
    inputgen_figures_init(figures);
    inputgen_figures_init(&report->all);
    core_histogram_init(&report->send_lateness);
    figures->opened = 1234;
    figures->planned = figures->sent = figures->received = figures->met = PACKETS;
    figures->payload_bytes = 10 * CORE_NS_PER_MS;
    for (int at = 1; at <= PACKETS; at++) {
        core_histogram_record(&figures->latency, at * CORE_NS_PER_US);
        core_histogram_record(&figures->slack, 20 * CORE_NS_PER_MS - at * CORE_NS_PER_US);
        core_histogram_record(&report->send_lateness, at * 10);
    }
    inputgen_figures_add(&report->all, figures);
    report->connections = 16;
    report->scale = 1;
    report->run_ns = 10 * CORE_NS_PER_S;
    report->latency_bound_min_ns = 20 * CORE_NS_PER_MS;
    report->generator_cpu_ns = CORE_NS_PER_S;
    report->server_cpu_ns = 2 * CORE_NS_PER_S;
    report->server_resident_bytes = -1;
    return report;
}

static char *printed(const struct inputgen_report *report,
                     core_status (*print)(const struct inputgen_report *, const struct inputgen_judgement *,
                                          FILE *))
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    assert_int_equal(print(report, &strict, file), CORE_OK);
    fclose(file);
    return text;
}

static void assert_near(json_t *object, const char *name, double value)
{
    json_t *member = json_object_get(object, name);
    assert_true(json_is_number(member));
    double found = json_number_value(member);
    if (found < value || found > value * (1 + 1.0 / 64))
        fail_msg("%s is %g, not %g", name, found, value);
}

static void json_has_the_figures(void **state)
{
    (void)state;
    struct inputgen_report *report = report_make();
    char *text = printed(report, inputgen_report_json);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    json_t *all = json_object_get(root, "all"), *latency = json_object_get(all, "latency_ns");
    json_t *slack = json_object_get(all, "slack_ns");
    assert_near(latency, "p50", 5e6);
    assert_near(latency, "p99", 9.9e6);
    assert_near(latency, "p99.9", 9.99e6);
    assert_near(latency, "p99.99", 9.999e6);
    assert_int_equal(json_integer_value(json_object_get(latency, "max")), 10000000);
    assert_int_equal(json_integer_value(json_object_get(latency, "min")), 1000);
    assert_int_equal(json_integer_value(json_object_get(slack, "min")), 10000000);
    assert_near(slack, "p1", 10.1e6 - 1e3);
    assert_near(slack, "p50", 15e6 - 1e3);
    assert_near(all, "payload_mbit_per_s", 8);
    assert_near(all, "packets_per_s", 1000);
    assert_near(all, "packets_received", PACKETS);
    assert_near(json_object_get(root, "send_lateness_ns"), "p99", 99000);
    assert_true(json_is_true(json_object_get(root, "pass")));
    assert_true(json_is_true(json_object_get(root, "generator_kept_schedule")));
    assert_true(json_is_null(json_object_get(root, "server_resident_bytes")));
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(json_object_get(root, "classes"), 0), "name")),
        "only");
    json_decref(root);
    free(text);
    inputgen_report_free(report);
}

static void page_has_the_figures_with_units(void **state)
{
    static const char *const parts[] = {
        "known: 1,234 streams over 16 connections, 10 s\n",
        " 10,000 ",
        "8.0 Mbit/s of payload each way, 1,000 packets/s",
        "server         2 s,  20.0 % of one core, 200 us a packet",
        "generator      1 s,  10.0 % of one core, 100 us a packet",
        "10 ms\n",
        "  outcome     10,000 packets came back in order, byte for byte right, every one before its "
        "deadline,\n"
        "              the closest by 10 ms\n"
        "PASS  10,000 packets: 0 wrong, 0 lost, 0 missed, 0 late; 0 streams refused\n"};
    (void)state;
    struct inputgen_report *report = report_make();
    char *text = printed(report, inputgen_report_print);
    for (size_t at = 0; at < sizeof parts / sizeof *parts; at++)
        if (!strstr(text, parts[at]))
            fail_msg("'%s' is not in\n%s", parts[at], text);
    assert_null(strstr(text, "warning"));
    free(text);
    inputgen_report_free(report);
}

static void every_fault_fails_the_verdict_and_is_named(void **state)
{
    static const struct {
        size_t counter;
        const char *words;
    } faults[] = {
        {offsetof(struct inputgen_report, all.mismatched), "1 packet with wrong bytes"},
        {offsetof(struct inputgen_report, all.disordered), "1 result out of order"},
        {offsetof(struct inputgen_report, all.lost), "1 packet lost"},
        {offsetof(struct inputgen_report, all.planned), "1 packet never sent"},
        {offsetof(struct inputgen_report, all.rejected), "1 packet not encrypted"},
        {offsetof(struct inputgen_report, all.missed), "1 deadline missed"},
        {offsetof(struct inputgen_report, all.late), "1 packet late here"},
        {offsetof(struct inputgen_report, all.refused), "1 stream refused"},
        {offsetof(struct inputgen_report, accounts_differ), "1 stream that the server counts otherwise"},
        {offsetof(struct inputgen_report, connections_failed), "1 connection failed"},
    };
    char sentence[512];
    (void)state;
    for (size_t at = 0; at < sizeof faults / sizeof *faults; at++) {
        struct inputgen_report *report = report_make();
        assert_int_equal(inputgen_report_judge(report, &strict, sentence, sizeof sentence), 0);
        ++*(uint64_t *)((uint8_t *)report + faults[at].counter);
        assert_int_equal(inputgen_report_judge(report, &strict, sentence, sizeof sentence), 1);
        assert_string_equal(sentence, faults[at].words);
        char *text = printed(report, inputgen_report_print);
        assert_non_null(strstr(text, faults[at].words));
        assert_non_null(strstr(text, "\nFAIL  10,000 packets: "));
        free(text);
        inputgen_report_free(report);
    }
}

static void a_generator_that_is_late_is_told_of(void **state)
{
    (void)state;
    struct inputgen_report *report = report_make();
    for (int at = 0; at < PACKETS / 50; at++) /* two in a hundred, a little over a quarter of the bound */
        core_histogram_record(&report->send_lateness, 5200 * CORE_NS_PER_US);
    assert_true(inputgen_report_generator_slow(report));
    char *text = printed(report, inputgen_report_print);
    assert_non_null(strstr(text, "the generator did not keep its own schedule"));
    assert_non_null(strstr(text, "20 ms"));
    free(text);
    inputgen_report_free(report);
}

static void negative_slack_is_shown_as_none(void **state)
{
    (void)state;
    struct inputgen_report *report = report_make();
    for (int at = 0; at < PACKETS / 20; at++)
        core_histogram_record(&report->all.slack, -3 * CORE_NS_PER_MS);
    char *text = printed(report, inputgen_report_print);
    assert_non_null(strstr(text, "none       none       none      -3 ms\n"));
    free(text);
    inputgen_report_free(report);
}

/* Everything that a page can say, in large numbers and long words. */
static struct inputgen_report *report_make_long(void)
{
    struct inputgen_report *report = report_make();
    struct inputgen_figures *all = &report->all;
    free(report->classes[0].name);
    report->classes[0].name = strdup("a name of a class that is longer than its column");
    all->sent = all->met = all->received = 12345678;
    all->missed = all->late = 12345;
    all->lost = all->mismatched = all->disordered = all->rejected = all->opened = all->refused = 1234;
    all->planned = all->sent + 1234;
    all->policed = all->fault = all->fault_missed = all->reader_late = all->untrue = 1234567;
    report->connections_failed = report->accounts_differ = 1234;
    report->interrupted = true;
    for (size_t kind = 0; kind < INPUTGEN_REFUSAL_KINDS; kind++) {
        struct inputgen_refusal *refusal = &report->refusals[report->refusal_kinds++];
        for (size_t at = 0; at + 1 < sizeof refusal->text; at++)
            refusal->text[at] = at % 9 == 8 ? ' ' : 'x';
    }
    for (int at = 0; at < PACKETS; at++)
        core_histogram_record(&report->send_lateness, CORE_NS_PER_S + at);
    return report;
}

static void page_keeps_to_its_width_and_ends_with_its_verdict(void **state)
{
    (void)state;
    struct inputgen_report *report = report_make_long();
    char *text = printed(report, inputgen_report_print), *last = text;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (strlen(line) > 100)
            fail_msg("%zu columns: %s", strlen(line), line);
        last = line;
    }
    assert_string_equal(last,
                        "FAIL  12,345,678 packets: 2,468 wrong, 1,234 lost, 12,345 missed, 12,345 late; "
                        "1,234 streams refused");
    free(text);
    inputgen_report_free(report);
}

static void histogram_file_has_the_latencies(void **state)
{
    char path[] = "/tmp/millrace-report-XXXXXX", line[256] = "";
    bool total = false;
    struct core_error error = {""};
    (void)state;
    struct inputgen_report *report = report_make();
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    assert_int_equal(inputgen_report_hgrm(report, path, &error), CORE_OK);
    FILE *file = fopen(path, "r");
    while (fgets(line, sizeof line, file))
        total = total || strstr(line, "10000");
    fclose(file);
    unlink(path);
    assert_true(total);
    assert_int_equal(inputgen_report_hgrm(report, "/nowhere/at/all", &error), CORE_SYSTEM);
    assert_non_null(strstr(error.text, "/nowhere/at/all"));
    inputgen_report_free(report);
    inputgen_report_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_has_the_figures),
        cmocka_unit_test(page_has_the_figures_with_units),
        cmocka_unit_test(every_fault_fails_the_verdict_and_is_named),
        cmocka_unit_test(a_generator_that_is_late_is_told_of),
        cmocka_unit_test(negative_slack_is_shown_as_none),
        cmocka_unit_test(page_keeps_to_its_width_and_ends_with_its_verdict),
        cmocka_unit_test(histogram_file_has_the_latencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
