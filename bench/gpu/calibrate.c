#include "bench/gpu/calibrate.h"

#include "bench/gpu/fit.h"
#include "bench/gpu/shape.h"
#include "gpu/batch_layout.h"
#include "perfmodel/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COPY_MIN_BYTES  UINT64_C(4096)
#define COPY_MAX_BYTES  (UINT64_C(64) << 20)
#define SHORT_BLOCKS    8
#define LONG_BLOCKS_MIN 48
#define LONG_BLOCKS_MAX 2048
#define COVERED         0.999
#define COPIES_LEAST    0.02 /* a shape counts as settled with half of its times in so much */
#define KERNELS_LEAST   0.10 /* other jobs than were measured: the model was 6 % off (SYSTOR 2012, table 2) */
#define WARM_PART       20   /* of the time of a card */
#define WARM_NS         (3 * CORE_NS_PER_S)
#define REFERENCE_JOBS  64 /* on each SM */

/* The job, and segments for four packets of it. */
#define JOB_BYTES (sizeof(struct gpu_job) + 4 * sizeof(struct gpu_segment))

static const struct bench_gpu_way alone_ways[] = {{0}, {.spaced = true}, {.traffic = true}};
static const struct bench_gpu_way busy_ways[] = {{.together = true}, {.together = true, .traffic = true}};
static const struct bench_gpu_way kernel_ways[] = {{0}, {.spaced = true}, {.together = true}};
enum { ALONE_WAYS = 3, BUSY_WAYS = 2, KERNEL_WAYS = 3 };

static const uint32_t kernel_jobs[] = {1,   2,   3,   4,   6,   8,   12,  16,  24,  32,  48,  64,  96,
                                       128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024};
enum { KERNEL_POINTS = sizeof kernel_jobs / sizeof *kernel_jobs };
static const uint32_t uneven_jobs[] = {4, 32, 128, 512};
enum { UNEVEN_POINTS = sizeof uneven_jobs / sizeof *uneven_jobs };
#define COPY_SIZES 15 /* doublings from the least to the largest */
#define REFERENCES 4  /* a copy and a kernel, twice */
#define SHAPES                                                                                               \
    (COPY_SIZES * (ALONE_WAYS + BUSY_WAYS) + (KERNEL_POINTS * 2 + UNEVEN_POINTS) * KERNEL_WAYS + REFERENCES)

struct work {
    const struct bench_gpu_measurer *measurer;
    const struct bench_gpu_calibrate_options *options;
    struct bench_gpu_calibration *calibration;
    struct bench_gpu_shapes shapes;
    struct bench_gpu_medians *begin; /* of each card, the references */
    core_ns warm_ns;
};

static void progress(const struct work *work, const char *what, uint64_t bytes, uint32_t jobs)
{
    char text[96];
    if (work->options->progress == NULL)
        return;
    snprintf(text, sizeof text, "%s: %s of %llu bytes, %u jobs", work->measurer->name, what,
             (unsigned long long)bytes, jobs);
    work->options->progress(work->options->progress_argument, text,
                            (double)work->calibration->shapes / SHAPES / work->measurer->count);
}

/* ---- copies ---- */

static core_status copy_measure(struct work *work, uint64_t bytes, struct config_profile_copy *row,
                                struct core_error *error)
{
    const struct bench_gpu_measurer *measurer = work->measurer;
    const struct bench_gpu_shape shape = {.bytes = bytes, .jobs = 1};
    const bool meets = measurer->copy_engines > 1 || measurer->count > 1 || measurer->others;
    struct bench_gpu_medians alone, busy;

