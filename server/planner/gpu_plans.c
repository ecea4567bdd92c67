/* The plans of the GPUs' batches, from the standing plan to their batchers. */
#include "server/planner/internal.h"

#include <stdio.h>
#include <string.h>

static bool in_service(const struct server_planner *planner, uint32_t gpu,
                       struct partition_standing_words *words)
{
    if (server_gpu_in_service(planner->server->gpus[gpu]))
        return true;
    words->constraint = PERFMODEL_LIMIT_GPU_OUT;
    snprintf(words->reason, sizeof words->reason, "GPU %u is out of service; retry when it is back", gpu);
    return false;
}

static bool send_plan(struct server_planner *planner, uint32_t gpu, struct partition_standing_words *words)
{
    if (!partition_standing_plan_batches(planner->standing, gpu, words))
        return false;
    if (server_gpu_put_plan(planner->server->gpus[gpu], server_planner_batches(planner, gpu)) == CORE_OK)
        return true;
    words->constraint = PERFMODEL_LIMIT_GPU_MEMORY;
    snprintf(words->reason, sizeof words->reason, "the server is out of memory");
    return false;
}

const struct partition_gpu_plan *server_planner_batches(const struct server_planner *planner, uint32_t gpu)
{
    return partition_standing_batches(planner->standing, gpu);
}

struct server_planner_plans server_planner_plans_of(const struct server_planner *planner, uint32_t stream)
{
    const struct partition_standing_stream of = partition_standing_stream_of(planner->standing, stream);
    const uint32_t workers = planner->server->worker_count;
    struct server_planner_plans plans = {.count = 0};

    if (!server_planner_is_gpu(planner, of.unit))
        return plans;
    plans.gpu[plans.count++] = of.unit - workers;
    if (of.backup_unit != PARTITION_STANDING_NONE && server_planner_is_gpu(planner, of.backup_unit))
        plans.gpu[plans.count++] = of.backup_unit - workers;
    return plans;
}

bool server_planner_put_plans(struct server_planner *planner, struct server_planner_plans *plans,
                              struct partition_standing_words *words)
{
    for (uint32_t n = 0; n < plans->count; n++) {
        if (!in_service(planner, plans->gpu[n], words) || !send_plan(planner, plans->gpu[n], words))
            return false;
        plans->number[n] = server_planner_batches(planner, plans->gpu[n])->number;
    }
    return true;
}

bool server_planner_gpu_replan(struct server_planner *planner, uint32_t gpu)
{
    struct partition_standing_words words;
    return send_plan(planner, gpu, &words);
}

void server_planner_shrink_plans(struct server_planner *planner, const struct server_planner_plans *plans)
{
    for (uint32_t n = 0; n < plans->count; n++) /* the old plans hold as well */
        (void)!server_planner_gpu_replan(planner, plans->gpu[n]);
}

void server_planner_say(const struct partition_standing_words *words,
                        struct partition_standing_placement *placement)
{
    placement->constraint = words->constraint;
    memcpy(placement->reason, words->reason, sizeof placement->reason);
}

bool server_planner_plans_in_force(const struct server_planner *planner,
                                   const struct server_planner_plans *plans)
{
    bool all = true;
    for (uint32_t n = 0; n < plans->count; n++)
        all = all && plans->number[n] <= server_gpu_plan_in_force(planner->server->gpus[plans->gpu[n]]);
    return all;
}

bool server_planner_gpu_paused(const struct server_planner *planner, uint32_t gpu, uint64_t batch)
{
    return server_gpu_paused(planner->server->gpus[gpu]) > batch;
}
