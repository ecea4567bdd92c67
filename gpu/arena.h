/* The batches of one GPU on the server's side: several I/O threads ("writers") append packets, the batcher
 * thread opens batches, closes them, and has each closed one in tables that a device can run.
 *
 * Batches are numbered 1, 2, 3, ... and opened and closed in this order. Batch n takes the packets whose
 * eligible time lies in (close time of n - 1, close time of n]. It is closed some time after its close time,
 * so that packets find their way in; meanwhile batch n + 1 is to be open already. Batch n lies in arena
 * n mod arenas of the region (gpu/region.h).
 *
 *   batcher: open(n) ... open(n + 1) ... close(n) ... submit, complete ... release(n)
 *   writer:      append, append, append  |                 deliver    ... release(n)
 *
 * Guarantees
 *   - Appending is wait-free with one exception: a writer that is preempted in the middle of an append while
 *     the batcher closes the batch retries in the next open batch, once for each such close.
 *   - Closing waits for no writer. A packet committed before the close is in the batch; any other will be in
 *     a later batch, or is returned to the caller. No packet is lost or duplicated.
 *   - Packets of one stream (one writer appends them, in order) are encrypted in that order: batches by
 *     falling age, and inside a batch as appended. A packet never goes to an older batch than after_batch.
 *   - A batch's memory is reused only when the batcher and all writers with packets in it have released it. A
 *     batch whose arena is not free is opened late; that is counted.
 *   - Everything is bounded; nothing is allocated after creation but by gpu_arenas_resize; no locks, no
 *     system calls.
 *   - All bookkeeping is in the server's own memory. A faulty child can corrupt payload, nothing else.
 *
 * A packet needs: the next free bytes of the arena (16-byte aligned, no gaps, so that a batch holds what the
 * plan's sum of padded packets says), one segment of the batch, and one record (gpu/record.h). */
#ifndef MILLRACE_GPU_ARENA_H
#define MILLRACE_GPU_ARENA_H

#include "core/status.h"
#include "core/time.h"
#include "gpu/record.h"
#include "gpu/region.h"

#include <stdbool.h>
#include <stdint.h>

#define GPU_ARENA_WRITERS_MAX 63u
#define GPU_ARENA_BATCHER     63u /* the batcher's number among the holders of a batch */

struct gpu_arenas;

struct gpu_arena_options {
    struct gpu_region_shape shape;
    const struct gpu_room *room; /* that there is from the start; NULL: all of the shape */
    uint32_t writers;            /* 1 .. GPU_ARENA_WRITERS_MAX */
};

/* A packet as its I/O thread hands it over. */
struct gpu_packet {
    core_ns eligible_ns;
    uint64_t after_batch;   /* batch of the stream's packet before this one; 0: none */
    const uint8_t *payload; /* without that; copied once; not needed for reserve and commit */
    uint32_t bytes;         /* with the padding: a multiple of 16, at least 16 */
    uint32_t padding_bytes; /* of these, 0 .. 16: appended to the payload, each of this value (PKCS #7) */
    uint32_t slot;          /* of the stream (gpu/slots.h) */
    uint8_t key;            /* 0 or 1: which of the slot's keys it is encrypted under */
    const uint8_t *iv; /* NULL: the device's chaining value; else the chaining value to start from. Only for a
                          packet before which no packet of its stream is in any batch */
    const uint8_t *unit_iv; /* NULL: it goes on with a unit; else it begins one, whose IV this is: takes 16
                               bytes more of the arena, ahead of the payload */
    bool alone;      /* with unit_iv: it is all of that unit, and no chaining value of the stream matters */
    uint64_t cookie; /* the caller's own, comes back in the record */
};

/* Where a packet is. */
struct gpu_place {
    uint64_t batch;        /* its number: after_batch of the stream's next packet */
    uint8_t *input;        /* the payload's place in the arena */
    uint32_t offset_bytes; /* of the payload in input and output */
    uint32_t arena;        /* the region's */
    bool late;             /* its own batch was already closed or closing: it is in a later one */
};

/* A closed batch: what the device has to do. */
struct gpu_arena_batch {
    uint64_t number;
    uint64_t writers;           /* bit w: writer w has packets in it */
    uint64_t blocks;            /* of all jobs */
    uint64_t used_bytes;        /* to copy in and out, from the arena's start: behind the last packet's end */
    core_ns start_ns, close_ns; /* its packets' eligible times, but for late ones: (start_ns, close_ns] */
    uint32_t arena;             /* the region's */
    uint32_t job_count;         /* 0: nothing to do */
    uint32_t segment_count;
    uint32_t longest_job_blocks;
};

/* All since creation. */
struct gpu_arena_counters {
    uint64_t packets, bytes; /* appended */
    uint64_t late;           /* of these, in a later batch than their own: the hand-over took too long */
    uint64_t repeated;       /* copied again because the batch was closed meanwhile */
    uint64_t early;          /* refused: their batch was not open yet */
    uint64_t full_bytes;     /* refused: no room in the arena */
    uint64_t full_segments;  /* refused: no segment was left */
    uint64_t opened, closed; /* batches */
    uint64_t held_up;        /* batches whose arena was not free when they were to be opened */
};

/* Control path. Creates the region and all bookkeeping, all of it touched. No batch is open. CORE_INVALID
 * with the field; CORE_NO_MEMORY; CORE_SYSTEM. */
CORE_CHECKED core_status gpu_arenas_create(struct gpu_arenas **arenas,
                                           const struct gpu_arena_options *options, struct core_error *error);

/* When no thread is inside a call or makes one any more. NULL is fine. */
void gpu_arenas_destroy(struct gpu_arenas *arenas);

