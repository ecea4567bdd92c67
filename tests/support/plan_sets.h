/* Random machines and stream sets for tests of plans. */
#ifndef MILLRACE_TESTS_PLAN_SETS_H
#define MILLRACE_TESTS_PLAN_SETS_H

#include "partition/plan.h"
#include "tests/support/gpu.h"

#define TEST_PLAN_KINDS   3
#define TEST_PLAN_STREAMS 400

/* Points into itself: not to be copied. */
struct test_plan_set {
    struct config_profile profile;
    struct config_profile_gpu gpus[TEST_PLAN_KINDS];
    struct test_gpu cards[TEST_PLAN_KINDS];
    struct core_stream_spec specs[TEST_PLAN_STREAMS];
    struct partition_plan_input input;
};

/* No to three kinds of cards, like or unlike, with one copy engine or two; bursts; latency bounds below and
 * above the interval; packets of a block and of a megabyte; in one set of five messages with all IVs; as many
 * streams as about fit, or far more. */
void test_plan_set_random(struct test_plan_set *set, struct test_random *random);

#endif
