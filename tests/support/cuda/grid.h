/* Kernels on the host. The threads of a thread block are lanes, coroutines of the calling thread, which take
 * turns where they wait for each other: at a barrier, and at each exchange within a warp. What they would get
 * wrong on a card shows: they run in changing order, shared memory holds rubbish when a block begins, and
 * each look-up there must lie in the lane's own bank. Calls from several threads run one after another. */
#ifndef MILLRACE_TESTS_CUDA_GRID_H
#define MILLRACE_TESTS_CUDA_GRID_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_FAKE_WARP          32
#define CUDA_FAKE_BLOCK_THREADS 256 /* at most */

/* As CUDA has them, of the lane that runs. */
struct cuda_fake_index {
    unsigned x, y, z;
};
extern struct cuda_fake_index threadIdx, blockIdx, blockDim;

/* A launch. */
struct cuda_fake_kernel {
    const void *function;         /* which kernel */
    void (*call)(const void *of); /* what each thread does */
    const void *of;
    size_t of_bytes;
    unsigned blocks, block_threads;
};

/* Runs all blocks, and returns. */
void cuda_fake_grid_run(const struct cuda_fake_kernel *kernel);

/* Puts it into the stream. In runtime.c. */
cudaError_t cuda_fake_launch(const struct cuda_fake_kernel *kernel, cudaStream_t stream);

/* Shared memory: all __shared__ variables of all kernels, by the linker's names for their section. */
extern char __start_fake_shared[], __stop_fake_shared[];

/* The address there of something in it. */
uint32_t cuda_fake_shared_address(const void *generic);

/* Waits for all threads of the block. */
void cuda_fake_barrier(void);

/* Waits for all lanes of the warp; returns their values. The mask must name them all. */
const uint32_t *cuda_fake_exchange(uint32_t mask, uint32_t value);

#ifdef __cplusplus
}
#endif

#endif
