/* Private to partition: the common part of the baselines MinRate and MaxDeadline. */
#ifndef MILLRACE_PARTITION_SEARCH_BASELINE_H
#define MILLRACE_PARTITION_SEARCH_BASELINE_H

#include "partition/search/problem.h"

/* Assigns the longest prefix of the order to_workers that the workers take to the workers, and the rest to
 * the GPUs, in random order and equally many to each. Overwrites to_workers. */
CORE_CHECKED core_status partition_baseline_make(struct partition_problem *problem, uint32_t *to_workers,
                                                 struct partition_plan *plan);

#endif
