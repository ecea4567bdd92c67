/* Private to partition/check/check.c: one GPU of a plan. */
#ifndef MILLRACE_PARTITION_CHECK_CHECK_GPU_H
#define MILLRACE_PARTITION_CHECK_CHECK_GPU_H

#include "partition/plan.h"

core_status partition_check_gpu(const struct partition_plan_input *input,
                                const struct partition_plan_gpu *gpu, const size_t *member, size_t count,
                                struct core_error *error);

#endif
