/* Private to partition/check/check.c: how late a stage can be under the backlog rule (perfmodel/flow.h),
 * straight from its definition: the largest L S(P/L + rho T) - (L-1) T. Of the copies on one engine: whether
 * there is a busy time in which what may have come takes longer than the bounds allow.
 *
 * In real numbers, and with hulls of its own. What is maximised is concave, so its largest value is where it
 * stops growing. */
#ifndef MILLRACE_PARTITION_CHECK_CHECK_FLOW_H
#define MILLRACE_PARTITION_CHECK_CHECK_FLOW_H

#include "config/profile.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

struct partition_check_flow {
    const struct config_profile_gpu *card;
    bool busy;
    long double margin;                    /* 1 + m */
    long double in_ns;                     /* how late a batch may be closed */
    size_t jobs;                           /* n */
    long double burst_bytes;               /* P */
    long double period_ns;                 /* T */
    long double rate, rate_max;            /* rho in bytes per ns, and what it may be rounded up to */
    long double job_bytes, job_bytes_max;  /* the longest job, and what it may be taken for at the most */
    long double up_ns, kernel_ns, down_ns; /* of the fullest batch, margin included; INFINITY: not known */
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

/* A stage by itself. Of COPIES only the mean. */
CORE_CHECKED core_status partition_check_flow(const struct partition_check_flow *flow,
                                              enum partition_check_stage stage,
                                              struct partition_check_range *range);

/* One copy engine: the bounds that are told, and what they may be. */
struct partition_check_turns {
    long double up_ns, kernel_ns, down_ns;
    struct partition_check_range up, down;
};
CORE_CHECKED core_status partition_check_turns(const struct partition_check_flow *flow,
                                               struct partition_check_turns *turns);

#endif
