/* The bound is as strict as either of its rules alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "partition/search/bound.h"
#include "tests/support/plan_sets.h"
#include "tests/support/share.h"

#define SETS TEST_SHARE(600)
#define SURE 1e-4

static bool bound_accepts(const struct partition_plan_input *input)
{
    struct partition_plan *plan = NULL;
    struct core_error error = {{0}};
    if (partition_plan_make(partition_plan_method_find("bound"), input, &plan, &error) != CORE_OK)
        fail_msg("%s", error.text);
    bool accepted = plan->accepted;
    partition_plan_destroy(plan);
    return accepted;
}

/* ---- a split by hand: to full workers what saves most GPU for its share ---- */

struct offer {
    double gpu, share;
};

static int compare_worth(const void *a, const void *b)
{
    const struct offer *left = a, *right = b;
    double more = right->gpu * left->share - left->gpu * right->share;
    return (more > 0) - (more < 0);
}

/* What the GPUs are left with; INFINITY if the workers must have more than they can. */
static double left_over(const struct partition_problem *problem, const double *gpu)
{
    static struct offer offer[TEST_PLAN_STREAMS];
    double room = problem->input->workers, load = 0;
    size_t offers = 0;
    for (size_t i = 0; i < problem->count; i++) {
        bool never = problem->share_ppb[i] > PARTITION_SHARE_ONE;
        double share = (double)(problem->share_ppb[i] - 1) / 1e9;
        if (isinf(gpu[i]) && never)
            return INFINITY;
        room -= isinf(gpu[i]) ? share : 0;
        load += isinf(gpu[i]) ? 0 : gpu[i];
        if (!isinf(gpu[i]) && !never)
            offer[offers++] = (struct offer){gpu[i], share};
    }
    if (room < -SURE)
        return INFINITY;
    qsort(offer, offers, sizeof *offer, compare_worth);
    for (size_t k = 0; k < offers && room > 0; k++) {
        double part = fmin(1, room / fmax(offer[k].share, 1e-12));
        room -= part * offer[k].share;
        load -= part * offer[k].gpu;
    }
    return load;
}

/* By both rules, over random sets; each rule must have been the stricter one at times. */
static void refuses_what_either_rule_refuses(void **state)
{
    (void)state;
    static struct test_plan_set set;
    struct test_random random = {.state = 5};
    int stricter[PARTITION_BOUND_RULES] = {0}, refused = 0;
    for (int n = 0; n < SETS; n++) {
        struct partition_problem *problem;
        struct partition_bound_prices prices;
        double load[PARTITION_BOUND_RULES];
        test_plan_set_random(&set, &random);
        assert_int_equal(partition_problem_create(&set.input, &problem), CORE_OK);
        assert_int_equal(partition_bound_prices_create(problem, &prices), CORE_OK);
        for (int rule = 0; rule < PARTITION_BOUND_RULES; rule++)
            load[rule] = left_over(problem, prices.by_stream[rule]);
        if (fmax(load[0], load[1]) > 1 + SURE) {
            assert_false(bound_accepts(&set.input));
            refused++;
        }
        stricter[0] += load[0] > load[1] + SURE;
        stricter[1] += load[1] > load[0] + SURE;
        partition_bound_prices_free(&prices);
        partition_problem_destroy(problem);
    }
    print_message("%d of %d refused; the long run is stricter with %d, full batches with %d\n", refused, SETS,
                  stricter[PARTITION_BOUND_LONG_RUN], stricter[PARTITION_BOUND_FULLER]);
    assert_true(refused > SETS / 20 && stricter[0] > 0 && stricter[1] > 0);
}

static bool has_plan(const struct partition_plan_input *input)
{
    struct partition_plan *plan = NULL;
    assert_int_equal(partition_plan_make(partition_plan_method_find("bands"), input, &plan, NULL), CORE_OK);
    const bool accepted = plan->accepted;
    partition_plan_destroy(plan);
    return accepted;
}

/* Bursts of packets that stand alone, on all kinds of machines: the first streams, as many as have a plan. */
static void takes_what_has_a_plan_of_packets_alone(void **state)
{
    (void)state;
    static struct test_plan_set set;
    struct test_random random = {.state = 6};
    size_t accepted = 0;
    for (int n = 0; n < SETS / 6; n++) {
        test_plan_set_random(&set, &random);
        const size_t count = set.input.count;
        const struct core_stream_spec alone = {.packet_bytes = 1408,
                                               .burst_packets = (uint32_t)test_random_in(&random, 2, 32),
                                               .interval_ns = set.specs[0].interval_ns,
                                               .latency_ns = set.specs[0].latency_ns,
                                               .cipher = CORE_CIPHER_AES_128_CBC,
                                               .padding = CORE_PADDING_PKCS7,
                                               .unit = CORE_UNIT_MESSAGE,
                                               .iv = CORE_IV_COUNTER,
                                               .message_packets = 1};
        for (size_t i = 0; i < count; i++)
            set.specs[i] = alone;
        size_t most = 0;
        for (size_t step = 256; step > 0; step /= 2) {
            set.input.count = most + step;
            most += most + step <= count && has_plan(&set.input) ? step : 0;
        }
        set.input.count = most;
        assert_true(most == 0 || bound_accepts(&set.input));
        accepted += most;
    }
    print_message("%zu streams have a plan\n", accepted);
    assert_true(accepted > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_what_either_rule_refuses),
        cmocka_unit_test(takes_what_has_a_plan_of_packets_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
