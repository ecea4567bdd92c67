/* Times of plans: the sets are at the edge of what a method accepts, and every row is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/plan/sets.h"
#include "tests/support/command.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define BENCH   MILLRACE_BINARY_DIR "/bench/millrace-bench "
#define STREAMS 50

static struct bench_machine machine;
static struct bench_pool pool;
static struct core_stream_spec specs[STREAMS];

static int set_up(void **state)
{
    (void)state;
    return bench_machine_open(&machine, "gtx285-x2", NULL) != CORE_OK ||
           bench_pool_open(&pool,
                           &(struct bench_pool_request){.workload = "norm", .count = STREAMS, .seed = 7},
                           NULL) != CORE_OK;
}

static int tear_down(void **state)
{
    (void)state;
    bench_pool_free(&pool);
    bench_machine_close(&machine);
    return 0;
}

/* ---- sets ---- */

static double edge_at; /* accepted from this slowness on */

static core_status edge_make(const struct partition_plan_input *input, struct partition_plan *plan)
{
    const double slowness = (double)input->specs[0].latency_ns / (double)pool.specs[0].latency_ns;
    plan->accepted = slowness >= edge_at;
    return CORE_OK;
}

static const struct partition_plan_method by_edge = {.name = "edge", .places = true, .make = edge_make};
static const struct bench_plan_case of_edge = {
    .method = &by_edge, .machine = &machine, .pool = &pool, .streams = STREAMS};

static void edges_are_found_from_anywhere(void **state)
{
    (void)state;
    static const double hints[] = {0.5, 1, 3, 100};
    for (edge_at = 0.7; edge_at < 200; edge_at *= 3)
        for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
            struct bench_plan_edge edge;
            assert_int_equal(bench_plan_find_edge(&of_edge, hints[i], specs, &edge, NULL), CORE_OK);
            assert_true(edge.accepted >= edge_at * (1 - 1e-6) && edge.refused < edge_at);
            assert_true(edge.accepted <= edge.refused * 1.1);
        }
}

static void there_may_be_one_side_only(void **state)
{
    (void)state;
    struct bench_plan_edge edge;
    edge_at = 0;
    assert_int_equal(bench_plan_find_edge(&of_edge, 1, specs, &edge, NULL), CORE_OK);
    assert_true(edge.accepted > 0 && edge.refused == 0);
    edge_at = 1e9;
    assert_int_equal(bench_plan_find_edge(&of_edge, 1, specs, &edge, NULL), CORE_OK);
    assert_true(edge.accepted == 0 && edge.refused > 0);
}

static void slow_motion_keeps_the_rest(void **state)
{
    (void)state;
    struct core_error error = {""};
    assert_int_equal(bench_plan_slow_down(&of_edge, 10, specs, &error), CORE_OK);
    for (size_t i = 0; i < STREAMS; i++) {
        assert_int_equal(specs[i].interval_ns, pool.specs[i].interval_ns * 10);
        assert_int_equal(specs[i].latency_ns, pool.specs[i].latency_ns * 10);
        assert_int_equal(specs[i].packet_bytes, pool.specs[i].packet_bytes);
        assert_int_equal(specs[i].burst_packets, pool.specs[i].burst_packets);
    }
    assert_int_equal(bench_plan_slow_down(&of_edge, 1e9, specs, &error), CORE_INVALID);
    assert_int_equal(bench_plan_slow_down(&of_edge, 1e-9, specs, &error), CORE_INVALID);
}

static void plans_that_do_not_hold_are_told(void **state)
{
    (void)state;
    struct core_error error = {""};
    struct partition_plan *plan = NULL;
    edge_at = 0; /* accepts all, without a figure in the certificate */
    assert_int_equal(bench_plan_make(&of_edge, pool.specs, &plan, NULL), CORE_OK);
    assert_int_equal(bench_plan_check(&of_edge, pool.specs, plan, &error), CORE_REFUSED);
    assert_non_null(strstr(error.text, "the plan of 50 streams by edge does not hold: "));
    plan->accepted = false;
    assert_int_equal(bench_plan_check(&of_edge, pool.specs, plan, NULL), CORE_OK);
    partition_plan_destroy(plan);
}

