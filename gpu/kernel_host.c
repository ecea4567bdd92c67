#include "gpu/kernel.h"

#include "gpu/kernel_thread.h"

#include <inttypes.h>

static const char *const form_names[GPU_KERNEL_FORMS] = {
    [GPU_KERNEL_WHOLE] = "whole",
    [GPU_KERNEL_QUAD] = "quad",
};

const char *gpu_kernel_form_name(enum gpu_kernel_form form)
{
    return (unsigned)form < GPU_KERNEL_FORMS ? form_names[form] : NULL;
}

bool gpu_kernel_form_allowed(uint32_t forms, enum gpu_kernel_form form)
{
    return forms == 0 || (forms >> form & 1) != 0;
}

core_status gpu_kernel_form_parse(const char *name, enum gpu_kernel_form *form)
{
    for (unsigned i = 0; i < GPU_KERNEL_FORMS; i++) {
        if (strcmp(name, form_names[i]) == 0) {
            *form = (enum gpu_kernel_form)i;
            return CORE_OK;
        }
    }
    return CORE_NOT_FOUND;
}

uint32_t gpu_kernel_job_threads(enum gpu_kernel_form form)
{
    return form == GPU_KERNEL_QUAD ? 4 : 1;
}

static uint64_t divide_up(uint64_t value, uint64_t by)
{
    return (value + by - 1) / by;
}

struct gpu_kernel_shape gpu_kernel_shape(enum gpu_kernel_form form, uint32_t jobs, uint32_t sms)
{
    const uint64_t job_threads = gpu_kernel_job_threads(form);
    const uint64_t share = divide_up(jobs, sms) * job_threads;
    const uint64_t passes = divide_up(share, GPU_KERNEL_BLOCK_THREADS_MAX);
    const uint64_t threads = divide_up(divide_up(share, passes), GPU_WARP_LANES) * GPU_WARP_LANES;
    const uint64_t last = jobs - (passes - 1) * sms * (threads / job_threads); /* jobs of the last pass */
    return (struct gpu_kernel_shape){
        .blocks = (uint32_t)((passes - 1) * sms + (last < sms ? last : sms)),
        .block_threads = (uint32_t)threads,
    };
}

static core_status segment_check(const struct gpu_batch *batch, uint32_t job, uint32_t index,
                                 struct core_error *error)
{
    if (index >= batch->segment_count)
        return core_error_set(error, CORE_INVALID,
                              "job %" PRIu32 ": segment %" PRIu32 " of a batch with %" PRIu32, job, index,
                              batch->segment_count);
    const struct gpu_segment *segment = batch->segments + index;
    if (segment->offset_bytes % GPU_BLOCK_BYTES != 0 || segment->length_bytes % GPU_BLOCK_BYTES != 0 ||
        segment->length_bytes == 0)
        return core_error_set(error, CORE_INVALID,
                              "job %" PRIu32 ": segment %" PRIu32 " at %" PRIu32 " of %" PRIu32
                              " bytes is not made of whole blocks",
                              job, index, segment->offset_bytes, segment->length_bytes);
    if ((uint64_t)segment->offset_bytes + segment->length_bytes > batch->arena_bytes)
        return core_error_set(error, CORE_INVALID,
                              "job %" PRIu32 ": segment %" PRIu32 " at %" PRIu32 " of %" PRIu32
                              " bytes ends outside the arena of %" PRIu64,
                              job, index, segment->offset_bytes, segment->length_bytes, batch->arena_bytes);
    if ((segment->flags & ~GPU_SEGMENT_FLAGS) != 0 ||
        ((segment->flags & GPU_SEGMENT_HAS_IV) != 0 && segment->offset_bytes < GPU_BLOCK_BYTES) ||
        ((segment->flags & GPU_SEGMENT_OTHER_KEY) != 0 &&
         (batch->jobs[job].key_slot ^ 1) >= batch->key_slots))
        return core_error_set(error, CORE_INVALID,
                              "job %" PRIu32 ": segment %" PRIu32 " at %" PRIu32 " has flags %" PRIu32
                              ", and there is no such IV or key",
                              job, index, segment->offset_bytes, segment->flags);
    return CORE_OK;
}

/* Walks no further than the job's blocks: a chain that bites its tail ends there too. */
static core_status chain_check(const struct gpu_batch *batch, uint32_t index, struct core_error *error)
{
    const struct gpu_job *job = batch->jobs + index;
    uint64_t blocks = 0;
    uint32_t segment = job->first_segment;
    while (segment != GPU_SEGMENT_NONE && blocks <= job->blocks) {
        core_status status = segment_check(batch, index, segment, error);
        if (status != CORE_OK)
            return status;
        blocks += batch->segments[segment].length_bytes / GPU_BLOCK_BYTES;
        segment = batch->segments[segment].next;
    }
    if (blocks != job->blocks || segment != GPU_SEGMENT_NONE)
        return core_error_set(error, CORE_INVALID,
                              "job %" PRIu32 ": its segments hold %s than its %" PRIu32 " blocks", index,
                              blocks < job->blocks ? "less" : "more", job->blocks);
    return CORE_OK;
}

/* Of a job whose segments are sound. */
static core_status alone_check(const struct gpu_batch *batch, uint32_t index, struct core_error *error)
{
    const struct gpu_job *job = batch->jobs + index;
    if ((job->flags & GPU_JOB_ALONE) == 0 ||
        (job->flags == GPU_JOB_ALONE && job->blocks > 0 &&
         (batch->segments[job->first_segment].flags & GPU_SEGMENT_HAS_IV) != 0))
        return CORE_OK;
    return core_error_set(error, CORE_INVALID,
                          "job %" PRIu32 ": it is alone, and does not begin with an IV of its own", index);
}

static core_status job_check(const struct gpu_batch *batch, uint32_t index, struct core_error *error)
{
    const struct gpu_job *job = batch->jobs + index;
    if (job->key_slot >= batch->key_slots || job->chain_slot >= batch->chain_slots)
        return core_error_set(error, CORE_INVALID,
                              "job %" PRIu32 ": key slot %" PRIu32 " of %" PRIu32 ", chain slot %" PRIu32
                              " of %" PRIu32,
                              index, job->key_slot, batch->key_slots, job->chain_slot, batch->chain_slots);
    if (job->chain_from > 1 || (job->flags & ~GPU_JOB_FLAGS) != 0)
        return core_error_set(error, CORE_INVALID, "job %" PRIu32 ": chain_from %" PRIu32 ", flags %" PRIx32,
                              index, job->chain_from, job->flags);
    const core_status status = chain_check(batch, index, error);
    return status == CORE_OK ? alone_check(batch, index, error) : status;
}

core_status gpu_batch_check(const struct gpu_batch *batch, struct core_error *error)
{
    if (batch->arena_bytes > UINT64_C(1) << 32)
        return core_error_set(error, CORE_INVALID, "an arena of %" PRIu64 " bytes is over 4 GiB",
                              batch->arena_bytes);
    for (uint32_t job = 0; job < batch->job_count; job++) {
        core_status status = job_check(batch, job, error);
        if (status != CORE_OK)
            return status;
    }
    return CORE_OK;
}

void gpu_kernel_run_host(enum gpu_kernel_form form, const struct gpu_batch *batch, uint32_t first,
                         uint32_t count)
{
    const struct gpu_aes_view view = {gpu_aes_table};
    for (uint32_t job = first; job < first + count; job++)
        if (form == GPU_KERNEL_QUAD)
            gpu_thread_quad(batch, view, job);
        else
            gpu_thread_whole(batch, view, job);
}
