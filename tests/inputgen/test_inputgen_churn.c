/* Churn against a whole server with an emulated card, and the verdict on what it may find. Nothing here asks
 * how long anything took: bytes, counts and capacity decide. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "inputgen/text.h"
#include "tests/support/churn_rig.h"
#include "tests/support/client.h"
#include "tests/support/command.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define GEN MILLRACE_BINARY_DIR "/inputgen/millrace-gen "

static const struct inputgen_churn_judgement patient = {.allow_missed = true};

static void check_operations(const struct inputgen_churn_report *report)
{
    const struct inputgen_operation_figures *opens = &report->figures.kinds[INPUTGEN_OPERATION_OPEN];
    const struct inputgen_operation_figures *closes = &report->figures.kinds[INPUTGEN_OPERATION_CLOSE];
    const struct inputgen_operation_figures *modifies = &report->figures.kinds[INPUTGEN_OPERATION_MODIFY];
    assert_true(opens->granted > 20 && closes->granted == opens->granted);
    assert_true(modifies->granted > 20 && modifies->asked == modifies->granted + modifies->refused);
    assert_in_range(core_histogram_total(&modifies->decided), modifies->granted, modifies->asked);
    assert_int_equal(core_histogram_total(&modifies->in_force), modifies->granted);
    assert_int_equal(core_histogram_total(&modifies->round_trip), modifies->asked);
    assert_int_equal(opens->asked, opens->granted + opens->refused);
    assert_int_equal(closes->asked, closes->granted);
    assert_int_equal(core_histogram_total(&opens->decided), opens->asked);
    assert_int_equal(core_histogram_total(&opens->in_force), opens->granted);
    assert_int_equal(core_histogram_total(&opens->round_trip), opens->asked);
    assert_int_equal(report->live->classes[1].figures.opened, opens->granted);
    assert_int_equal(report->live->classes[1].figures.refused, opens->refused);
    assert_in_range(report->figures.open_peak, 2, 60);
}

static void check_packets(const struct inputgen_figures *figures)
{
    assert_true(figures->received > 0);
    assert_int_equal(figures->sent, figures->planned);
    assert_int_equal(figures->received, figures->sent);
    assert_int_equal(figures->met + figures->missed, figures->received);
    assert_int_equal(figures->lost + figures->mismatched + figures->disordered + figures->rejected, 0);
}

static void streams_come_and_go_and_the_capacity_stays(void **state)
{
    struct churn_rig rig;
    (void)state;
    churn_rig_start(&rig, "");
    struct inputgen_churn_report *report = churn_rig_run(&rig);
    assert_int_equal(churn_rig_judge(report, &patient, "and the capacity is what it was"), 0);
    assert_int_equal(report->live->classes[0].figures.opened, CHURN_RIG_STANDING);
    check_operations(report);
    check_packets(&report->live->classes[0].figures);
    check_packets(&report->live->classes[1].figures);
    assert_true(report->figures.on_gpus > 0);
    assert_int_equal(report->figures.ended, 0);
    assert_int_equal(report->figures.accounts_differ, 0);
    assert_int_equal(report->live->accounts_differ, 0);
    assert_true(report->probed_after);
    assert_int_equal(report->capacity_count, 3);
    for (size_t at = 0; at < report->capacity_count; at++) {
        const struct inputgen_capacity *capacity = &report->capacities[at];
        assert_true(capacity->before.bounded && capacity->before.streams > 0 && capacity->before.on_gpus > 0);
        assert_int_equal(capacity->before.streams, capacity->after.streams);
        assert_true(capacity->before.refusal[0] != '\0');
    }
    assert_true(report->watch.looks > 1 && report->watch.failures == 0 && report->watch.gpu_count == 1);
    inputgen_churn_report_free(report);
    churn_rig_stop(&rig);
}

static void refusals_are_counted_and_are_no_fault_but_of_those_that_stand(void **state)
{
    static const struct inputgen_churn_judgement lenient = {.allow_missed = true, .allow_refused = true};
    struct churn_rig rig;
    (void)state;
    churn_rig_start(&rig, "limits: {streams: 70}\n");
    rig.options.probe_max = 0;
    struct inputgen_churn_report *report = churn_rig_run(&rig);
    assert_int_equal(churn_rig_judge(report, &patient, "byte for byte right"), 0);
    assert_true(report->figures.kinds[INPUTGEN_OPERATION_OPEN].refused > 0);
    bool limited = false;
    for (size_t at = 0; at < report->figures.refusal_kinds; at++)
        limited |= report->figures.refusals[at].code == PROTOCOL_REFUSED_LIMIT;
    assert_true(limited);
    assert_int_equal(report->capacity_count, 0);
    check_operations(report);
    inputgen_churn_report_free(report);
    churn_rig_stop(&rig);

    churn_rig_start(&rig, "limits: {streams: 50}\n");
    rig.options.probe_max = 0;
    report = churn_rig_run(&rig);
    assert_int_equal(churn_rig_judge(report, &patient, "10 standing streams refused"), 1);
    assert_int_equal(churn_rig_judge(report, &lenient, "byte for byte right"), 0);
    inputgen_churn_report_free(report);
    churn_rig_stop(&rig);
}

static void open_one(struct test_client *client, const struct churn_rig *rig)
{
    static const uint8_t key[16];
    struct protocol_open open = {.spec = {.packet_bytes = 160,
                                          .burst_packets = 1,
                                          .interval_ns = CORE_NS_PER_S,
                                          .latency_ns = CORE_NS_PER_S,
                                          .cipher = CORE_CIPHER_AES_128_CBC,
                                          .padding = CORE_PADDING_PKCS7},
                                 .key_kind = PROTOCOL_KEY_INLINE,
                                 .key = key,
                                 .key_bytes = sizeof key};
    test_client_connect(client, test_server_unix(&rig->server), NULL);
    assert_true(test_client_ask(client, PROTOCOL_OPEN, &open, NULL, NULL));
}

static void a_server_with_other_clients_is_not_probed(void **state)
{
    struct test_client other;
    struct inputgen_churn_report *report;
    struct core_error error;
    struct churn_rig rig;
    (void)state;
    churn_rig_start(&rig, "");
    rig.options.run.timeout_ms = 5000;
    open_one(&other, &rig);
    assert_int_equal(inputgen_churn_run(&rig.options, rig.standing, &report, &error), CORE_TIMEOUT);
    assert_non_null(strstr(error.text, "still has 1 streams"));
    test_client_close(&other);
    churn_rig_stop(&rig);
}

static void figures_are_sampled(void **state)
{
    struct churn_rig rig;
    char *text = NULL;
    size_t bytes = 0;
    (void)state;
    churn_rig_start(&rig, "");
    rig.options.probe_max = 0;
    rig.options.sample_every_ns = 200 * CORE_NS_PER_MS;
    rig.options.samples = open_memstream(&text, &bytes);
    inputgen_watch_head(rig.options.samples);
    inputgen_churn_report_free(churn_rig_run(&rig));
    assert_int_equal(fclose(rig.options.samples), 0);
    size_t lines = 0, columns = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, lines++) {
        size_t commas = 0;
        for (const char *at = line; at < end; at++)
            commas += *at == ',';
        if (lines == 0)
            columns = commas;
        assert_int_equal(commas, columns);
    }
    assert_true(lines >= 4);         /* the head, before, during, after */
    assert_null(strstr(text, ",,")); /* all of it could be told */
    free(text);
    churn_rig_stop(&rig);
}

