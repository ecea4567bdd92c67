#include "bench/gpu/shape.h"

#include "bench/gpu/fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define ROUND_BATCHES 9 /* measured at once; odd, for the median */
#define ROUNDS_MIN    2
#define ROUNDS_MAX    12
#define SETTLED       0.02

core_status bench_gpu_shapes_init(struct bench_gpu_shapes *shapes, uint32_t count)
{
    const uint32_t times = count * shapes->measurer->count * ROUND_BATCHES * ROUNDS_MAX;
    struct bench_samples *const kept[] = {&shapes->copies, &shapes->kernels, &shapes->start, &shapes->tell};
    core_status status = CORE_OK;
    for (size_t i = 0; i < sizeof kept / sizeof *kept && status == CORE_OK; i++)
        status = bench_samples_init(kept[i], 2 * times); /* both directions */
    for (int stage = 0; stage < GPU_STAGE_COUNT && status == CORE_OK; stage++) {
        status = bench_samples_init(&shapes->round[stage], ROUND_BATCHES * ROUNDS_MAX);
        if (status == CORE_OK)
            status = bench_samples_init(&shapes->all[stage], times);
    }
    shapes->own = calloc(shapes->measurer->count, sizeof *shapes->own);
    return status == CORE_OK && shapes->own == NULL ? CORE_NO_MEMORY : status;
}

void bench_gpu_shapes_free(struct bench_gpu_shapes *shapes)
{
    bench_samples_free(&shapes->copies);
    bench_samples_free(&shapes->kernels);
    bench_samples_free(&shapes->start);
    bench_samples_free(&shapes->tell);
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        bench_samples_free(&shapes->round[stage]);
        bench_samples_free(&shapes->all[stage]);
    }
    free(shapes->own);
}

/* ---- one card, one way ---- */

/* Half of the values lie within this, relative to the median. */
static double spread(struct bench_samples *samples)
{
    const double median = bench_samples_percentile(samples, 50);
    return median > 0
               ? (bench_samples_percentile(samples, 75) - bench_samples_percentile(samples, 25)) / median
               : 0;
}

static void timing_take(struct bench_gpu_shapes *shapes, const struct bench_gpu_timing *timing,
                        const struct bench_gpu_way *way, const struct bench_gpu_medians *alone)
{
    core_ns up_ns = timing->stage_ns[GPU_STAGE_UP], down_ns = timing->stage_ns[GPU_STAGE_DOWN];
    if (way->together) {
        up_ns = bench_gpu_fit_busy_ns(up_ns, alone->stage_ns[GPU_STAGE_UP], timing->up_overlap);
        down_ns = bench_gpu_fit_busy_ns(down_ns, alone->stage_ns[GPU_STAGE_DOWN], timing->down_overlap);
    } else if (!way->traffic) { /* which would hold up this thread, too, and no server's */
        bench_samples_add(&shapes->start, (double)timing->start_ns);
        bench_samples_add(&shapes->tell, (double)timing->tell_ns);
    }
    bench_samples_add(&shapes->round[GPU_STAGE_UP], (double)up_ns);
    bench_samples_add(&shapes->round[GPU_STAGE_KERNEL], (double)timing->stage_ns[GPU_STAGE_KERNEL]);
    bench_samples_add(&shapes->round[GPU_STAGE_DOWN], (double)down_ns);
}

static core_status round_measure(struct bench_gpu_shapes *shapes, uint32_t card,
                                 const struct bench_gpu_shape *shape, const struct bench_gpu_way *way,
                                 struct core_error *error)
{
    const struct bench_gpu_measurer *measurer = shapes->measurer;
    struct bench_gpu_timing timings[ROUND_BATCHES];
    const core_status status =
        measurer->measure(measurer->argument, card, shape, way, ROUND_BATCHES, timings, error);
    for (int i = 0; i < ROUND_BATCHES && status == CORE_OK; i++)
        timing_take(shapes, &timings[i], way, &shapes->own[card]);
    return status;
}

/* Of the stages that are wanted. */
static double spread_most(struct bench_gpu_shapes *shapes, unsigned stages)
{
    double most = 0;
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
        if (stages >> stage & 1)
            most = fmax(most, spread(&shapes->round[stage]));
    return most;
}

