/* Verdicts and latency: tables by hand, the paper's rule against the default one, and pipelines that run
 * against the bound in virtual time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "perfmodel/gpu.h"
#include "tests/support/gpu.h"
#include "tests/support/stages.h"

#define BATCHES   40
#define PIPELINES 20000

static const struct config_profile_gpu two_engines = {.copy_engines = 2}, one_engine = {.copy_engines = 1};

/* ---- by hand ---- */

static void verdicts_by_hand(void **state)
{
    (void)state;
    const struct config_profile_gpu *two = &two_engines, *one = &one_engine;
    const struct {
        const struct config_profile_gpu *gpu;
        core_ns up_ns, kernel_ns, down_ns, period_ns, shortest_ns;
        enum perfmodel_limit binding, paper;
    } cases[] = {
        /* everything as full as the paper lets it be */
        {two, 100, 100, 100, 100, 400, PERFMODEL_LIMIT_NONE, PERFMODEL_LIMIT_NONE},
        {two, 100, 100, 100, 100, 399, PERFMODEL_LIMIT_GPU_LATENCY, PERFMODEL_LIMIT_GPU_LATENCY},
        {two, 101, 100, 100, 100, 999, PERFMODEL_LIMIT_GPU_COPY, PERFMODEL_LIMIT_GPU_COPY},
        {two, 100, 101, 100, 100, 999, PERFMODEL_LIMIT_GPU_KERNEL, PERFMODEL_LIMIT_GPU_KERNEL},
        {two, 100, 100, 101, 100, 999, PERFMODEL_LIMIT_GPU_COPY, PERFMODEL_LIMIT_GPU_COPY},
        {two, 101, 101, 101, 100, 100, PERFMODEL_LIMIT_GPU_COPY, PERFMODEL_LIMIT_GPU_COPY},
        {two, 100, 101, 100, 100, 100, PERFMODEL_LIMIT_GPU_KERNEL, PERFMODEL_LIMIT_GPU_KERNEL},
        /* short stages leave room for a period over a fourth of the deadline */
        {two, 50, 80, 60, 210, 400, PERFMODEL_LIMIT_NONE, PERFMODEL_LIMIT_GPU_LATENCY},
        {two, 50, 80, 60, 211, 400, PERFMODEL_LIMIT_GPU_LATENCY, PERFMODEL_LIMIT_GPU_LATENCY},
        {two, 0, 0, 0, 400, 400, PERFMODEL_LIMIT_NONE, PERFMODEL_LIMIT_GPU_LATENCY},
        /* rounding of a fourth */
        {two, 100, 100, 100, 100, 403, PERFMODEL_LIMIT_NONE, PERFMODEL_LIMIT_NONE},
        {two, 1, 1, 1, 101, 403, PERFMODEL_LIMIT_NONE, PERFMODEL_LIMIT_GPU_LATENCY},
        /* one copy engine: the paper only looks at the longest stage */
        {one, 100, 100, 100, 100, 400, PERFMODEL_LIMIT_GPU_COPY, PERFMODEL_LIMIT_NONE},
        {one, 50, 100, 51, 100, 999, PERFMODEL_LIMIT_GPU_COPY, PERFMODEL_LIMIT_NONE},
        {one, 50, 100, 50, 100, 400, PERFMODEL_LIMIT_NONE, PERFMODEL_LIMIT_NONE},
        {one, 50, 100, 50, 100, 399, PERFMODEL_LIMIT_GPU_LATENCY, PERFMODEL_LIMIT_GPU_LATENCY},
        {one, 20, 10, 30, 100, 210, PERFMODEL_LIMIT_NONE,
         PERFMODEL_LIMIT_GPU_LATENCY}, /* 100 + 50 + 10 + 50 */
        {one, 20, 10, 30, 100, 209, PERFMODEL_LIMIT_GPU_LATENCY, PERFMODEL_LIMIT_GPU_LATENCY},
        {one, 50, 101, 50, 100, 999, PERFMODEL_LIMIT_GPU_KERNEL, PERFMODEL_LIMIT_GPU_KERNEL},
        /* no time left, and no end */
        {two, 1, 1, 1, 1, 0, PERFMODEL_LIMIT_GPU_LATENCY, PERFMODEL_LIMIT_GPU_LATENCY},
        {two, 0, 0, 0, 1, -5, PERFMODEL_LIMIT_GPU_LATENCY, PERFMODEL_LIMIT_GPU_LATENCY},
        {two, CORE_NS_NEVER, 1, 1, CORE_LATENCY_NS_MAX, CORE_NS_NEVER, PERFMODEL_LIMIT_GPU_COPY,
         PERFMODEL_LIMIT_GPU_COPY},
        {one, INT64_MAX / 2 + 1, 1, INT64_MAX / 2 + 1, INT64_MAX / 2 + 1, CORE_NS_NEVER,
         PERFMODEL_LIMIT_GPU_COPY, PERFMODEL_LIMIT_GPU_LATENCY},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct perfmodel_stages stages = {
            .up_ns = cases[i].up_ns, .kernel_ns = cases[i].kernel_ns, .down_ns = cases[i].down_ns};
        enum perfmodel_limit binding =
            perfmodel_gpu_judge(cases[i].gpu, &stages, cases[i].period_ns, cases[i].shortest_ns, false);
        enum perfmodel_limit paper =
            perfmodel_gpu_judge(cases[i].gpu, &stages, cases[i].period_ns, cases[i].shortest_ns, true);
        if (binding != cases[i].binding || paper != cases[i].paper)
            fail_msg("case %zu: %d and %d, expected %d and %d", i, binding, paper, cases[i].binding,
                     cases[i].paper);
    }
}

