/* What one thread of the kernel does, in both forms: the source that kernel.cu compiles for devices and
 * kernel_host.c for the host.
 *
 * A job is one long chain of dependent blocks, so a thread's speed is latency. The next segment is loaded
 * when the one before it begins, so that the address of the next block is at hand. The load of the next block
 * stands before the encryption of the block at hand, but overlaps with none of it as nvcc 13.0 compiles this
 * for sm_90: the next instruction moves what the segment's load brought, and waits for both loads, which
 * share a scoreboard. A block takes its load and its rounds, then; other warps of the SM fill the gap. */
#ifndef MILLRACE_GPU_KERNEL_THREAD_H
#define MILLRACE_GPU_KERNEL_THREAD_H

#include "gpu/aes.h"

/* Where in the arenas a job's next block lies. */
struct gpu_cursor {
    uint32_t offset_bytes;
    uint32_t left_bytes;       /* of the segment, from offset_bytes on */
    bool begins;               /* at offset_bytes a unit begins, its IV ahead of it */
    uint32_t key_slot;         /* of the segment */
    struct gpu_segment behind; /* the segment after this one, if any */
};

GPU_FUNCTION void gpu_cursor_enter(struct gpu_cursor *cursor, const struct gpu_batch *batch,
                                   const struct gpu_job *job, struct gpu_segment segment)
{
    cursor->offset_bytes = segment.offset_bytes;
    cursor->left_bytes = segment.length_bytes;
    cursor->begins = (segment.flags & GPU_SEGMENT_HAS_IV) != 0;
    cursor->key_slot = job->key_slot ^ ((segment.flags & GPU_SEGMENT_OTHER_KEY) != 0 ? 1 : 0);
    if (segment.next != GPU_SEGMENT_NONE)
        cursor->behind = batch->segments[segment.next];
}

GPU_FUNCTION struct gpu_cursor gpu_cursor_start(const struct gpu_batch *batch, const struct gpu_job *job)
{
    struct gpu_cursor cursor;
    memset(&cursor, 0, sizeof cursor);
    gpu_cursor_enter(&cursor, batch, job, batch->segments[job->first_segment]);
    return cursor;
}

GPU_FUNCTION void gpu_cursor_step(struct gpu_cursor *cursor, const struct gpu_batch *batch,
                                  const struct gpu_job *job)
{
    cursor->offset_bytes += GPU_BLOCK_BYTES;
    cursor->left_bytes -= GPU_BLOCK_BYTES;
    cursor->begins = false;
    if (cursor->left_bytes == 0)
        gpu_cursor_enter(cursor, batch, job, cursor->behind);
}

/* The place of the job's first chaining value, and of the one that it leaves, where it leaves one. */
GPU_FUNCTION const uint8_t *gpu_job_chain_from(const struct gpu_batch *batch, const struct gpu_job *job)
{
    return (job->flags & GPU_JOB_HAS_IV) != 0 ? job->iv
                                              : batch->chains[job->chain_slot].value[job->chain_from];
}

GPU_FUNCTION uint8_t *gpu_job_chain_to(const struct gpu_batch *batch, const struct gpu_job *job)
{
    return batch->chains[job->chain_slot].value[1 - job->chain_from];
}

GPU_FUNCTION bool gpu_job_leaves_chain(const struct gpu_job *job)
{
    return (job->flags & GPU_JOB_ALONE) == 0;
}

/* What is added to the chain for the block at the cursor; where a unit begins there, in place of the chain: the
 * IV is loaded beside the block, so that it costs no wait of its own. */
GPU_FUNCTION struct gpu_block gpu_cursor_block(const struct gpu_cursor *cursor, const struct gpu_batch *batch)
{
    const uint8_t *at = batch->input + cursor->offset_bytes;
    struct gpu_block block = gpu_block_load(at);
    if (cursor->begins)
        gpu_block_add(&block, gpu_block_load(at - GPU_BLOCK_BYTES));
    return block;
}

