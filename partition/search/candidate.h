/* Private to partition: splits of the streams into a GPUs' and a workers' part, and how many of an order the
 * workers take. */
#ifndef MILLRACE_PARTITION_SEARCH_CANDIDATE_H
#define MILLRACE_PARTITION_SEARCH_CANDIDATE_H

#include "partition/search/problem.h"

/* As many streams of the order, from its front, as the workers take; leaves that split in on_gpu, and the
 * workers' part of it in the plan. */
size_t partition_split_fill(struct partition_problem *problem, const uint32_t *order, uint8_t *on_gpu,
                            struct partition_plan *plan);

/* A refusal that comes after others: what the first said stays. */
struct partition_split_reason {
    bool known;
    enum perfmodel_limit binding;
    uint32_t binding_unit;
    char text[sizeof((struct partition_plan *)NULL)->reason];
};

/* The plan was refused: keeps its reason if it is the first, else puts the first back. */
void partition_split_keep(struct partition_split_reason *reason, struct partition_plan *plan);

#endif