static void latency_by_hand(void **state)
{
    (void)state;
    struct perfmodel_stages stages = {.up_ns = 10, .kernel_ns = 20, .down_ns = 30};
    assert_int_equal(perfmodel_gpu_latency_ns(&two_engines, &stages, 100), 160);
    assert_int_equal(perfmodel_gpu_latency_ns(&one_engine, &stages, 100), 200);
    stages.host_ns = 100;
    assert_int_equal(perfmodel_gpu_latency_ns(&two_engines, &stages, 100), 260);
    assert_int_equal(perfmodel_gpu_judge(&two_engines, &stages, 100, 260, false), PERFMODEL_LIMIT_NONE);
    assert_int_equal(perfmodel_gpu_judge(&two_engines, &stages, 100, 259, false),
                     PERFMODEL_LIMIT_GPU_LATENCY);
    stages.host_ns = 101; /* the batcher falls behind */
    assert_int_equal(perfmodel_gpu_judge(&two_engines, &stages, 100, 1000, false),
                     PERFMODEL_LIMIT_GPU_LATENCY);
    assert_int_equal(perfmodel_gpu_judge(&two_engines, &stages, 100, 1000, true), PERFMODEL_LIMIT_NONE);
    stages.kernel_ns = CORE_NS_NEVER;
    assert_int_equal(perfmodel_gpu_latency_ns(&two_engines, &stages, 100), CORE_NS_NEVER);
    assert_int_equal(perfmodel_gpu_latency_ns(&one_engine, &stages, CORE_NS_NEVER), CORE_NS_NEVER);
}

/* ---- the paper's rule and the default one ---- */

/* max <= d / 4 makes the sum <= d. So with two copy engines the default rule takes whatever the paper's does
 * for the same stages; and it takes more. */
static void default_rule_accepts_what_the_paper_accepts(void **state)
{
    (void)state;
    struct test_random random = {.state = 10};
    int paper_count = 0, default_count = 0;
    for (int i = 0; i < 100000; i++) {
        core_ns shortest_ns = test_random_log(&random, 1, CORE_LATENCY_NS_MAX);
        core_ns period_ns = shortest_ns / 4 + test_random_chance(&random, 20);
        core_ns limit_ns = period_ns + test_random_chance(&random, 20);
        struct perfmodel_stages stages = {.up_ns = test_random_in(&random, 0, limit_ns),
                                          .kernel_ns = test_random_in(&random, 0, limit_ns),
                                          .down_ns = test_random_in(&random, 0, limit_ns)};
        if (period_ns == 0)
            continue;
        bool paper = !perfmodel_gpu_judge(&two_engines, &stages, period_ns, shortest_ns, true);
        bool standard = !perfmodel_gpu_judge(&two_engines, &stages, period_ns, shortest_ns, false);
        assert_true(standard || !paper);
        paper_count += paper;
        default_count += standard;
    }
    assert_true(paper_count > 10000 && default_count > paper_count);
}

