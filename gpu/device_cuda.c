/* Batches on a CUDA device: one stream for each kind of stage, events between them. */
#include "gpu/device_cuda.h"

#include "core/secret.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

core_status gpu_cuda_check(cudaError_t result, const char *call, struct core_error *error)
{
    if (result == cudaSuccess)
        return CORE_OK;
    return core_error_set(error, CORE_SYSTEM, "%s: %s: %s", call, cudaGetErrorName(result),
                          cudaGetErrorString(result));
}

/* cudaEventQuery; but "not ready" is no error that the next launch of a kernel should find
 * (cudaGetLastError). */
static cudaError_t event_query(cudaEvent_t event)
{
    const cudaError_t result = cudaEventQuery(event);
    if (result == cudaErrorNotReady)
        (void)cudaGetLastError();
    return result;
}

static int cuda_descriptor(const struct gpu_device *device)
{
    return device->ended;
}

/* ---- launching ---- */

/* On a thread of the driver, which allows no CUDA calls here. Not called once the context is broken: poll
 * finds that by asking. */
static void CUDART_CB wake(void *argument)
{
    const struct gpu_device *device = argument;
    const uint64_t one = 1;
    while (write(device->ended, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

static cudaError_t copy_up(struct gpu_device *device, const struct gpu_order *order, cudaStream_t stream)
{
    const struct gpu_card_batch *to = &device->card.batches[order->arena];
    const struct gpu_region *from = device->region;
    if (order->job_count == 0)
        return cudaSuccess;
    cudaError_t result = cudaMemcpyAsync(to->input, gpu_region_input(from, order->arena), order->used_bytes,
                                         cudaMemcpyHostToDevice, stream);
    if (result == cudaSuccess)
        result = cudaMemcpyAsync(to->jobs, gpu_region_jobs(from, order->arena),
                                 order->job_count * sizeof *to->jobs, cudaMemcpyHostToDevice, stream);
    if (result == cudaSuccess && order->segment_count > 0)
        result = cudaMemcpyAsync(to->segments, gpu_region_segments(from, order->arena),
                                 order->segment_count * sizeof *to->segments, cudaMemcpyHostToDevice, stream);
    return result;
}

static cudaError_t copy_down(struct gpu_device *device, const struct gpu_order *order, cudaStream_t stream)
{
    const struct gpu_card_batch *from = &device->card.batches[order->arena];
    if (order->job_count == 0 || order->used_bytes == 0)
        return cudaSuccess;
    return cudaMemcpyAsync(gpu_region_output(device->region, order->arena), from->batch.output,
                           order->used_bytes, cudaMemcpyDeviceToHost, stream);
}

static cudaError_t run_kernel(struct gpu_device *device, const struct gpu_order *order, cudaStream_t stream)
{
    struct gpu_batch *batch = &device->card.batches[order->arena].batch;
    batch->job_count = order->job_count;
    batch->segment_count = order->segment_count;
    return (cudaError_t)gpu_kernel_launch(device->form, batch, stream);
}

static cudaError_t work_launch(struct gpu_device *device, enum gpu_stage stage, const struct gpu_order *order,
                               cudaStream_t stream)
{
    switch (stage) {
    case GPU_STAGE_UP:
        return copy_up(device, order, stream);
    case GPU_STAGE_KERNEL:
        return run_kernel(device, order, stream);
    default:
        return copy_down(device, order, stream);
    }
}

/* Waits for the batch's stage before, works, marks begin and end, and wakes the child's loop then. */
static cudaError_t stage_launch(struct gpu_device *device, enum gpu_stage stage,
                                const struct gpu_order *order)
{
    const struct gpu_cuda_line *line = &device->lines[stage];
    const struct gpu_cuda_marks *marks = device->marks[order->arena];
    cudaError_t result = cudaSuccess;
    if (stage != GPU_STAGE_UP)
        result = cudaStreamWaitEvent(line->work, marks[stage - 1].end, cudaEventWaitDefault);
    if (result == cudaSuccess)
        result = cudaEventRecord(marks[stage].begin, line->work);
    if (result == cudaSuccess)
        result = work_launch(device, stage, order, line->work);
    if (result == cudaSuccess)
        result = cudaEventRecord(marks[stage].end, line->work);
    if (result == cudaSuccess)
        result = cudaStreamWaitEvent(line->tell, marks[stage].end, cudaEventWaitDefault);
    if (result == cudaSuccess)
        result = cudaLaunchHostFunc(line->tell, wake, device);
    return result;
}

static core_status cuda_launch(struct gpu_device *device, enum gpu_stage stage, const struct gpu_order *order,
                               struct core_error *error)
{
    static const char *const names[] = {"copy up", "kernel", "copy down"};
    struct gpu_cuda_line *line = &device->lines[stage];
    if (order->arena >= device->region->shape.arenas)
        return core_error_set(error, CORE_INVALID, "arena %u of %u", order->arena,
                              device->region->shape.arenas);
    if (stage == GPU_STAGE_UP) {
        device->orders[order->arena] = *order;
        device->base_ns[order->arena] = CORE_NS_NEVER;
        device->last_ns[order->arena] = 0;
    }
    core_status status = gpu_cuda_check(stage_launch(device, stage, order), names[stage], error);
    if (status != CORE_OK)
        return core_error_prefix(error, status, "batch %llu", (unsigned long long)order->number);
    line->arenas[line->launched++ % GPU_REGION_ARENAS_MAX] = order->arena;
    return CORE_OK;
}

/* ---- keys ---- */

/* Wipes the changes that have been made. */
static core_status changes_collect(struct gpu_device *device, struct core_error *error)
{
    while (device->changes_done < device->changes_put) {
        const uint64_t index = device->changes_done % GPU_CUDA_KEY_CHANGES;
        const cudaError_t result = event_query(device->changed[index]);
        if (result == cudaErrorNotReady)
            return CORE_OK;
        if (result != cudaSuccess)
            return gpu_cuda_check(result, "change of a key", error);
        core_secret_wipe(&device->changes[index], sizeof device->changes[index]);
        device->changes_done++;
    }
    return CORE_OK;
}

/* The next free entry of the ring, zeroed; CORE_FULL. */
static core_status change_reserve(struct gpu_device *device, uint32_t slot, struct gpu_key_change **change,
                                  struct core_error *error)
{
    if (slot >= device->region->shape.slots)
        return core_error_set(error, CORE_INVALID, "key slot %u of %u", slot, device->region->shape.slots);
    const core_status status = changes_collect(device, error);
    if (status != CORE_OK)
        return status;
    if (device->changes_put - device->changes_done == GPU_CUDA_KEY_CHANGES)
        return CORE_FULL;
    *change = &device->changes[device->changes_put % GPU_CUDA_KEY_CHANGES];
    **change = (struct gpu_key_change){.slot = slot};
    return CORE_OK;
}

static core_status change_launch(struct gpu_device *device, struct core_error *error)
{
    const uint64_t index = device->changes_put % GPU_CUDA_KEY_CHANGES;
    const cudaStream_t stream = device->lines[GPU_STAGE_KERNEL].work;
    cudaError_t result = (cudaError_t)gpu_key_change_launch(&device->changes_on_card[index],
                                                            device->card.keys, device->card.chains, stream);
    if (result == cudaSuccess)
        result = cudaEventRecord(device->changed[index], stream);
    if (result == cudaSuccess)
        device->changes_put++;
    return gpu_cuda_check(result, "change of a key", error);
}

static core_status cuda_key_set(struct gpu_device *device, uint32_t slot, const struct gpu_key *key,
                                const uint8_t chain[GPU_BLOCK_BYTES], struct core_error *error)
{
    struct gpu_key_change *change = NULL;
    const core_status status = change_reserve(device, slot, &change, error);
    if (status != CORE_OK)
        return status;
    change->key = *key;
    memcpy(change->chain.value[0], chain, GPU_BLOCK_BYTES);
    memcpy(change->chain.value[1], chain, GPU_BLOCK_BYTES);
    return change_launch(device, error);
}

static core_status cuda_key_clear(struct gpu_device *device, uint32_t slot, struct core_error *error)
{
    struct gpu_key_change *change = NULL;
    const core_status status = change_reserve(device, slot, &change, error);
    return status == CORE_OK ? change_launch(device, error) : status;
}

/* ---- ends of stages ---- */

static core_status elapsed_ns(cudaEvent_t from, cudaEvent_t to, core_ns *ns, struct core_error *error)
{
    float ms = 0;
    const cudaError_t result = cudaEventElapsedTime(&ms, from, to);
    *ns = ms > 0 ? (core_ns)((double)ms * 1e6) : 0;
    return gpu_cuda_check(result, "time of a stage", error);
}

/* The device's times count from the batch's first mark. When that was on our clock is known from each end
 * that we see: not later than now less the time since. The least of these is kept, so no end lies in the
 * future. */
static core_status stage_time(struct gpu_device *device, uint32_t arena, enum gpu_stage stage,
                              struct gpu_stage_time *time, struct core_error *error)
{
    const struct gpu_cuda_marks *marks = device->marks[arena];
    core_ns begin_ns, end_ns;
    core_status status = elapsed_ns(marks[GPU_STAGE_UP].begin, marks[stage].begin, &begin_ns, error);
    if (status == CORE_OK)
        status = elapsed_ns(marks[GPU_STAGE_UP].begin, marks[stage].end, &end_ns, error);
    if (status != CORE_OK)
        return status;
    core_ns *base_ns = &device->base_ns[arena], *last_ns = &device->last_ns[arena];
    const core_ns now_ns = core_time_now_ns();
    if (now_ns - end_ns < *base_ns)
        *base_ns = now_ns - end_ns;
    time->start_ns = *base_ns + begin_ns > *last_ns ? *base_ns + begin_ns : *last_ns;
    time->end_ns = *base_ns + end_ns > time->start_ns ? *base_ns + end_ns : time->start_ns;
    *last_ns = time->end_ns;
    return CORE_OK;
}

/* Whether the oldest stage of this kind that was not told has ended. A batch's stages are told in order. */
static core_status stage_poll(struct gpu_device *device, enum gpu_stage stage, struct gpu_stage_end *end,
                              struct core_error *error)
{
    struct gpu_cuda_line *line = &device->lines[stage];
    if (line->told == line->launched ||
        (stage != GPU_STAGE_UP && line->told == device->lines[stage - 1].told))
        return CORE_AGAIN;
    const uint32_t arena = line->arenas[line->told % GPU_REGION_ARENAS_MAX];
    const unsigned long long number = device->orders[arena].number;
    const cudaError_t result = event_query(device->marks[arena][stage].end);
    if (result == cudaErrorNotReady)
        return CORE_AGAIN;
    core_status status = gpu_cuda_check(result, "end of a stage", error);
    *end = (struct gpu_stage_end){.number = number, .stage = stage};
    if (status == CORE_OK)
        status = stage_time(device, arena, stage, &end->time, error);
    if (status != CORE_OK)
        return core_error_prefix(error, status, "batch %llu", number);
    line->told++;
    return CORE_OK;
}

static core_status cuda_poll(struct gpu_device *device, struct gpu_stage_end *end, struct core_error *error)
{
    uint64_t count;
    (void)!read(device->ended, &count, sizeof count);
    core_status status = changes_collect(device, error);
    if (status != CORE_OK)
        return status;
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        status = stage_poll(device, (enum gpu_stage)stage, end, error);
        if (status != CORE_AGAIN)
            return status;
    }
    return CORE_AGAIN;
}

const struct gpu_device_ops gpu_device_cuda = {
    .name = "cuda",
    .count = gpu_cuda_count,
    .describe = gpu_cuda_describe,
    .open = gpu_cuda_open,
    .close = gpu_cuda_close,
    .descriptor = cuda_descriptor,
    .key_set = cuda_key_set,
    .key_clear = cuda_key_clear,
    .launch = cuda_launch,
    .poll = cuda_poll,
};
