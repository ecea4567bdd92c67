#include "server/gpu/plan_queue.h"

#include <string.h>

void server_gpu_plans_add(struct server_gpu_plans *plans, const struct partition_gpu_plan *plan)
{
    bool same = plans->count > 0 && plans->waiting[plans->count - 1].period_ns == plan->period_ns;
    if (same || plans->count == SERVER_GPU_PLANS_MAX)
        plans->count--;
    plans->waiting[plans->count++] = *plan;
}

/* The first n have been waited for. */
static void take(struct server_gpu_plans *plans, uint32_t n, struct partition_gpu_plan *next)
{
    *next = plans->waiting[n - 1];
    plans->count -= n;
    memmove(plans->waiting, plans->waiting + n, plans->count * sizeof plans->waiting[0]);
}

bool server_gpu_plans_take(struct server_gpu_plans *plans, server_gpu_plan_fits *fits, const void *gpu,
                           struct partition_gpu_plan *next)
{
    uint32_t n = plans->count;
    while (n > 0 && !fits(gpu, &plans->waiting[n - 1]))
        n--;
    if (n > 0)
        take(plans, n, next);
    return n > 0;
}

bool server_gpu_plans_next(struct server_gpu_plans *plans, const struct partition_gpu_plan *from,
                           server_gpu_plan_fits *fits, const void *gpu, struct partition_gpu_plan *next)
{
    uint32_t n = plans->count;
    while (n > 0 && !(fits(gpu, &plans->waiting[n - 1]) &&
                      partition_gpu_plan_may_follow(from, &plans->waiting[n - 1])))
        n--;
    if (n > 0) {
        take(plans, n, next);
        return true;
    }
    for (n = plans->count; n > 0; n--)
        if (fits(gpu, &plans->waiting[n - 1]) && partition_gpu_plan_leads_to(from, &plans->waiting[n - 1]))
            return partition_gpu_plan_step(from, &plans->waiting[n - 1], next);
    return false;
}
