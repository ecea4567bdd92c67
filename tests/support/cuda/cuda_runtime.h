/* The words of CUDA's C++ that the kernels use, for a compiler of the host: it runs them as they are written,
 * on the lanes of grid.h. Included before everything else in a .cu file, as nvcc does with its own. */
#ifndef MILLRACE_TESTS_CUDA_RUNTIME_H
#define MILLRACE_TESTS_CUDA_RUNTIME_H

#include "tests/support/cuda/grid.h"
#include "tests/support/require.h"

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

#define __CUDACC__ /* what the sources ask */
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static __attribute__((section("fake_shared"), aligned(128)))

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

/* Byte `to` of the result is the one of both words that its digit of the selector names. */
static __forceinline__ uint32_t cuda_fake_byte(uint64_t both, uint32_t selector, uint32_t to)
{
    return static_cast<uint32_t>(both >> 8 * (selector >> 4 * to & 7) & 0xff) << 8 * to;
}

static __forceinline__ uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector)
{
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    return cuda_fake_byte(both, selector, 0) | cuda_fake_byte(both, selector, 1) |
           cuda_fake_byte(both, selector, 2) | cuda_fake_byte(both, selector, 3);
}

static inline size_t __cvta_generic_to_shared(const void *address)
{
    return cuda_fake_shared_address(address);
}

/* What is asked for in this form is a look-up, of 4 bytes: in the lane's own bank, or others wait. */
static inline const void *__cvta_shared_to_generic(size_t address)
{
    const char *at = __start_fake_shared + address;
    TEST_REQUIRE(at < __stop_fake_shared &&
                 address / sizeof(uint32_t) % CUDA_FAKE_WARP == threadIdx.x % CUDA_FAKE_WARP);
    return at;
}

static inline void __syncthreads()
{
    cuda_fake_barrier();
}

static inline uint32_t __shfl_sync(uint32_t mask, uint32_t value, int source, int width)
{
    const uint32_t lane = threadIdx.x % CUDA_FAKE_WARP, group = static_cast<uint32_t>(width);
    return cuda_fake_exchange(mask, value)[lane / group * group + static_cast<uint32_t>(source) % group];
}

static inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value)
{
    const uint32_t *values = cuda_fake_exchange(mask, value);
    uint32_t most = 0;
    for (uint32_t i = 0; i < CUDA_FAKE_WARP; i++)
        most = values[i] > most ? values[i] : most;
    return most;
}

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
};

/* One thread's call of a kernel, with the arguments as they are at the launch. */
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...),
                               Arguments... arguments)
{
    const auto call = [=] { kernel(arguments...); };
    using Call = decltype(call);
    static_assert(std::is_trivially_copyable<Call>::value, "arguments are copied byte by byte");
    const struct cuda_fake_kernel launch = {
        reinterpret_cast<const void *>(kernel),
        [](const void *of) { (*static_cast<const Call *>(of))(); },
        &call,
        sizeof call,
        config->gridDim.x,
        config->blockDim.x,
    };
    return cuda_fake_launch(&launch, config->stream);
}

template <typename Kernel> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, Kernel *kernel)
{
    return cudaFuncGetAttributes(attributes, reinterpret_cast<const void *>(kernel));
}

template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Kernel *kernel, int block_threads,
                                                          size_t shared_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void *>(kernel),
                                                         block_threads, shared_bytes);
}

#endif
