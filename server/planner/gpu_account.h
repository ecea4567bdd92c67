/* What the batches of one GPU need, as the planner counts it: room in the arenas, which were sized at start,
 * and the plan that its batcher keeps to.
 *
 * The standing plan (partition/admission/admission.h) proves times and memory as bytes. Here it is asked
 * whether the arenas that there are, so many of one size, hold the batches of that proof: bytes, packets,
 * streams, and the number of batches on the way.
 *
 * **Losses.** The GPU has streams of its own, and for each other GPU those that come here when that is lost.
 * Its plan is for all these cases: for a load that none of them exceeds, its own and the most of each figure
 * that comes at any loss. With two GPUs that is the one case there is. With more it may be more than any, so
 * that a plan is refused which would hold; then the streams go elsewhere. Keys are on the card beforehand: a
 * slot is taken by each stream of its own, and by each that may come at whatever loss.
 *
 * Owned by the planner thread. */
#ifndef MILLRACE_SERVER_PLANNER_GPU_ACCOUNT_H
#define MILLRACE_SERVER_PLANNER_GPU_ACCOUNT_H

#include "config/profile.h"
#include "gpu/region.h"
#include "partition/admission/admission.h"
#include "perfmodel/flow.h"
#include "server/gpu/batcher.h"

/* Streams together. Zeroed: none. */
struct server_gpu_crowd {
    struct perfmodel_flow_load load; /* its maxima may be those of streams that have left; see recount */
    uint64_t burst_packets;          /* sum of k */
    double packets_per_ns;           /* sum of 1/t */
};

struct server_gpu_account {
    const struct config_profile *profile;
    struct perfmodel_flow_card *card;
    struct gpu_region_shape shape;
    core_ns lead_ns; /* of the batcher's opening */
    core_ns hang_ns; /* a batch with guaranteed streams must not take longer; NEVER until it is set */
    struct server_gpu_crowd own;
    uint32_t guaranteed;             /* of its own: streams of that class */
    bool stale;                      /* somebody has left: maxima may be theirs until the next recount */
    struct server_gpu_crowd *losses; /* by GPU: who comes at its loss */
    uint32_t gpus;                   /* so many */
    struct server_gpu_plan plan;     /* the last one that was made */
};

/* `gpus`: how many the server has; `busy`: copies are charged at their contended times, as the standing plan
 * does. */
CORE_CHECKED core_status server_gpu_account_init(struct server_gpu_account *account,
                                                 const struct config_profile *profile,
                                                 const struct config_profile_gpu *kind, uint32_t gpus,
                                                 bool busy, const struct gpu_region_shape *shape,
                                                 core_ns lead_ns);
void server_gpu_account_free(struct server_gpu_account *account);

/* A stream of its own, or (`loss`: a GPU) one that comes with this contract when that GPU is lost. */
#define SERVER_GPU_OWN UINT32_MAX
void server_gpu_account_add(struct server_gpu_account *account, uint32_t loss,
                            const struct core_stream_spec *spec);
void server_gpu_account_remove(struct server_gpu_account *account, uint32_t loss,
                               const struct core_stream_spec *spec);

/* Adds up anew, exactly, what the standing plan has on this GPU, whose unit is number `unit` there. */
void server_gpu_account_recount(struct server_gpu_account *account, const struct partition_standing *standing,
                                uint32_t gpu, uint32_t unit);

/* The plan of what is in the account, at this period and with this least d'. False: the arenas do not hold
 * its batches, and why. Without streams of either sort (period 0): a plan without batches. */
bool server_gpu_account_plan(struct server_gpu_account *account, core_ns period_ns, core_ns shortest_ns,
                             char *reason, size_t size);

/* Would server_gpu_account_replan make a plan, once the newcomer has this room in the standing plan? Nothing
 * is changed, but that the account may be counted anew. `unit`: the GPU's number there. */
bool server_gpu_account_takes(struct server_gpu_account *account, const struct partition_standing *standing,
                              uint32_t unit, const struct partition_standing_room *room,
                              enum perfmodel_limit *constraint, char *reason, size_t size);

/* The plan of GPU `gpu`, number `unit` of the standing plan, as that has it now, so that it may follow the
 * last one (server/gpu/plan_queue.h): where another period may not, the standing plan is given the last
 * one's, if that holds for all. False: *constraint and reason say why; the plan is the last one. */
bool server_gpu_account_replan(struct server_gpu_account *account, struct partition_standing *standing,
                               uint32_t gpu, uint32_t unit, enum perfmodel_limit *constraint, char *reason,
                               size_t size);

/* Memory that the standing plan may count on, so that what it accepts finds room in arenas of this shape. */
uint64_t server_gpu_account_memory_bytes(const struct gpu_region_shape *shape);

/* Streams that may have a place at once. */
uint32_t server_gpu_account_streams_max(const struct gpu_region_shape *shape);

#endif
