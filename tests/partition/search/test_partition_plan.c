/* Plans: the methods on random machines and sets, each certificate checked; what binds; refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "partition/check/check.h"
#include "partition/plan.h"
#include "perfmodel/edf_packets.h"
#include "tests/support/plan_sets.h"
#include "tests/support/share.h"

#define SETS TEST_SHARE(1500)

static struct partition_plan *plan_of(const char *method, const struct partition_plan_input *input)
{
    struct partition_plan *plan = NULL;
    struct core_error error = {{0}};
    core_status status = partition_plan_make(partition_plan_method_find(method), input, &plan, &error);
    if (status != CORE_OK)
        fail_msg("%s", error.text);
    return plan;
}

static void expect_checked(const struct partition_plan_input *input, const struct partition_plan *plan)
{
    struct core_error error = {{0}};
    if (partition_check(input, plan, &error) != CORE_OK)
        fail_msg("%s: %s", plan->method->name, error.text);
    assert_true(plan->headroom_ppb >= 0);
}

static void expect_refused(const struct partition_plan *plan)
{
    assert_int_not_equal(plan->binding, PERFMODEL_LIMIT_NONE);
    assert_true(strlen(plan->reason) > 0);
    assert_null(plan->unit);
}

static bool uses(const struct partition_plan *plan, bool gpus)
{
    for (size_t i = 0; i < plan->count; i++)
        if ((plan->unit[i] >= plan->workers) == gpus)
            return true;
    return false;
}

/* Every accepted plan is proven; what a method accepts, the bound does; every case did occur. */
static void random_sets(void **state)
{
    (void)state;
    static struct test_plan_set set;
    struct test_random random = {.state = 1};
    size_t accepted = 0, refused = 0, mixed = 0, several = 0, more = 0;
    for (int n = 0; n < SETS; n++) {
        test_plan_set_random(&set, &random);
        bool some = false, rectangle = false;
        for (const struct partition_plan_method *method = partition_plan_methods; method->name != NULL;
             method++) {
            if (!method->places)
                continue;
            struct partition_plan *plan = plan_of(method->name, &set.input);
            if (plan->accepted) {
                expect_checked(&set.input, plan);
                mixed += uses(plan, true) && uses(plan, false);
                several += plan->gpus > 1 && uses(plan, true);
            } else {
                expect_refused(plan);
            }
            /* the rectangle is the first: it is never below a baseline, and bands are never below it */
            bool bands = strcmp(method->name, "bands") == 0;
            assert_true(rectangle || bands || !plan->accepted || method == partition_plan_methods);
            assert_true(!rectangle || !bands || plan->accepted);
            rectangle = rectangle || (method == partition_plan_methods && plan->accepted);
            more += bands && plan->accepted && !rectangle;
            some = some || plan->accepted;
            accepted += plan->accepted;
            refused += !plan->accepted;
            partition_plan_destroy(plan);
        }
        if (some) {
            struct partition_plan *bound = plan_of("bound", &set.input);
            if (!bound->accepted)
                fail_msg("the bound refuses a set that has a plan: %s", bound->reason);
            partition_plan_destroy(bound);
        }
    }
    print_message(
        "%zu accepted, %zu refused, %zu on both sides, %zu on one of several GPUs, %zu only by bands\n",
        accepted, refused, mixed, several, more);
    assert_true(accepted > SETS / 2 && refused > SETS / 10 && mixed > SETS / 10 && several > SETS / 10);
}

static void expect_same(const struct partition_plan *a, const struct partition_plan *b)
{
    assert_int_equal(a->accepted, b->accepted);
    assert_int_equal(a->binding, b->binding);
    assert_string_equal(a->reason, b->reason);
    if (!a->accepted)
        return;
    assert_memory_equal(a->unit, b->unit, a->count * sizeof *a->unit);
    for (uint32_t g = 0; g < a->gpus; g++)
        assert_int_equal(a->gpu[g].period_ns, b->gpu[g].period_ns);
}

