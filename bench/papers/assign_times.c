#include "bench/papers/assign_times.h"

#include "bench/analyses/assign.h"
#include "bench/papers/pipeline_stations.h"
#include "core/time.h"

#include <stdlib.h>

#define TIMED_SETS    100
#define OPTIMAL_TASKS 12 /* at most */

static double ms_since(core_ns begin_ns)
{
    return (double)(core_time_now_ns() - begin_ns) / 1e6;
}

static int by_size(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

static void put_times(double *ms, unsigned count, FILE *file)
{
    qsort(ms, count, sizeof *ms, by_size);
    fprintf(file, ",%.4f,%.4f", ms[count / 2], ms[count - 1]);
}

/* Cuts all times to a GPU utilisation uniform in [0.1, 4], as the paper draws these sets. */
static void cut_times(struct inputgen_random *random, struct analyses_pipeline_set *set)
{
    const double target = 0.1 + 3.9 * inputgen_random_uniform(random);
    double gpu = 0;

    for (size_t t = 0; t < set->count; t++)
        for (size_t s = 0; s < set->tasks[t].stage_count; s++)
            if (set->tasks[t].stages[s].resource == ANALYSES_GPU)
                gpu += (double)set->tasks[t].stages[s].time[0] / (double)set->tasks[t].period;
    for (size_t t = 0; t < set->count && gpu > target; t++)
        for (size_t s = 0; s < set->tasks[t].stage_count; s++)
            for (int m = 0; m < ANALYSES_PIPELINE_GPUS; m++)
                set->tasks[t].stages[s].time[m] =
                    (int64_t)((double)set->tasks[t].stages[s].time[m] * target / gpu);
}

void papers_assign_times(const struct papers_options *options, size_t row, struct inputgen_random *random,
                         FILE *file)
{
    const struct papers_pipeline_draw draw = {.mixed = true, .tasks = 2 * (row + 1)};
    const unsigned sets = options->sets < TIMED_SETS ? options->sets : TIMED_SETS;
    double gpa_ms[TIMED_SETS], optimal_ms[TIMED_SETS];
    unsigned passed = 0;

    for (unsigned i = 0; i < sets; i++) {
        struct analyses_pipeline_set set;
        struct analyses_pipeline pipeline;
        unsigned m[ANALYSES_PIPELINE_TASKS];
        papers_pipeline_draw_set(&draw, random, &set);
        cut_times(random, &set);
        core_ns begin_ns = core_time_now_ns();
        analyses_pipeline_prepare(&pipeline, &set,
                                  options->as_printed ? ANALYSES_SAM_TXT : ANALYSES_SAM_SAFE);
        passed += analyses_assign_gpa(&pipeline, m).passes;
        gpa_ms[i] = ms_since(begin_ns);
        begin_ns = core_time_now_ns();
        if (draw.tasks <= OPTIMAL_TASKS)
            analyses_assign_optimal(&pipeline, false, true);
        optimal_ms[i] = ms_since(begin_ns);
    }
    fprintf(file, "%zu", draw.tasks);
    put_times(gpa_ms, sets, file);
    if (draw.tasks <= OPTIMAL_TASKS)
        put_times(optimal_ms, sets, file);
    else
        fputs(",,", file);
    fprintf(file, ",%u,%u", sets, passed);
}
