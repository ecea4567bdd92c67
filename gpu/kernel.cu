/* The kernels and their launch. What a thread does is in kernel_thread.h. */
#include "gpu/kernel.h"
#include "gpu/kernel_thread.h"

#include <cuda_runtime.h>

alignas(16) static __device__ const uint32_t table_once[GPU_AES_TABLE_ENTRIES] = {GPU_AES_TABLE_VALUES};

/* Called by all threads of a block. Returns the view of the calling lane. */
static __device__ __forceinline__ struct gpu_aes_view table_fill(uint4 *table)
{
    gpu_aes_table_fill(table, table_once, blockDim.x);
    __syncthreads();
    struct gpu_aes_view view = {static_cast<uint32_t>(__cvta_generic_to_shared(table)) +
                                threadIdx.x % GPU_WARP_LANES * static_cast<uint32_t>(sizeof(uint32_t))};
    asm(""
        : "+r"(view.address)); /* one register from here on: not to be taken apart again for each look-up */
    return view;
}

static __global__ void __launch_bounds__(GPU_KERNEL_BLOCK_THREADS_MAX)
    kernel_whole(const __grid_constant__ struct gpu_batch batch, uint32_t sms)
{
    __shared__ uint4 table[GPU_AES_TABLE_VECTORS];
    const struct gpu_aes_view view = table_fill(table);
    const uint32_t index = gpu_kernel_job(sms, blockDim.x, blockIdx.x, threadIdx.x);
    if (index < batch.job_count)
        gpu_thread_whole(&batch, view, index);
}

/* 5 blocks an SM: with the sixth, for which shared memory has room, registers go to memory and back. */
static __global__ void __launch_bounds__(GPU_KERNEL_BLOCK_THREADS_MAX, 5)
    kernel_quad(const __grid_constant__ struct gpu_batch batch, uint32_t sms)
{
    __shared__ uint4 table[GPU_AES_TABLE_VECTORS];
    const struct gpu_aes_view view = table_fill(table);
    gpu_thread_quad(&batch, view, gpu_kernel_job(sms, blockDim.x / 4, blockIdx.x, threadIdx.x / 4));
}

static cudaError_t sms_of_device(uint32_t *sms)
{
    int device = 0, count = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    *sms = static_cast<uint32_t>(count);
    return error;
}

int gpu_kernel_launch(enum gpu_kernel_form form, const struct gpu_batch *batch, struct CUstream_st *stream)
{
    if (batch->job_count == 0)
        return cudaSuccess;
    uint32_t sms = 0;
    const cudaError_t error = sms_of_device(&sms);
    if (error != cudaSuccess)
        return error;
    const struct gpu_kernel_shape shape = gpu_kernel_shape(form, batch->job_count, sms);
    cudaLaunchConfig_t config = {};
    config.gridDim = shape.blocks;
    config.blockDim = shape.block_threads;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, form == GPU_KERNEL_QUAD ? kernel_quad : kernel_whole, *batch, sms);
}

int gpu_kernel_figures(enum gpu_kernel_form form, struct gpu_kernel_figures *figures)
{
    const auto kernel = form == GPU_KERNEL_QUAD ? kernel_quad : kernel_whole;
    struct cudaFuncAttributes attributes;
    int blocks = 0;
    uint32_t sms = 0;
    cudaError_t error = sms_of_device(&sms);
    if (error == cudaSuccess)
        error = cudaFuncGetAttributes(&attributes, kernel);
    if (error == cudaSuccess)
        error =
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, GPU_KERNEL_BLOCK_THREADS_MAX, 0);
    if (error != cudaSuccess)
        return error;
    figures->registers = static_cast<uint32_t>(attributes.numRegs);
    figures->shared_bytes = static_cast<uint32_t>(attributes.sharedSizeBytes);
    figures->local_bytes = static_cast<uint32_t>(attributes.localSizeBytes);
    figures->jobs_per_block = GPU_KERNEL_BLOCK_THREADS_MAX / gpu_kernel_job_threads(form);
    figures->jobs_per_sm = static_cast<uint32_t>(blocks) * figures->jobs_per_block;
    figures->sms = sms;
    return cudaSuccess;
}