static void same_input_same_plan(void **state)
{
    (void)state;
    static struct test_plan_set set;
    struct test_random random = {.state = 2};
    for (int n = 0; n < 100; n++) {
        test_plan_set_random(&set, &random);
        for (const struct partition_plan_method *method = partition_plan_methods; method->places; method++) {
            struct partition_plan *a = plan_of(method->name, &set.input);
            struct partition_plan *b = plan_of(method->name, &set.input);
            expect_same(a, b);
            partition_plan_destroy(a);
            partition_plan_destroy(b);
        }
    }
}

/* ---- a machine by hand ---- */

/* Per card 16 SMs of 100 MB/s, 10 us a launch; copies of 10 GB/s. A worker does 1 GB/s. */
static struct config_profile_copy copies[] = {
    {4096, 2000, 2000, 4000, 4000},
    {1 << 24, 1678000, 1678000, 3355000, 3355000},
};
static struct config_profile_utilisation utilisation[] = {{1, 50000}, {20, 1000000}};
static struct config_profile_gpu cards[] = {{.count = 2,
                                             .sms = 16,
                                             .copy_engines = 2,
                                             .memory_bytes = 1 << 30,
                                             .sm_bytes_per_s = 100000000,
                                             .launch_ns = 10000,
                                             .copies = copies,
                                             .copy_count = 2,
                                             .utilisation = utilisation,
                                             .utilisation_count = 2}};
static struct config_profile machine = {
    .cpu = {.lanes = 1, .burst_pieces = 1, .piece_bytes = 4096, .per_byte_fs = {1000000, 1000000, 1000000}},
    .io = {.limit_percent = 100},
    .pinned_bytes = 1 << 30,
    .gpus = cards,
    .gpu_count = 1};

#define MANY 3000
static struct core_stream_spec many[MANY];

/* Alike: 1 MB/s each, so a worker has room for 1000 at the most and a GPU for 1600. */
static struct partition_plan_input alike(size_t count, core_ns latency_ns)
{
    for (size_t i = 0; i < count; i++)
        many[i] = (struct core_stream_spec){.packet_bytes = 1024,
                                            .burst_packets = 1,
                                            .interval_ns = 1024000,
                                            .latency_ns = latency_ns,
                                            .cipher = CORE_CIPHER_AES_128_CBC,
                                            .padding = CORE_PADDING_NONE};
    return (struct partition_plan_input){.specs = many, .count = count, .profile = &machine, .workers = 1};
}

static void few_fit_and_too_many_do_not(void **state)
{
    (void)state;
    for (const struct partition_plan_method *method = partition_plan_methods; method->places; method++) {
        struct partition_plan_input input = alike(2500, 100 * CORE_NS_PER_MS);
        struct partition_plan *plan = plan_of(method->name, &input);
        assert_true(plan->accepted);
        expect_checked(&input, plan);
        assert_true(uses(plan, true));
        partition_plan_destroy(plan);
    }
    struct partition_plan_input input = alike(MANY, 100 * CORE_NS_PER_MS);
    for (size_t i = 0; i < MANY; i++)
        many[i].interval_ns /= 2;
    for (const struct partition_plan_method *method = partition_plan_methods; method->name != NULL;
         method++) {
        struct partition_plan *plan = plan_of(method->name, &input);
        assert_false(plan->accepted);
        expect_refused(plan);
        partition_plan_destroy(plan);
    }
}

/* One more packet than an interval holds is what a batch shorter than that never has: sums count it, stairs
 * do not. Who keeps account by sums gets no such plan. */
