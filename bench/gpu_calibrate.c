#include "bench/gpu_calibrate.h"

#include "bench/gpu_fit.h"
#include "bench/samples.h"
#include "gpu/batch_layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COPY_MIN_BYTES  UINT64_C(4096)
#define COPY_MAX_BYTES  (UINT64_C(64) << 20)
#define ROUND_BATCHES   9 /* measured at once; odd, for the median */
#define ROUNDS_MAX      12
#define SETTLED         0.02
#define SHORT_BLOCKS    8
#define LONG_BLOCKS_MIN 48
#define LONG_BLOCKS_MAX 2048
#define COVERED         0.999
#define COPIES_LEAST    0.02
#define KERNELS_LEAST   0.10
#define LASTING_NS      (100 * CORE_NS_PER_US) /* times whose jitter is held against the margin */
#define POOL_SAMPLES    200000

/* The job, and segments for four packets of it. */
#define JOB_BYTES (sizeof(struct gpu_job) + 4 * sizeof(struct gpu_segment))

static const uint32_t kernel_jobs[] = {1,   2,   3,   4,   6,   8,   12,  16,  24,  32,  48,  64,  96,
                                       128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024};
enum { KERNEL_POINTS = sizeof kernel_jobs / sizeof *kernel_jobs };
#define COPY_SIZES 15 /* doublings from the least to the largest */
#define SHAPES     (2.0 * (COPY_SIZES + KERNEL_POINTS))

struct work {
    const struct bench_gpu_measurer *measurer;
    const struct bench_gpu_calibrate_options *options;
    struct bench_gpu_calibration *calibration;
    struct bench_samples copies, kernels; /* times of LASTING_NS and more, over their median */
    struct bench_samples start, tell;
    struct bench_samples stage[GPU_STAGE_COUNT]; /* of the shape at hand */
    core_ns shape_ns;                            /* the time of one shape */
};

/* ---- one shape ---- */

/* Half of the values lie within this, relative to the median. */
static double spread(struct bench_samples *samples)
{
    const double median = bench_samples_percentile(samples, 50);
    return median > 0
               ? (bench_samples_percentile(samples, 75) - bench_samples_percentile(samples, 25)) / median
               : 0;
}

static void progress(const struct work *work, const char *what, uint64_t bytes, uint32_t jobs)
{
    char text[96];
    if (work->options->progress == NULL)
        return;
    snprintf(text, sizeof text, "%s: %s of %llu bytes, %u jobs", work->measurer->name, what,
             (unsigned long long)bytes, jobs);
    work->options->progress(work->options->progress_argument, text, work->calibration->shapes / SHAPES);
}

/* Which of the stages are wanted, as bits; `alone` times correct the copies of batches together. */
static core_status round_measure(struct work *work, const struct bench_gpu_shape *shape, bool together,
                                 const core_ns *alone_ns, struct core_error *error)
{
    struct bench_gpu_timing timings[ROUND_BATCHES];
    const core_status status =
        work->measurer->measure(work->measurer->argument, shape, together, ROUND_BATCHES, timings, error);
    for (int i = 0; i < ROUND_BATCHES && status == CORE_OK; i++) {
        core_ns *stage_ns = timings[i].stage_ns;
        if (together) {
            stage_ns[GPU_STAGE_UP] =
                bench_gpu_fit_busy_ns(stage_ns[GPU_STAGE_UP], alone_ns[GPU_STAGE_UP], timings[i].up_overlap);
            stage_ns[GPU_STAGE_DOWN] = bench_gpu_fit_busy_ns(
                stage_ns[GPU_STAGE_DOWN], alone_ns[GPU_STAGE_DOWN], timings[i].down_overlap);
        } else {
            bench_samples_add(&work->start, (double)timings[i].start_ns);
            bench_samples_add(&work->tell, (double)timings[i].tell_ns);
        }
        for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
            bench_samples_add(&work->stage[stage], (double)stage_ns[stage]);
    }
    return status;
}

/* Median times of the stages in `wanted` (bits), into median_ns. */
static core_status shape_measure(struct work *work, const struct bench_gpu_shape *shape, bool together,
                                 unsigned wanted, const core_ns *alone_ns, core_ns *median_ns,
                                 struct core_error *error)
{
    const core_ns until_ns = core_time_now_ns() + work->shape_ns;
    core_status status = CORE_OK;
    double worst = 1;

    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
        work->stage[stage].count = 0;
    for (int rounds = 0; status == CORE_OK && rounds < ROUNDS_MAX && worst > SETTLED; rounds++) {
        if (rounds > 1 && core_time_now_ns() > until_ns)
            break;
        status = round_measure(work, shape, together, alone_ns, error);
        worst = 0;
        for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
            if (wanted >> stage & 1)
                worst = fmax(worst, spread(&work->stage[stage]));
    }
    for (int stage = 0; stage < GPU_STAGE_COUNT && status == CORE_OK; stage++) {
        const double median = bench_samples_percentile(&work->stage[stage], 50);
        median_ns[stage] = (core_ns)ceil(median);
        for (uint32_t i = 0; (wanted >> stage & 1) && median >= LASTING_NS && i < work->stage[stage].count;
             i++)
            bench_samples_add(stage == GPU_STAGE_KERNEL ? &work->kernels : &work->copies,
                              work->stage[stage].values[i] / median);
    }
    work->calibration->shapes++;
    work->calibration->unsettled += worst > SETTLED;
    work->calibration->spread_worst = fmax(work->calibration->spread_worst, worst);
    return status;
}

