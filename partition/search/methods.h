/* Private to partition: the functions of the table of methods, one file each. They fill all of the plan but
 * what follows from the input, and leave reason to the caller where they accept. */
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