static void stairs_only_on_request(void **state)
{
    (void)state;
    int by_stairs = 0;
    for (size_t count = 2000; count <= MANY; count += 20) {
        struct partition_plan_input input = alike(count, 3 * CORE_NS_PER_MS);
        for (size_t i = 0; i < count; i++)
            many[i].burst_packets = 2;
        struct partition_plan *plan = plan_of("min-rate", &input);
        bool stairs = false;
        for (uint32_t g = 0; g < plan->gpus && plan->accepted; g++)
            stairs = stairs || plan->gpu[g].rule == PARTITION_PLAN_STAIRCASE;
        by_stairs += stairs;
        if (plan->accepted)
            expect_checked(&input, plan);
        input.sums = true;
        if (stairs)
            assert_int_equal(partition_check(&input, plan, NULL), CORE_REFUSED);
        partition_plan_destroy(plan);
        plan = plan_of("min-rate", &input);
        assert_false(stairs && plan->accepted);
        if (plan->accepted)
            expect_checked(&input, plan);
        partition_plan_destroy(plan);
    }
    print_message("%d plans by stairs\n", by_stairs);
    assert_true(by_stairs > 2);
}

/* The rectangle leaves to the worker what the GPUs can not have: bounds too short for a period. */
static void short_bounds_placed_on_worker(void **state)
{
    (void)state;
    struct partition_plan_input input = alike(2000, 50 * CORE_NS_PER_MS);
    for (size_t i = 0; i < 200; i++)
        many[i].latency_ns = 500 * CORE_NS_PER_US;
    struct partition_plan *plan = plan_of("rectangle", &input);
    assert_true(plan->accepted);
    expect_checked(&input, plan);
    for (size_t i = 0; i < 200; i++)
        assert_int_equal(plan->unit[i], 0);
    assert_true(plan->rectangle.used);
    assert_int_equal(plan->rectangle.latency_low_ns, 50 * CORE_NS_PER_MS);
    assert_int_equal(plan->gpu[0].period_ns, 50 * CORE_NS_PER_MS / 4);
    partition_plan_destroy(plan);
}

static void stream_refused_by_all_units(void **state)
{
    (void)state;
    struct partition_plan_input input = alike(10, CORE_NS_PER_S);
    many[7].packet_bytes = 1 << 20;
    many[7].interval_ns = 500 * CORE_NS_PER_US; /* 2 GB/s */
    for (const struct partition_plan_method *method = partition_plan_methods; method->places; method++) {
        struct partition_plan *plan = plan_of(method->name, &input);
        assert_false(plan->accepted);
        assert_int_equal(plan->binding, PERFMODEL_LIMIT_DEADLINE);
        assert_non_null(strstr(plan->reason, "stream 7"));
        partition_plan_destroy(plan);
    }
}

static void nothing_and_one(void **state)
{
    (void)state;
    for (size_t count = 0; count < 2; count++) {
        struct partition_plan_input input = alike(count, 10 * CORE_NS_PER_MS);
        for (const struct partition_plan_method *method = partition_plan_methods; method->name != NULL;
             method++) {
            struct partition_plan *plan = plan_of(method->name, &input);
            assert_true(plan->accepted);
            if (method->places)
                expect_checked(&input, plan);
            partition_plan_destroy(plan);
        }
    }
}

static void without_gpus(void **state)
{
    (void)state;
    struct config_profile bare = machine;
    bare.gpu_count = 0;
    bare.gpus = NULL;
    for (const struct partition_plan_method *method = partition_plan_methods; method->name != NULL;
         method++) {
        struct partition_plan_input input = alike(800, 100 * CORE_NS_PER_MS);
        input.profile = &bare;
        struct partition_plan *plan = plan_of(method->name, &input);
        assert_true(plan->accepted);
        if (method->places)
            expect_checked(&input, plan);
        partition_plan_destroy(plan);
        input = alike(1200, 100 * CORE_NS_PER_MS);
        input.profile = &bare;
        plan = plan_of(method->name, &input);
        assert_false(plan->accepted);
        assert_true(plan->binding == PERFMODEL_LIMIT_CPU_UTILISATION ||
                    plan->binding == PERFMODEL_LIMIT_CPU_DEMAND || !method->places);
        expect_refused(plan);
        partition_plan_destroy(plan);
    }
}

