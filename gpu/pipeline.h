/* Batches through the stages of one device: copy up, kernel, copy down.
 *
 * Two copy engines: all stages of a batch are launched at once, and the device keeps the order.
 *
 * One copy engine: copies take turns. A copy down is ready once its kernel ended, not before; one copy is
 * launched at a time; when copies of both directions are ready, the next is of the other direction than the
 * last; each direction in the order of the batches. The bound of model.md, section 2, rests on this: first
 * come, first served breaks it. A kernel is launched together with its copy up.
 *
 * Owned by the child's thread; allocates nothing and reads no clock. */
#ifndef MILLRACE_GPU_PIPELINE_H
#define MILLRACE_GPU_PIPELINE_H

#include "gpu/device.h"

#include <stdbool.h>

struct gpu_pipeline_batch {
    struct gpu_order order;
    struct gpu_stage_time times[GPU_STAGE_COUNT]; /* these two: of a batch that is through */
    core_ns uncertain_ns;                         /* as in gpu_stage_end */
};

/* Batches in the order of their numbers lie in a ring; the counters below count batches since the start. A
 * batch with index i has been through a step where i < the step's counter. */
struct gpu_pipeline {
    const struct gpu_device_ops *ops;
    struct gpu_device *device;
    bool takes_turns;
    bool copying;             /* takes_turns: a copy is under way */
    enum gpu_stage last_copy; /* its direction, or the last one's */
    uint64_t submitted;
    uint64_t launched[GPU_STAGE_COUNT], ended[GPU_STAGE_COUNT];
    uint64_t taken;
    struct gpu_pipeline_batch batches[GPU_REGION_ARENAS_MAX];
};

void gpu_pipeline_begin(struct gpu_pipeline *pipeline, const struct gpu_device_ops *ops,
                        struct gpu_device *device, uint32_t copy_engines);

/* Whether key commands may be passed to the device now: the kernels of all batches submitted so far are
 * launched. */
bool gpu_pipeline_keys_may_change(const struct gpu_pipeline *pipeline);

/* Adds a batch. CORE_FULL: GPU_REGION_ARENAS_MAX are under way. CORE_INVALID: its number does not rise. Else
 * what the device says. */
CORE_CHECKED core_status gpu_pipeline_submit(struct gpu_pipeline *pipeline, const struct gpu_order *order,
                                             struct core_error *error);

/* Collects the stages that ended and launches what may start now. To be called when the device's descriptor
 * is readable, and now and then. Anything but CORE_OK: the device is broken. */
CORE_CHECKED core_status gpu_pipeline_step(struct gpu_pipeline *pipeline, struct core_error *error);

/* The oldest batch that is through, once; NULL: none. Valid until the next submit. */
const struct gpu_pipeline_batch *gpu_pipeline_take(struct gpu_pipeline *pipeline);

/* Batches submitted and not through. */
uint32_t gpu_pipeline_under_way(const struct gpu_pipeline *pipeline);

#endif
