/* Private to partition: what a stream takes of the GPUs at the very least. */
#ifndef MILLRACE_PARTITION_SEARCH_BOUND_H
#define MILLRACE_PARTITION_SEARCH_BOUND_H

#include "partition/search/problem.h"

/* What is counted in a GPU's period: see bound_gpu.c. */
enum partition_bound_rule {
    PARTITION_BOUND_LONG_RUN, /* what comes in the long run, at every period */
    PARTITION_BOUND_FULLER,   /* that or full batches, whichever asks more at a period; on paper the former */
    PARTITION_BOUND_RULES
};

/* By rule and stream, such that the prices of all streams on GPUs add up to at most 1 in any plan; INFINITY:
 * no GPU can have the stream. Neither rule's prices are always the higher. */
struct partition_bound_prices {
    double *by_stream[PARTITION_BOUND_RULES];
};

CORE_CHECKED core_status partition_bound_prices_create(const struct partition_problem *problem,
                                                       struct partition_bound_prices *prices);
void partition_bound_prices_free(struct partition_bound_prices *prices); /* after a failure, too */

#endif