/* ---- the verdict on figures that are known ---- */

static struct inputgen_churn_report *report_make(void)
{
    struct inputgen_churn_report *report = calloc(1, sizeof *report);
    report->live = inputgen_report_create("known", 2);
    report->live->classes[0].name = strdup("standing");
    report->live->classes[1].name = strdup("opened");
    inputgen_churn_figures_init(&report->figures);
    struct inputgen_figures *all = &report->live->all;
    all->opened = 12;
    all->planned = all->sent = all->received = all->met = 100;
    report->capacities = calloc(1, sizeof *report->capacities);
    report->capacity_count = 1;
    report->capacities[0] = (struct inputgen_capacity){
        .class_name = "only", .before = {.streams = 100}, .after = {.streams = 100}};
    report->probed_after = true;
    return report;
}

static void each_fault_is_a_fault(void **state)
{
    struct inputgen_churn_report *report = report_make();
    const struct {
        uint64_t *figure;
        const char *words;
    } faults[] = {
        {&report->live->all.mismatched, "wrong bytes"},
        {&report->live->all.disordered, "out of order"},
        {&report->live->all.lost, "lost"},
        {&report->live->all.rejected, "not encrypted"},
        {&report->live->all.missed, "deadline missed"},
        {&report->live->connections_failed, "connection failed"},
        {&report->live->accounts_differ, "counts otherwise"},
        {&report->live->classes[0].figures.refused, "standing streams refused"},
        {&report->figures.ended, "ended by the server"},
        {&report->figures.accounts_differ, "counts otherwise"},
        {&report->figures.kinds[INPUTGEN_OPERATION_OPEN].unanswered, "without an answer"},
        {&report->figures.kinds[INPUTGEN_OPERATION_CLOSE].unanswered, "without an answer"},
        {&report->figures.kinds[INPUTGEN_OPERATION_MODIFY].unanswered, "without an answer"},
    };
    static const struct inputgen_churn_judgement strict;
    (void)state;
    assert_int_equal(churn_rig_judge(report, &strict, "and the capacity is what it was"), 0);
    for (size_t at = 0; at < sizeof faults / sizeof *faults; at++) {
        *faults[at].figure = 1;
        assert_int_equal(churn_rig_judge(report, &strict, faults[at].words), 1);
        *faults[at].figure = 0;
    }
    report->live->all.late = 1; /* the client's own word is not asked, but told */
    assert_int_equal(churn_rig_judge(report, &strict, "says the server; 1 of them late here, the worst by "),
                     0);
    report->live->all.missed = 1;
    assert_int_equal(churn_rig_judge(report, &patient, "1 of them after the deadline"), 0);
    report->live->all.missed = 0;

    report->capacities[0].after.streams = 99;
    assert_int_equal(churn_rig_judge(report, &strict, "room for 99 streams of only after it, 100 before"), 1);
    report->capacities[0].after.held_back = true; /* by a server that is told to, once its machine fails it */
    assert_int_equal(churn_rig_judge(report, &strict, "the capacity was not compared"), 0);
    report->probed_after = false;
    (void)snprintf(report->remain, sizeof report->remain, "the server still has 3 streams");
    assert_int_equal(churn_rig_judge(report, &strict, "still has 3 streams"), 1);
    inputgen_churn_report_free(report);
}

