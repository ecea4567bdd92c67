/* Which batches a GPU's stages (copy up, kernel, copy back) were idle before.
 *
 * What is promised again after a pause, and a plan that comes into force with one, rest on it
 * (partition/admission/admission.h, "When capacity may be reserved again"): a stage has *paused* before a
 * batch only if it surely was idle when the batch came to it, wherever within their uncertainty the times lie
 * that were told (struct gpu_stage_end):
 *
 *     latest end of the batch before < earliest moment at which this one came
 *
 * A pause shorter than the uncertainty of both is not seen; the next longer one is. With one copy engine a
 * copy may wait for one of the other direction: there only an idle card tells.
 *
 * Pure; owned by the GPU's batcher. */
#ifndef MILLRACE_SERVER_GPU_PAUSES_H
#define MILLRACE_SERVER_GPU_PAUSES_H

#include "gpu/device.h"

/* Zeroed: no batch yet. */
struct server_gpu_pauses {
    core_ns ended_ns[GPU_STAGE_COUNT]; /* of the batch done last: the stage's end, at the latest */
    uint64_t before[GPU_STAGE_COUNT];  /* the newest batch before which the stage has paused */
};

/* A batch that is done, with its times as told. */
struct server_gpu_pauses_batch {
    uint64_t number;
    core_ns submitted_ns; /* it came to the card at that moment or later */
    const struct gpu_stage_time *times;
    core_ns uncertain_ns;
};

/* Batches are done in their order. */
void server_gpu_pauses_done(struct server_gpu_pauses *pauses, const struct server_gpu_pauses_batch *batch,
                            uint32_t copy_engines);

/* The card has nothing to do: all stages pause before `next`, the next batch. */
void server_gpu_pauses_idle(struct server_gpu_pauses *pauses, uint64_t next);

/* The newest batch before which, or before a later one, every stage has paused. */
uint64_t server_gpu_pauses_least(const struct server_gpu_pauses *pauses);

#endif
