/* Private to partition: candidate assignments of streams to GPUs and workers, made from an order of
 * preference: a prefix of it goes to the workers. */
#ifndef MILLRACE_PARTITION_SEARCH_CANDIDATE_H
#define MILLRACE_PARTITION_SEARCH_CANDIDATE_H

#include "partition/search/problem.h"

/* Assigns the longest prefix of `order` that the workers take to the workers, and the rest to the GPUs.
 * Returns its length; on_gpu has the assignment, and the plan has the workers' part of it. */
size_t partition_candidate_fill(struct partition_problem *problem, const uint32_t *order, uint8_t *on_gpu,
                                struct partition_plan *plan);

/* The first of several refusals, whose reason is the one reported. */
struct partition_candidate_reason {
    bool known;
    enum perfmodel_limit binding;
    uint32_t binding_unit;
    char text[sizeof((struct partition_plan *)NULL)->reason];
};

/* To be called for each refused plan: keeps the reason of the first, and puts it into each later plan. */
void partition_candidate_keep_reason(struct partition_candidate_reason *reason, struct partition_plan *plan);

#endif
