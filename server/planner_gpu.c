/* The planner's accounts of the GPUs: whether batches have room, and which plan each batcher keeps to. */
#include "server/planner_parts.h"

#include <stdio.h>

/* Makes the plan of a GPU, as the standing plan has it now. */
static bool make_plan(struct server_planner *planner, uint32_t gpu, enum partition_constraint *constraint,
                      char *reason, size_t size)
{
    return server_gpu_account_replan(&planner->accounts[gpu], planner->standing, gpu,
                                     planner->server->worker_count + gpu, constraint, reason, size);
}

static bool put_plan(struct server_planner *planner, uint32_t gpu)
{
    return server_gpu_put_plan(planner->server->gpus[gpu], &planner->accounts[gpu].plan) == CORE_OK;
}

bool server_planner_gpu_replan(struct server_planner *planner, uint32_t gpu)
{
    enum partition_constraint constraint;
    char reason[256];

    return make_plan(planner, gpu, &constraint, reason, sizeof reason) && put_plan(planner, gpu);
}

void server_planner_gpu_remove(struct server_planner *planner, uint32_t gpu,
                               const struct core_stream_spec *spec)
{
    server_gpu_account_remove(&planner->accounts[gpu], spec);
    (void)!server_planner_gpu_replan(planner, gpu); /* the old plan holds as well */
}

bool server_planner_gpu_add(struct server_planner *planner, uint32_t gpu, const struct core_stream_spec *spec,
                            uint64_t *plan, enum partition_constraint *constraint, char *reason, size_t size)
{
    server_gpu_account_add(&planner->accounts[gpu], spec);
    if (!server_gpu_in_service(planner->server->gpus[gpu])) {
        *constraint = PARTITION_GPU_LATENCY;
        snprintf(reason, size, "GPU %u is out of service; ask again when it is back", gpu);
    } else if (make_plan(planner, gpu, constraint, reason, size) && put_plan(planner, gpu)) {
        *plan = planner->accounts[gpu].plan.number;
        return true;
    }
    return false;
}
