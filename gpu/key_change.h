/* Changes of keys, and of chaining values with them, and the kernel that makes them on the device.
 *
 * A kernel, not a copy: in the stream of the batches' kernels it comes between two of them, and does not
 * queue behind the copies of later batches, which would hold all kernels up for as long. */
#ifndef MILLRACE_GPU_KEY_CHANGE_H
#define MILLRACE_GPU_KEY_CHANGE_H

#include "gpu/batch_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPU_KEY_CHANGES 256 /* entries of the ring; a power of two */

struct CUstream_st; /* cudaStream_t points to one */

struct gpu_key_change {
    struct gpu_key key;
    struct gpu_chain chain;
    alignas(16) uint32_t key_slot;
    uint32_t has_chain; /* of the key's stream; else 0, and that stays */
    uint32_t reserved[2];
};

/* Entries of a ring in memory that the device can read, counted since the start; 1 to GPU_KEY_CHANGES of them,
 * no two for the same key slot. They must stay until they have been made. */
struct gpu_key_changes {
    const struct gpu_key_change *ring;
    uint32_t first, count;
};

/* Queues these changes, which are made at once. 0 (cudaSuccess), or the cudaError_t of the launch. */
int gpu_key_change_launch(const struct gpu_key_changes *changes, struct gpu_key *keys,
                          struct gpu_chain *chains, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
