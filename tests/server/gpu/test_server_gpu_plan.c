/* How the batches of a GPU go from one plan to the next: at once, in steps, or not at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/gpu/plan_queue.h"
#include "tests/support/flow_crowd.h"

#define CROWDS 600

static struct flow_crowd crowd;

/* A plan of the crowd; false: it does not hold. */
static bool plan_of(uint64_t number, core_ns period_ns, core_ns shortest_ns, struct partition_gpu_plan *plan)
{
    crowd.load.shortest_ns = shortest_ns;
    struct perfmodel_flow_verdict verdict = perfmodel_flow_judge(crowd.card, &crowd.load, period_ns);
    *plan = (struct partition_gpu_plan){.number = number,
                                        .period_ns = period_ns,
                                        .latency_ns = verdict.latency_ns,
                                        .batch_ns = verdict.latency_ns - period_ns,
                                        .card = crowd.card,
                                        .load = crowd.load,
                                        .arenas = 64,
                                        .batch_most_ns = CORE_NS_NEVER};
    return verdict.latency_ns <= shortest_ns;
}

/* The shortest period, to a tenth, at which all stages are stable; 0 if none is up to half a second. */
static core_ns brink_ns(void)
{
    for (core_ns period_ns = 2000; period_ns < CORE_NS_PER_S / 2; period_ns += period_ns / 10)
        if (perfmodel_flow_judge(crowd.card, &crowd.load, period_ns).latency_ns < CORE_NS_NEVER)
            return period_ns;
    return 0;
}

/* One that holds at periods of 5 ms and more. */
static void draw_roomy(uint64_t seed)
{
    struct test_random random = {.state = seed};
    flow_crowd_random(&crowd, &random);
    while (perfmodel_flow_judge(crowd.card, &crowd.load, 5000000).latency_ns > 50000000) {
        flow_crowd_free(&crowd);
        flow_crowd_random(&crowd, &random);
    }
}

static void no_batches_and_the_same_period(void **state)
{
    struct partition_gpu_plan plan, none = {.number = 7}, tight;
    (void)state;

    draw_roomy(5);
    (void)plan_of(1, 50000000, CORE_NS_PER_S, &plan);
    assert_true(partition_gpu_plan_may_follow(&none, &plan));
    assert_true(partition_gpu_plan_may_follow(&plan, &none));
    (void)plan_of(2, 50000000, 1, &tight); /* does not hold at all */
    assert_true(partition_gpu_plan_may_follow(&plan, &tight));
    tight.period_ns = 49000000;
    plan.load.shortest_ns = 1;
    assert_false(partition_gpu_plan_may_follow(&plan, &tight));
    tight.load.streams = 0; /* nobody is there any more */
    assert_true(partition_gpu_plan_may_follow(&plan, &tight));
    flow_crowd_free(&crowd);
}

/* Whoever is in one of them only does not count, nor the latency bound of such a one. */
static void only_those_in_both_count(void **state)
{
    struct partition_gpu_plan from, to;
    (void)state;

    draw_roomy(6);
    (void)plan_of(1, 20000000, CORE_NS_PER_S, &from);
    (void)plan_of(2, 10000000, CORE_NS_PER_S, &to);
    assert_true(partition_gpu_plan_may_follow(&from, &to));
    to.load.shortest_ns = 1; /* a new stream's */
    to.load.burst_bytes = to.load.rate = UINT64_C(1) << 52;
    assert_true(partition_gpu_plan_may_follow(&from, &to));
    from.load.shortest_ns = 1;
    assert_false(partition_gpu_plan_may_follow(&from, &to));
    from.load.shortest_ns = CORE_NS_PER_S;
    to.batch_most_ns = 1;
    assert_false(partition_gpu_plan_may_follow(&from, &to));
    to.batch_most_ns = CORE_NS_NEVER;
    assert_true(partition_gpu_plan_may_follow(&from, &to));
    from.arenas = to.arenas = 2;
    assert_false(partition_gpu_plan_may_follow(&from, &to));
    flow_crowd_free(&crowd);
}

/* Batches a period apart that are back so long after their closing: those on the way, the one that is open,
 * and the one that is opened ahead. */
static uint32_t in_use_at_once(core_ns held_ns, core_ns period_ns)
{
    uint32_t count = 2;
    for (core_ns closed_ns = 0; closed_ns < held_ns; closed_ns += period_ns)
        count++;
    return count;
}

/* As the period grows batches of the shorter one are still on the way, as long as ever where each direction
 * has a copy engine, and there are more of them. */
static void arenas_for_the_batches_before(void **state)
{
    struct partition_gpu_plan from, to;
    (void)state;

    for (uint64_t seed = 8; draw_roomy(seed), crowd.gpu.gpu.copy_engines < 2; seed++)
        flow_crowd_free(&crowd);
    (void)plan_of(1, 10000000, CORE_NS_PER_S, &from);
    (void)plan_of(2, 40000000, CORE_NS_PER_S, &to);
    from.aside_ns = to.aside_ns = 60000000;
    uint32_t least = in_use_at_once(from.latency_ns - from.period_ns + from.aside_ns, from.period_ns);
    assert_true(least > in_use_at_once(to.latency_ns - to.period_ns + to.aside_ns, to.period_ns) + 1);
    from.arenas = to.arenas = least;
    assert_true(partition_gpu_plan_may_follow(&from, &to));
    from.arenas = to.arenas = least - 1;
    assert_false(partition_gpu_plan_may_follow(&from, &to));
    flow_crowd_free(&crowd);
}

