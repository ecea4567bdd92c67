/* The inside of the CUDA device, for its own files alone: only they see CUDA's headers. */
#ifndef MILLRACE_GPU_DEVICE_CUDA_H
#define MILLRACE_GPU_DEVICE_CUDA_H

#include "gpu/card.h"
#include "gpu/card_clock.h"
#include "gpu/device.h"
#include "gpu/kernel.h"
#include "gpu/key_change.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

#define GPU_CUDA_PIECES 128 /* of pinned memory */

/* What one stage of a batch leaves on its stream. */
struct gpu_cuda_marks {
    cudaEvent_t begin; /* of a copy up; where copies take turns of every stage */
    cudaEvent_t end;
};

/* A batch on its way, and the marks of the one before it. */
struct gpu_cuda_run {
    struct gpu_order order;
    core_ns asked_ns; /* the first mark is not before */
    struct gpu_cuda_marks marks[GPU_STAGE_COUNT];
};

/* The stages of one kind: a stream, and another that tells of their ends, so that telling holds nothing up.
 * Batches are counted since the start. */
struct gpu_cuda_line {
    cudaStream_t work, tell;
    uint64_t launched, told;
};

/* Changes of keys in one ring, counted since the start: some made, some under way, some waiting for the next
 * launch. Those of a launch are made by one kernel; so one for a key that waits replaces the one that waits. */
struct gpu_cuda_keys {
    struct gpu_key_change *ring;         /* in pinned memory that the device reads */
    struct gpu_key_change *ring_on_card; /* the same, by its device address */
    uint32_t key_slots[GPU_KEY_CHANGES]; /* of the entries */
    uint64_t ends[GPU_KEY_CHANGES];      /* by a launch's first entry: where it ends, */
    cudaEvent_t made[GPU_KEY_CHANGES];   /* and what comes after it in the stream */
    uint64_t put, launched, done;
};

/* A piece of memory that was pinned at once, in each area of each arena, from the end of the piece before: a
 * copy must not go over the end of one. */
struct gpu_cuda_piece {
    struct gpu_room room;
    uint64_t end_bytes[GPU_REGION_AREAS];
};

struct gpu_device {
    const struct gpu_region *region;
    struct gpu_cuda_piece pieces[GPU_CUDA_PIECES]; /* the loop's, which lets them be during a resize */
    uint32_t piece_count;
    struct gpu_card card; /* device addresses */
    enum gpu_kernel_form form;
    bool takes_turns; /* copies do: every end is told, not the last one alone */
    struct gpu_cuda_line lines[GPU_STAGE_COUNT];
    struct gpu_cuda_run runs[GPU_REGION_ARENAS_MAX + 1]; /* ring of one more than there are arenas */
    struct gpu_card_clock clock;
    core_ns ended_ns[GPU_STAGE_COUNT]; /* of the batch told last, the card's time from its first mark */
    struct gpu_cuda_keys keys;
    int ended; /* eventfd */
};

/* CORE_SYSTEM with the call, CUDA's name of the error and its text; CORE_OK for cudaSuccess. */
core_status gpu_cuda_check(cudaError_t result, const char *call, struct core_error *error);

/* In cuda_open.c. */
core_status gpu_cuda_count(uint32_t *count, struct core_error *error);
core_status gpu_cuda_describe(uint32_t index, struct gpu_device_facts *facts, struct core_error *error);
core_status gpu_cuda_open(struct gpu_device **device, const struct gpu_device_options *options,
                          struct gpu_device_facts *facts, struct core_error *error);
void gpu_cuda_close(struct gpu_device *device);
core_status gpu_cuda_context(uint32_t index, struct core_error *error); /* of this thread's calls */

/* In cuda_copies.c. */
core_status gpu_cuda_copies(uint32_t index, uint64_t bytes, struct gpu_copy_limits limits[GPU_COPY_PAGES],
                            uint32_t *count, struct core_error *error);

/* In cuda_memory.c: the calls of the table (gpu/device.h), and all of the room at the start and at the end. */
core_status gpu_cuda_resize(struct gpu_device *device, const struct gpu_room *from, const struct gpu_room *to,
                            struct core_error *error);
void gpu_cuda_set_room(struct gpu_device *device, const struct gpu_room *room);
core_status gpu_cuda_pin(struct gpu_device *device, struct core_error *error);
void gpu_cuda_unpin(struct gpu_device *device);

/* Between an area of an arena, from its beginning, and the card. */
enum gpu_cuda_area { GPU_CUDA_INPUT, GPU_CUDA_OUTPUT, GPU_CUDA_SEGMENTS, GPU_CUDA_JOBS };
cudaError_t gpu_cuda_copy_up(const struct gpu_device *device, enum gpu_cuda_area area, void *to,
                             const void *from, size_t bytes, cudaStream_t stream);
cudaError_t gpu_cuda_copy_down(const struct gpu_device *device, enum gpu_cuda_area area, void *to,
                               const void *from, size_t bytes, cudaStream_t stream);

/* Runs the allowed forms of the kernel on made-up jobs, as many as a batch may have, and keeps the faster
 * one. The device is idle, and its memory is zero before and after. In cuda_calibrate.c. */
core_status gpu_cuda_calibrate(struct gpu_device *device, uint32_t sms, uint32_t forms,
                               struct core_error *error);

#endif
