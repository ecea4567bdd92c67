#include "bench/papers/pipeline_stations.h"

#include "bench/papers/attack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TICKS_PER_MS 100
#define KERNELS_MAX  5
#define BOUND_WEIGHT 5
#define SHADOW_UP    2.35 /* Pagerank of Table 3: with data handed on, 4.7 times the copies up on two GPUs, */
#define SHADOW_DOWN  5.85 /* and 11.7 times those down */

void papers_pipeline_stations(const struct analyses_pipeline_set *set, const unsigned *m,
                              struct papers_stations *stations)
{
    *stations = (struct papers_stations){.task_count = set->count};
    for (int r = 0; r < ANALYSES_RESOURCES; r++)
        stations->units[r] = set->units[r];
    for (size_t t = 0; t < set->count; t++) {
        stations->tasks[t].stage_count = set->tasks[t].stage_count;
        for (size_t s = 0; s < set->tasks[t].stage_count; s++) {
            const struct analyses_pipeline_stage *stage = &set->tasks[t].stages[s];
            const int64_t time = stage->time[m[t] - 1];
            const bool preempts = stage->resource == ANALYSES_CPU;
            stations->tasks[t].stages[s] =
                (struct papers_stage){.station = stage->resource,
                                      .head = preempts ? time : 0,
                                      .body = preempts ? 0 : time,
                                      .pieces = 1,
                                      .parallel = stage->resource == ANALYSES_GPU ? m[t] : 1};
        }
    }
}

/* ---- random sets ---- */

static enum analyses_resource resource_at(size_t stage)
{
    static const enum analyses_resource pattern[4] = {ANALYSES_CPU, ANALYSES_PCI, ANALYSES_GPU, ANALYSES_PCI};

    return pattern[stage % 4];
}

static enum analyses_resource binding_of(const struct papers_pipeline_draw *draw,
                                         struct inputgen_random *random)
{
    const double x = inputgen_random_uniform(random);

    if (!draw->mixed || x < 0.7)
        return ANALYSES_GPU;
    return x < 0.9 ? ANALYSES_PCI : ANALYSES_CPU;
}

/* Spreads the time over the stages, one GPU. */
static void spread(struct analyses_pipeline_task *task, int64_t time, enum analyses_resource binding,
                   struct inputgen_random *random)
{
    double weight[ANALYSES_PIPELINE_STAGES], sum = 0;

    for (size_t s = 0; s < task->stage_count; s++) {
        task->stages[s].resource = resource_at(s);
        weight[s] = inputgen_random_uniform(random) * (resource_at(s) == binding ? BOUND_WEIGHT : 1);
        sum += weight[s];
    }
    for (size_t s = 0; s < task->stage_count; s++)
        task->stages[s].time[0] = (int64_t)((double)time * weight[s] / sum);
}

/* The times with more GPUs. Stage 4i + 1 uploads, 4i + 3 downloads, 4i + 4 has the merge. */
static void split(struct analyses_pipeline_task *task, bool dependent)
{
    for (size_t s = 0; s < task->stage_count; s++)
        for (int m = 2; m <= ANALYSES_PIPELINE_GPUS; m++) {
            const double one = (double)task->stages[s].time[0];
            double time = one;
            if (resource_at(s) == ANALYSES_GPU)
                time = ceil(one / m);
            else if (resource_at(s) == ANALYSES_PCI)
                time = one * m * (!dependent ? 1 : s % 4 == 1 ? SHADOW_UP : SHADOW_DOWN);
            else if (s > 0)
                time = one + (double)task->stages[s - 1].time[0] * m / 2;
            task->stages[s].time[m - 1] = (int64_t)time;
        }
}

static double draw_task(const struct papers_pipeline_draw *draw, struct inputgen_random *random,
                        struct analyses_pipeline_task *task)
{
    double gpu = 0;

    memset(task, 0, sizeof *task);
    task->period = task->deadline = papers_random_in(random, 100 * TICKS_PER_MS, 1000 * TICKS_PER_MS);
    task->stage_count = 1 + 4 * (size_t)papers_random_in(random, 1, KERNELS_MAX);
    const int64_t time = papers_random_in(random, 5 * TICKS_PER_MS, task->period);
    spread(task, time, binding_of(draw, random), random);
    split(task, inputgen_random_uniform(random) < draw->dependent);
    for (size_t s = 0; s < task->stage_count; s++)
        if (resource_at(s) == ANALYSES_GPU)
            gpu += (double)task->stages[s].time[0];
    return gpu / (double)task->period;
}

