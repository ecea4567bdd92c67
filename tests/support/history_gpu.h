/* A GPU in virtual time: batches as the server's batcher opens, closes and submits them
 * (server/gpu/batches.c: the same schedule, periods and rule of what is in force), and a card whose copies
 * and kernels take what the model says of the batch's actual jobs, or less.
 *
 * Two copy engines run side by side; one takes turns between the directions where copies of both wait. Time
 * is told by the caller and never runs backwards. */
#ifndef MILLRACE_TESTS_HISTORY_GPU_H
#define MILLRACE_TESTS_HISTORY_GPU_H

#include "gpu/schedule.h"
#include "perfmodel/gpu.h"
#include "server/gpu/batcher.h"
#include "tests/support/history_packet.h"
#include "tests/support/pipeline.h"
#include "tests/support/random.h"

#define HISTORY_BATCHES 64 /* under way at once, at most: as many as there can be arenas */

struct history_batch {
    uint64_t number;
    struct history_packet *head, *tail;
    core_ns submitted_ns, ready_ns; /* ready: the card may begin */
    core_ns took_ns[PIPELINE_STAGES], end_ns[PIPELINE_STAGES];
};

struct history_gpu {
    const struct config_profile *profile;
    const struct config_profile_gpu *card;
    bool busy; /* charge copies at their contended times */
    core_ns lead_ns;
    uint32_t arenas;
    enum pipeline_execution execution;
    struct test_random random;

    bool up;
    struct partition_gpu_plan plan;
    struct server_gpu_plans plans; /* that are to follow it */
    struct gpu_schedule schedule;
    bool scheduled;
    core_ns last_close_ns, wake_ns;
    uint64_t opened, closed, submitted;
    bool changing;
    uint64_t plan_first, in_force; /* as in server/gpu/internal.h */
    /* Begun anew, the first batch begins where the last one ends that was open: not in force before that,
     * since a packet would wait for the rest of that batch and for its own. */
    core_ns from_ns;
    bool hurried; /* in force at once all the same */
    uint64_t paused[PIPELINE_STAGES], paused_least;
    core_ns last_end_ns[PIPELINE_STAGES], last_ready_ns;
    struct history_batch batch[HISTORY_BATCHES]; /* open ones, by number modulo */
    uint64_t held_up;                            /* times that no arena was free */

    /* submitted and not empty, in order: the card's queue */
    struct history_batch queue[HISTORY_BATCHES];
    uint64_t queued, begun[PIPELINE_STAGES], done;
    core_ns run_end_ns[PIPELINE_STAGES]; /* CORE_NS_NEVER: the stage does not run */
    bool last_up;
};

void history_gpu_create(struct history_gpu *gpu, const struct config_profile *profile,
                        const struct config_profile_gpu *card, bool busy, uint32_t arenas,
                        enum pipeline_execution execution, uint64_t seed);

/* Puts a packet into its batch by this time, which is not before that of any earlier packet of its stream.
 * *batch is its number. False: no batch is open for it now. */
bool history_gpu_put(struct history_gpu *gpu, struct history_packet *packet, core_ns eligible_ns,
                     uint64_t *batch);

/* server_gpu_batches_plan. */
void history_gpu_plan(struct history_gpu *gpu, const struct partition_gpu_plan *plan, core_ns now_ns);

/* The device is lost: returns all packets that are in batches, in no order, and none is opened until it is
 * back.
 */
struct history_packet *history_gpu_lose(struct history_gpu *gpu, core_ns now_ns);
void history_gpu_return(struct history_gpu *gpu, core_ns now_ns);

/* When it is to be called again: CORE_NS_NEVER if nothing is under way. */
core_ns history_gpu_next_ns(const struct history_gpu *gpu);

/* Does what is due. Returns the packets of a batch whose copy back has ended, in order, or NULL; then it is
 * to be called again at the same time. */
struct history_packet *history_gpu_run(struct history_gpu *gpu, core_ns now_ns);

#endif