static struct config_profile_copy copies[] = {{4096, 10000, 10000, 10000, 10000},
                                              {1 << 20, 110000, 110000, 110000, 110000}};
static struct config_profile_utilisation rows[] = {{1, 100000}, {10, 1000000}};
static const struct config_profile_gpu card = {.sms = 4,
                                               .copy_engines = 2,
                                               .sm_bytes_per_s = 1000000000,
                                               .launch_ns = 5000,
                                               .copies = copies,
                                               .copy_count = 2,
                                               .utilisation = rows,
                                               .utilisation_count = 2};
static const struct config_profile_margins margins = {.copies_ppm = 100000, .kernels_ppm = 100000};

static bool fits_in(const struct core_stream_spec *specs, size_t count, bool paper, bool fluid)
{
    uint64_t jobs[16], scratch[16];
    core_ns shortest_ns = CORE_NS_NEVER;
    for (size_t i = 0; i < count; i++)
        shortest_ns = core_time_min(specs[i].latency_ns, shortest_ns);
    for (size_t i = 0; i < count; i++)
        jobs[i] = perfmodel_gpu_job_bytes(&specs[i], shortest_ns / 4, fluid);
    struct perfmodel_stages stages = perfmodel_gpu_stages(&card, &margins, jobs, count, false, scratch);
    return perfmodel_gpu_judge(&card, &stages, shortest_ns / 4, shortest_ns, paper) == PERFMODEL_LIMIT_NONE;
}

/* With arrivals of its own, each rule its own jobs, that is not so: packets make larger jobs than a fluid. A
 * packet of 1 MB a second, due within 4 ms, is 1,000 bytes in each batch to the paper, and a packet in one of
 * them in truth. */
static void packets_make_the_difference(void **state)
{
    (void)state;
    struct core_stream_spec rare = {.packet_bytes = 1000000,
                                    .burst_packets = 1,
                                    .interval_ns = CORE_NS_PER_S,
                                    .latency_ns = 4 * CORE_NS_PER_MS,
                                    .cipher = CORE_CIPHER_AES_128_CBC};
    assert_true(fits_in(&rare, 1, true, true));
    assert_false(fits_in(&rare, 1, false, false));
    assert_true(fits_in(&rare, 1, false, true)); /* the rule is not what refuses it */

    struct test_random random = {.state = 11};
    int lost = 0, won = 0;
    for (int i = 0; i < 3000; i++) {
        struct core_stream_spec specs[16];
        size_t count = (size_t)test_random_in(&random, 1, 16);
        for (size_t k = 0; k < count; k++)
            specs[k] =
                (struct core_stream_spec){.packet_bytes = (uint32_t)test_random_log(&random, 16, 65536),
                                          .burst_packets = 1,
                                          .interval_ns = test_random_log(&random, 10000, 100000000),
                                          .latency_ns = test_random_log(&random, 1000000, 50000000),
                                          .cipher = CORE_CIPHER_AES_128_CBC};
        bool paper = fits_in(specs, count, true, true);
        assert_true(!paper || fits_in(specs, count, false, true));
        assert_true(!fits_in(specs, count, true, false) || fits_in(specs, count, false, false));
        assert_true(!fits_in(specs, count, false, false) || fits_in(specs, count, false, true));
        lost += paper && !fits_in(specs, count, false, false);
        won += paper;
    }
    assert_true(lost > 0 && won > lost);
}

/* ---- pipelines in virtual time ---- */

struct pipeline {
    core_ns period_ns;
    struct perfmodel_stages bound;
    struct stages stages;
};

/* Nothing, everything, or something in between. */
static core_ns random_part(struct test_random *random, core_ns most_ns)
{
    switch (test_random_in(random, 0, 3)) {
    case 0:
        return 0;
    case 1:
        return test_random_in(random, 0, most_ns);
    default:
        return most_ns;
    }
}

