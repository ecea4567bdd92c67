/* Estimates: the capacity found is where a method says no to one stream more, its figures add up, and the
 * command tells them or what is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/capacity.h"
#include "tests/support/command.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define BENCH MILLRACE_BINARY_DIR "/bench/millrace-bench "

static void open_machine(struct bench_machine *machine, const char *profile)
{
    struct core_error error = {""};
    if (bench_machine_open(machine, profile, &error) != CORE_OK)
        fail_msg("%s", error.text);
}

static void draw(struct bench_pool *pool, const char *workload, uint32_t count)
{
    struct core_error error = {""};
    const struct bench_pool_request request = {.workload = workload, .count = count, .seed = 7};
    if (bench_pool_open(pool, &request, &error) != CORE_OK)
        fail_msg("%s", error.text);
}

static bool accepts(const struct bench_capacity_options *options, size_t streams)
{
    const struct partition_plan_input input = {.specs = options->pool->specs,
                                               .count = streams,
                                               .profile = &options->machine->profile,
                                               .workers = options->machine->workers,
                                               .paper = options->paper,
                                               .seed = options->seed};
    struct partition_plan *plan;
    struct core_error error = {""};
    assert_int_equal(partition_plan_make(options->method, &input, &plan, &error), CORE_OK);
    const bool accepted = plan->accepted;
    partition_plan_destroy(plan);
    return accepted;
}

static struct bench_capacity find(const struct bench_capacity_options *options)
{
    struct bench_capacity capacity;
    struct core_error error = {""};
    if (bench_capacity_find(options, &capacity, &error) != CORE_OK)
        fail_msg("%s", error.text);
    return capacity;
}

static void expect_sums(const struct bench_capacity_options *options, const struct bench_capacity *capacity)
{
    double total = 0;
    for (size_t i = 0; i < capacity->streams; i++)
        total += core_stream_rate_bits_per_s(&options->pool->specs[i]);
    assert_true(total == capacity->total_bits_per_s);
    if (capacity->method->places) {
        const double parts = capacity->cpu_bits_per_s + capacity->gpu_bits_per_s;
        assert_true(parts > total * (1 - 1e-9) && parts < total * (1 + 1e-9));
    }
}

/* From any hint the search ends at such a place; of the bound, which is monotone, at the same. */
static void the_answer_is_where_yes_becomes_no(void **state)
{
    (void)state;
    static const char *const workloads[] = {"const", "norm", "exp"};
    struct bench_machine machine;
    open_machine(&machine, "gtx285-x2");
    assert_int_equal(bench_machine_set(&machine, 1, 1, NULL), CORE_OK);
    size_t answers = 0;
    for (size_t w = 0; w < sizeof workloads / sizeof *workloads; w++) {
        enum { POOL = 12000 };
        struct bench_pool pool;
        draw(&pool, workloads[w], POOL);
        for (const struct partition_plan_method *method = partition_plan_methods; method->name != NULL;
             method++) {
            struct bench_capacity_options options = {
                .method = method, .machine = &machine, .pool = &pool, .paper = w % 2 == 1, .seed = 3};
            struct bench_capacity capacity = find(&options);
            expect_sums(&options, &capacity);
            assert_int_equal(capacity.whole_pool, capacity.streams == POOL);
            if (!capacity.whole_pool) {
                assert_true(accepts(&options, capacity.streams));
                assert_false(accepts(&options, capacity.streams + 1));
                assert_true(strlen(capacity.reason) > 0);
                assert_int_not_equal(capacity.binding, PERFMODEL_LIMIT_NONE);
                answers++;
            }
            for (size_t hint = 1; hint < 2 * POOL; hint = hint * 60 + 3) {
                options.hint = hint;
                struct bench_capacity other = find(&options);
                if (!method->places)
                    assert_int_equal(other.streams, capacity.streams);
                if (!other.whole_pool)
                    assert_false(accepts(&options, other.streams + 1));
                assert_true(accepts(&options, other.streams));
                bench_capacity_free(&other);
            }
            bench_capacity_free(&capacity);
        }
        bench_pool_free(&pool);
    }
    bench_machine_close(&machine);
    assert_true(answers >= 6);
}

/* A method made for the test: what it accepts is known. */
static bool (*rule)(size_t streams);

static core_status rule_make(const struct partition_plan_input *input, struct partition_plan *plan)
{
    plan->accepted = rule(input->count);
    plan->binding = plan->accepted ? PERFMODEL_LIMIT_NONE : PERFMODEL_LIMIT_FLUID;
    snprintf(plan->reason, sizeof plan->reason, "%zu", input->count);
    return CORE_OK;
}

