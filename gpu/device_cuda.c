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

/* ---- keys ---- */

/* Launches what waits: at most one launch for a kernel, and one since the kernel before (cuda_keys_start). So
 * no kernel waits for more than two launches behind the kernel before it. */
static cudaError_t keys_launch(struct gpu_device *device)
{
    struct gpu_cuda_keys *keys = &device->keys;
    const cudaStream_t stream = device->lines[GPU_STAGE_KERNEL].work;
    const uint64_t first = keys->launched % GPU_KEY_CHANGES;
    const struct gpu_key_changes changes = {.ring = keys->ring_on_card,
                                            .first = (uint32_t)first,
                                            .count = (uint32_t)(keys->put - keys->launched)};
    if (changes.count == 0)
        return cudaSuccess;
    cudaError_t result =
        (cudaError_t)gpu_key_change_launch(&changes, device->card.keys, device->card.chains, stream);
    if (result == cudaSuccess)
        result = cudaEventRecord(keys->made[first], stream);
    if (result != cudaSuccess)
        return result;
    keys->ends[first] = keys->launched = keys->put;
    return cudaSuccess;
}

/* Wipes the changes that have been made. */
static core_status keys_collect(struct gpu_device *device, struct core_error *error)
{
    struct gpu_cuda_keys *keys = &device->keys;
    while (keys->done < keys->launched) {
        const uint64_t first = keys->done % GPU_KEY_CHANGES;
        const cudaError_t result = event_query(keys->made[first]);
        if (result == cudaErrorNotReady)
            return CORE_OK;
        if (result != cudaSuccess)
            return gpu_cuda_check(result, "change of keys", error);
        for (const uint64_t end = keys->ends[first]; keys->done < end; keys->done++)
            core_secret_wipe(&keys->ring[keys->done % GPU_KEY_CHANGES], sizeof *keys->ring);
    }
    return CORE_OK;
}

static core_status cuda_keys_start(struct gpu_device *device, struct core_error *error)
{
    const struct gpu_cuda_keys *keys = &device->keys;
    if (keys->done == keys->put)
        return CORE_OK;
    core_status status = keys_collect(device, error);
    if (status == CORE_OK && keys->done == keys->launched)
        status = gpu_cuda_check(keys_launch(device), "change of keys", error);
    return status == CORE_OK && keys->done < keys->put ? CORE_AGAIN : status;
}

/* The entry of the ring for a change of this key, which is zeroed in it; CORE_FULL. */
static core_status change_reserve(struct gpu_device *device, uint32_t key_slot,
                                  struct gpu_key_change **change, struct core_error *error)
{
    struct gpu_cuda_keys *keys = &device->keys;
    const uint32_t key_slots = gpu_key_slot(device->region->shape.slots, 0);
    if (key_slot >= key_slots)
        return core_error_set(error, CORE_INVALID, "key slot %u of %u", key_slot, key_slots);
    uint64_t index = keys->launched;
    while (index < keys->put && keys->key_slots[index % GPU_KEY_CHANGES] != key_slot)
        index++;
    if (index == keys->put) {
        const core_status status = keys_collect(device, error);
        if (status != CORE_OK)
            return status;
        if (keys->put - keys->done == GPU_KEY_CHANGES)
            return CORE_FULL;
        keys->ring[keys->put % GPU_KEY_CHANGES] = (struct gpu_key_change){.key_slot = key_slot};
        keys->key_slots[keys->put++ % GPU_KEY_CHANGES] = key_slot;
    }
    *change = &keys->ring[index % GPU_KEY_CHANGES];
    memset(&(*change)->key, 0, sizeof(*change)->key);
    return CORE_OK;
}

static core_status cuda_key_set(struct gpu_device *device, uint32_t key_slot, const struct gpu_key *key,
                                const uint8_t *chain, struct core_error *error)
{
    struct gpu_key_change *change = NULL;
    const core_status status = change_reserve(device, key_slot, &change, error);
    if (status != CORE_OK)
        return status;
    change->key = *key;
    if (chain == NULL)
        return CORE_OK;
    change->has_chain = 1;
    memcpy(change->chain.value[0], chain, GPU_BLOCK_BYTES);
    memcpy(change->chain.value[1], chain, GPU_BLOCK_BYTES);
    return CORE_OK;
}

