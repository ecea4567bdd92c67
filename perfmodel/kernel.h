/* Private to perfmodel: c(n) / Phi (perfmodel/gpu.h), in ns per byte times 2^40, rounded up: sums of bytes times
 * that are exact, and as monotone as c. At a Phi of 10^12 the rounding is 10^-9 of it. */
#ifndef MILLRACE_PERFMODEL_KERNEL_H
#define MILLRACE_PERFMODEL_KERNEL_H

#include "config/profile.h"
#include "perfmodel/wide.h"

#define PERFMODEL_COST_BITS 40
#define PERFMODEL_COST_MOST                                                                                  \
    ((perfmodel_wide)1 << 73) /* 8.6 s per byte; jobs whose bytes cost more never end */

/* j / u / Phi of a row with so many jobs j, at most 2^32: below 2^122. */
perfmodel_wide perfmodel_cost_row(const struct config_profile_gpu *gpu, uint64_t jobs, uint32_t share_ppm);

/* Beyond the last row, of N jobs: c(n) = (c(N) n + e) / N. */
struct perfmodel_cost_tail {
    perfmodel_wide last;  /* c(N) */
    perfmodel_wide begun; /* e: N times what the pass that is begun may take beyond its part of a full one */
    uint64_t jobs;        /* N; 0: c(N) is above PERFMODEL_COST_MOST */
};

struct perfmodel_cost_tail perfmodel_cost_tail(const struct config_profile_gpu *gpu);

/* N < n <= 2^32. Above PERFMODEL_COST_MOST if c(N) is. */
perfmodel_wide perfmodel_cost_beyond(const struct perfmodel_cost_tail *tail, uint64_t jobs);

#endif
