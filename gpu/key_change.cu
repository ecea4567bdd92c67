#include "gpu/key_change.h"

#include <cuda_runtime.h>

static_assert(sizeof(struct gpu_key) % sizeof(uint4) == 0 && sizeof(struct gpu_chain) % sizeof(uint4) == 0,
              "both are copied in pieces of 16 bytes");

static constexpr unsigned key_pieces = sizeof(struct gpu_key) / sizeof(uint4);
static constexpr unsigned chain_pieces = sizeof(struct gpu_chain) / sizeof(uint4);

/* One block a change, one thread a piece of it. */
static __global__ void key_change_kernel(const struct gpu_key_changes changes, struct gpu_key *keys,
                                         struct gpu_chain *chains)
{
    const struct gpu_key_change *change = &changes.ring[(changes.first + blockIdx.x) % GPU_KEY_CHANGES];
    const unsigned piece = threadIdx.x;
    if (piece < key_pieces)
        reinterpret_cast<uint4 *>(keys + change->key_slot)[piece] =
            reinterpret_cast<const uint4 *>(&change->key)[piece];
    else if (change->has_chain)
        reinterpret_cast<uint4 *>(chains + change->key_slot / GPU_SLOT_KEYS)[piece - key_pieces] =
            reinterpret_cast<const uint4 *>(&change->chain)[piece - key_pieces];
}

int gpu_key_change_launch(const struct gpu_key_changes *changes, struct gpu_key *keys,
                          struct gpu_chain *chains, struct CUstream_st *stream)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = changes->count;
    config.blockDim = key_pieces + chain_pieces;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, key_change_kernel, *changes, keys, chains);
}
