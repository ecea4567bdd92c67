/* GPU-SAM and GPU-SPARC: end-to-end response times of pipeline tasks on CPUs, a PCI bus and GPUs.
 *
 * Sources: Han, Chwa, Bae, Kim, Shin, "GPU-SAM: Leveraging multi-GPU split-and-merge execution for system-wide
 * real-time support" (Journal of Systems and Software 2016), equation 1; and the older report on GPU-SPARC, section
 * IV-B. A task passes its stages one after the other, by fixed priority; a stage takes one of N units of its
 * resource, and on GPUs m of them at the same time, m the parallelism that the task was assigned. CPUs preempt, the
 * bus and the GPUs do not. R = sum of r over the stages, r the least fixed point of one recurrence:
 *
 *   r = C + interference(X, Y) + blocking(Z)
 *   X = sum over higher priority, over their stages on this resource, ceil((J + carry + r) / T) C m
 *   Y = C (m - 1): the task's own other subtasks, on GPUs
 *   Z = pieces of lower priority that may have begun
 *   J = how much later than its job a stage may come: its release jitter
 *
 * The variants differ in:
 *                GPU-SAM: TXT        MIN, SAFE         GPU-SPARC: PRINTED    SAFE
 *   C of X       assigned m          assigned m        C_single on GPUs      assigned mode, m subtasks
 *   Y            yes                 yes               no                    yes
 *   Z            N longest C - 1     the same, one     longest C             longest C
 *                                    stage of a task
 *   division     ceil(X+Y) + ceil(Z) floor(X+Y+Z)      floor(X)              floor(X+Y)          by N
 *   J            sum r - sum C       sum r             sum r - sum C         sum r
 *   carry        0                   r - C if N > 1    0                     r - C if N > 1
 *
 * MIN is SAFE where N > 1 with each task's part of X, each subtask's of Y and each piece of Z cut to r - C + 1, times
 * the units that the task can hold at once: what is more can not be in the way all at the same time (Bertogna and
 * Cirinei 2007).
 *
 * Sound: SAFE, MIN, for a task with R <= T, if each task of higher priority has R <= T too, and no task has two jobs in
 * two stages at once. TXT and PRINTED are not: they leave out jobs of
 * higher priority that were released before the window and are late where N > 1, and take the worst execution times
 * of earlier stages for the best ones in J; PRINTED also leaves out the task's own subtasks.
 *
 * Integer ticks, exact. A stage of length 0 is passed. A bound above 16 D is ANALYSES_NEVER, as are all of lower
 * priority then. Pure functions, any thread. */
#ifndef MILLRACE_ANALYSES_PIPELINE_H
#define MILLRACE_ANALYSES_PIPELINE_H

#include "bench/analyses/ticks.h"

#include <stdbool.h>
#include <stddef.h>

#define ANALYSES_PIPELINE_STAGES 24
#define ANALYSES_PIPELINE_TASKS  32
#define ANALYSES_PIPELINE_GPUS   4

enum analyses_resource { ANALYSES_CPU, ANALYSES_PCI, ANALYSES_GPU, ANALYSES_RESOURCES };

enum analyses_pipeline_variant {
    ANALYSES_SAM_TXT,
    ANALYSES_SAM_SAFE,
    ANALYSES_SAM_MIN,
    ANALYSES_SPARC_PRINTED,
    ANALYSES_SPARC_SAFE,
    ANALYSES_PIPELINE_VARIANTS
};

struct analyses_pipeline_stage {
    enum analyses_resource resource;
    int64_t time[ANALYSES_PIPELINE_GPUS]; /* by parallelism, 1 first; of one subtask */
};

struct analyses_pipeline_task {
    int64_t period, deadline; /* T, D <= T */
    size_t stage_count;
    struct analyses_pipeline_stage stages[ANALYSES_PIPELINE_STAGES];
};

struct analyses_pipeline_set {
    unsigned units[ANALYSES_RESOURCES]; /* N; GPUs: 1 .. ANALYSES_PIPELINE_GPUS */
    size_t count;
    struct analyses_pipeline_task tasks[ANALYSES_PIPELINE_TASKS]; /* by priority, the highest first */
};

/* What the last turn of the recurrence of a stage was made of. */
struct analyses_pipeline_terms {
    int64_t r, jitter, x, y, z;
};

/* A set made ready for one variant. */
struct analyses_pipeline {
    const struct analyses_pipeline_set *set;
    enum analyses_pipeline_variant variant;
    /* The longest pieces with which each task may block, by parallelism; index 0: what they are at least, whatever
     * its parallelism will be. */
    int64_t pieces[ANALYSES_PIPELINE_TASKS][ANALYSES_PIPELINE_GPUS + 1][ANALYSES_RESOURCES]
                  [ANALYSES_PIPELINE_GPUS];
};
void analyses_pipeline_prepare(struct analyses_pipeline *pipeline, const struct analyses_pipeline_set *set,
                               enum analyses_pipeline_variant variant);

/* Returns R of one task, whose parallelism is m[task], in 1 .. GPUs (GPU-SPARC's modes: S is 1, M all GPUs), and
 * fills terms[task][stage]. Those of all tasks of higher priority must be there. m[k] of a task of lower priority may
 * be 0, not known: R is not above what it is for any m[k] then, which is what a search prunes by. */
int64_t analyses_pipeline_respond_one(const struct analyses_pipeline *pipeline, const unsigned *m,
                                      size_t task,
                                      struct analyses_pipeline_terms (*terms)[ANALYSES_PIPELINE_STAGES]);

/* Computes R of all tasks. Returns whether every R <= D. Fills terms unless it is NULL. */
bool analyses_pipeline_respond(const struct analyses_pipeline *pipeline, const unsigned *m, int64_t *response,
                               struct analyses_pipeline_terms (*terms)[ANALYSES_PIPELINE_STAGES]);

#endif
