/* An independent check of a plan: every figure of its certificate is computed again, straight from the
 * definitions in model.md's words (perfmodel/cpu.h, perfmodel/gpu.h), and every inequality is judged again.
 *
 * Shares no code with the methods, and none with perfmodel: nothing is sorted, cached or searched but what
 * the definition sorts. It costs O(n) a unit for GPUs (and the sorting of their jobs), and O(n) a step of the
 * burst test for workers. Pure; any thread. */
#ifndef MILLRACE_PARTITION_CHECK_CHECK_H
#define MILLRACE_PARTITION_CHECK_CHECK_H

#include "partition/plan.h"

/* CORE_OK if the plan is accepted, places every stream, and holds for this input; CORE_REFUSED with what does
 * not hold in error; CORE_NO_MEMORY. */
CORE_CHECKED core_status partition_check(const struct partition_plan_input *input,
                                         const struct partition_plan *plan, struct core_error *error);

#endif
