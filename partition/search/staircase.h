/* Private to partition: periods at which the staircase rule of perfmodel/flow.h may accept what sums refuse.
 * */
#ifndef MILLRACE_PARTITION_SEARCH_STAIRCASE_H
#define MILLRACE_PARTITION_SEARCH_STAIRCASE_H

#include "partition/search/problem.h"

/* The period at which a GPU of this kind has most headroom for load->streams members, estimated from a sample
 * of them in much less time than an evaluation takes. 0: none comes close, or the input allows only sums. */
core_ns partition_staircase_period_ns(const struct partition_problem *problem, uint32_t kind,
                                      const uint32_t *member, const struct perfmodel_flow_load *load);

#endif
