/* How a GPU's batches go from one plan (partition/admission/gpu_plan.h) to the next.
 *
 * A plan is **in force** once whatever it counts on is true. Newcomers, and contracts for more, wait for
 * that. One whose batches have no memory yet (room.c) waits for it, and for nothing else before. Then, one
 * with the period that the batches have is in force at once. One with another period takes these steps:
 *
 *   1. It waits until the plan before it is in force, so that no run of batches in a stage will ever have
 *      more than two periods,
 *   2. and until the change is proven for every stream that may have packets in batches by then
 *      (perfmodel_flow_judge_change), and the arenas that there are will do for both kinds of batches. If it
 *      is not, a period between the two may be: batches have that one first, and so on.
 *   3. The next batch to be opened is the first that has its period.
 *   4. It is in force once all stages have paused before that batch or a later one.
 *
 * So every batch keeps the bound of every packet in it, whatever changes. The admission state asks whether
 * there is such a way before it makes a plan (admission_plan_batches), and leaves the period as it
 * is if there is none; then a plan waits, beyond step 1, only where several were made meanwhile and lead
 * elsewhere together.
 *
 * Pure. */
#ifndef MILLRACE_SERVER_GPU_PLAN_QUEUE_H
#define MILLRACE_SERVER_GPU_PLAN_QUEUE_H

#include "partition/admission/gpu_plan.h"

/* Plans with another period than the batches have, or for larger batches than there is memory for, oldest
 * first. Zeroed: none. */
#define SERVER_GPU_PLANS_MAX 8
struct server_gpu_plans {
    struct partition_gpu_plan waiting[SERVER_GPU_PLANS_MAX];
    uint32_t count;
};

/* One more, the newest. It takes the place of the one before if that has the same period, or there are too
 * many. */
void server_gpu_plans_add(struct server_gpu_plans *plans, const struct partition_gpu_plan *plan);

/* Is there memory for the batches of this plan? */
typedef bool server_gpu_plan_fits(const void *gpu, const struct partition_gpu_plan *plan);

/* What is to follow this one, which is in force, of those that fit: the newest that may, and those older are
 * forgotten with it; or else this one again, at a period on the way to one of them. False: nothing. */
bool server_gpu_plans_next(struct server_gpu_plans *plans, const struct partition_gpu_plan *from,
                           server_gpu_plan_fits *fits, const void *gpu, struct partition_gpu_plan *next);

/* The newest that fits, where no batch is under way; it and those older are forgotten. False: none fits. */
bool server_gpu_plans_take(struct server_gpu_plans *plans, server_gpu_plan_fits *fits, const void *gpu,
                           struct partition_gpu_plan *next);

#endif