static core_status rounds_measure(struct bench_gpu_shapes *shapes, uint32_t card,
                                  const struct bench_gpu_shape *shape, const struct bench_gpu_way *way,
                                  unsigned stages, struct core_error *error)
{
    const core_ns until_ns = core_time_now_ns() + shapes->shape_ns;
    core_status status = CORE_OK;
    double most = 1;
    for (int rounds = 0; status == CORE_OK && rounds < ROUNDS_MAX; rounds++) {
        if (rounds >= ROUNDS_MIN && (most <= SETTLED || core_time_now_ns() > until_ns))
            break;
        status = round_measure(shapes, card, shape, way, error);
        most = spread_most(shapes, stages);
    }
    return status;
}

/* After batches: a card that idles has another clock. All 0: it is not known. */
static struct gpu_nvml_health health_read(const struct bench_gpu_shapes *shapes, uint32_t card)
{
    const struct bench_gpu_measurer *measurer = shapes->measurer;
    struct gpu_nvml_health now;
    if (measurer->health == NULL ||
        measurer->health(measurer->argument, card, &now, &shapes->calibration->health.why) != CORE_OK)
        return (struct gpu_nvml_health){0};
    return now;
}

static void health_take(struct bench_gpu_health *seen, const struct gpu_nvml_health *now)
{
    if (now->sm_mhz == 0 && now->sm_most_mhz == 0 && now->celsius == 0)
        return;
    seen->least_mhz = seen->readings > 0 && seen->least_mhz < now->sm_mhz ? seen->least_mhz : now->sm_mhz;
    seen->most_mhz = seen->most_mhz > now->sm_mhz ? seen->most_mhz : now->sm_mhz;
    seen->celsius = seen->celsius > now->celsius ? seen->celsius : now->celsius;
    seen->reasons |= now->reasons;
    seen->readings++;
}

/* ---- measured before, or now ---- */

static char *key_text(const struct bench_gpu_shapes *shapes, uint32_t card,
                      const struct bench_gpu_shape *shape, const struct bench_gpu_way *way, char *text,
                      size_t size)
{
    const struct bench_gpu_measurer *measurer = shapes->measurer;
    snprintf(text, size, "%llu bytes, %u%s jobs of %u blocks,%s%s%s card %u of %u, %s, %s",
             (unsigned long long)shape->bytes, shape->jobs, shape->uneven ? " unequal" : "", shape->blocks,
             way->together ? " together," : "", way->spaced ? " spaced," : "",
             way->traffic ? " traffic," : "", card, measurer->count, measurer->name,
             measurer->with != NULL ? measurer->with : "");
    return text;
}

/* From the journal if it has them; else they are measured, and put there. */
static core_status times_take(struct bench_gpu_shapes *shapes, uint32_t card,
                              const struct bench_gpu_shape *shape, const struct bench_gpu_way *way,
                              unsigned stages, struct gpu_nvml_health *health, struct core_error *error)
{
    struct bench_samples *series[BENCH_GPU_JOURNAL_SERIES] = {&shapes->start, &shapes->tell};
    uint32_t first[BENCH_GPU_JOURNAL_SERIES];
    char key[256];
    core_status status = CORE_NOT_FOUND;

    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        series[BENCH_GPU_JOURNAL_SERIES - GPU_STAGE_COUNT + stage] = &shapes->round[stage];
        shapes->round[stage].count = 0;
    }
    for (int i = 0; i < BENCH_GPU_JOURNAL_SERIES; i++)
        first[i] = series[i]->count;
    key_text(shapes, card, shape, way, key, sizeof key);
    if (shapes->journal != NULL)
        status = bench_gpu_journal_take(shapes->journal, key, series, health, error);
    if (status != CORE_NOT_FOUND)
        return status;
    status = rounds_measure(shapes, card, shape, way, stages, error);
    if (status == CORE_OK && (stages & BENCH_GPU_KERNEL) != 0 && !way->spaced)
        *health = health_read(shapes, card);
    if (status == CORE_OK && shapes->journal != NULL)
        status = bench_gpu_journal_put(shapes->journal, key, series, first, health, error);
    return status;
}

