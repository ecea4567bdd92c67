/* How many GPUs each task of GPU-SAM and GPU-SPARC gets.
 *
 * Sources: GPU-SAM, algorithm 1 (GPA) and section 5 (SINGLE, INDIVIDUAL, OPTIMAL); GPU-SPARC, algorithm 1 (GEMA) and
 * section IV-D (LOCAL is INDIVIDUAL of two modes, GLOBAL is OPTIMAL of two modes). Ambiguities are read so: GPA chooses
 * among 1 .. GPUs, the least of max R / D over task and choice, ties to the first task, then the fewest GPUs; GEMA
 * chooses the task to be split, and what it returns is tested again. Whether an assignment is sound is a matter of
 * the variant of the analysis, not of these.
 *
 * Pure functions, any thread. */
#ifndef MILLRACE_ANALYSES_ASSIGN_H
#define MILLRACE_ANALYSES_ASSIGN_H

#include "bench/analyses/pipeline.h"

#include <stdint.h>

/* One GPU each. All GPUs each. The number with the least sum of times of the task alone, the fewest on a tie. */
void analyses_assign_single(const struct analyses_pipeline_set *set, unsigned *m);
void analyses_assign_allmax(const struct analyses_pipeline_set *set, unsigned *m);
void analyses_assign_individual(const struct analyses_pipeline_set *set, bool two_modes, unsigned *m);

/* The task nearest to its deadline or most behind it: max R / D as a fraction; response ANALYSES_NEVER: infinite. */
struct analyses_ratio {
    int64_t response, deadline;
};

/* -1, 0, 1 as a is less than, equal to, more than b. */
int analyses_ratio_compare(struct analyses_ratio a, struct analyses_ratio b);

struct analyses_assign_step {
    size_t task;
    unsigned m;
    struct analyses_ratio ratio;
};

/* Of a heuristic: whether its assignment passes, and how it came there. */
struct analyses_assign_trace {
    bool passes;
    size_t steps;
    struct analyses_assign_step step[ANALYSES_PIPELINE_TASKS];
};
struct analyses_assign_trace analyses_assign_gpa(const struct analyses_pipeline *pipeline, unsigned *m);
struct analyses_assign_trace analyses_assign_gema(const struct analyses_pipeline *pipeline, unsigned *m);

/* Of all assignments, depth first over priorities in the order of m (first the fewest GPUs), without branches in
 * which some R > D already with the least blocking that tasks without an assignment can mean. */
struct analyses_assign_optimal {
    uint64_t passing; /* how many pass; with stop_at_first 0 or 1 */
    unsigned first[ANALYSES_PIPELINE_TASKS];
};
struct analyses_assign_optimal analyses_assign_optimal(const struct analyses_pipeline *pipeline,
                                                       bool two_modes, bool stop_at_first);

/* The least max R / D of all assignments, and the first one that has it. */
struct analyses_ratio analyses_assign_best(const struct analyses_pipeline *pipeline, bool two_modes,
                                           unsigned *m);

/* max R / D of responses. */
struct analyses_ratio analyses_assign_ratio(const struct analyses_pipeline_set *set, const int64_t *response);

#endif