/* Of these, the two workers take the four or five highest rates, but neither three nor six, by worst fit:
 * that the workers do not take one stream more can not stand for that they do not take all. With so many
 * others, which ask for next to nothing, that no worker is judged by its packets. */
static void without_gpus_all_streams_or_none(void **state)
{
    (void)state;
    static const struct {
        uint32_t kib, burst;
        core_ns interval_us, latency_us;
    } rows[] = {{1, 2, 8, 57},  {3, 2, 13, 68}, {4, 2, 56, 43}, {2, 2, 38, 41}, {3, 3, 31, 53},
                {1, 1, 53, 30}, {4, 3, 33, 89}, {1, 4, 60, 23}, {2, 2, 21, 82}};
    struct config_profile bare = machine;
    bare.gpu_count = 0;
    const size_t count = sizeof rows / sizeof *rows, others = 2 * PERFMODEL_EDF_PACKETS_MOST + 2;
    struct partition_plan_input input = alike(count + others, CORE_NS_PER_MS);
    input.profile = &bare;
    input.workers = 2;
    for (size_t i = count; i < count + others; i++) {
        many[i].packet_bytes = CORE_BLOCK_BYTES;
        many[i].interval_ns = many[i].latency_ns = 100 * CORE_NS_PER_S;
    }
    for (size_t i = 0; i < count; i++) {
        many[i].packet_bytes = 1024 * rows[i].kib;
        many[i].burst_packets = rows[i].burst;
        many[i].interval_ns = CORE_NS_PER_US * rows[i].interval_us;
        many[i].latency_ns = CORE_NS_PER_US * rows[i].latency_us;
    }
    for (const struct partition_plan_method *method = partition_plan_methods; method->places; method++) {
        struct partition_plan *plan = plan_of(method->name, &input);
        assert_false(plan->accepted);
        expect_refused(plan);
        partition_plan_destroy(plan);
    }
}

static void expect_invalid(struct partition_plan_input input, const char *word)
{
    struct partition_plan *plan = NULL;
    struct core_error error = {{0}};
    const struct partition_plan_method *method = partition_plan_method_find("rectangle");
    assert_int_equal(partition_plan_make(method, &input, &plan, &error), CORE_INVALID);
    assert_null(plan);
    if (strstr(error.text, word) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", error.text, word);
}

static void wrong_input(void **state)
{
    (void)state;
    struct partition_plan_input input = alike(3, 10 * CORE_NS_PER_MS);
    input.workers = 0;
    expect_invalid(input, "workers");
    input.workers = PARTITION_PLAN_WORKERS_MAX + 1;
    expect_invalid(input, "workers");
    input.workers = 1;
    many[2].interval_ns = 0;
    expect_invalid(input, "stream 2");
    input.count = PARTITION_PLAN_STREAMS_MAX + 1;
    expect_invalid(input, "streams");
    assert_null(partition_plan_method_find("no such method"));
    assert_string_equal(perfmodel_limit_name(PERFMODEL_LIMIT_FLUID), "fluid");
    assert_string_equal(perfmodel_limit_name((enum perfmodel_limit)(PERFMODEL_LIMIT_FLUID + 1)), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_sets),
        cmocka_unit_test(same_input_same_plan),
        cmocka_unit_test(few_fit_and_too_many_do_not),
        cmocka_unit_test(short_bounds_placed_on_worker),
        cmocka_unit_test(stairs_only_on_request),
        cmocka_unit_test(stream_refused_by_all_units),
        cmocka_unit_test(nothing_and_one),
        cmocka_unit_test(without_gpus),
        cmocka_unit_test(without_gpus_all_streams_or_none),
        cmocka_unit_test(wrong_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