static const struct partition_plan_method by_rule = {.name = "rule", .places = true, .make = rule_make};

static bool up_to_700(size_t streams)
{
    return streams <= 700;
}

static bool with_a_gap(size_t streams)
{
    return streams <= 700 && (streams < 600 || streams > 699);
}

static bool with_a_gap_above(size_t streams)
{
    return streams <= 640 || (streams >= 650 && streams <= 900);
}

static bool none(size_t streams)
{
    return streams == 0;
}

static bool all(size_t streams)
{
    return streams <= 1000;
}

static void answers_by_rule(void **state)
{
    (void)state;
    static const struct {
        bool (*rule)(size_t streams);
        size_t hint, streams, refused_low, refused_high;
    } cases[] = {
        {up_to_700, 0, 700, 0, 0},
        {up_to_700, 1, 700, 0, 0},
        {up_to_700, 700, 700, 0, 0},
        {up_to_700, 5000, 700, 0, 0},
        {with_a_gap, 700, 700, 600, 699},
        {with_a_gap_above, 640, 900, 0, 0},
        {with_a_gap_above, 900, 900, 0, 0},
        {none, 0, 0, 0, 0},
        {none, 1, 0, 0, 0},
        {all, 0, 1000, 0, 0},
        {all, 3, 1000, 0, 0},
    };
    struct bench_machine machine;
    open_machine(&machine, "cpu-only");
    struct bench_pool pool;
    draw(&pool, "const", 1000);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct bench_capacity_options options = {
            .method = &by_rule, .machine = &machine, .pool = &pool, .hint = cases[i].hint};
        rule = cases[i].rule;
        struct bench_capacity capacity = find(&options);
        assert_int_equal(capacity.streams, cases[i].streams);
        assert_true(capacity.refused_below >= cases[i].refused_low &&
                    capacity.refused_below <= cases[i].refused_high);
        assert_int_equal(capacity.whole_pool, cases[i].streams == 1000);
        assert_int_equal(capacity.plan->count, capacity.streams);
        if (!capacity.whole_pool) { /* the reason is that of one stream more */
            char reason[32];
            snprintf(reason, sizeof reason, "%zu", capacity.streams + 1);
            assert_string_equal(capacity.reason, reason);
        }
        assert_true(capacity.plans < 60);
        bench_capacity_free(&capacity);
    }
    bench_pool_free(&pool);
    bench_machine_close(&machine);
}

static void machines_of_any_size(void **state)
{
    (void)state;
    struct bench_machine machine;
    open_machine(&machine, "gtx285-x2");
    struct core_error error = {""};
    assert_int_equal(bench_machine_gpus(&machine), 2);
    assert_int_equal(machine.workers, 2);
    assert_int_equal(bench_machine_set(&machine, 8, 5, &error), CORE_OK);
    assert_int_equal(bench_machine_gpus(&machine), 8);
    assert_int_equal(machine.workers, 5);
    assert_int_equal(config_profile_check(&machine.profile, &error), CORE_OK);
    assert_int_equal(bench_machine_set(&machine, 0, BENCH_MACHINE_AS_PROFILE, &error), CORE_OK);
    assert_int_equal(bench_machine_gpus(&machine), 0);
    assert_int_equal(machine.workers, 2);
    assert_int_equal(bench_machine_set(&machine, CONFIG_PROFILE_GPU_COUNT_MAX + 1, 1, &error), CORE_INVALID);
    assert_int_equal(bench_machine_set(&machine, 1, 0, &error), CORE_INVALID);
    bench_machine_close(&machine);
    open_machine(&machine, "cpu-only");
    assert_int_equal(bench_machine_set(&machine, 1, 1, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "no GPU"));
    bench_machine_close(&machine);
    assert_int_equal(bench_machine_open(&machine, "none-such", &error), CORE_NOT_FOUND);
    assert_non_null(strstr(error.text, "gtx285-x2"));
}

