#include "bench/analyses/assign.h"

#include <string.h>

static unsigned gpus_of(const struct analyses_pipeline_set *set)
{
    return set->units[ANALYSES_GPU];
}

/* ---- a choice for each task by itself ---- */

void analyses_assign_single(const struct analyses_pipeline_set *set, unsigned *m)
{
    for (size_t t = 0; t < set->count; t++)
        m[t] = 1;
}

void analyses_assign_allmax(const struct analyses_pipeline_set *set, unsigned *m)
{
    for (size_t t = 0; t < set->count; t++)
        m[t] = gpus_of(set);
}

static int64_t time_alone(const struct analyses_pipeline_task *task, unsigned m)
{
    int64_t sum = 0;

    for (size_t s = 0; s < task->stage_count; s++)
        sum += task->stages[s].time[m - 1];
    return sum;
}

static unsigned after(unsigned m, const struct analyses_pipeline_set *set, bool two_modes)
{
    return two_modes && m == 1 && gpus_of(set) > 1 ? gpus_of(set) : m + 1;
}

void analyses_assign_individual(const struct analyses_pipeline_set *set, bool two_modes, unsigned *m)
{
    for (size_t t = 0; t < set->count; t++) {
        m[t] = 1;
        for (unsigned k = after(1, set, two_modes); k <= gpus_of(set); k = after(k, set, two_modes))
            if (time_alone(&set->tasks[t], k) < time_alone(&set->tasks[t], m[t]))
                m[t] = k;
    }
}

/* ---- ratios ---- */

int analyses_ratio_compare(struct analyses_ratio a, struct analyses_ratio b)
{
    if (a.response == ANALYSES_NEVER || b.response == ANALYSES_NEVER)
        return (a.response == ANALYSES_NEVER) - (b.response == ANALYSES_NEVER);
    const __int128 left = (__int128)a.response * b.deadline, right = (__int128)b.response * a.deadline;
    return (left > right) - (left < right);
}

static const struct analyses_ratio none = {.response = 0, .deadline = 1};
static const struct analyses_ratio infinite = {.response = ANALYSES_NEVER, .deadline = 1};

static struct analyses_ratio greater(struct analyses_ratio a, struct analyses_ratio b)
{
    return analyses_ratio_compare(b, a) > 0 ? b : a;
}

struct analyses_ratio analyses_assign_ratio(const struct analyses_pipeline_set *set, const int64_t *response)
{
    struct analyses_ratio worst = none;

    for (size_t t = 0; t < set->count; t++)
        worst = greater(worst, (struct analyses_ratio){response[t], set->tasks[t].deadline});
    return worst;
}

/* ---- GPA and GEMA: one task at a time, the best for all ---- */

static struct analyses_ratio ratio_with(const struct analyses_pipeline *pipeline, const unsigned *m)
{
    int64_t response[ANALYSES_PIPELINE_TASKS];

    analyses_pipeline_respond(pipeline, m, response, NULL);
    return analyses_assign_ratio(pipeline->set, response);
}

/* The best change of one task that is still open; low .. high are the choices. */
static struct analyses_assign_step best_step(const struct analyses_pipeline *pipeline, unsigned *m,
                                             const bool *closed, unsigned low, unsigned high)
{
    struct analyses_assign_step best = {.task = SIZE_MAX};

    for (size_t t = 0; t < pipeline->set->count; t++) {
        const unsigned before = m[t];
        for (unsigned k = low; k <= high && !closed[t]; k++) {
            m[t] = k;
            const struct analyses_ratio ratio = ratio_with(pipeline, m);
            if (best.task == SIZE_MAX || analyses_ratio_compare(ratio, best.ratio) < 0)
                best = (struct analyses_assign_step){.task = t, .m = k, .ratio = ratio};
        }
        m[t] = before;
    }
    return best;
}

