/* From measured times of batches to the figures of a GPU's profile. Pure; any thread. */
#ifndef MILLRACE_BENCH_GPU_FIT_H
#define MILLRACE_BENCH_GPU_FIT_H

#include "config/profile.h"

#include <stdbool.h>
#include <stddef.h>

/* Brings measured rows into the form that a profile must have: no time falls with more bytes, and none is
 * less on a busy bus than alone. Raises what offends, lowers nothing. */
void bench_gpu_fit_copies(struct config_profile_copy *rows, uint32_t count);

/* The time that a copy would have taken had another gone on beside it all the time, from one that took
 * taken_ns while another did for `overlap` (0 .. 1) of it, and takes alone_ns alone: the copy goes at one of
 * two paces. taken_ns where there was little overlap, or where the two paces do not explain it. */
core_ns bench_gpu_fit_busy_ns(core_ns taken_ns, core_ns alone_ns, double overlap);

/* Kernels of `jobs` equal jobs on each SM, with a short and a long job. */
struct bench_gpu_kernel_point {
    uint32_t jobs;
    uint64_t short_bytes, long_bytes; /* of one job; short < long */
    core_ns short_ns, long_ns;        /* of the kernel */
};

struct bench_gpu_kernel_fit {
    int64_t sm_bytes_per_s; /* Phi */
    core_ns launch_ns;
    struct config_profile_utilisation *rows; /* room for as many as there are points */
    uint32_t raised; /* points whose slope was raised by more than 2 %: noise was in their times */
};

/* The model's kernel, launch + w c(n) / Phi with U(n) = n / c(n): c(n) / Phi is the slope between the two
 * times of a point, Phi the most that any point reaches, and launch the largest of what is left at 0 bytes.
 * Rounded so that the model's time of each measured kernel is not less than the measured one (but for a
 * nanosecond or two). Points with rising jobs, the first with 1.
 *
 * A busy machine disturbs times, so that slopes come out too small or below 0. c never falls with n, and n
 * jobs side by side take no longer than one after another, c(n) <= n c(1): what offends is raised, never
 * lowered, and where nothing offends nothing changes. CORE_INVALID where no point's time grows with the
 * bytes: then there is nothing to raise to. */
CORE_CHECKED core_status bench_gpu_fit_kernel(const struct bench_gpu_kernel_point *points, uint32_t count,
                                              struct bench_gpu_kernel_fit *fit, struct core_error *error);

/* Whether b's kernels take less time than a's: over the numbers of jobs that both were measured with (from
 * the first row on, the same in both), each counting the same. */
bool bench_gpu_fit_is_faster(const struct config_profile_gpu *b, const struct config_profile_gpu *a);

#endif