/* The region, for the child and to read output; constant. */
const struct gpu_region *gpu_arenas_region(const struct gpu_arenas *arenas);

/* ---- Room. A batch is opened with the room of that time, and has no more, whatever comes.
 *
 *   grow:    resize (server), then the child, then set_room
 *   shrink:  set_room; once all within: the child, then resize (server)
 */

/* An ordinary thread, one at a time: memory of the arenas for a room that is no less, or no more, both in
 * bytes and in segments; as gpu_region_resize. CORE_SYSTEM: it is what it was. */
CORE_CHECKED core_status gpu_arenas_resize(struct gpu_arenas *arenas, const struct gpu_room *room,
                                           struct core_error *error);

/* The batcher: of batches that are opened from now on. */
void gpu_arenas_set_room(struct gpu_arenas *arenas, const struct gpu_room *room);

/* The batcher: has no arena that is held, by whomever, more than this? */
bool gpu_arenas_within(const struct gpu_arenas *arenas, const struct gpu_room *room);

/* The batcher: has no open batch less than this? */
bool gpu_arenas_open_hold(const struct gpu_arenas *arenas, const struct gpu_room *need);

/* Memory of arenas with this room, in the region and beside it. */
uint64_t gpu_arenas_bytes(const struct gpu_region_shape *shape, uint32_t writers,
                          const struct gpu_room *room);

/* A snapshot; any thread. */
struct gpu_arena_counters gpu_arenas_counters(const struct gpu_arenas *arenas);

/* Any thread: newest batch that was opened, and newest that was closed; 0: none yet. */
uint64_t gpu_arenas_opened(const struct gpu_arenas *arenas);
uint64_t gpu_arenas_closed(const struct gpu_arenas *arenas);

/* ---- Writers. Each number 0 .. writers - 1 belongs to one thread. ---- */

/* Copies the packet into the open batch that its eligible time says, not before after_batch; into the oldest
 * open one if that is closed already (place->late; counted).
 *   CORE_OK       *place is set; the packet is in that batch.
 *   CORE_AGAIN    its batch is not open yet (or none is); counted as early.
 *   CORE_FULL     no bytes or segments are left there; counted. Impossible while the plan's sums hold.
 *   CORE_INVALID  bytes or slot are out of range.
 *
 * In all cases but the first the caller keeps the packet, and no batch contains any part of it. Later packets
 * of the stream must then not overtake it. */
CORE_CHECKED core_status gpu_arena_append(struct gpu_arenas *arenas, uint32_t writer,
                                          const struct gpu_packet *packet, struct gpu_place *place);

/* gpu_arena_append in two steps, for a payload that is made in place: reserve returns as append does and sets
 * place->input, the caller fills it, commit puts the packet into the batch. Every reserve that was CORE_OK is
 * followed by its commit, with no other call of this writer between them.
 *   CORE_OK      it is in the batch.
 *   CORE_CLOSED  the batch was closed meanwhile: reserve and fill again; counted as repeated. */
CORE_CHECKED core_status gpu_arena_reserve(struct gpu_arenas *arenas, uint32_t writer,
                                           const struct gpu_packet *packet, struct gpu_place *place);
CORE_CHECKED core_status gpu_arena_commit(struct gpu_arenas *arenas, uint32_t writer,
                                          const struct gpu_packet *packet, const struct gpu_place *place);

/* ---- The batcher: one thread. ---- */

/* Opens the next batch, gpu_arenas_opened() + 1, for packets eligible until close_ns. It begins where the one
 * before ends.
 *   CORE_OK       writers may use it.
 *   CORE_FULL     its arena is still held: try again, after releases. Counted once a batch, as held_up.
 *   CORE_INVALID  close_ns is not later than that of the batch before. */
CORE_CHECKED core_status gpu_arena_open(struct gpu_arenas *arenas, core_ns close_ns);

/* Closes the oldest open batch and writes its segments and jobs into the region. CORE_AGAIN: none is open.
 * The batcher holds the batch from then on until it releases it, even if it has no job. O(packets). */
CORE_CHECKED core_status gpu_arena_close(struct gpu_arenas *arenas, struct gpu_arena_batch *batch);

/* The next job of this slot starts from `iv` (GPU_JOB_HAS_IV), not from what the device has. Before the batch
 * with the stream's next packet is closed. Not needed where the slot's key is set anew with its chaining
 * value (gpu_engine_key_set: for a new stream, one that comes from a CPU, all after the device lost its
 * memory) or where the next packet brings it along (gpu_packet.iv). Needed after a batch that was closed and
 * never run, since the device has not seen its jobs. CORE_INVALID: no such slot. */
CORE_CHECKED core_status gpu_arena_restart_chain(struct gpu_arenas *arenas, uint32_t slot,
                                                 const uint8_t iv[GPU_BLOCK_BYTES]);

/* ---- Closed batches: a writer its own part, the batcher all. ---- */

/* The packets of one writer in a batch that is closed and that the caller holds; none when the batch is not
 * in its arena (any more). */
struct gpu_record_list gpu_arena_records(const struct gpu_arenas *arenas, uint32_t writer, uint64_t batch);

/* Where the arena of a batch has its ciphertext. */
const uint8_t *gpu_arena_output(const struct gpu_arenas *arenas, uint64_t batch);

/* A holder releases its part of a closed batch: a writer that has packets in it (bit in `writers`), after
 * it has delivered them or copied them out; the batcher (GPU_ARENA_BATCHER) when no device touches it any
 * more. With the last one the arena is free. Each calls it once. CORE_INVALID: the batch is not closed, or
 * the caller does not hold it; nothing changes. */
CORE_CHECKED core_status gpu_arena_release(struct gpu_arenas *arenas, uint32_t holder, uint64_t batch);

#endif
