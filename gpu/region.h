/* The memory that the server and the child of one GPU share: a memfd, mapped by both, each at an address of
 * its own. Nothing in it is an address.
 *
 *   header | arena 0: input, output, segments, jobs | arena 1: ... | ...
 *
 * Every area begins on a page, so that each can be pinned for DMA by itself. The sizes are fixed at creation
 * and sealed: neither side can cut the file short under the other. All pages are there from the start, none
 * goes into a core dump.
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
    uint32_t slots;       /* 1 .. GPU_REGION_SLOTS_MAX: streams, and so jobs of a batch */
    uint32_t segments;    /* 1 .. GPU_REGION_SEGMENTS_MAX: packets of a batch */
    uint32_t reserved;    /* 0 */
    uint64_t arena_bytes; /* 16 .. GPU_REGION_ARENA_BYTES_MAX: payload of a batch, padded; multiple of 16 */
};

/* Set by create or attach, then constant; any thread. */
struct gpu_region {
    struct gpu_region_shape shape; /* our own copy */
    uint8_t *base;
    uint64_t bytes;
    int descriptor; /* the memfd */
    bool attached;  /* the descriptor is the caller's */
};

/* CORE_OK, or CORE_INVALID with the field, its value and its range. */
CORE_CHECKED core_status gpu_region_shape_check(const struct gpu_region_shape *shape,
                                                struct core_error *error);

/* Size of a region of this (valid) shape. */
uint64_t gpu_region_bytes(const struct gpu_region_shape *shape);

/* Server: makes the file (close-on-exec), takes all of its memory at once, seals its size and maps it.
 * CORE_INVALID as above; CORE_SYSTEM when the memory is not there. */
CORE_CHECKED core_status gpu_region_create(struct gpu_region *region, const struct gpu_region_shape *shape,
                                           struct core_error *error);

/* Child: maps the region behind `descriptor`, which stays the caller's. CORE_MISMATCH when it is not a region
 * of this version, or the header's shape and the file's size differ. */
CORE_CHECKED core_status gpu_region_attach(struct gpu_region *region, int descriptor,
                                           struct core_error *error);

/* Unmaps, and closes what create opened. A region of zeros is fine. */
void gpu_region_close(struct gpu_region *region);

/* The areas of arena 0 .. arenas - 1, at this process's addresses. */
uint8_t *gpu_region_input(const struct gpu_region *region, uint32_t arena);
uint8_t *gpu_region_output(const struct gpu_region *region, uint32_t arena);
struct gpu_segment *gpu_region_segments(const struct gpu_region *region, uint32_t arena);
struct gpu_job *gpu_region_jobs(const struct gpu_region *region, uint32_t arena);

#endif
