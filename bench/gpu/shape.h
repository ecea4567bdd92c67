/* One shape of a batch, measured in several ways on all cards of a kind. Of bench/gpu/calibrate.c; one thread.
 */
#ifndef MILLRACE_BENCH_GPU_SHAPE_H
#define MILLRACE_BENCH_GPU_SHAPE_H

#include "bench/gpu/calibrate.h"
#include "bench/gpu/journal.h"

#define BENCH_GPU_LASTING_NS (100 * CORE_NS_PER_US) /* times whose jitter is held against a margin */

/* Stages as bits. */
#define BENCH_GPU_COPIES (1U << GPU_STAGE_UP | 1U << GPU_STAGE_DOWN)
#define BENCH_GPU_KERNEL (1U << GPU_STAGE_KERNEL)

/* Median times of stages, of one card. */
struct bench_gpu_medians {
    core_ns stage_ns[GPU_STAGE_COUNT];
};

struct bench_gpu_shapes {
    const struct bench_gpu_measurer *measurer;
    struct bench_gpu_calibration *calibration; /* shapes, unsettled, spread_worst, apart, health */
    struct bench_gpu_journal *journal;         /* NULL: none */
    core_ns shape_ns;                          /* the time of one shape, in one way on one card */
    /* Kept from shape to shape: */
    struct bench_samples copies, kernels; /* lasting times, over their table */
    struct bench_samples start, tell;
    /* Of the shape at hand: */
    struct bench_samples round[GPU_STAGE_COUNT]; /* in one way on one card */
    struct bench_samples all[GPU_STAGE_COUNT];
    struct bench_gpu_medians *own; /* of each card, alone */
};

/* For about so many shapes. CORE_NO_MEMORY: shapes are to be freed as well. */
CORE_CHECKED core_status bench_gpu_shapes_init(struct bench_gpu_shapes *shapes, uint32_t count);
void bench_gpu_shapes_free(struct bench_gpu_shapes *shapes);

/* One card, one way: the medians of all stages, repeated until those in `stages` (bits) are settled. Copies
 * together are corrected to what they had taken had the other direction been busy all the time, by the
 * card's `own` times. */
CORE_CHECKED core_status bench_gpu_shape_median(struct bench_gpu_shapes *shapes, uint32_t card,
                                                const struct bench_gpu_shape *shape,
                                                const struct bench_gpu_way *way, unsigned stages,
                                                struct bench_gpu_medians *medians, struct core_error *error);

/* All cards in so many ways: the largest medians, which are what the tables have. Begins with a way that is not together, or follows another call for this shape that
 * did: its medians are the `own` ones. */
CORE_CHECKED core_status bench_gpu_shape_worst(struct bench_gpu_shapes *shapes,
                                               const struct bench_gpu_shape *shape,
                                               const struct bench_gpu_way *ways, size_t count,
                                               unsigned stages, struct bench_gpu_medians *worst,
                                               struct core_error *error);

/* Holds the single times of these stages, as the last call measured them, against a table. */
void bench_gpu_shape_hold(struct bench_gpu_shapes *shapes, unsigned stages,
                          const struct bench_gpu_medians *table);

#endif