static int by_deadline(const void *left, const void *right)
{
    const struct analyses_pipeline_task *a = left, *b = right;

    return (a->deadline > b->deadline) - (a->deadline < b->deadline);
}

bool papers_pipeline_draw_set(const struct papers_pipeline_draw *draw, struct inputgen_random *random,
                              struct analyses_pipeline_set *set)
{
    double gpu = 0;

    set->units[ANALYSES_CPU] = 4;
    set->units[ANALYSES_PCI] = 1;
    set->units[ANALYSES_GPU] = ANALYSES_PIPELINE_GPUS;
    for (set->count = 0; set->count < ANALYSES_PIPELINE_TASKS; set->count++) {
        if (draw->tasks > 0 && set->count == draw->tasks)
            break;
        gpu += draw_task(draw, random, &set->tasks[set->count]);
        if (draw->tasks == 0 && gpu > draw->gpu_utilisation)
            break;
    }
    qsort(set->tasks, set->count, sizeof set->tasks[0], by_deadline);
    return set->count >= 2;
}

enum small { MIXED, CROWD, CHAIN, SMALL };

/* Of larger numbers: what is rounded up counts for less then. */
static void scale(struct analyses_pipeline_set *set, int64_t times)
{
    for (size_t t = 0; t < set->count; t++) {
        set->tasks[t].deadline = set->tasks[t].period *= times;
        for (size_t s = 0; s < set->tasks[t].stage_count; s++)
            for (int m = 0; m < ANALYSES_PIPELINE_GPUS; m++)
                set->tasks[t].stages[s].time[m] *= times;
    }
}

/* A task of one stage on the resource, or of five. */
static void draw_small_task(struct inputgen_random *random, enum small kind, bool one_stage,
                            enum analyses_resource resource, struct analyses_pipeline_task *task)
{
    task->period = task->deadline = kind == MIXED   ? papers_random_log(random, 20, 400)
                                    : kind == CROWD ? papers_random_in(random, 3, 40)
                                                    : papers_random_in(random, 12, 40);
    task->stage_count = one_stage ? 1 : 5;
    for (size_t s = 0; s < task->stage_count; s++) {
        struct analyses_pipeline_stage *stage = &task->stages[s];
        const int64_t time =
            papers_random_in(random, kind != MIXED, task->period / (int64_t)(task->stage_count + 1));
        stage->resource = one_stage ? resource : resource_at(s);
        for (int k = 1; k <= ANALYSES_PIPELINE_GPUS; k++)
            stage->time[k - 1] = stage->resource == ANALYSES_GPU   ? (time + k - 1) / k
                                 : stage->resource == ANALYSES_PCI ? time * k
                                                                   : time;
    }
}

void papers_pipeline_draw_small(struct inputgen_random *random, struct analyses_pipeline_set *set,
                                unsigned *m)
{
    const enum small kind = (enum small)papers_random_in(random, 0, SMALL - 1);
    const enum analyses_resource crowd = (enum analyses_resource)papers_random_in(random, 0, 2);

    memset(set, 0, sizeof *set);
    for (int r = 0; r < ANALYSES_RESOURCES; r++)
        set->units[r] = kind == CHAIN ? 1 : (unsigned)papers_random_in(random, 1 + (kind == CROWD), 3);
    set->count = (size_t)papers_random_in(random, kind == CROWD ? 4 : 2, kind == CHAIN ? 3 : 6);
    for (size_t t = 0; t < set->count; t++) {
        const bool one_stage = kind == CROWD || (kind == CHAIN ? t > 0 : papers_random_in(random, 0, 1) == 0);
        const enum analyses_resource resource =
            kind == MIXED ? (enum analyses_resource)papers_random_in(random, 0, 2) : crowd;
        draw_small_task(random, kind, one_stage, resource, &set->tasks[t]);
        m[t] = kind != MIXED ? 1 : (unsigned)papers_random_in(random, 1, set->units[ANALYSES_GPU]);
    }
    qsort(set->tasks, set->count, sizeof set->tasks[0], by_deadline);
    if (kind != MIXED)
        scale(set, papers_random_in(random, 0, 1) == 0 ? 1 : 50);
}
