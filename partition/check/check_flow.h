/* Private to partition/check/check.c: the delay bound of a stage under the backlog rule (perfmodel/flow.h),
 * straight from its definition: the largest L S(P/L + rho T) - (L-1) T over L. For copies on one engine: is
 * there a busy period in which the copies that may have come take longer than the bounds allow?
 *
 * Computed in real numbers, with hulls of its own. The maximised function is concave, so its largest value is
 * where it stops growing. */
#ifndef MILLRACE_PARTITION_CHECK_CHECK_FLOW_H
#define MILLRACE_PARTITION_CHECK_CHECK_FLOW_H

#include "config/profile.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct partition_check_flow {
    const struct config_profile_gpu *card;
    bool busy;
    long double copies, kernels;           /* 1 and the margin of each */
    long double in_ns;                     /* how late a batch may be closed */
    uint64_t jobs, jobs_max;               /* n, and what it may be taken for at the most */
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

/* The range of correct figures of a stage in a certificate: of its delay bound (at least the largest value
 * for a whole number L of batches, at most that for real L with the roundings added) and of its mean time in
 * a period. INFINITY for a stage that never catches up. */
struct partition_check_range {
    long double least_ns, most_ns;
    long double mean_least_ns, mean_most_ns;
};

/* The range for one stage by itself. For COPIES only the mean is filled. */
CORE_CHECKED core_status partition_check_flow(const struct partition_check_flow *flow,
                                              enum partition_check_stage stage,
                                              struct partition_check_range *range);

/* One copy engine: the bounds in the certificate, and the ranges of correct ones. */
struct partition_check_turns {
    long double up_ns, kernel_ns, down_ns;
    struct partition_check_range up, down;
};
CORE_CHECKED core_status partition_check_turns(const struct partition_check_flow *flow,
                                               struct partition_check_turns *turns);

#endif
