/* Sets of streams that are just about too much for a machine, and the plans that take as many as can be. */
#ifndef MILLRACE_TESTS_BRIM_SETS_H
#define MILLRACE_TESTS_BRIM_SETS_H

#include "tests/support/plan_sets.h"

/* A machine of few units and streams for 1/8 to twice of what it could carry: wild mixtures, streams of one
 * kind, and streams of one kind that only GPUs can carry, with some intervals a period. In the default mode,
 * without streams that have no plan even alone. */
void test_brim_set_random(struct test_plan_set *set, struct test_random *random);

/* Shortens the set to the longest beginning that the method accepts, where the first six streams that it
 * refused are left out, and returns its plan. *brim: some were refused. */
struct partition_plan *test_brim_set_fill(struct test_plan_set *set,
                                          const struct partition_plan_method *method, bool *brim);

#endif
