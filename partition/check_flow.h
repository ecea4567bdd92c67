/* Private to partition/check.c: how late a stage can be under the backlog rule (perfmodel/flow.h), straight
 * from its definition: the largest L S(P/L + rho T) - (L-1) T; and with stairs, what is known of a single
 * batch and of the first rows of batches is taken for these.
 *
 * In real numbers, and with hulls of its own. What is maximised is concave in L, so its largest value is
 * where it stops growing. */
#ifndef MILLRACE_PARTITION_CHECK_FLOW_H
#define MILLRACE_PARTITION_CHECK_FLOW_H

#include "config/profile.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

#define PARTITION_CHECK_ROWS 8

struct partition_check_flow {
    const struct config_profile_gpu *card;
    bool busy;
    long double margin;                   /* 1 + m */
    size_t jobs;                          /* n */
    long double burst_bytes;              /* P */
    long double period_ns;                /* T */
    long double rate, rate_max;           /* rho in bytes per ns, and what it may be rounded up to */
    long double job_bytes, job_bytes_max; /* the longest job, and what it may be taken for at the most */
    bool stairs;                          /* false: nothing of what follows is known */
    long double row_bytes[PARTITION_CHECK_ROWS]; /* W_1, W_2 ... */
    long double up_ns, kernel_ns, down_ns;       /* of the fullest batch, margin included */
};

enum partition_check_stage {
    PARTITION_CHECK_UP,
    PARTITION_CHECK_KERNEL,
    PARTITION_CHECK_DOWN,
    PARTITION_CHECK_COPIES /* up and down together: one copy engine */
};

/* What a certificate may tell of a stage: no less than what whole batches can make of it, no more than what
 * rounding makes of any number of batches, whole or not; and of its time in a period in the long run.
 * INFINITY for a stage that falls behind for ever. */
struct partition_check_range {
    long double least_ns, most_ns;
    long double mean_least_ns, mean_most_ns;
};

CORE_CHECKED core_status partition_check_flow(const struct partition_check_flow *flow,
                                              enum partition_check_stage stage,
                                              struct partition_check_range *range);

#endif
