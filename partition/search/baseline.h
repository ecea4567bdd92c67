/* Private to partition: what MinRate and MaxDeadline share. */
#ifndef MILLRACE_PARTITION_SEARCH_BASELINE_H
#define MILLRACE_PARTITION_SEARCH_BASELINE_H

#include "partition/search/problem.h"

/* The first streams of the order to the workers, as many as they take; the rest to the GPUs, equally many to
 * each, in random order. to_workers is destroyed. */
CORE_CHECKED core_status partition_baseline_make(struct partition_problem *problem, uint32_t *to_workers,
                                                 struct partition_plan *plan);

#endif
