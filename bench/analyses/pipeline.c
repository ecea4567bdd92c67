#include "bench/analyses/pipeline.h"

#include <string.h>

#define LIMIT_DEADLINES 16

typedef struct analyses_pipeline_terms (*terms_of_tasks)[ANALYSES_PIPELINE_STAGES];

/* One stage under analysis. */
struct view {
    const struct analyses_pipeline *pipeline;
    const unsigned *m;
    size_t task, stage;
    terms_of_tasks terms;
    int64_t units, c, subtasks;
    int64_t blocking[ANALYSES_PIPELINE_GPUS]; /* the longest pieces of lower priority, the longest first */
};

static bool is_sparc(enum analyses_pipeline_variant variant)
{
    return variant >= ANALYSES_SPARC_PRINTED;
}

/* As printed, that is, not sound. */
static bool is_printed(enum analyses_pipeline_variant variant)
{
    return variant == ANALYSES_SAM_TXT || variant == ANALYSES_SPARC_PRINTED;
}

static int64_t time_of(const struct analyses_pipeline_stage *stage, unsigned m)
{
    return stage->time[m - 1];
}

static int64_t subtasks_of(enum analyses_resource resource, unsigned m)
{
    return resource == ANALYSES_GPU ? (int64_t)m : 1;
}

/* ---- blocking ---- */

/* Puts so many pieces into a list of the longest, the longest first. */
static void insert(int64_t *longest, size_t size, int64_t piece, int64_t times)
{
    for (; times > 0; times--) {
        int64_t put = piece;
        for (size_t i = 0; i < size; i++)
            if (put > longest[i]) {
                const int64_t out = longest[i];
                longest[i] = put;
                put = out;
            }
    }
}

/* What a stage has left when it has just begun: in integer time one tick less, but in GPU-SPARC's B. */
static int64_t piece_of(enum analyses_pipeline_variant variant, int64_t time)
{
    return is_sparc(variant) ? time : analyses_max(time - 1, 0);
}

static void find_pieces(struct analyses_pipeline *pipeline, size_t task, unsigned m,
                        enum analyses_resource resource)
{
    const struct analyses_pipeline_task *of = &pipeline->set->tasks[task];
    int64_t *longest = pipeline->pieces[task][m][resource], one = 0;

    for (size_t s = 0; s < of->stage_count; s++) {
        if (of->stages[s].resource != resource)
            continue;
        const int64_t piece = piece_of(pipeline->variant, time_of(&of->stages[s], m));
        if (pipeline->variant == ANALYSES_SAM_TXT)
            insert(longest, pipeline->set->units[resource], piece, subtasks_of(resource, m));
        one = analyses_max(one, piece);
    }
    if (pipeline->variant != ANALYSES_SAM_TXT) /* a task is in one stage at a time */
        insert(longest, pipeline->set->units[resource], one,
               is_sparc(pipeline->variant) ? 1 : subtasks_of(resource, m));
}

void analyses_pipeline_prepare(struct analyses_pipeline *pipeline, const struct analyses_pipeline_set *set,
                               enum analyses_pipeline_variant variant)
{
    memset(pipeline, 0, sizeof *pipeline);
    pipeline->set = set;
    pipeline->variant = variant;
    for (size_t t = 0; t < set->count; t++)
        for (int r = ANALYSES_PCI; r < ANALYSES_RESOURCES; r++) {
            int64_t *least = pipeline->pieces[t][0][r];
            for (unsigned m = 1; m <= set->units[ANALYSES_GPU]; m++) {
                find_pieces(pipeline, t, m, (enum analyses_resource)r);
                for (size_t i = 0; i < ANALYSES_PIPELINE_GPUS; i++)
                    least[i] = m == 1 ? pipeline->pieces[t][m][r][i]
                                      : analyses_min(least[i], pipeline->pieces[t][m][r][i]);
            }
        }
}

static void find_blocking(struct view *view, enum analyses_resource resource)
{
    const size_t size = is_sparc(view->pipeline->variant) ? 1 : (size_t)view->units;

    for (size_t l = view->task + 1; l < view->pipeline->set->count; l++)
        for (size_t i = 0; i < size; i++)
            insert(view->blocking, size, view->pipeline->pieces[l][view->m[l]][resource][i], 1);
}

/* ---- the recurrence ---- */

static bool is_cut(const struct view *view)
{
    return view->pipeline->variant == ANALYSES_SAM_MIN && view->units > 1;
}