/* ---- the command ---- */

static json_t *plan_json(const char *options)
{
    static char text[65536];
    char line[512];
    json_error_t error;
    snprintf(line, sizeof line, BENCH "plan --json --seconds 0 %s", options);
    if (test_command(line, text, sizeof text) != 0)
        fail_msg("%s", text);
    json_t *document = json_loads(text, 0, &error);
    if (document == NULL)
        fail_msg("%s: %s", error.text, text);
    return document;
}

static void expect_order(json_t *row, const char *name)
{
    static const char *const keys[] = {"min", "p50", "p99", "max"};
    json_t *times = json_object_get(row, name);
    double before = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const double value = json_number_value(json_object_get(times, keys[i]));
        assert_true(value > 0 && value >= before);
        before = value;
    }
}

static void both_kinds_of_sets_are_timed(void **state)
{
    (void)state;
    json_t *document = plan_json("--check -m rectangle -m bound -n 300 -n 600"), *row;
    size_t i, accepted = 0;
    assert_int_equal(json_array_size(json_object_get(document, "cold")), 2 * 2 * 2);
    json_array_foreach(json_object_get(document, "cold"), i, row)
    {
        expect_order(row, "wall_ms");
        expect_order(row, "cpu_ms");
        assert_true(json_integer_value(json_object_get(row, "plans")) >= 5);
        accepted += json_is_true(json_object_get(row, "accepted"));
    }
    assert_int_equal(accepted, 4);
    assert_int_equal(json_array_size(json_object_get(document, "standing")), 2);
    json_array_foreach(json_object_get(document, "standing"), i, row)
    {
        assert_true(json_integer_value(json_object_get(row, "accepted")) > 0);
        expect_order(row, "fill_us");
        expect_order(row, "admit_us");
        expect_order(row, "release_us");
        expect_order(row, "refuse_us");
        expect_order(row, "change_us");
        expect_order(row, "guaranteed_refuse_us");
    }
    json_decref(document);
}

static void slow_methods_are_not_asked_for_more(void **state)
{
    (void)state;
    json_t *document = plan_json("--paper --check -m rectangle -n 300 -n 600 --limit 0");
    assert_int_equal(json_array_size(json_object_get(document, "cold")), 2);
    assert_int_equal(json_array_size(json_object_get(document, "skipped")), 1);
    assert_int_equal(json_array_size(json_object_get(document, "standing")), 0); /* the server's alone */
    json_decref(document);
}

static void the_command_prints_a_table(void **state)
{
    (void)state;
    static char text[16384];
    static const char *const words[] = {"Plans anew",        "accepted", "refused",
                                        "One stream beside", "one more", "one less"};
    assert_int_equal(test_command(BENCH "plan -m rectangle -n 200 -t 0 --progress", text, sizeof text), 0);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(text, words[i]) == NULL)
            fail_msg("\"%s\" is not in: %s", words[i], text);
}

static void wrong_input_is_told_of(void **state)
{
    (void)state;
    static const struct test_command_mistake mistakes[] = {
        {"--streams 0", "a whole number from 1 to 1000000"},
        {"--seconds -1", "--seconds -1: give a time"},
        {"--limit x", "--limit x: give a time"},
        {"--method x", "there are: rectangle"},
        {"--workload x", "no shipped workload"},
        {"--profile x", "no shipped profile"},
    };
    test_command_mistakes(BENCH "plan", mistakes, sizeof mistakes / sizeof *mistakes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges_are_found_from_anywhere),
        cmocka_unit_test(there_may_be_one_side_only),
        cmocka_unit_test(slow_motion_keeps_the_rest),
        cmocka_unit_test(plans_that_do_not_hold_are_told),
        cmocka_unit_test(both_kinds_of_sets_are_timed),
        cmocka_unit_test(slow_methods_are_not_asked_for_more),
        cmocka_unit_test(the_command_prints_a_table),
        cmocka_unit_test(wrong_input_is_told_of),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
