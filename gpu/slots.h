/* The slots of a GPU (key and chaining value on the device): which stream has which, and when it can be
 * reused.
 *
 *   free -> take -> in use -> leave -> leaving -> free
 *
 * A slot that its stream has left is free again when the device has executed the command that overwrites its
 * key, which may be sent only behind the last batch that uses the slot, and when that batch has been
 * delivered. The free slot that was left first is allocated first.
 *
 * One owner, the batcher thread of the GPU. Nothing is allocated after creation; all functions are O(1) or,
 * as noted, O(leaving slots). */
#ifndef MILLRACE_GPU_SLOTS_H
#define MILLRACE_GPU_SLOTS_H

#include "core/status.h"

#include <stdint.h>

struct gpu_slots;

/* `count` slots (at least 1), all free. CORE_NO_MEMORY. */
CORE_CHECKED core_status gpu_slots_create(struct gpu_slots **slots, uint32_t count);
void gpu_slots_destroy(struct gpu_slots *slots); /* NULL is fine */

/* Allocates a slot for a stream whose key the caller sends before the first batch that uses it. CORE_FULL:
 * none is free now. */
CORE_CHECKED core_status gpu_slots_allocate(struct gpu_slots *slots, uint32_t *slot);

/* The stream leaves its slot; last_batch is the newest batch with a packet of it, 0 if there is none.
 * CORE_INVALID: the slot is not in use. */
CORE_CHECKED core_status gpu_slots_leave(struct gpu_slots *slots, uint32_t slot, uint64_t last_batch);

/* The slots that are to be overwritten now, `submitted` being the newest batch handed to the device: writes
 * at most `room` of them and returns how many. The caller sends the command for each; none is named twice.
 * O(l) */
uint32_t gpu_slots_clearable(struct gpu_slots *slots, uint64_t submitted, uint32_t *clear, uint32_t room);

/* The device has taken the command for this slot. CORE_INVALID: none was sent. */
CORE_CHECKED core_status gpu_slots_cleared(struct gpu_slots *slots, uint32_t slot);

/* The device has lost its memory: all slots that were left count as overwritten. O(l) */
void gpu_slots_wiped(struct gpu_slots *slots);

/* All packets of batches up to this one have been delivered, or are encrypted by another unit. O(l) */
void gpu_slots_delivered(struct gpu_slots *slots, uint64_t batch);

struct gpu_slots_usage {
    uint32_t in_use, leaving, free;
};

struct gpu_slots_usage gpu_slots_usage(const struct gpu_slots *slots);

#endif