    progress(work, "copies", bytes, 1);
    core_status status =
        bench_gpu_shape_worst(&work->shapes, &shape, alone_ways, ALONE_WAYS, BENCH_GPU_COPIES, &alone, error);
    if (status == CORE_OK)
        bench_gpu_shape_hold(&work->shapes, BENCH_GPU_COPIES, &alone);
    busy = alone;
    if (status == CORE_OK && meets) {
        status = bench_gpu_shape_worst(&work->shapes, &shape, busy_ways, BUSY_WAYS, BENCH_GPU_COPIES, &busy,
                                       error);
        bench_gpu_shape_hold(&work->shapes, BENCH_GPU_COPIES, &busy);
    }
    if (status == CORE_OK)
        *row = (struct config_profile_copy){.bytes = bytes,
                                            .up_ns = alone.stage_ns[GPU_STAGE_UP],
                                            .down_ns = alone.stage_ns[GPU_STAGE_DOWN],
                                            .up_busy_ns = busy.stage_ns[GPU_STAGE_UP],
                                            .down_busy_ns = busy.stage_ns[GPU_STAGE_DOWN]};
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

static struct bench_gpu_shape kernel_shape(uint32_t jobs, uint64_t blocks)
{
    return (struct bench_gpu_shape){
        .bytes = jobs * blocks * GPU_BLOCK_BYTES, .jobs = jobs, .blocks = (uint32_t)blocks};
}

static core_status kernel_measure(struct work *work, uint32_t jobs, uint64_t blocks, core_ns *kernel_ns,
                                  struct core_error *error)
{
    const struct bench_gpu_shape shape = kernel_shape(jobs, blocks);
    struct bench_gpu_medians worst;