/* ---- copies ---- */

static core_status copy_measure(struct work *work, uint64_t bytes, struct config_profile_copy *row,
                                struct core_error *error)
{
    enum { COPIES = 1 << GPU_STAGE_UP | 1 << GPU_STAGE_DOWN };
    const struct bench_gpu_measurer *measurer = work->measurer;
    const struct bench_gpu_shape shape = {.bytes = bytes, .jobs = 1};
    const bool meets = measurer->copy_engines > 1 || measurer->count > 1 || measurer->others;
    core_ns alone_ns[GPU_STAGE_COUNT], busy_ns[GPU_STAGE_COUNT];

    progress(work, "copies", bytes, 1);
    core_status status = shape_measure(work, &shape, false, COPIES, NULL, alone_ns, error);
    memcpy(busy_ns, alone_ns, sizeof busy_ns);
    if (status == CORE_OK && meets)
        status = shape_measure(work, &shape, true, COPIES, alone_ns, busy_ns, error);
    if (status == CORE_OK)
        *row = (struct config_profile_copy){.bytes = bytes,
                                            .up_ns = alone_ns[GPU_STAGE_UP],
                                            .down_ns = alone_ns[GPU_STAGE_DOWN],
                                            .up_busy_ns = busy_ns[GPU_STAGE_UP],
                                            .down_busy_ns = busy_ns[GPU_STAGE_DOWN]};
    return status;
}