static bool fits(const void *limit, const struct partition_gpu_plan *plan)
{
    return limit == NULL || plan->batch_bytes <= *(const uint64_t *)limit;
}

/* The newest goes first, those older are forgotten; one of the same period takes the place of the last. */
static void the_newest_that_may_follow(void **state)
{
    struct server_gpu_plans plans = {.count = 0};
    struct partition_gpu_plan from, to, next;
    (void)state;

    draw_roomy(7);
    (void)plan_of(1, 20000000, CORE_NS_PER_S, &from);
    assert_false(server_gpu_plans_next(&plans, &from, fits, NULL, &next));
    for (uint64_t n = 2; n < 6; n++) {
        (void)plan_of(n, n < 4 ? 19000000 : 18000000, CORE_NS_PER_S, &to);
        server_gpu_plans_add(&plans, &to);
    }
    assert_int_equal(plans.count, 2);
    assert_true(server_gpu_plans_next(&plans, &from, fits, NULL, &next));
    assert_int_equal(next.number, 5);
    assert_int_equal(plans.count, 0);
    for (uint64_t n = 6; n < 20; n++) {
        (void)plan_of(n, 18000000 - (core_ns)n * 1000, CORE_NS_PER_S, &to);
        if (n > 6)
            to.arenas = 1; /* may not follow */
        server_gpu_plans_add(&plans, &to);
    }
    assert_int_equal(plans.count, SERVER_GPU_PLANS_MAX);
    assert_int_equal(plans.waiting[plans.count - 1].number, 19);
    assert_true(server_gpu_plans_next(&plans, &from, fits, NULL, &next));
    assert_int_equal(next.number, 6);
    assert_int_equal(plans.count, SERVER_GPU_PLANS_MAX - 1);
    flow_crowd_free(&crowd);
}

struct tally {
    int at_once, in_steps, never;
};

/* All streams are in both plans, and so in the batches on the way. */
static void expect_all_packets(const struct partition_gpu_plan *plan, bool on_the_way)
{
    const uint64_t packets = perfmodel_flow_batch_packets(&crowd.load, plan->period_ns);
    assert_int_equal(perfmodel_flow_batch_packets(&plan->load, plan->period_ns), packets);
    assert_int_equal(perfmodel_flow_batch_jobs(&plan->load, plan->period_ns),
                     perfmodel_flow_batch_jobs(&crowd.load, plan->period_ns));
    assert_true(!on_the_way || plan->batch_packets == packets);
}

/* From one period to the other as a batcher would go: every single step is proven. */
static void go(const struct partition_gpu_plan *from, const struct partition_gpu_plan *to,
               struct tally *tally)
{
    struct server_gpu_plans plans = {.count = 0};
    struct partition_gpu_plan at = *from, next;
    int steps = 0;

    server_gpu_plans_add(&plans, to);
    while (plans.count > 0 && server_gpu_plans_next(&plans, &at, fits, NULL, &next)) {
        assert_true(partition_gpu_plan_may_follow(&at, &next));
        assert_true(plans.count == 0 || next.number == from->number);
        assert_true(perfmodel_flow_judge(next.card, &next.load, next.period_ns).latency_ns <=
                    next.load.shortest_ns);
        expect_all_packets(&next, plans.count > 0);
        at = next;
        assert_true(++steps < 64);
    }
    assert_int_equal(plans.count == 0, partition_gpu_plan_leads_to(from, to));
    if (plans.count > 0)
        tally->never++;
    else if (steps == 1)
        tally->at_once++;
    else
        tally->in_steps++;
}

static void a_way_in_steps(void **state)
{
    struct test_random random = {.state = 8};
    struct tally tally[2] = {{0}};
    (void)state;

    for (int i = 0; i < CROWDS; i++) {
        struct partition_gpu_plan from, to;
        flow_crowd_random(&crowd, &random);
        core_ns short_ns = brink_ns(), long_ns = short_ns * test_random_in(&random, 105, 900) / 100;
        bool grows = i % 2 == 0;
        if (short_ns > 0) {
            (void)plan_of(1, grows ? short_ns : long_ns, CORE_NS_NEVER / 4, &from);
            (void)plan_of(2, grows ? long_ns : short_ns, CORE_NS_NEVER / 4, &to);
            core_ns most_ns = core_time_max(from.latency_ns, to.latency_ns);
            core_ns shortest_ns = most_ns < CORE_NS_NEVER ? most_ns + most_ns / 20 : 0;
            if (plan_of(1, from.period_ns, shortest_ns, &from) && plan_of(2, to.period_ns, shortest_ns, &to))
                go(&from, &to, &tally[grows]);
        }
        flow_crowd_free(&crowd);
    }
    for (int grows = 0; grows < 2; grows++) {
        print_message("%s: %d at once, %d in steps, %d never\n", grows ? "growing" : "shrinking",
                      tally[grows].at_once, tally[grows].in_steps, tally[grows].never);
        assert_true(tally[grows].at_once > 10 && tally[grows].in_steps > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_batches_and_the_same_period),
        cmocka_unit_test(only_those_in_both_count),
        cmocka_unit_test(arenas_for_the_batches_before),
        cmocka_unit_test(the_newest_that_may_follow),
        cmocka_unit_test(a_way_in_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
