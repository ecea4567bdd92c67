/* The plans of the GPUs' batches, from the standing plan to their batchers. */
#include "server/planner/internal.h"

#include <stdio.h>
#include <string.h>

const struct partition_gpu_plan *server_planner_batches(const struct server_planner *planner, uint32_t gpu)
{
    return partition_standing_batches(planner->standing, gpu);
}

static void add(const struct server_planner *planner, uint32_t unit, struct server_planner_plans *plans)
{
    plans->gpu[plans->count] = server_unit_gpu(planner->server, unit);
    plans->number[plans->count] = server_planner_batches(planner, plans->gpu[plans->count])->number;
    plans->count++;
}

struct server_planner_plans server_planner_plans_of(const struct server_planner *planner, uint32_t stream)
{
    const struct partition_standing_stream of = partition_standing_stream_of(planner->standing, stream);
    struct server_planner_plans plans = {.count = 0};

    if (!server_planner_is_gpu(planner, of.unit))
        return plans;
    add(planner, of.unit, &plans);
    if (of.backup_unit != PARTITION_STANDING_NONE && server_planner_is_gpu(planner, of.backup_unit))
        add(planner, of.backup_unit, &plans);
    return plans;
}

bool server_planner_in_service(const struct server_planner *planner, const struct server_planner_plans *plans,
                               struct partition_standing_words *words)
{
    for (uint32_t n = 0; n < plans->count; n++)
        if (!server_gpu_in_service(planner->server->gpus[plans->gpu[n]])) {
            words->constraint = PERFMODEL_LIMIT_GPU_OUT;
            snprintf(words->reason, sizeof words->reason,
                     "GPU %u is out of service; ask again when it is back", plans->gpu[n]);
            return false;
        }
    return true;
}

void server_planner_send_plans(struct server_planner *planner)
{
    for (uint32_t gpu = 0; gpu < planner->server->gpu_count; gpu++) {
        const struct partition_gpu_plan *plan = server_planner_batches(planner, gpu);
        if (plan->number != planner->cards[gpu].sent &&
            server_gpu_put_plan(planner->server->gpus[gpu], plan) == CORE_OK)
            planner->cards[gpu].sent = plan->number;
    }
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
