/* Private to partition: a lower bound on the share of the GPUs that each stream needs. */
#ifndef MILLRACE_PARTITION_SEARCH_BOUND_H
#define MILLRACE_PARTITION_SEARCH_BOUND_H

#include "partition/search/problem.h"

/* What is counted in a GPU's period: see bound_gpu.c. */
enum partition_bound_rule {
    PARTITION_BOUND_LONG_RUN, /* the long-run rate, at every period */
    PARTITION_BOUND_FULLER,   /* the larger of the long-run rate and full batches; paper mode: the rate */
    PARTITION_BOUND_RULES
};

/* A price of each stream by each rule, such that in any plan the prices of the streams on GPUs add up to at
 * most
 * 1. INFINITY: no GPU can serve the stream. Neither rule is always the stricter one. */
struct partition_bound_prices {
    double *by_stream[PARTITION_BOUND_RULES];
};

CORE_CHECKED core_status partition_bound_prices_create(const struct partition_problem *problem,
                                                       struct partition_bound_prices *prices);
void partition_bound_prices_free(struct partition_bound_prices *prices); /* after a failure, too */

#endif
