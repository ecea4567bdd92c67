/* Private to partition: the functions of the table of methods, one file each. They fill the plan except for
 * what follows from the input, and except for the reason of an accepted plan. */
#ifndef MILLRACE_PARTITION_SEARCH_METHODS_H
#define MILLRACE_PARTITION_SEARCH_METHODS_H

#include "partition/plan.h"

core_status partition_rectangle_make(const struct partition_plan_input *input, struct partition_plan *plan);
core_status partition_bands_make(const struct partition_plan_input *input, struct partition_plan *plan);
core_status partition_min_rate_make(const struct partition_plan_input *input, struct partition_plan *plan);
core_status partition_max_deadline_make(const struct partition_plan_input *input,
                                        struct partition_plan *plan);
core_status partition_bound_make(const struct partition_plan_input *input, struct partition_plan *plan);

#endif