static core_status cuda_key_clear(struct gpu_device *device, uint32_t key_slot, struct core_error *error)
{
    struct gpu_key_change *change = NULL;
    return change_reserve(device, key_slot, &change, error);
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
    cudaError_t result = gpu_cuda_copy_up(device, GPU_CUDA_INPUT, to->input,
                                          gpu_region_input(from, order->arena), order->used_bytes, stream);
    if (result == cudaSuccess)
        result = gpu_cuda_copy_up(device, GPU_CUDA_JOBS, to->jobs, gpu_region_jobs(from, order->arena),
                                  order->job_count * sizeof *to->jobs, stream);
    if (result == cudaSuccess)
        result =
            gpu_cuda_copy_up(device, GPU_CUDA_SEGMENTS, to->segments, gpu_region_segments(from, order->arena),
                             order->segment_count * sizeof *to->segments, stream);
    return result;
}

static cudaError_t copy_down(struct gpu_device *device, const struct gpu_order *order, cudaStream_t stream)
{
    const struct gpu_card_batch *from = &device->card.batches[order->arena];
    if (order->job_count == 0)
        return cudaSuccess;
    return gpu_cuda_copy_down(device, GPU_CUDA_OUTPUT, gpu_region_output(device->region, order->arena),
                              from->batch.output, order->used_bytes, stream);
}

static cudaError_t run_kernel(struct gpu_device *device, const struct gpu_order *order, cudaStream_t stream)
{
    struct gpu_batch *batch = &device->card.batches[order->arena].batch;
    batch->job_count = order->job_count;
    batch->segment_count = order->segment_count;
    const cudaError_t result = keys_launch(device);
    return result == cudaSuccess ? (cudaError_t)gpu_kernel_launch(device->form, batch, stream) : result;
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

static struct gpu_cuda_run *run_at(struct gpu_device *device, uint64_t index)
{
    return &device->runs[index % (device->region->shape.arenas + 1)];
}

/* Without turns nobody waits for the end of a stage but the card, which needs no host for it. */
static bool is_told(const struct gpu_device *device, enum gpu_stage stage)
{
    return device->takes_turns || stage == GPU_STAGE_DOWN;
}

/* Copies that take turns are launched by the host, after a time that is none of theirs. */
static bool is_begin_marked(const struct gpu_device *device, enum gpu_stage stage)
{
    return device->takes_turns || stage == GPU_STAGE_UP;
}

/* Wakes the child's loop at the end of the stage. */
static cudaError_t tell_launch(struct gpu_device *device, const struct gpu_cuda_line *line, cudaEvent_t end)
{
    const cudaError_t result = cudaStreamWaitEvent(line->tell, end, cudaEventWaitDefault);
    return result == cudaSuccess ? cudaLaunchHostFunc(line->tell, wake, device) : result;
}

/* Waits for the batch's stage before, works, and leaves marks. */
static cudaError_t stage_launch(struct gpu_device *device, enum gpu_stage stage,
                                const struct gpu_order *order, const struct gpu_cuda_marks *marks)
{
    const struct gpu_cuda_line *line = &device->lines[stage];
    cudaError_t result = cudaSuccess;
    if (stage != GPU_STAGE_UP)
        result = cudaStreamWaitEvent(line->work, marks[stage - 1].end, cudaEventWaitDefault);
    if (result == cudaSuccess && is_begin_marked(device, stage))
        result = cudaEventRecord(marks[stage].begin, line->work);
    if (result == cudaSuccess)
        result = work_launch(device, stage, order, line->work);
    if (result == cudaSuccess)
        result = cudaEventRecord(marks[stage].end, line->work);
    if (result == cudaSuccess && is_told(device, stage))
        result = tell_launch(device, line, marks[stage].end);
    return result;
}

static core_status cuda_launch(struct gpu_device *device, enum gpu_stage stage, const struct gpu_order *order,
                               struct core_error *error)
{
    static const char *const names[] = {"copy up", "kernel", "copy down"};
    struct gpu_cuda_line *line = &device->lines[stage];
    struct gpu_cuda_run *run = run_at(device, line->launched);
    if (order->arena >= device->region->shape.arenas)
        return core_error_set(error, CORE_INVALID, "arena %u of %u", order->arena,
                              device->region->shape.arenas);
    if (stage == GPU_STAGE_UP) {
        run->order = *order;
        run->asked_ns = core_time_now_ns();
    }
    core_status status = gpu_cuda_check(stage_launch(device, stage, order, run->marks), names[stage], error);
    if (status != CORE_OK)
        return core_error_prefix(error, status, "batch %llu", (unsigned long long)order->number);
    line->launched++;
    return CORE_OK;
}

/* ---- ends of stages ---- */

static core_status elapsed_ns(cudaEvent_t from, cudaEvent_t to, core_ns *ns, struct core_error *error)
{
    float ms = 0;
    const cudaError_t result = cudaEventElapsedTime(&ms, from, to);
    *ns = ms > 0 ? (core_ns)((double)ms * 1e6 + 0.5) : 0;
    return gpu_cuda_check(result, "time of a stage", error);
}

/* The card's times of all stages, from the batch's first mark, which came since_ns after that of the batch
 * before. A stage that has no mark of its own began when it could: its batch had come, and the one before was
 * through. So what it waits for on its stream, keys and the launch, is part of it. */
static core_status stages_time(const struct gpu_device *device, const struct gpu_cuda_marks *marks,
                               core_ns since_ns, struct gpu_stage_time *times, struct core_error *error)
{
    const cudaEvent_t first = marks[GPU_STAGE_UP].begin;
    core_status status = CORE_OK;
    core_ns last_ns = 0;
    for (int stage = 0; stage < GPU_STAGE_COUNT && status == CORE_OK; stage++) {
        core_ns start_ns = device->ended_ns[stage] - since_ns, end_ns = 0;
        if (stage == GPU_STAGE_UP)
            start_ns = 0;
        else if (is_begin_marked(device, (enum gpu_stage)stage))
            status = elapsed_ns(first, marks[stage].begin, &start_ns, error);
        if (status == CORE_OK)
            status = elapsed_ns(first, marks[stage].end, &end_ns, error);
        times[stage].start_ns = core_time_max(start_ns, last_ns); /* also what rounding took */
        times[stage].end_ns = last_ns = core_time_max(end_ns, times[stage].start_ns);
    }
    return status;
}

/* The times of a batch whose last end was seen at seen_ns. */
static core_status run_time(struct gpu_device *device, uint64_t index, core_ns seen_ns,
                            struct gpu_stage_end *end, struct core_error *error)
{
    const struct gpu_cuda_run *run = run_at(device, index);
    struct gpu_card_clock_batch batch = {.asked_ns = run->asked_ns, .seen_ns = seen_ns};
    core_status status = CORE_OK;
    if (index > 0)
        status = elapsed_ns(run_at(device, index - 1)->marks[GPU_STAGE_UP].begin,
                            run->marks[GPU_STAGE_UP].begin, &batch.since_ns, error);
    if (status == CORE_OK)
        status = stages_time(device, run->marks, batch.since_ns, end->times, error);
    if (status != CORE_OK)
        return status;
    batch.span_ns = end->times[GPU_STAGE_DOWN].end_ns;
    const core_ns base_ns = gpu_card_clock_take(&device->clock, &batch, &end->uncertain_ns);
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        device->ended_ns[stage] = end->times[stage].end_ns;
        end->times[stage].start_ns += base_ns;
        end->times[stage].end_ns += base_ns;
    }
    return CORE_OK;
}

