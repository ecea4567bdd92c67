/* A change of one slot's key and chaining values, and the kernel that makes it on the device.
 *
 * A kernel, not a copy: in the stream of the batches' kernels it comes between two of them, and does not
 * queue behind the copies of later batches, which would hold all kernels up for as long. */
#ifndef MILLRACE_GPU_KEY_CHANGE_H
#define MILLRACE_GPU_KEY_CHANGE_H

#include "gpu/batch_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t points to one */

struct gpu_key_change {
    struct gpu_key key;
    struct gpu_chain chain;
    alignas(16) uint32_t slot;
    uint32_t reserved[3];
};

/* Queues the change; `change` (an address that the device can read) must stay until it has run. 0
 * (cudaSuccess), or the cudaError_t of the launch. */
int gpu_key_change_launch(const struct gpu_key_change *change, struct gpu_key *keys, struct gpu_chain *chains,
                          struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
