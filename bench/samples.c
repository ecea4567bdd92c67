#include "bench/samples.h"

#include <math.h>
#include <stdlib.h>

core_status bench_samples_init(struct bench_samples *samples, uint32_t capacity)
{
    samples->values = calloc(capacity, sizeof *samples->values);
    samples->count = 0;
    samples->capacity = capacity;
    return samples->values != NULL ? CORE_OK : CORE_NO_MEMORY;
}

void bench_samples_free(struct bench_samples *samples)
{
    free(samples->values);
    samples->values = NULL;
}

core_status bench_samples_init_each(struct bench_samples *samples, size_t count, uint32_t capacity)
{
    core_status status = CORE_OK;
    for (size_t at = 0; at < count && status == CORE_OK; at++)
        status = bench_samples_init(&samples[at], capacity);
    return status;
}

void bench_samples_free_each(struct bench_samples *samples, size_t count)
{
    for (size_t at = 0; at < count; at++)
        bench_samples_free(&samples[at]);
}

void bench_samples_add(struct bench_samples *samples, double value)
{
    if (samples->count < samples->capacity)
        samples->values[samples->count++] = value;
}

static int compare(const void *left, const void *right)
{
    const double *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

double bench_samples_percentile(struct bench_samples *samples, double percent)
{
    if (samples->count == 0)
        return NAN;
    qsort(samples->values, samples->count, sizeof *samples->values, compare);
    double place = percent / 100 * (samples->count - 1);
    uint32_t below = (uint32_t)place;
    if (below + 1 >= samples->count)
        return samples->values[samples->count - 1];
    double part = place - below;
    return samples->values[below] * (1 - part) + samples->values[below + 1] * part;
}
