/* The planner's accounts of the GPUs: whether batches have room, and which plan each batcher keeps to. */
#include "server/planner_parts.h"

#include <stdio.h>

/* Makes the plan of a GPU, as the standing plan has it now. False: the arenas do not hold it. */
static bool make_plan(struct server_planner *planner, uint32_t gpu, char *reason, size_t size)
{
    struct server_gpu_account *account = &planner->accounts[gpu];
    struct partition_standing_gpu now = partition_standing_gpu_at(planner->standing, gpu);

    if (server_gpu_account_plan(account, now.period_ns, now.shortest_ns, reason, size))
        return true;
    server_gpu_account_recount(account, planner->standing, planner->server->worker_count + gpu);
    return server_gpu_account_plan(account, now.period_ns, now.shortest_ns, reason, size);
}

static bool put_plan(struct server_planner *planner, uint32_t gpu)
{
    return server_gpu_put_plan(planner->server->gpus[gpu], &planner->accounts[gpu].plan) == CORE_OK;
}

void server_planner_gpu_remove(struct server_planner *planner, uint32_t gpu,
                               const struct core_stream_spec *spec)
{
    char reason[256];

    server_gpu_account_remove(&planner->accounts[gpu], spec);
    if (make_plan(planner, gpu, reason, sizeof reason))
        (void)!put_plan(planner, gpu); /* without memory the old plan stays, which holds as well */
}

bool server_planner_gpu_add(struct server_planner *planner, uint32_t gpu, const struct core_stream_spec *spec,
                            uint64_t *plan, enum partition_constraint *constraint, char *reason, size_t size)
{
    server_gpu_account_add(&planner->accounts[gpu], spec);
    if (!server_gpu_in_service(planner->server->gpus[gpu])) {
        *constraint = PARTITION_GPU_LATENCY;
        snprintf(reason, size, "GPU %u is out of service; ask again when it is back", gpu);
    } else if (!make_plan(planner, gpu, reason, size))
        *constraint = PARTITION_GPU_MEMORY;
    else if (put_plan(planner, gpu)) {
        *plan = planner->accounts[gpu].plan.number;
        return true;
    }
    return false;
}
