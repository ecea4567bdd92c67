/* The memory that the server and the child of one GPU share: a memfd, mapped by both, each at an address of
 * its own. Nothing in it is an address.
 *
 *   header | arena 0: input, output, segments, jobs | arena 1: ... | ...
 *
 * Every area begins on a page, so that each can be pinned for DMA by itself. The sizes are fixed at creation
 * and sealed: neither side can cut the file short under the other. None of it goes into a core dump.
 *
 * **Room.** The sizes are addresses; memory is there for the first part of each area only, as much as the
 * region's room says, and the rest can not be touched. Each side changes its own mapping by
 * gpu_region_resize, and the server the file as well: it grows before the child, and shrinks after it. Pages
 * of the room are there, so that none is missing when it is touched.
 *
 * Trust. The child may write anything anywhere in the region. The server therefore reads no sizes, offsets or
 * counts from it: the shape in its own struct gpu_region is the one it made, and what it reads back is
 * ciphertext (output) and plaintext (input), at places that it knows from its own records. */
#ifndef MILLRACE_GPU_REGION_H
#define MILLRACE_GPU_REGION_H

#include "core/status.h"
#include "gpu/batch_layout.h"

#include <stdbool.h>
#include <stdint.h>

#define GPU_REGION_ARENAS_MAX      64u
#define GPU_REGION_ARENA_BYTES_MAX (UINT64_C(1) << 32)
#define GPU_REGION_SEGMENTS_MAX    (UINT32_C(1) << 24)
#define GPU_REGION_SLOTS_MAX       (UINT32_C(1) << 20)
#define GPU_REGION_PAGE_BYTES      4096u

struct gpu_region_shape {
    uint32_t arenas;      /* 1 .. GPU_REGION_ARENAS_MAX: batches in rotation */
    uint32_t slots;       /* 1 .. GPU_REGION_SLOTS_MAX: streams */
    uint32_t segments;    /* 1 .. GPU_REGION_SEGMENTS_MAX: packets of a batch, and so jobs */
    uint32_t reserved;    /* 0 */
    uint64_t arena_bytes; /* 16 .. GPU_REGION_ARENA_BYTES_MAX: payload of a batch, padded; multiple of 16 */
};

/* What each arena has memory for. */
struct gpu_room {
    uint64_t bytes;    /* payload, multiple of 16 */
    uint32_t segments; /* packets, and so jobs */
    uint32_t reserved; /* 0 */
};

/* Set by create or attach, then constant; any thread. The room is of the thread that changes it. */
struct gpu_region {
    struct gpu_region_shape shape; /* our own copy */
    struct gpu_room room;
    uint8_t *base;
    uint64_t bytes;
    int descriptor; /* the memfd */
    bool attached;  /* the descriptor is the caller's */
};

/* Part of a region's addresses; none: of 0 bytes. */
struct gpu_region_span {
    uint8_t *at;
    size_t bytes;
};
#define GPU_REGION_AREAS 4 /* of an arena */

/* CORE_OK, or CORE_INVALID with the field, its value and its range. */
CORE_CHECKED core_status gpu_region_shape_check(const struct gpu_region_shape *shape,
                                                struct core_error *error);

/* Size of a region of this (valid) shape. */
uint64_t gpu_region_bytes(const struct gpu_region_shape *shape);

/* The most room that there is in this shape; `room` or that, whatever is less, in bytes and in segments. */
struct gpu_room gpu_room_most(const struct gpu_region_shape *shape);
struct gpu_room gpu_room_within(const struct gpu_room *room, const struct gpu_region_shape *shape);

/* Is `need` no more than there is? */
bool gpu_room_holds(const struct gpu_room *room, const struct gpu_room *need);

/* Rising parts of the room, the last being all of it, each about twice the one before and the first no more
 * than 2 MiB: what a child that starts makes of it, so that it can give part of it back. How many. */
#define GPU_ROOM_PARTS_MAX 12
uint32_t gpu_room_parts(const struct gpu_room *room, struct gpu_room parts[GPU_ROOM_PARTS_MAX]);

/* Memory of a region of this shape with this room, in pages. */
uint64_t gpu_region_room_bytes(const struct gpu_region_shape *shape, const struct gpu_room *room);

/* Server: makes the file (close-on-exec), seals its size, maps it and takes memory for `room` (NULL: all).
 * CORE_INVALID as above; CORE_SYSTEM when the memory is not there. */
CORE_CHECKED core_status gpu_region_create(struct gpu_region *region, const struct gpu_region_shape *shape,
                                           const struct gpu_room *room, struct core_error *error);

/* Child: maps the region behind `descriptor`, which stays the caller's, and this room of it (NULL: all). CORE_MISMATCH
 * when it is not a region of this version, or the header's shape and the file's size differ. */
CORE_CHECKED core_status gpu_region_attach(struct gpu_region *region, int descriptor,
                                           const struct gpu_room *room, struct core_error *error);

/* Changes the room to one that is no less, or no more, both in bytes and in segments. What is given back is
 * gone, and must not be in use. Takes as long as the memory does: tens of milliseconds for 100 MB. CORE_SYSTEM
 * when memory is not there: the room is what it was. */
CORE_CHECKED core_status gpu_region_resize(struct gpu_region *region, const struct gpu_room *room,
                                           struct core_error *error);

/* Bytes of each area of an arena that have memory, in pages: input, output, segments, jobs. */
void gpu_region_area_bytes(const struct gpu_room *room, uint64_t bytes[GPU_REGION_AREAS]);

/* What an arena has in `more` beyond what it has in `less`: one span of each area. */
void gpu_region_spans(const struct gpu_region *region, uint32_t arena, const struct gpu_room *less,
                      const struct gpu_room *more, struct gpu_region_span spans[GPU_REGION_AREAS]);

/* Unmaps, and closes what create opened. A region of zeros is fine. */
void gpu_region_close(struct gpu_region *region);

/* The areas of arena 0 .. arenas - 1, at this process's addresses. */
uint8_t *gpu_region_input(const struct gpu_region *region, uint32_t arena);
uint8_t *gpu_region_output(const struct gpu_region *region, uint32_t arena);
struct gpu_segment *gpu_region_segments(const struct gpu_region *region, uint32_t arena);
struct gpu_job *gpu_region_jobs(const struct gpu_region *region, uint32_t arena);

#endif
