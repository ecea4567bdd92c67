/* What the planner promises of one GPU and its batcher keeps to: a plan; and how batches go from one to the
 * next.
 *
 * A plan is **in force** once whatever it counts on is true. Newcomers, and contracts for more, wait for
 * that. One with the period that the batches have is so at once. One with another period takes these steps:
 *
 *   1. It waits until the plan before it is in force, so that no run of batches in a stage will ever have
 * more than two periods,
 *   2. and until the change is proven for whoever may have packets in batches by then
 *      (perfmodel_flow_judge_change), and the arenas that there are will do for both kinds of batches. If it
 * is not, a period between the two may be: batches have that one first, and so on.
 *   3. The next batch to be opened is the first that has its period.
 *   4. It is in force once all stages have paused before that batch or a later one.
 *
 * So every batch keeps the bound of every packet in it, whatever changes. The planner asks whether there is
 * such a way before it makes a plan (server_gpu_account_replan), and leaves the period as it is if there is
 * none; then a plan waits, beyond step 1, only where several were made meanwhile and lead elsewhere together.
 *
 * Pure. */
#ifndef MILLRACE_SERVER_GPU_PLAN_QUEUE_H
#define MILLRACE_SERVER_GPU_PLAN_QUEUE_H

#include "perfmodel/flow.h"

struct server_gpu_plan {
    uint64_t number;                   /* rises with each plan of this GPU */
    core_ns period_ns;                 /* 0: no streams, no batches */
    core_ns delay_ns;                  /* from the end of a period to the closing of its batch */
    core_ns up_ns, kernel_ns, down_ns; /* bounds of the stages */
    core_ns latency_ns;                /* period and stages */
    core_ns batch_ns; /* from a batch's closing to its last byte: stages, and half of in_ns on the way */
    uint64_t batch_bytes;
    uint32_t streams;
    uint32_t guaranteed; /* of these: a batch that does not come back is told after gpus.hang_ms, not later */
    uint32_t backups;    /* streams of other GPUs that come at the loss of theirs; */
    int64_t reserved_ppb; /* share of the busiest stage that is held for the worst loss */
    /* for the next one: */
    const struct perfmodel_flow_card *card; /* outlives all plans */
    struct perfmodel_flow_load load;        /* who has room, at whatever loss, and the least d' */
    uint32_t arenas;                        /* that there are, */
    core_ns aside_ns;      /* of which a batch has one for so long beside its period and stages */
    core_ns batch_most_ns; /* no batch_ns may be longer; CORE_NS_NEVER: whatever it is */
};

/* May batches go from one plan's period to the other's at any boundary? Packets are only of streams that have
 * room in both. Always, from or to no batches. */
bool server_gpu_plan_may_follow(const struct server_gpu_plan *from, const struct server_gpu_plan *to);

/* The same, or over periods between. */
bool server_gpu_plan_leads_to(const struct server_gpu_plan *from, const struct server_gpu_plan *to);

/* Plans with another period than the batches have, oldest first. Zeroed: none. */
#define SERVER_GPU_PLANS_MAX 8
struct server_gpu_plans {
    struct server_gpu_plan waiting[SERVER_GPU_PLANS_MAX];
    uint32_t count;
};

/* One more, the newest. It takes the place of the one before if that has the same period, or there are too
 * many. */
void server_gpu_plans_add(struct server_gpu_plans *plans, const struct server_gpu_plan *plan);

/* What is to follow this one, which is in force: the newest that may, and those older are forgotten with it;
 * or else this one again, at a period on the way to one of them. False: nothing. */
bool server_gpu_plans_next(struct server_gpu_plans *plans, const struct server_gpu_plan *from,
                           struct server_gpu_plan *next);

#endif
