/* MaxDeadline (SYSTOR 2012, section 5.3): sorted by deadline, the shortest go to the CPUs. */
#include "partition/search/baseline.h"
#include "partition/search/methods.h"

core_status partition_max_deadline_make(const struct partition_plan_input *input, struct partition_plan *plan)
{
    struct partition_problem *problem = NULL;
    core_status status = partition_problem_create(input, &problem);
    if (status != CORE_OK)
        return status;
    if (!partition_problem_infeasible(problem, plan))
        status = partition_baseline_make(problem, problem->by_latency, plan);
    partition_problem_destroy(problem);
    return status;
}
