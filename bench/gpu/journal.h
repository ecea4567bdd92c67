/* The shapes that a calibration has finished, in a file: one that ended before its end goes on with them, and
 * measures none of them again. Records are in the order in which shapes are measured, which is always the
 * same; one that was not written to its end counts as missing. One thread. */
#ifndef MILLRACE_BENCH_GPU_JOURNAL_H
#define MILLRACE_BENCH_GPU_JOURNAL_H

#include "bench/gpu/calibrate.h"
#include "bench/samples.h"

#include <stdio.h>

/* Times of one shape, in one way on one card, the same record after record. */
#define BENCH_GPU_JOURNAL_SERIES (GPU_STAGE_COUNT + 2) /* of each stage, and starts and tellings */

struct bench_gpu_journal {
    FILE *file;
    bool all_read;  /* what comes next is new */
    bool measured;  /* something new was put, since it was opened */
    core_ns end_ns; /* nothing new is to be measured then; CORE_NS_NEVER */
};

/* The file, which is made if it is not there. */
CORE_CHECKED core_status bench_gpu_journal_open(struct bench_gpu_journal *journal, const char *path,
                                                core_ns end_ns, struct core_error *error);
void bench_gpu_journal_close(struct bench_gpu_journal *journal); /* zeros are fine */

/* The times of this shape, by `key`: a text that tells it from all others. Added to the series, with how the
 * card was (all 0: not known).
 *   CORE_OK         they are there.
 *   CORE_NOT_FOUND  they are to be measured, and put.
 *   CORE_AGAIN      likewise, but it is late: something was put since the file was opened.
 *   CORE_MISMATCH   the file is of another calibration. */
CORE_CHECKED core_status bench_gpu_journal_take(struct bench_gpu_journal *journal, const char *key,
                                                struct bench_samples *series[BENCH_GPU_JOURNAL_SERIES],
                                                struct gpu_nvml_health *health, struct core_error *error);

/* What was measured: of each series the values from first[series] on. CORE_SYSTEM: it can not be written. */
CORE_CHECKED core_status bench_gpu_journal_put(struct bench_gpu_journal *journal, const char *key,
                                               struct bench_samples *const series[BENCH_GPU_JOURNAL_SERIES],
                                               const uint32_t first[BENCH_GPU_JOURNAL_SERIES],
                                               const struct gpu_nvml_health *health,
                                               struct core_error *error);

#endif