/* Small numbers, so that ends meet. With one engine the copies share the period. */
static void random_pipeline(struct pipeline *pipeline, struct test_random *random, bool shared)
{
    pipeline->period_ns = test_random_in(random, 1, 12);
    core_ns up_ns = random_part(random, pipeline->period_ns);
    pipeline->bound.up_ns = up_ns;
    pipeline->bound.kernel_ns = random_part(random, pipeline->period_ns);
    pipeline->bound.down_ns = random_part(random, shared ? pipeline->period_ns - up_ns : pipeline->period_ns);
    pipeline->stages.count = BATCHES;
    for (int n = 0; n < BATCHES; n++) {
        pipeline->stages.close_ns[n] = n * pipeline->period_ns;
        pipeline->stages.takes[n] =
            (struct perfmodel_stages){.up_ns = random_part(random, pipeline->bound.up_ns),
                                      .kernel_ns = random_part(random, pipeline->bound.kernel_ns),
                                      .down_ns = random_part(random, pipeline->bound.down_ns)};
    }
}

/* By turns; what became ready in this very moment may be too late to be seen. */
static bool up_in_turn(void *argument, bool last_up, core_ns now_ns, core_ns up_ready_ns,
                       core_ns down_ready_ns)
{
    struct test_random *random = argument;
    if (up_ready_ns == now_ns && test_random_chance(random, 30))
        return false;
    if (down_ready_ns == now_ns && test_random_chance(random, 30))
        return true;
    return !last_up;
}

static bool up_if_first(void *argument, bool last_up, core_ns now_ns, core_ns up_ready_ns,
                        core_ns down_ready_ns)
{
    (void)argument, (void)last_up, (void)now_ns;
    return up_ready_ns <= down_ready_ns;
}

/* How much later than the bound the latest batch is ready; <= 0: never. Its oldest packet came a period
 * before it was closed. */
static core_ns latest_ns(const struct pipeline *pipeline, const struct config_profile_gpu *gpu)
{
    core_ns bound_ns = perfmodel_gpu_latency_ns(gpu, &pipeline->bound, pipeline->period_ns);
    core_ns worst_ns = -bound_ns;
    for (int n = 0; n < BATCHES; n++)
        worst_ns = core_time_max(worst_ns,
                                 pipeline->stages.down_end_ns[n] - (n - 1) * pipeline->period_ns - bound_ns);
    return worst_ns;
}

static void two_engines_keep_the_bound(void **state)
{
    (void)state;
    struct test_random random = {.state = 12};
    bool attained = false;
    for (int i = 0; i < PIPELINES; i++) {
        struct pipeline pipeline;
        random_pipeline(&pipeline, &random, false);
        stages_two_engines(&pipeline.stages);
        core_ns late_ns = latest_ns(&pipeline, &two_engines);
        assert_true(late_ns <= 0);
        attained |= late_ns == 0;
    }
    assert_true(attained);
}

static void one_engine_keeps_the_bound_by_turns(void **state)
{
    (void)state;
    struct test_random random = {.state = 13};
    bool attained = false;
    for (int i = 0; i < PIPELINES; i++) {
        struct pipeline pipeline;
        random_pipeline(&pipeline, &random, true);
        stages_one_engine(&pipeline.stages, false, up_in_turn, &random);
        core_ns late_ns = latest_ns(&pipeline, &one_engine);
        assert_true(late_ns <= 0);
        attained |= late_ns == 0 && pipeline.bound.up_ns > 0 && pipeline.bound.down_ns > 0;
    }
    assert_true(attained);
}

/* Why the header asks for turns. */
static void first_come_first_served_breaks_the_bound(void **state)
{
    (void)state;
    struct test_random random = {.state = 14};
    bool by_more_than_a_period = false;
    for (int i = 0; i < PIPELINES; i++) {
        struct pipeline pipeline;
        random_pipeline(&pipeline, &random, true);
        stages_one_engine(&pipeline.stages, false, up_if_first, NULL);
        by_more_than_a_period |= latest_ns(&pipeline, &one_engine) > pipeline.period_ns;
    }
    assert_true(by_more_than_a_period);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts_by_hand),
        cmocka_unit_test(latency_by_hand),
        cmocka_unit_test(default_rule_accepts_what_the_paper_accepts),
        cmocka_unit_test(packets_make_the_difference),
        cmocka_unit_test(two_engines_keep_the_bound),
        cmocka_unit_test(one_engine_keeps_the_bound_by_turns),
        cmocka_unit_test(first_come_first_served_breaks_the_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