/* The part of X of one task of higher priority. */
static int64_t interference(const struct view *view, size_t task, enum analyses_resource resource, int64_t r)
{
    const struct analyses_pipeline_task *of = &view->pipeline->set->tasks[task];
    const enum analyses_pipeline_variant variant = view->pipeline->variant;
    int64_t sum = 0;

    for (size_t s = 0; s < of->stage_count; s++) {
        const struct analyses_pipeline_terms *terms = &view->terms[task][s];
        const int64_t c = time_of(&of->stages[s], view->m[task]);
        if (of->stages[s].resource != resource || c == 0)
            continue;
        const int64_t carry = is_printed(variant) || view->units == 1 ? 0 : terms->r - c;
        int64_t work = c * subtasks_of(resource, view->m[task]);
        if (variant == ANALYSES_SPARC_PRINTED)
            work = resource == ANALYSES_GPU ? time_of(&of->stages[s], 1) : c;
        sum += analyses_ceil(terms->jitter + carry + r, of->period) * work;
    }
    if (is_cut(view)) {
        const int64_t at_once = analyses_min(subtasks_of(resource, view->m[task]), view->units);
        sum = analyses_min(sum, at_once * (r - view->c + 1));
    }
    return sum;
}

/* X, Y and Z for a window r. */
static void fill_terms(const struct view *view, enum analyses_resource resource, int64_t r,
                       struct analyses_pipeline_terms *terms)
{
    const int64_t cut = is_cut(view) ? r - view->c + 1 : ANALYSES_NEVER;

    terms->x = 0;
    for (size_t h = 0; h < view->task; h++)
        terms->x += interference(view, h, resource, r);
    terms->y = view->pipeline->variant == ANALYSES_SPARC_PRINTED
                   ? 0
                   : (view->subtasks - 1) * analyses_min(view->c, cut);
    terms->z = 0;
    for (size_t i = 0; i < ANALYSES_PIPELINE_GPUS; i++)
        terms->z += analyses_min(view->blocking[i], cut);
}

static int64_t next_of(const struct view *view, const struct analyses_pipeline_terms *terms)
{
    const int64_t n = view->units;

    switch (view->pipeline->variant) {
    case ANALYSES_SAM_TXT:
        return view->c + analyses_ceil(terms->x + terms->y, n) + analyses_ceil(terms->z, n);
    case ANALYSES_SPARC_PRINTED:
    case ANALYSES_SPARC_SAFE:
        return view->c + terms->z + (terms->x + terms->y) / n;
    default:
        return view->c + (terms->x + terms->y + terms->z) / n;
    }
}

static void respond_stage(struct view *view, enum analyses_resource resource, int64_t limit,
                          struct analyses_pipeline_terms *terms)
{
    int64_t r;

    if (resource != ANALYSES_CPU)
        find_blocking(view, resource);
    terms->r = view->c;
    do {
        r = terms->r;
        fill_terms(view, resource, r, terms);
        terms->r = next_of(view, terms);
    } while (terms->r != r && terms->r <= limit);
}

int64_t analyses_pipeline_respond_one(const struct analyses_pipeline *pipeline, const unsigned *m,
                                      size_t task,
                                      struct analyses_pipeline_terms (*terms)[ANALYSES_PIPELINE_STAGES])
{
    const struct analyses_pipeline_task *of = &pipeline->set->tasks[task];
    const int64_t limit = LIMIT_DEADLINES * of->deadline;
    int64_t response = 0, work = 0;

    for (size_t s = 0; s < of->stage_count; s++) {
        const enum analyses_resource resource = of->stages[s].resource;
        struct view view = {.pipeline = pipeline,
                            .m = m,
                            .task = task,
                            .stage = s,
                            .terms = terms,
                            .units = pipeline->set->units[resource],
                            .c = time_of(&of->stages[s], m[task]),
                            .subtasks = subtasks_of(resource, m[task])};
        terms[task][s] = (struct analyses_pipeline_terms){
            .jitter = is_printed(pipeline->variant) ? response - work : response};
        if (view.c == 0)
            continue;
        respond_stage(&view, resource, limit, &terms[task][s]);
        response += terms[task][s].r;
        work += view.c;
        if (response > limit)
            return ANALYSES_NEVER;
    }
    return response;
}

bool analyses_pipeline_respond(const struct analyses_pipeline *pipeline, const unsigned *m, int64_t *response,
                               struct analyses_pipeline_terms (*terms)[ANALYSES_PIPELINE_STAGES])
{
    struct analyses_pipeline_terms own[ANALYSES_PIPELINE_TASKS][ANALYSES_PIPELINE_STAGES];
    bool known = true, kept = true;

    for (size_t t = 0; t < pipeline->set->count; t++) {
        response[t] = known ? analyses_pipeline_respond_one(pipeline, m, t, terms != NULL ? terms : own)
                            : ANALYSES_NEVER;
        known = response[t] != ANALYSES_NEVER;
        kept = kept && response[t] <= pipeline->set->tasks[t].deadline;
    }
    return kept;
}
