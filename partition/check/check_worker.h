/* Private to partition/check/check.c: one worker of a plan. */
#ifndef MILLRACE_PARTITION_CHECK_CHECK_WORKER_H
#define MILLRACE_PARTITION_CHECK_CHECK_WORKER_H

#include "partition/plan.h"

core_status partition_check_worker(const struct partition_plan_input *input,
                                   const struct partition_plan_worker *worker, const size_t *member,
                                   size_t count, struct core_error *error);

#endif