/* ---- the command ---- */

static void the_command_reports_as_json(void **state)
{
    static char line[1024], text[65536];
    struct churn_rig rig;
    (void)state;
    churn_rig_start(&rig, "");
    (void)snprintf(line, sizeof line,
                   GEN
                   "churn mixed --streams 20 --opened churn --server %s --admin %s --duration 1.5 --seed 7 "
                   "--operations 100 --opened-max 20 --mix 2:1:1 --probe 20 --probe-rate 30 --drain 60 "
                   "--timeout 1min --allow-missed --json",
                   rig.address, rig.admin);
    assert_int_equal(test_command(line, text, sizeof text), 0);
    json_t *root = json_loads(text, 0, NULL), *churned = json_object_get(root, "churn");
    assert_true(json_is_true(json_object_get(root, "pass")));
    json_t *open = json_object_get(json_object_get(churned, "operations"), "open");
    assert_true(json_integer_value(json_object_get(open, "granted")) > 0);
    assert_int_equal(json_array_size(json_object_get(churned, "capacities")), 3);
    assert_int_equal(json_array_size(json_object_get(churned, "gpus")), 1);
    assert_string_equal(json_string_value(json_object_get(churned, "remain")), "");
    json_decref(root);

    strncat(line, " >/dev/null; " GEN "churn mixed --streams 5 --server ", sizeof line - strlen(line) - 1);
    strncat(line, rig.address, sizeof line - strlen(line) - 1);
    strncat(line, " --duration 1.2 --probe 0 --allow-missed", sizeof line - strlen(line) - 1);
    assert_int_equal(test_command(line, text, sizeof text), 0);
    assert_non_null(strstr(text, "\nPASS  "));
    assert_non_null(strstr(text, "operations a second"));
    for (char *rest = NULL, *row = strtok_r(text, "\n", &rest); row; row = strtok_r(NULL, "\n", &rest))
        assert_true(strlen(row) <= INPUTGEN_TEXT_COLUMNS);
    churn_rig_stop(&rig);
}

static void mistakes_are_named(void **state)
{
    static const struct test_command_mistake mistakes[] = {
        {"", "a workload is needed"},
        {"mixed --server unix:/x --ca y", "are for a tls: address"},
        {"mixed --server unix:/x --duration 5x", "--duration 5x: give a time"},
        {"mixed --server unix:/x --probe-rate 1kB/d", "--probe-rate 1kB/d: give a rate"},
        {"mixed --server unix:/nonexistent/s", "can not connect"},
        {"nonexistent --server unix:/x", "nonexistent"},
        {"mixed --server unix:/x --opened nonexistent", "nonexistent"},
        {"mixed --server unix:/x --mix 1", "--mix: '1' is not"},
        {"mixed --server unix:/x --mix 1:2:3:4", "is not"},
        {"mixed --server unix:/x --mix 1:-2:1", "is not"},
        {"mixed --server unix:/x --mix 0:0:0", "no weight above 0"},
        {"mixed --server unix:/x --guaranteed 101", "--guaranteed 101: give a number from"},
        {"mixed --server unix:/x --operations 0", "--operations 0: give a number from"},
        {"mixed --server unix:/x --opened-max 0", "--opened-max 0: give a whole number from"},
        {"mixed --server unix:/x --probe-rate no", "--probe-rate no: give a rate from"},
        {"mixed --server unix:/x --samples /tmp/x", "--samples needs --admin"},
        {"mixed --server unix:/x --admin unix:/y --samples /nonexistent/x", "/nonexistent/x: No such file"},
    };
    (void)state;
    test_command_mistakes(GEN "churn", mistakes, sizeof mistakes / sizeof *mistakes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_come_and_go_and_the_capacity_stays),
        cmocka_unit_test(refusals_are_counted_and_are_no_fault_but_of_those_that_stand),
        cmocka_unit_test(a_server_with_other_clients_is_not_probed),
        cmocka_unit_test(figures_are_sampled),
        cmocka_unit_test(each_fault_is_a_fault),
        cmocka_unit_test(the_command_reports_as_json),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