static struct analyses_assign_trace improve(const struct analyses_pipeline *pipeline, unsigned *m,
                                            unsigned low, unsigned high)
{
    struct analyses_assign_trace trace = {.passes = false};
    bool closed[ANALYSES_PIPELINE_TASKS] = {false};
    int64_t response[ANALYSES_PIPELINE_TASKS];

    for (;;) {
        trace.passes = analyses_pipeline_respond(pipeline, m, response, NULL);
        if (trace.passes || trace.steps == pipeline->set->count)
            return trace;
        const struct analyses_assign_step step = best_step(pipeline, m, closed, low, high);
        trace.step[trace.steps++] = step;
        m[step.task] = step.m;
        closed[step.task] = true;
    }
}

struct analyses_assign_trace analyses_assign_gpa(const struct analyses_pipeline *pipeline, unsigned *m)
{
    analyses_assign_individual(pipeline->set, false, m);
    return improve(pipeline, m, 1, gpus_of(pipeline->set));
}

struct analyses_assign_trace analyses_assign_gema(const struct analyses_pipeline *pipeline, unsigned *m)
{
    analyses_assign_single(pipeline->set, m);
    return improve(pipeline, m, gpus_of(pipeline->set), gpus_of(pipeline->set));
}

/* ---- all assignments ---- */

struct search {
    const struct analyses_pipeline *pipeline;
    bool two_modes, stop_at_first;
    unsigned m[ANALYSES_PIPELINE_TASKS]; /* 0: none yet */
    struct analyses_pipeline_terms terms[ANALYSES_PIPELINE_TASKS][ANALYSES_PIPELINE_STAGES];
    struct analyses_assign_optimal found;
    struct analyses_ratio best; /* of analyses_assign_best */
    bool by_ratio;
};

/* Is there nothing to be found with this response of a task? */
static bool hopeless(const struct search *search, struct analyses_ratio ratio)
{
    if (search->by_ratio)
        return analyses_ratio_compare(ratio, search->best) >= 0;
    return ratio.response > ratio.deadline;
}

static void leaf(struct search *search)
{
    const struct analyses_pipeline_set *set = search->pipeline->set;
    int64_t response[ANALYSES_PIPELINE_TASKS];
    const bool passes = analyses_pipeline_respond(search->pipeline, search->m, response, NULL);

    if (search->by_ratio) {
        const struct analyses_ratio ratio = analyses_assign_ratio(set, response);
        if (analyses_ratio_compare(ratio, search->best) < 0) {
            search->best = ratio;
            memcpy(search->found.first, search->m, sizeof search->m);
        }
    } else if (passes && search->found.passing++ == 0)
        memcpy(search->found.first, search->m, sizeof search->m);
}

/* All assignments of the tasks from this one on, by a walk without recursion. */
static void walk(struct search *search)
{
    const struct analyses_pipeline_set *set = search->pipeline->set;
    size_t depth = 0;

    for (;;) {
        search->m[depth] = search->m[depth] == 0 ? 1 : after(search->m[depth], set, search->two_modes);
        if (search->m[depth] > gpus_of(set)) {
            search->m[depth] = 0;
            if (depth-- == 0)
                return;
            continue;
        }
        const int64_t response =
            analyses_pipeline_respond_one(search->pipeline, search->m, depth, search->terms);
        if (hopeless(search, (struct analyses_ratio){response, set->tasks[depth].deadline}))
            continue;
        if (depth + 1 < set->count) {
            depth++;
            continue;
        }
        leaf(search);
        if (search->stop_at_first && search->found.passing > 0)
            return;
    }
}

struct analyses_assign_optimal analyses_assign_optimal(const struct analyses_pipeline *pipeline,
                                                       bool two_modes, bool stop_at_first)
{
    struct search search = {.pipeline = pipeline, .two_modes = two_modes, .stop_at_first = stop_at_first};

    walk(&search);
    return search.found;
}

struct analyses_ratio analyses_assign_best(const struct analyses_pipeline *pipeline, bool two_modes,
                                           unsigned *m)
{
    struct search search = {.pipeline = pipeline, .two_modes = two_modes, .by_ratio = true, .best = infinite};

    analyses_assign_single(pipeline->set, search.found.first); /* where all are infinite */
    walk(&search);
    memcpy(m, search.found.first, pipeline->set->count * sizeof *m);
    return search.best;
}
