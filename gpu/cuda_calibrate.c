/* Which form of the kernel is faster on this card, for as many jobs as a batch may have. */
#include "gpu/device_cuda.h"

#include <stdlib.h>

#define JOBS_PER_SM_MAX 2048
#define BLOCKS_MAX      64 /* of a made-up job */
#define RUNS            4  /* the first warms up and is not counted */

/* Equal jobs side by side, one segment each, as many and as long as the batch has room for. */
struct made_up {
    uint32_t jobs, blocks;
    struct gpu_job *job_table;
    struct gpu_segment *segment_table;
};

static uint32_t least(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

static core_status made_up_make(struct made_up *made_up, const struct gpu_region_shape *shape, uint32_t sms,
                                struct core_error *error)
{
    const uint64_t arena_blocks = shape->arena_bytes / GPU_BLOCK_BYTES;
    made_up->jobs =
        least(least(shape->slots, shape->segments), least((uint64_t)sms * JOBS_PER_SM_MAX, arena_blocks));
    made_up->blocks = least(BLOCKS_MAX, arena_blocks / made_up->jobs);
    made_up->job_table = calloc(made_up->jobs, sizeof *made_up->job_table);
    made_up->segment_table = calloc(made_up->jobs, sizeof *made_up->segment_table);
    if (made_up->job_table == NULL || made_up->segment_table == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory to try the kernels");
    const uint32_t bytes = made_up->blocks * GPU_BLOCK_BYTES;
    for (uint32_t i = 0; i < made_up->jobs; i++) {
        made_up->segment_table[i] =
            (struct gpu_segment){.offset_bytes = i * bytes, .length_bytes = bytes, .next = GPU_SEGMENT_NONE};
        made_up->job_table[i] = (struct gpu_job){.key_slot = i,
                                                 .chain_slot = i,
                                                 .first_segment = i,
                                                 .blocks = made_up->blocks,
                                                 .flags = GPU_JOB_HAS_IV};
    }
    return CORE_OK;
}

/* The slots are zeros, which the kernels encrypt with as with an AES-128 key. Copies from pageable memory may
 * return before they are over, and the kernels' stream does not wait for them. */
static cudaError_t made_up_load(struct gpu_device *device, const struct made_up *made_up)
{
    const struct gpu_card_batch *to = &device->card.batches[0];
    cudaError_t result =
        cudaMemcpy(to->jobs, made_up->job_table, made_up->jobs * sizeof *to->jobs, cudaMemcpyHostToDevice);
    if (result == cudaSuccess)
        result = cudaMemcpy(to->segments, made_up->segment_table, made_up->jobs * sizeof *to->segments,
                            cudaMemcpyHostToDevice);
    return result == cudaSuccess ? cudaDeviceSynchronize() : result;
}

/* Best of some runs. */
static cudaError_t form_time(struct gpu_device *device, enum gpu_kernel_form form, float *best_ms)
{
    const struct gpu_cuda_marks *marks = &device->runs[0].marks[GPU_STAGE_KERNEL];
    const cudaStream_t stream = device->lines[GPU_STAGE_KERNEL].work;
    cudaError_t result = cudaSuccess;
    *best_ms = 0;
    for (int run = 0; run < RUNS && result == cudaSuccess; run++) {
        float ms = 0;
        result = cudaEventRecord(marks->begin, stream);
        if (result == cudaSuccess)
            result = (cudaError_t)gpu_kernel_launch(form, &device->card.batches[0].batch, stream);
        if (result == cudaSuccess)
            result = cudaEventRecord(marks->end, stream);
        if (result == cudaSuccess)
            result = cudaEventSynchronize(marks->end);
        if (result == cudaSuccess)
            result = cudaEventElapsedTime(&ms, marks->begin, marks->end);
        if (run == 1 || (run > 1 && ms < *best_ms))
            *best_ms = ms;
    }
    return result;
}

static cudaError_t forms_try(struct gpu_device *device, const struct made_up *made_up, uint32_t forms)
{
    float best_ms = 0, ms;
    struct gpu_batch *batch = &device->card.batches[0].batch;
    batch->job_count = batch->segment_count = made_up->jobs;
    cudaError_t result = made_up_load(device, made_up);
    for (int form = 0; form < GPU_KERNEL_FORMS && result == cudaSuccess; form++) {
        if (!gpu_kernel_form_allowed(forms, (enum gpu_kernel_form)form))
            continue;
        result = form_time(device, (enum gpu_kernel_form)form, &ms);
        if (best_ms <= 0 || ms < best_ms) {
            best_ms = ms;
            device->form = (enum gpu_kernel_form)form;
        }
    }
    if (result == cudaSuccess)
        result = cudaMemset(device->card.memory, 0, device->card.bytes);
    return result == cudaSuccess ? cudaDeviceSynchronize() : result;
}

core_status gpu_cuda_calibrate(struct gpu_device *device, uint32_t sms, uint32_t forms,
                               struct core_error *error)
{
    struct made_up made_up = {0};
    core_status status = made_up_make(&made_up, &device->region->shape, sms, error);
    if (status == CORE_OK)
        status = gpu_cuda_check(forms_try(device, &made_up, forms), "trial of the kernels", error);
    free(made_up.job_table);
    free(made_up.segment_table);
    return status;
}