/* Whether the oldest stage of this kind that was not told has ended. A batch's stages are told in order. */
static core_status stage_poll(struct gpu_device *device, enum gpu_stage stage, struct gpu_stage_end *end,
                              struct core_error *error)
{
    struct gpu_cuda_line *line = &device->lines[stage];
    if (!is_told(device, stage) || line->told == line->launched ||
        (device->takes_turns && stage != GPU_STAGE_UP && line->told == device->lines[stage - 1].told))
        return CORE_AGAIN;
    const struct gpu_cuda_run *run = run_at(device, line->told);
    const unsigned long long number = run->order.number;
    const cudaError_t result = event_query(run->marks[stage].end);
    const core_ns seen_ns = core_time_now_ns();
    if (result == cudaErrorNotReady)
        return CORE_AGAIN;
    core_status status = gpu_cuda_check(result, "end of a stage", error);
    *end = (struct gpu_stage_end){.number = number, .stage = stage};
    if (status == CORE_OK && stage == GPU_STAGE_DOWN)
        status = run_time(device, line->told, seen_ns, end, error);
    if (status != CORE_OK)
        return core_error_prefix(error, status, "batch %llu", number);
    line->told++;
    return CORE_OK;
}

static core_status cuda_poll(struct gpu_device *device, struct gpu_stage_end *end, struct core_error *error)
{
    uint64_t count;
    (void)!read(device->ended, &count, sizeof count);
    core_status status = keys_collect(device, error);
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
    .copies = gpu_cuda_copies,
    .open = gpu_cuda_open,
    .close = gpu_cuda_close,
    .descriptor = cuda_descriptor,
    .key_set = cuda_key_set,
    .resize = gpu_cuda_resize,
    .set_room = gpu_cuda_set_room,
    .key_clear = cuda_key_clear,
    .keys_start = cuda_keys_start,
    .launch = cuda_launch,
    .poll = cuda_poll,
};
