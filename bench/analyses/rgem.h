/* RGEM: bounds on blocking and on the response of copies and kernels.
 *
 * Source: Kato, Lakshmanan, Kumar, Kelkar, Ishikawa, Rajkumar, "RGEM: A Responsive GPGPU Execution Model for
 * Runtime Engines" (RTSS 2011), appendix, equations 1 to 3. A task of fixed priority uploads its data chunk by
 * chunk, launches its kernels one after the other and downloads its results chunk by chunk. The DMA of a chunk and
 * a kernel are not preempted.
 *
 *   RU = EQ + ceil(UT / CS) (S + O + BU + UL + chi) + DQ       upload
 *   RD = EQ + ceil(DT / CS) (S + O + BD + DL + chi) + DQ       download
 *   RK = EQ + sum over kernels (S + O + BK + KC + chi) + DQ    kernels
 *
 * where BU, BD and BK are the least fixed points of
 *
 *   B = longest piece of lower priority + sum over higher priority (ceil(B / T) + 1) (work of one job)
 *
 * Variants:
 *   LIT   as printed. Not sound: the code of the paper (its Fig. 3) has one queue for copies in both directions,
 *         which the equations treat apart, and a job of several kernels is charged one launch.
 *   FIX   every kernel of higher priority pays S + O + chi; only tasks that copy in a direction block in it; what a
 *         task does not do takes no time. Still two queues.
 *   HALF  FIX with one queue for copies in both directions.
 *   ONCE  HALF, with interference charged once an operation instead of once a chunk: R is the least fixed point of
 *           R = EQ + DQ + own work + blocking + sum over higher priority (ceil(R / T) + 1) (work of one job).
 *         A chunk of lower priority blocks once, since a task waits in the queue until its last chunk; a kernel of
 *         lower priority blocks each kernel. Sound, and the tightest, as long as the task and every task of higher
 *         priority end each job within its period (analyses_rgem_response_ns <= T): else more than one of their
 *         jobs is in the way.
 *
 * Everything in nanoseconds and bytes, exact. Pure functions, any thread. */
#ifndef MILLRACE_ANALYSES_RGEM_H
#define MILLRACE_ANALYSES_RGEM_H

#include "bench/analyses/ticks.h"

#include <stddef.h>

#define ANALYSES_RGEM_KERNELS 8

/* Bounds above are told as ANALYSES_NEVER: more than eleven days. */
#define ANALYSES_RGEM_LIMIT_NS INT64_C(1000000000000000)

enum analyses_rgem_variant {
    ANALYSES_RGEM_LIT,
    ANALYSES_RGEM_FIX,
    ANALYSES_RGEM_HALF,
    ANALYSES_RGEM_ONCE,
    ANALYSES_RGEM_VARIANTS
};

struct analyses_rgem_system {
    int64_t chunk_bytes;     /* CS, 1 or more */
    int64_t up_ns, down_ns;  /* UL(CS), DL(CS): the copy of a whole chunk */
    int64_t scheduler_ns;    /* S: one call of the scheduler */
    int64_t setup_ns;        /* O: setting up one transfer */
    int64_t switch_ns;       /* chi: a context switch */
    int64_t copy_queue_ns;   /* EQ + DQ of the queue of copies */
    int64_t kernel_queue_ns; /* EQ + DQ of the queue of launches */
};

struct analyses_rgem_task {
    int64_t period_ns;            /* least time between two jobs */
    int64_t up_bytes, down_bytes; /* UT, DT of each job; 0 or more */
    size_t kernels;               /* 0 .. ANALYSES_RGEM_KERNELS */
    int64_t kernel_ns[ANALYSES_RGEM_KERNELS];
};

struct analyses_rgem_bounds {
    int64_t block_up_ns, block_down_ns, block_kernel_ns; /* BU, BD, BK; 0 in ONCE, which has none */
    int64_t up_ns, down_ns, kernel_ns;                   /* RU, RD, RK */
};

/* ceil(bytes / CS). */
int64_t analyses_rgem_chunks(const struct analyses_rgem_system *system, int64_t bytes);

/* Writes bounds[i] of each task; tasks are in order of priority, the highest first. */
void analyses_rgem_bound(const struct analyses_rgem_system *system, const struct analyses_rgem_task *tasks,
                         size_t count, enum analyses_rgem_variant variant,
                         struct analyses_rgem_bounds *bounds);

/* What a chunk costs beside its bytes, and what the bytes of the whole copy cost, in the unit of the measurements:
 * solved from the times of two copies of `bytes` bytes in chunks of different sizes (section 5.2). */
struct analyses_rgem_fit {
    double overhead, base;
};
struct analyses_rgem_fit analyses_rgem_fit(int64_t bytes, int64_t chunk_a, double time_a, int64_t chunk_b,
                                           double time_b);

/* RU + RK + RD: the whole job. */
int64_t analyses_rgem_response_ns(const struct analyses_rgem_bounds *bounds);

#endif
