#include "gpu/pipeline.h"

#include <string.h>

void gpu_pipeline_begin(struct gpu_pipeline *pipeline, const struct gpu_device_ops *ops,
                        struct gpu_device *device, uint32_t copy_engines)
{
    *pipeline = (struct gpu_pipeline){
        .ops = ops, .device = device, .takes_turns = copy_engines < 2, .last_copy = GPU_STAGE_DOWN};
}

bool gpu_pipeline_keys_may_change(const struct gpu_pipeline *pipeline)
{
    return pipeline->launched[GPU_STAGE_KERNEL] == pipeline->submitted;
}

static struct gpu_pipeline_batch *batch_at(struct gpu_pipeline *pipeline, uint64_t index)
{
    return &pipeline->batches[index % GPU_REGION_ARENAS_MAX];
}

static core_status launch_next(struct gpu_pipeline *pipeline, enum gpu_stage stage, struct core_error *error)
{
    const struct gpu_pipeline_batch *batch = batch_at(pipeline, pipeline->launched[stage]++);
    return pipeline->ops->launch(pipeline->device, stage, &batch->order, error);
}

/* One copy, and with a copy up its kernel. */
static core_status launch_copy(struct gpu_pipeline *pipeline, enum gpu_stage direction,
                               struct core_error *error)
{
    pipeline->copying = true;
    pipeline->last_copy = direction;
    core_status status = launch_next(pipeline, direction, error);
    if (status == CORE_OK && direction == GPU_STAGE_UP)
        status = launch_next(pipeline, GPU_STAGE_KERNEL, error);
    return status;
}

static core_status launch_by_turns(struct gpu_pipeline *pipeline, struct core_error *error)
{
    const bool up_waits = pipeline->launched[GPU_STAGE_UP] < pipeline->submitted;
    const bool down_waits = pipeline->launched[GPU_STAGE_DOWN] < pipeline->ended[GPU_STAGE_KERNEL];
    if (pipeline->copying || (!up_waits && !down_waits))
        return CORE_OK;
    if (up_waits && (!down_waits || pipeline->last_copy == GPU_STAGE_DOWN))
        return launch_copy(pipeline, GPU_STAGE_UP, error);
    return launch_copy(pipeline, GPU_STAGE_DOWN, error);
}

static core_status launch_all(struct gpu_pipeline *pipeline, struct core_error *error)
{
    core_status status = CORE_OK;
    while (status == CORE_OK && pipeline->launched[GPU_STAGE_DOWN] < pipeline->submitted)
        for (int stage = 0; stage < GPU_STAGE_COUNT && status == CORE_OK; stage++)
            status = launch_next(pipeline, (enum gpu_stage)stage, error);
    return status;
}

static core_status launch_ready(struct gpu_pipeline *pipeline, struct core_error *error)
{
    return pipeline->takes_turns ? launch_by_turns(pipeline, error) : launch_all(pipeline, error);
}

core_status gpu_pipeline_submit(struct gpu_pipeline *pipeline, const struct gpu_order *order,
                                struct core_error *error)
{
    const unsigned long long number = order->number;
    if (pipeline->submitted - pipeline->taken >= GPU_REGION_ARENAS_MAX)
        return core_error_set(error, CORE_FULL, "batch %llu: too many batches are in flight", number);
    if (pipeline->submitted > 0) {
        const unsigned long long last = batch_at(pipeline, pipeline->submitted - 1)->order.number;
        if (number <= last)
            return core_error_set(error, CORE_INVALID, "batch %llu was submitted after batch %llu", number,
                                  last);
    }
    *batch_at(pipeline, pipeline->submitted++) = (struct gpu_pipeline_batch){.order = *order};
    return launch_ready(pipeline, error);
}

static core_status stage_ended(struct gpu_pipeline *pipeline, const struct gpu_stage_end *end,
                               struct core_error *error)
{
    struct gpu_pipeline_batch *batch = batch_at(pipeline, pipeline->ended[end->stage]);
    if (pipeline->ended[end->stage] >= pipeline->launched[end->stage] || batch->order.number != end->number)
        return core_error_set(error, CORE_MISMATCH, "the device ended stage %d of batch %llu out of order",
                              (int)end->stage, (unsigned long long)end->number);
    pipeline->ended[end->stage]++;
    if (end->stage == GPU_STAGE_DOWN) {
        memcpy(batch->times, end->times, sizeof batch->times);
        batch->uncertain_ns = end->uncertain_ns;
    }
    if (end->stage != GPU_STAGE_KERNEL)
        pipeline->copying = false;
    return CORE_OK;
}

core_status gpu_pipeline_step(struct gpu_pipeline *pipeline, struct core_error *error)
{
    struct gpu_stage_end end;
    core_status status;
    /* All that ended first: a turn is given with every copy known that waits for it. */
    while ((status = pipeline->ops->poll(pipeline->device, &end, error)) == CORE_OK) {
        status = stage_ended(pipeline, &end, error);
        if (status != CORE_OK)
            return status;
    }
    return status == CORE_AGAIN ? launch_ready(pipeline, error) : status;
}

const struct gpu_pipeline_batch *gpu_pipeline_take(struct gpu_pipeline *pipeline)
{
    if (pipeline->taken == pipeline->ended[GPU_STAGE_DOWN])
        return NULL;
    return batch_at(pipeline, pipeline->taken++);
}

uint32_t gpu_pipeline_under_way(const struct gpu_pipeline *pipeline)
{
    return (uint32_t)(pipeline->submitted - pipeline->ended[GPU_STAGE_DOWN]);
}
