/* The GPU performance model: from the jobs of a batch to the times of its stages, and from these to a
 * verdict.
 *
 * Sources: Verner et al., SYSTOR 2012, sections 3.2 and 3.3 (utilisation, stage times, schedulability), and
 * model.md section 2. Pure; integers (128-bit inside) rounded against the promise, so that no time is ever
 * too short by rounding. Ranges: see config/profile.h; jobs up to 2^36 bytes, batches up to 2^44. Results
 * saturate at CORE_NS_NEVER. */
#ifndef MILLRACE_PERFMODEL_GPU_H
#define MILLRACE_PERFMODEL_GPU_H

#include "config/profile.h"
#include "core/stream.h"

#include <stdbool.h>
#include <stddef.h>

enum perfmodel_direction { PERFMODEL_UP, PERFMODEL_DOWN };

/* Time of one copy. Linear between rows in time; below the first row its time; beyond the last row at the
 * last segment's slope, or at the last row's own rate if that is slower. `busy`: the contended columns. 0
 * bytes take 0. */
core_ns perfmodel_copy_ns(const struct config_profile_gpu *gpu, enum perfmodel_direction direction, bool busy,
                          uint64_t bytes);

/* The conservative monotone envelope of the utilisation table at n >= 1 jobs: min over n' >= n of U(n'), a
 * row holding until the next one; at most the last row's beyond it. Parts per million. */
uint32_t perfmodel_utilisation_ppm(const struct config_profile_gpu *gpu, uint32_t jobs);

/* Time of one SM for n jobs of the given sizes, in rising order:
 *     sum over k = 1..n of (n-k+1) (w(k) - w(k-1)) / (U(n-k+1) Phi),     w(0) = 0
 * With `measured` the table itself is used and not its envelope (to reproduce a paper's figure). */
core_ns perfmodel_sm_ns(const struct config_profile_gpu *gpu, const uint64_t *sorted_bytes, size_t count,
                        bool measured);

/* Longest time of any of `sms` SMs when jobs are dealt round robin in the given order, without launch and
 * margin. Sorts within scratch (room for count). */
core_ns perfmodel_kernel_ns(const struct config_profile_gpu *gpu, uint32_t sms, const uint64_t *job_bytes,
                            size_t count, bool measured, uint64_t *scratch);

/* The stages of one batch, margin m included. */
struct perfmodel_stages {
    core_ns up_ns, kernel_ns, down_ns; /* T_D, T_K, T_R */
};

enum perfmodel_gpu_binding {
    PERFMODEL_GPU_FITS = 0,
    PERFMODEL_GPU_COPY,    /* T_D or T_R > T; one copy engine: T_D + T_R > T */
    PERFMODEL_GPU_KERNEL,  /* T_K > T */
    PERFMODEL_GPU_LATENCY, /* T + T_D + T_K + T_R > min d' (one engine: the copies count twice) */
    PERFMODEL_GPU_MEMORY,  /* the arenas do not fit the card or the pinned budget */
    PERFMODEL_GPU_JOB      /* one job alone takes longer than the kernel may */
};

/* Judges stage times at period T against the shortest d' of the set (model.md section 2). `paper`: max(T_D,
 * T_K, T_R) <= T with T = d_min / 4 and nothing else. Returns the first constraint that fails. */
enum perfmodel_gpu_binding perfmodel_gpu_judge(const struct config_profile_gpu *gpu,
                                               const struct perfmodel_stages *stages, core_ns period_ns,
                                               core_ns shortest_ns, bool paper);

/* d' on a GPU: latency - in - out, before the pipeline. <= 0: none is left. */
core_ns perfmodel_gpu_work_ns(const struct core_stream_spec *spec, const struct config_profile *profile);

/* Most bytes of a stream in one batch of period T: N(T) p^ = (k + floor(T/t)) p^; `paper`: fluid, ceil(r T)
 * of the unpadded payload. */
uint64_t perfmodel_gpu_job_bytes(const struct core_stream_spec *spec, core_ns period_ns, bool paper);

/* Stage times of a batch of these jobs on one card. `busy`: charge copies at their contended times. */
struct perfmodel_stages perfmodel_gpu_stages(const struct config_profile_gpu *gpu,
                                             const struct config_profile_margins *margins,
                                             const uint64_t *job_bytes, size_t count, bool busy,
                                             uint64_t *scratch);

/* Input and output arenas of five batches, job tables, keys and chaining values: on the card, and pinned on
 * the host. */
uint64_t perfmodel_gpu_memory_bytes(const struct config_profile_gpu *gpu, uint64_t batch_bytes, size_t jobs);

#endif