core_status bench_gpu_shape_median(struct bench_gpu_shapes *shapes, uint32_t card,
                                   const struct bench_gpu_shape *shape, const struct bench_gpu_way *way,
                                   unsigned stages, struct bench_gpu_medians *medians,
                                   struct core_error *error)
{
    struct gpu_nvml_health health = {0};
    const core_status status = times_take(shapes, card, shape, way, stages, &health, error);
    if (status != CORE_OK)
        return status;
    const double most = spread_most(shapes, stages);
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
        medians->stage_ns[stage] = (core_ns)ceil(bench_samples_percentile(&shapes->round[stage], 50));
    health_take(&shapes->calibration->health, &health);
    shapes->calibration->shapes++;
    shapes->calibration->unsettled += most > SETTLED;
    shapes->calibration->spread_worst = fmax(shapes->calibration->spread_worst, most);
    return CORE_OK;
}

/* ---- all cards, all ways ---- */

/* The card's times of this way beside those of the one that was fastest in it. */
static void apart_take(struct bench_gpu_shapes *shapes, uint32_t card, unsigned stages,
                       const struct bench_gpu_medians *medians, struct bench_gpu_medians *fastest)
{
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        if (card == 0 || medians->stage_ns[stage] < fastest->stage_ns[stage])
            fastest->stage_ns[stage] = medians->stage_ns[stage];
        const double apart = (double)medians->stage_ns[stage] / (double)fastest->stage_ns[stage] - 1;
        if ((stages >> stage & 1) == 0 || fastest->stage_ns[stage] < BENCH_GPU_LASTING_NS ||
            apart <= shapes->calibration->apart)
            continue;
        shapes->calibration->apart = apart;
        shapes->calibration->apart_card = card;
    }
}

static core_status way_measure(struct bench_gpu_shapes *shapes, const struct bench_gpu_shape *shape,
                               const struct bench_gpu_way *way, bool own, unsigned stages,
                               struct bench_gpu_medians *worst, struct core_error *error)
{
    struct bench_gpu_medians fastest = {{0}};
    for (uint32_t card = 0; card < shapes->measurer->count; card++) {
        struct bench_gpu_medians medians;
        const core_status status = bench_gpu_shape_median(shapes, card, shape, way, stages, &medians, error);
        if (status != CORE_OK)
            return status;
        if (own)
            shapes->own[card] = medians;
        apart_take(shapes, card, stages, &medians, &fastest);
        for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
            worst->stage_ns[stage] = core_time_max(worst->stage_ns[stage], medians.stage_ns[stage]);
            for (uint32_t i = 0; i < shapes->round[stage].count; i++)
                bench_samples_add(&shapes->all[stage], shapes->round[stage].values[i]);
        }
    }
    return CORE_OK;
}

core_status bench_gpu_shape_worst(struct bench_gpu_shapes *shapes, const struct bench_gpu_shape *shape,
                                  const struct bench_gpu_way *ways, size_t count, unsigned stages,
                                  struct bench_gpu_medians *worst, struct core_error *error)
{
    core_status status = CORE_OK;

    *worst = (struct bench_gpu_medians){{0}};
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
        shapes->all[stage].count = 0;
    for (size_t i = 0; i < count && status == CORE_OK; i++)
        status = way_measure(shapes, shape, &ways[i], i == 0 && !ways[i].together, stages, worst, error);
    return status;
}

void bench_gpu_shape_hold(struct bench_gpu_shapes *shapes, unsigned stages,
                          const struct bench_gpu_medians *table)
{
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        struct bench_samples *excess = stage == GPU_STAGE_KERNEL ? &shapes->kernels : &shapes->copies;
        const double table_ns = (double)table->stage_ns[stage];
        if ((stages >> stage & 1) == 0 || table->stage_ns[stage] < BENCH_GPU_LASTING_NS)
            continue;
        for (uint32_t i = 0; i < shapes->all[stage].count; i++)
            bench_samples_add(excess, shapes->all[stage].values[i] / table_ns);
    }
}
