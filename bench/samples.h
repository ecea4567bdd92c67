/* A bounded set of measured values and its order statistics. One thread. */
#ifndef MILLRACE_BENCH_SAMPLES_H
#define MILLRACE_BENCH_SAMPLES_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

struct bench_samples {
    double *values;
    uint32_t count, capacity;
};

CORE_CHECKED core_status bench_samples_init(struct bench_samples *samples, uint32_t capacity);
void bench_samples_free(struct bench_samples *samples);

/* The same of an array of sets; free all of them on failure, too. */
CORE_CHECKED core_status bench_samples_init_each(struct bench_samples *samples, size_t count,
                                                 uint32_t capacity);
void bench_samples_free_each(struct bench_samples *samples, size_t count);

/* What comes when it is full is left out. */
void bench_samples_add(struct bench_samples *samples, double value);

/* The value at `percent` (0..100) of the sorted values, interpolated; sorts in place. NaN while empty. */
double bench_samples_percentile(struct bench_samples *samples, double percent);

#endif
