/* MinRate (SYSTOR 2012, section 5.3): sorted by rate, the highest rates go to the CPUs. */
#include "partition/search/baseline.h"
#include "partition/search/methods.h"

static void reverse(uint32_t *order, size_t count)
{
    for (size_t k = 0; k < count / 2; k++) {
        uint32_t stream = order[k];
        order[k] = order[count - 1 - k];
        order[count - 1 - k] = stream;
    }
}

core_status partition_min_rate_make(const struct partition_plan_input *input, struct partition_plan *plan)
{
    struct partition_problem *problem = NULL;
    core_status status = partition_problem_create(input, &problem);
    if (status != CORE_OK)
        return status;
    if (!partition_problem_infeasible(problem, plan)) {
        reverse(problem->by_rate, problem->count);
        status = partition_baseline_make(problem, problem->by_rate, plan);
    }
    partition_problem_destroy(problem);
    return status;
}