    progress(work, "kernels", shape.bytes, jobs);
    const core_status status = bench_gpu_shape_worst(&work->shapes, &shape, kernel_ways, KERNEL_WAYS,
                                                     BENCH_GPU_KERNEL, &worst, error);
    bench_gpu_shape_hold(&work->shapes, BENCH_GPU_KERNEL, &worst);
    *kernel_ns = worst.stage_ns[GPU_STAGE_KERNEL];
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

/* Launch and kernel of such a batch, by the figures that were measured. */
static core_status model_ns(const struct config_profile_gpu *gpu, const struct bench_gpu_shape *shape,
                            core_ns *ns, struct core_error *error)
{
    uint64_t *bytes = malloc(2 * (size_t)shape->jobs * sizeof *bytes);
    if (bytes == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for %u jobs", shape->jobs);
    for (uint32_t i = 0; i < shape->jobs; i++)
        bytes[i] = (uint64_t)bench_gpu_shape_blocks(shape, i) * GPU_BLOCK_BYTES;
    *ns = gpu->launch_ns + perfmodel_kernel_ns(gpu, gpu->sms, bytes, shape->jobs, false, bytes + shape->jobs);
    free(bytes);
    return CORE_OK;
}

static core_status uneven_measure(struct work *work, uint32_t jobs, uint64_t blocks, struct core_error *error)
{
    struct bench_gpu_calibration *calibration = work->calibration;
    struct bench_gpu_shape shape = kernel_shape(jobs, blocks);
    struct bench_gpu_medians worst, model = {{0}};

    shape.uneven = true;
    progress(work, "kernels, unequal,", shape.bytes, jobs);
    core_status status = model_ns(&calibration->gpu, &shape, &model.stage_ns[GPU_STAGE_KERNEL], error);
    if (status == CORE_OK)
        status = bench_gpu_shape_worst(&work->shapes, &shape, kernel_ways, KERNEL_WAYS, BENCH_GPU_KERNEL,
                                       &worst, error);
    if (status != CORE_OK)
        return status;
    bench_gpu_shape_hold(&work->shapes, BENCH_GPU_KERNEL, &model);
    const double off =
        (double)worst.stage_ns[GPU_STAGE_KERNEL] / (double)model.stage_ns[GPU_STAGE_KERNEL] - 1;
    calibration->model_least = fmin(calibration->model_least, off);
    calibration->model_most = fmax(calibration->model_most, off);
    return CORE_OK;
}

static core_status unevens_measure(struct work *work, struct core_error *error)
{
    core_status status = CORE_OK;
    work->calibration->model_least = INFINITY;
    work->calibration->model_most = -INFINITY;
    for (int i = 0; i < UNEVEN_POINTS && status == CORE_OK; i++) {
        const uint32_t jobs = uneven_jobs[i] * work->measurer->sms;
        const uint64_t blocks = long_blocks(work->measurer, jobs);
        if (blocks > 0)
            status = uneven_measure(work, jobs, blocks, error);
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
    if (status == CORE_OK)
        status = bench_gpu_fit_kernel(points, count, &fit, error);
    gpu->utilisation_count = count;
    gpu->sm_bytes_per_s = fit.sm_bytes_per_s;
    gpu->launch_ns = fit.launch_ns;
    work->calibration->raised = fit.raised;
    return status;
}

/* ---- warm, and as fast as in the beginning ---- */

/* The largest copy, and the largest kernel up to REFERENCE_JOBS on each SM. */
static struct bench_gpu_shape copy_reference(const struct bench_gpu_measurer *measurer)
{
    const uint64_t bytes = measurer->bytes_max < COPY_MAX_BYTES ? measurer->bytes_max : COPY_MAX_BYTES;
    return (struct bench_gpu_shape){.bytes = bytes, .jobs = 1};
}

static struct bench_gpu_shape kernel_reference(const struct bench_gpu_measurer *measurer)
{
    uint32_t jobs = measurer->sms;
    for (int i = 0; i < KERNEL_POINTS && kernel_jobs[i] <= REFERENCE_JOBS; i++)
        if (long_blocks(measurer, kernel_jobs[i] * measurer->sms) > 0)
            jobs = kernel_jobs[i] * measurer->sms;
    return kernel_shape(jobs, long_blocks(measurer, jobs));
}

/* Batches on all cards until their clocks and their memory's have risen. */
static core_status warm_up(struct work *work, struct core_error *error)
{
    static const struct bench_gpu_way together = {.together = true};
    const struct bench_gpu_shape shape = kernel_reference(work->measurer);
    struct bench_gpu_timing timings[1];
    const core_ns until_ns = core_time_now_ns() + work->warm_ns;
    core_status status = CORE_OK;

    progress(work, "warming up with kernels", shape.bytes, shape.jobs);
    while (status == CORE_OK && core_time_now_ns() < until_ns)
        status = work->measurer->measure(work->measurer->argument, 0, &shape, &together, 1, timings, error);
    return status;
}

static core_status references_measure(struct work *work, uint32_t card, struct bench_gpu_medians *medians,
                                      struct core_error *error)
{
    static const struct bench_gpu_way alone = {0};
    const struct bench_gpu_shape copy = copy_reference(work->measurer);
    const struct bench_gpu_shape kernel = kernel_reference(work->measurer);
    struct bench_gpu_medians of_kernel;

    progress(work, "references", copy.bytes, kernel.jobs);
    core_status status =
        bench_gpu_shape_median(&work->shapes, card, &copy, &alone, BENCH_GPU_COPIES, medians, error);
    if (status == CORE_OK)
        status =
            bench_gpu_shape_median(&work->shapes, card, &kernel, &alone, BENCH_GPU_KERNEL, &of_kernel, error);
    if (status == CORE_OK)
        medians->stage_ns[GPU_STAGE_KERNEL] = of_kernel.stage_ns[GPU_STAGE_KERNEL];
    return status;
}

static core_status begin(struct work *work, struct core_error *error)
{
    core_status status = warm_up(work, error);
    for (uint32_t card = 0; card < work->measurer->count && status == CORE_OK; card++)
        status = references_measure(work, card, &work->begin[card], error);
    return status;
}

static double change(const struct bench_gpu_medians *from, const struct bench_gpu_medians *to,
                     enum gpu_stage stage)
{
    const core_ns from_ns = core_time_max(from->stage_ns[stage], 1);
    return (double)(to->stage_ns[stage] - from_ns) / (double)from_ns;
}

/* How much longer than in the beginning: the most of any card. */
static core_status end(struct work *work, struct core_error *error)
{
    struct bench_gpu_calibration *calibration = work->calibration;
    calibration->copies.drift = calibration->kernels.drift = -1;
    for (uint32_t card = 0; card < work->measurer->count; card++) {
        const struct bench_gpu_medians *was = &work->begin[card];
        struct bench_gpu_medians is;
        const core_status status = references_measure(work, card, &is, error);
        if (status != CORE_OK)
            return status;
        calibration->copies.drift = fmax(calibration->copies.drift, change(was, &is, GPU_STAGE_UP));
        calibration->copies.drift = fmax(calibration->copies.drift, change(was, &is, GPU_STAGE_DOWN));
        calibration->kernels.drift = fmax(calibration->kernels.drift, change(was, &is, GPU_STAGE_KERNEL));
    }
    return CORE_OK;
}

/* ---- all ---- */

/* Of times over their table, and the drift that is in it. */
static void margin_fill(struct bench_gpu_margin *margin, struct bench_samples *times, double least)
{
    margin->times = (uint32_t)times->count;
    if (times->count > 0) {
        margin->longest = fmax(bench_samples_percentile(times, 100) - 1, 0); /* sorts them */
        margin->seen = fmax(times->values[(uint32_t)ceil(COVERED * times->count) - 1] - 1, 0);
    }
    const double share = (1 + margin->seen) * (1 + fmax(margin->drift, 0)) - 1;
    margin->exceeded = share > 1;
    margin->ppm = (uint32_t)ceil(fmin(fmax(share, least), 1) * CONFIG_PROFILE_MARGIN_PPM);
}

static core_status work_create(struct work *work)
{
    work->begin = calloc(work->measurer->count, sizeof *work->begin);
    return work->begin != NULL ? bench_gpu_shapes_init(&work->shapes, SHAPES) : CORE_NO_MEMORY;
}

static void work_free(struct work *work)
{
    bench_gpu_shapes_free(&work->shapes);
    free(work->begin);
}

static void calibration_begin(const struct bench_gpu_measurer *measurer,
                              struct bench_gpu_calibration *calibration)
{
    *calibration = (struct bench_gpu_calibration){.gpu = {.name = strdup(measurer->name),
                                                          .count = measurer->count,
                                                          .sms = measurer->sms,
                                                          .copy_engines = measurer->copy_engines > 1 ? 2 : 1,
                                                          .memory_bytes = measurer->memory_bytes,
                                                          .job_bytes = JOB_BYTES}};
}

static void calibration_end(struct work *work)
{
    struct bench_gpu_calibration *calibration = work->calibration;
    struct bench_gpu_shapes *shapes = &work->shapes;
    margin_fill(&calibration->copies, &shapes->copies, COPIES_LEAST);
    margin_fill(&calibration->kernels, &shapes->kernels, KERNELS_LEAST);
    calibration->start_ns = (core_ns)bench_samples_percentile(&shapes->start, 100 * COVERED);
    calibration->tell_ns = (core_ns)bench_samples_percentile(&shapes->tell, 100 * COVERED);
    calibration->gpu.host_batch_ns = calibration->start_ns;
}

core_status bench_gpu_calibrate(const struct bench_gpu_measurer *measurer,
                                const struct bench_gpu_calibrate_options *options,
                                struct bench_gpu_calibration *calibration, struct core_error *error)
{
    struct work work = {.measurer = measurer,
                        .options = options,
                        .calibration = calibration,
                        .shapes = {.measurer = measurer,
                                   .calibration = calibration,
                                   .shape_ns = options->time_ns / SHAPES,
                                   .journal = options->journal},
                        .warm_ns = core_time_min(options->time_ns / WARM_PART, WARM_NS)};

    calibration_begin(measurer, calibration);
    core_status status = calibration->gpu.name != NULL ? work_create(&work) : CORE_NO_MEMORY;
    if (status != CORE_OK)
        (void)core_error_set(error, status, "no memory for a GPU's figures");
    else if (long_blocks(measurer, measurer->sms) == 0)
        status =
            core_error_set(error, CORE_INVALID, "batches of %llu bytes are too small to measure a kernel",
                           (unsigned long long)measurer->bytes_max);
    if (status == CORE_OK)
        status = begin(&work, error);
    if (status == CORE_OK)
        status = copies_measure(&work, error);
    if (status == CORE_OK)
        status = kernels_measure(&work, error);
    if (status == CORE_OK)
        status = unevens_measure(&work, error);
    if (status == CORE_OK)
        status = end(&work, error);
    if (status == CORE_OK)
        calibration_end(&work);
    else
        bench_gpu_calibration_free(calibration);
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