GPU_FUNCTION struct gpu_columns gpu_cursor_columns(const struct gpu_cursor *cursor,
                                                   const struct gpu_batch *batch)
{
    const uint8_t *at = batch->input + cursor->offset_bytes;
    struct gpu_columns columns = gpu_columns_load(at);
    if (cursor->begins)
        gpu_columns_add(&columns, gpu_columns_load(at - GPU_BLOCK_BYTES));
    return columns;
}

/* One thread per job. */
GPU_FUNCTION void gpu_thread_whole(const struct gpu_batch *batch, struct gpu_aes_view view, uint32_t index)
{
    const struct gpu_job *job = batch->jobs + index;
    const uint32_t blocks = job->blocks;
    struct gpu_block chain = gpu_block_load(gpu_job_chain_from(batch, job));
    if (blocks > 0) {
        struct gpu_block_key key;
        uint32_t key_slot = job->key_slot;
        gpu_block_key_load(&key, batch->keys + key_slot);
        struct gpu_cursor cursor = gpu_cursor_start(batch, job);
        struct gpu_block ahead = gpu_cursor_block(&cursor, batch);
        for (uint32_t block = 1;; block++) {
            if (cursor.begins)
                memset(&chain, 0, sizeof chain);
            if (cursor.key_slot != key_slot)
                gpu_block_key_load(&key, batch->keys + (key_slot = cursor.key_slot));
            gpu_block_add(&chain, ahead);
            const uint32_t offset_bytes = cursor.offset_bytes;
            if (block < blocks) {
                gpu_cursor_step(&cursor, batch, job);
                ahead = gpu_cursor_block(&cursor, batch);
            }
            gpu_block_encrypt(view, &key, &chain);
            gpu_block_store(batch->output + offset_bytes, chain);
            if (block == blocks)
                break;
        }
    }
    if (gpu_job_leaves_chain(job))
        gpu_block_store(gpu_job_chain_to(batch, job), chain);
}

/* Four threads per job, a column each. The lanes of a warp stay together to the end of its longest job,
 * those of quads without a job (index at or past job_count) too: they exchange with the whole warp. */
GPU_FUNCTION void gpu_thread_quad(const struct gpu_batch *batch, struct gpu_aes_view view, uint32_t index)
{
    const struct gpu_job *job = batch->jobs + index;
    const uint32_t blocks = index < batch->job_count ? job->blocks : 0;
    struct gpu_columns_key key;
    struct gpu_columns chain, ahead;
    struct gpu_cursor cursor;
    memset(&key, 0, sizeof key);
    memset(&chain, 0, sizeof chain);
    memset(&ahead, 0, sizeof ahead);
    memset(&cursor, 0, sizeof cursor);
    if (index < batch->job_count)
        chain = gpu_columns_load(gpu_job_chain_from(batch, job));
    uint32_t key_slot = 0;
    if (blocks > 0) {
        key_slot = job->key_slot;
        gpu_columns_key_load(&key, batch->keys + key_slot);
        cursor = gpu_cursor_start(batch, job);
        ahead = gpu_cursor_columns(&cursor, batch);
    }
    key.rounds_most = gpu_warp_most(key.rounds);
    const uint32_t blocks_most = gpu_warp_most(blocks);
    for (uint32_t block = 1; block <= blocks_most; block++) {
        struct gpu_columns columns = chain;
        if (cursor.begins)
            memset(&columns, 0, sizeof columns);
        if (cursor.key_slot != key_slot) /* of the same cipher: rounds_most stays */
            gpu_columns_key_load(&key, batch->keys + (key_slot = cursor.key_slot));
        gpu_columns_add(&columns, ahead);
        const uint32_t offset_bytes = cursor.offset_bytes;
        if (block < blocks) {
            gpu_cursor_step(&cursor, batch, job);
            ahead = gpu_cursor_columns(&cursor, batch);
        }
        gpu_columns_encrypt(view, &key, &columns);
        if (block <= blocks) {
            chain = columns;
            gpu_columns_store(batch->output + offset_bytes, chain);
        }
    }
    if (index < batch->job_count && gpu_job_leaves_chain(job))
        gpu_columns_store(gpu_job_chain_to(batch, job), chain);
}

#endif