static void a_pool_begins_as_a_smaller_one(void **state)
{
    (void)state;
    struct bench_pool small, large;
    draw(&small, "norm", 50);
    draw(&large, "norm", 500);
    assert_int_equal(large.count, 500);
    assert_memory_equal(small.specs, large.specs, 50 * sizeof *small.specs);
    struct bench_pool_request request = {
        .workload = "norm", .count = 50, .seed = 7, .packet_bytes = 350, .burst_packets = 5};
    bench_pool_free(&large);
    assert_int_equal(bench_pool_open(&large, &request, NULL), CORE_OK);
    for (size_t i = 0; i < 50; i++) { /* the rates are what they were, to the rounding of intervals */
        assert_int_equal(large.specs[i].packet_bytes, 350);
        assert_int_equal(large.specs[i].burst_packets, 5);
        assert_int_equal(large.specs[i].latency_ns, small.specs[i].latency_ns);
        assert_in_range(large.specs[i].interval_ns * 4 - small.specs[i].interval_ns + 4, 0, 8);
    }
    bench_pool_free(&small);
    bench_pool_free(&large);
}

/* ---- the command ---- */

static json_t *estimate_json(const char *options)
{
    static char text[65536];
    char line[512];
    json_error_t error;
    snprintf(line, sizeof line, BENCH "estimate --json %s", options);
    assert_int_equal(test_command(line, text, sizeof text), 0);
    json_t *document = json_loads(text, 0, &error);
    if (document == NULL)
        fail_msg("%s: %s", error.text, text);
    return document;
}

static json_int_t streams_of(json_t *document, const char *method)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(document, "methods"), i, row)
    {
        if (strcmp(json_string_value(json_object_get(row, "method")), method) == 0)
            return json_integer_value(json_object_get(row, "streams"));
    }
    fail_msg("no row of %s", method);
    return 0;
}

static void the_command_tells_every_method(void **state)
{
    (void)state;
    json_t *two = estimate_json("--workload const --paper --pool 20000");
    json_t *one = estimate_json("--workload const --paper --pool 20000 --gpus 1");
    size_t methods = 0;
    for (const struct partition_plan_method *method = partition_plan_methods; method->name != NULL;
         method++, methods++) {
        assert_true(streams_of(two, method->name) > streams_of(one, method->name));
        assert_true(streams_of(two, method->name) <= streams_of(two, "bound"));
    }
    assert_int_equal(json_array_size(json_object_get(two, "methods")), methods);
    assert_int_equal(json_integer_value(json_object_get(one, "gpus")), 1);
    json_decref(one);
    json_decref(two);
    json_t *narrow = estimate_json("-m rectangle --profile emulated-small --workload demo --pool 3000");
    assert_int_equal(json_array_size(json_object_get(narrow, "methods")), 1);
    json_decref(narrow);
}

static void the_command_prints_a_table(void **state)
{
    (void)state;
    static char text[16384];
    static const char *const words[] = {"gtx285-x2: 2 GPUs, 2 CPU workers; the paper's rules",
                                        "one stream more: ", "rectangle", "bound", "20.500"};
    assert_int_equal(
        test_command(BENCH "estimate -w const --paper --pool 20000 --progress", text, sizeof text), 0);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(text, words[i]) == NULL)
            fail_msg("\"%s\" is not in: %s", words[i], text);
    assert_int_equal(test_command(BENCH "estimate --pool 5 -m rectangle", text, sizeof text), 0);
    assert_non_null(strstr(text, "enlarge --pool"));
}

static void wrong_input_is_told_of(void **state)
{
    (void)state;
    static const struct test_command_mistake mistakes[] = {
        {"--method none", "there are: rectangle"},
        {"--workload none", "no shipped workload is called 'none'"},
        {"--workload ./none.yaml", "none.yaml"},
        {"--profile none", "no shipped profile is called 'none'; there are: cpu-only"},
        {"--profile cpu-only --gpus 2", "describes no GPU"},
        {"--gpus many", "a whole number from 0 to 64"},
        {"--cpus 0", "a whole number from 1 to 1024"},
        {"--pool 1000001", "a whole number from 1 to 1000000"},
        {"--packet 0", "give 1 to 1048576 bytes"},
        {"--burst 65537", "a whole number from 1 to 65536"},
        {"--seed -1", "a whole number from 0"},
    };
    test_command_mistakes(BENCH "estimate", mistakes, sizeof mistakes / sizeof *mistakes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_answer_is_where_yes_becomes_no),
        cmocka_unit_test(answers_by_rule),
        cmocka_unit_test(machines_of_any_size),
        cmocka_unit_test(a_pool_begins_as_a_smaller_one),
        cmocka_unit_test(the_command_tells_every_method),
        cmocka_unit_test(the_command_prints_a_table),
        cmocka_unit_test(wrong_input_is_told_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
