/* Private to partition: where the stairs of perfmodel/flow.h may hold what sums do not. */
#ifndef MILLRACE_PARTITION_SEARCH_STAIRS_H
#define MILLRACE_PARTITION_SEARCH_STAIRS_H

#include "partition/search/problem.h"

/* The period at which a GPU of this kind has most room for load->streams members, by a sample of them, so
 * that it is told in much less time than a trial takes. 0: none is near, or the plan must do with sums. */
core_ns partition_stairs_period_ns(const struct partition_problem *problem, uint32_t kind,
                                   const uint32_t *member, const struct perfmodel_flow_load *load);

#endif