static core_status copies_measure(struct work *work, struct core_error *error)
{
    struct config_profile_gpu *gpu = &work->calibration->gpu;
    core_status status = CORE_OK;

    gpu->copies = calloc(COPY_SIZES, sizeof *gpu->copies);
    if (gpu->copies == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a GPU's figures");
    for (uint64_t bytes = COPY_MIN_BYTES;
         bytes <= COPY_MAX_BYTES && bytes <= work->measurer->bytes_max && status == CORE_OK; bytes *= 2)
        status = copy_measure(work, bytes, &gpu->copies[gpu->copy_count++], error);
    if (status == CORE_OK)
        bench_gpu_fit_copies(gpu->copies, gpu->copy_count);
    return status;
}

/* ---- kernels ---- */

static core_status kernel_measure(struct work *work, uint32_t jobs, uint64_t blocks, core_ns *kernel_ns,
                                  struct core_error *error)
{
    const struct bench_gpu_shape shape = {
        .bytes = jobs * blocks * GPU_BLOCK_BYTES, .jobs = jobs, .blocks = (uint32_t)blocks};
    core_ns median_ns[GPU_STAGE_COUNT];

    progress(work, "kernels", shape.bytes, jobs);
    const core_status status =
        shape_measure(work, &shape, false, 1 << GPU_STAGE_KERNEL, NULL, median_ns, error);
    if (status == CORE_OK)
        *kernel_ns = median_ns[GPU_STAGE_KERNEL];
    return status;
}

/* Blocks of the long job; 0: so many jobs find no room. */
static uint64_t long_blocks(const struct bench_gpu_measurer *measurer, uint32_t jobs)
{
    const uint64_t blocks = measurer->bytes_max / GPU_BLOCK_BYTES / jobs;
    if (jobs > measurer->jobs_max || blocks < LONG_BLOCKS_MIN)
        return 0;
    return blocks < LONG_BLOCKS_MAX ? blocks : LONG_BLOCKS_MAX;
}

static core_status points_measure(struct work *work, struct bench_gpu_kernel_point *points, uint32_t *count,
                                  struct core_error *error)
{
    core_status status = CORE_OK;
    for (int i = 0; i < KERNEL_POINTS && status == CORE_OK; i++) {
        struct bench_gpu_kernel_point *point = &points[*count];
        const uint32_t jobs = kernel_jobs[i] * work->measurer->sms;
        const uint64_t blocks = long_blocks(work->measurer, jobs);
        if (blocks == 0)
            break;
        *point = (struct bench_gpu_kernel_point){.jobs = kernel_jobs[i],
                                                 .short_bytes = SHORT_BLOCKS * GPU_BLOCK_BYTES,
                                                 .long_bytes = blocks * GPU_BLOCK_BYTES};
        status = kernel_measure(work, jobs, SHORT_BLOCKS, &point->short_ns, error);
        if (status == CORE_OK)
            status = kernel_measure(work, jobs, blocks, &point->long_ns, error);
        ++*count;
    }
    return status;
}

static core_status kernels_measure(struct work *work, struct core_error *error)
{
    struct config_profile_gpu *gpu = &work->calibration->gpu;
    struct bench_gpu_kernel_point points[KERNEL_POINTS];
    uint32_t count = 0;

    gpu->utilisation = calloc(KERNEL_POINTS, sizeof *gpu->utilisation);
    if (gpu->utilisation == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a GPU's figures");
    struct bench_gpu_kernel_fit fit = {.rows = gpu->utilisation};
    core_status status = points_measure(work, points, &count, error);
    if (status == CORE_OK && count == 0)
        status =
            core_error_set(error, CORE_INVALID, "batches of %llu bytes are too small to measure a kernel",
                           (unsigned long long)work->measurer->bytes_max);
    if (status == CORE_OK)
        status = bench_gpu_fit_kernel(points, count, &fit, error);
    gpu->utilisation_count = count;
    gpu->sm_bytes_per_s = fit.sm_bytes_per_s;
    gpu->launch_ns = fit.launch_ns;
    work->calibration->raised = fit.raised;
    return status;
}

/* ---- all ---- */

/* Times over their table. */
static struct bench_gpu_margin margin_of(struct bench_samples *times, double least)
{
    struct bench_gpu_margin margin = {.times = (uint32_t)times->count};
    if (times->count > 0) {
        margin.longest = fmax(bench_samples_percentile(times, 100) - 1, 0); /* sorts them */
        margin.seen = fmax(times->values[(uint32_t)ceil(COVERED * times->count) - 1] - 1, 0);
    }
    margin.ppm = (uint32_t)ceil(fmin(fmax(margin.seen, least), 1) * CONFIG_PROFILE_MARGIN_PPM);
    return margin;
}

static core_status work_create(struct work *work)
{
    core_status status = bench_samples_init(&work->copies, POOL_SAMPLES);
    if (status == CORE_OK)
        status = bench_samples_init(&work->kernels, POOL_SAMPLES);
    if (status == CORE_OK)
        status = bench_samples_init(&work->start, POOL_SAMPLES);
    if (status == CORE_OK)
        status = bench_samples_init(&work->tell, POOL_SAMPLES);
    for (int stage = 0; stage < GPU_STAGE_COUNT && status == CORE_OK; stage++)
        status = bench_samples_init(&work->stage[stage], ROUND_BATCHES * ROUNDS_MAX);
    return status;
}

static void work_free(struct work *work)
{
    bench_samples_free(&work->copies);
    bench_samples_free(&work->kernels);
    bench_samples_free(&work->start);
    bench_samples_free(&work->tell);
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
        bench_samples_free(&work->stage[stage]);
}

core_status bench_gpu_calibrate(const struct bench_gpu_measurer *measurer,
                                const struct bench_gpu_calibrate_options *options,
                                struct bench_gpu_calibration *calibration, struct core_error *error)
{
    struct work work = {.measurer = measurer,
                        .options = options,
                        .calibration = calibration,
                        .shape_ns = (core_ns)((double)options->time_ns / SHAPES)};

    *calibration = (struct bench_gpu_calibration){.gpu = {.name = strdup(measurer->name),
                                                          .count = measurer->count,
                                                          .sms = measurer->sms,
                                                          .copy_engines = measurer->copy_engines > 1 ? 2 : 1,
                                                          .memory_bytes = measurer->memory_bytes,
                                                          .job_bytes = JOB_BYTES}};
    core_status status = calibration->gpu.name != NULL ? work_create(&work) : CORE_NO_MEMORY;
    if (status != CORE_OK)
        (void)core_error_set(error, status, "no memory for a GPU's figures");
    if (status == CORE_OK)
        status = copies_measure(&work, error);
    if (status == CORE_OK)
        status = kernels_measure(&work, error);
    if (status == CORE_OK) {
        calibration->copies = margin_of(&work.copies, COPIES_LEAST);
        calibration->kernels = margin_of(&work.kernels, KERNELS_LEAST);
        calibration->start_ns = (core_ns)bench_samples_percentile(&work.start, 99.9);
        calibration->tell_ns = (core_ns)bench_samples_percentile(&work.tell, 99.9);
    } else {
        bench_gpu_calibration_free(calibration);
    }
    work_free(&work);
    return status;
}

void bench_gpu_calibration_free(struct bench_gpu_calibration *calibration)
{
    free(calibration->gpu.name);
    free(calibration->gpu.kernel);
    free(calibration->gpu.copies);
    free(calibration->gpu.utilisation);
    *calibration = (struct bench_gpu_calibration){0};
}
