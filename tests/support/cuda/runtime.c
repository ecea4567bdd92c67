/* CUDA's functions for errors, cards and kernels. */
#include "tests/support/cuda/runtime.h"

#include "tests/support/require.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static_assert(cudaErrorInvalidValue == 1 && cudaErrorMemoryAllocation == 2 &&
                  cudaErrorInvalidConfiguration == 9 && cudaErrorInsufficientDriver == 35 &&
                  cudaErrorNoDevice == 100 && cudaErrorInvalidDevice == 101 &&
                  cudaErrorInvalidResourceHandle == 400 && cudaErrorNotReady == 600 &&
                  cudaErrorIllegalAddress == 700 && cudaErrorHostMemoryNotRegistered == 713 &&
                  cudaErrorNotPermitted == 800 && cudaErrorUnknown == 999,
              "errors as in CUDA");
static_assert(cudaMemcpyHostToDevice == 1 && cudaMemcpyDeviceToHost == 2, "copies as in CUDA");
static_assert(cudaDevAttrMultiProcessorCount == 16, "attributes as in CUDA");
static_assert(cudaDeviceScheduleBlockingSync == 4 && cudaInitDeviceFlagsAreValid == 1, "cards as in CUDA");
static_assert(cudaHostAllocMapped == 2 && cudaStreamNonBlocking == 1, "flags as in CUDA");
static_assert(cudaHostRegisterDefault == 0, "nothing asked for");
static_assert(cudaEventDefault == 0, "nothing asked for");
static_assert(cudaEventWaitDefault == 0, "nothing asked for");
static_assert(cudaEventDisableTiming == 2, "events as in CUDA");

#define BYTES_PER_MB ((size_t)1 << 20)
#define SM_THREADS   2048
#define UUID_BYTES   48
#define REGISTERS    64 /* that each kernel is said to have */

static _Thread_local cudaError_t last;
static _Thread_local int current;

/* ---- calls and their errors ---- */

cudaError_t cuda_fake_told(cudaError_t error)
{
    if (error != cudaSuccess)
        last = error;
    return error;
}

cudaError_t cuda_fake_call(const char *name)
{
    TEST_REQUIRE(!cuda_fake_in_host_function);
    pthread_mutex_lock(&cuda_fake_lock);
    cuda_fake_configured();
    cudaError_t error = cuda_fake_broken;
    if (cuda_fake_is_failure(name) && error == cudaSuccess) {
        error = cuda_fake_options.sticky ? cudaErrorIllegalAddress : cudaErrorUnknown;
        if (cuda_fake_options.sticky)
            cuda_fake_broken_set(error);
    }
    pthread_mutex_unlock(&cuda_fake_lock);
    return cuda_fake_told(error);
}

cudaError_t CUDARTAPI cudaGetLastError(void)
{
    const cudaError_t error = last;
    if (cuda_fake_state() == cudaSuccess)
        last = cudaSuccess;
    return error;
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const char *CUDARTAPI cudaGetErrorName(cudaError_t error)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == error)
            return errors[i].name;
    return "unrecognized error code";
}

const char *CUDARTAPI cudaGetErrorString(cudaError_t error)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == error)
            return errors[i].text;
    return "unrecognized error code";
}

/* ---- the driver and its cards ---- */

void *__real_dlopen(const char *name, int flags);
int __real_dlclose(void *handle);
void *__wrap_dlopen(const char *name, int flags);
int __wrap_dlclose(void *handle);

/* The driver's library. */
void *__wrap_dlopen(const char *name, int flags)
{
    if (name == NULL || strcmp(name, "libcuda.so.1") != 0)
        return __real_dlopen(name, flags);
    pthread_mutex_lock(&cuda_fake_lock);
    cuda_fake_configured();
    void *driver = cuda_fake_options.driver ? &cuda_fake_options : NULL;
    pthread_mutex_unlock(&cuda_fake_lock);
    return driver;
}

int __wrap_dlclose(void *handle)
{
    return handle == &cuda_fake_options ? 0 : __real_dlclose(handle);
}

static cudaUUID_t uuid_of(int64_t card)
{
    cudaUUID_t uuid;
    for (int i = 0; i < 15; i++)
        uuid.bytes[i] = (char)(0x3b + 0x11 * i);
    uuid.bytes[15] = (char)card;
    return uuid;
}

cudaError_t CUDARTAPI cudaDriverGetVersion(int *version)
{
    CUDA_FAKE_CALL();
    *version = (int)cuda_fake_options.version;
    return cudaSuccess;
}

/* "GPU-3b4c5d6e-7f90-a1b2-c3d4-e5f607182900": the last two digits are the card. */
static void uuid_print(int64_t card, char text[UUID_BYTES])
{
    int used = snprintf(text, UUID_BYTES, "%s", cuda_fake_options.mig ? "MIG" : "GPU");
    for (int i = 0; i < 16; i++)
        used += snprintf(text + used, UUID_BYTES - (size_t)used, "%s%02x",
                         i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                         (unsigned)uuid_of(card).bytes[i] & 0xff);
}

/* Which card the process sees as that one: all in their order, or the one that CUDA_VISIBLE_DEVICES has the UUID
 * of. -1: none. */
static int64_t card_at(int device)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char text[UUID_BYTES];
    if (visible == NULL)
        return device >= 0 && device < cuda_fake_options.cards ? device : -1;
    for (int64_t card = 0; card < cuda_fake_options.cards && device == 0; card++) {
        uuid_print(card, text);
        if (strcmp(text, visible) == 0)
            return card;
    }
    return -1;
}

cudaError_t CUDARTAPI cudaGetDeviceCount(int *count)
{
    CUDA_FAKE_CALL();
    *count = 0;
    if (cuda_fake_options.version < CUDART_VERSION)
        return cuda_fake_told(cudaErrorInsufficientDriver);
    while (card_at(*count) >= 0)
        ++*count;
    return *count == 0 ? cuda_fake_told(cudaErrorNoDevice) : cudaSuccess;
}

static cudaError_t card_check(int device)
{
    return card_at(device) < 0 ? cuda_fake_told(cudaErrorInvalidDevice) : cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    CUDA_FAKE_CALL();
    if (card_check(device) != cudaSuccess)
        return cudaErrorInvalidDevice;
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, cuda_fake_options.mig ? "Fake card MIG 1g.10gb" : "Fake card");
    properties->uuid = uuid_of(card_at(device));
    properties->totalGlobalMem = (size_t)cuda_fake_options.memory_mb * BYTES_PER_MB;
    properties->multiProcessorCount = (int)cuda_fake_options.sms;
    properties->asyncEngineCount = (int)cuda_fake_options.engines;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    CUDA_FAKE_CALL();
    if (card_check(device) != cudaSuccess)
        return cudaErrorInvalidDevice;
    TEST_REQUIRE(snprintf(text, (size_t)size, "0000:%02X:00.0", 0x3b + (int)card_at(device)) < size);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    CUDA_FAKE_CALL();
    TEST_REQUIRE(attribute == cudaDevAttrMultiProcessorCount);
    *value = (int)cuda_fake_options.sms;
    return card_check(device);
}

cudaError_t CUDARTAPI cudaInitDevice(int device, unsigned flags, unsigned how)
{
    CUDA_FAKE_CALL();
    TEST_REQUIRE(flags == cudaDeviceScheduleBlockingSync && how == cudaInitDeviceFlagsAreValid);
    cuda_fake_sleep(cuda_fake_options.open_ms * CORE_NS_PER_MS);
    return card_check(device);
}

cudaError_t CUDARTAPI cudaSetDevice(int device)
{
    CUDA_FAKE_CALL();
    current = device;
    return card_check(device);
}

cudaError_t CUDARTAPI cudaGetDevice(int *device)
{
    CUDA_FAKE_CALL();
    *device = current;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceSynchronize(void)
{
    CUDA_FAKE_CALL();
    cuda_fake_drain(NULL);
    return cuda_fake_state();
}

/* ---- kernels ---- */

/* The first launch of each loads it. */
static void load(const void *kernel)
{
    struct cuda_fake_counts *counts = &cuda_fake_counts;
    uint32_t i = 0;
    pthread_mutex_lock(&cuda_fake_lock);
    while (i < counts->kernel_count && counts->kernels[i] != kernel)
        i++;
    const bool is_new = i == counts->kernel_count;
    TEST_REQUIRE(i < sizeof counts->kernels / sizeof *counts->kernels);
    counts->kernels[i] = kernel;
    counts->kernel_count += is_new;
    counts->launches++;
    pthread_mutex_unlock(&cuda_fake_lock);
    if (is_new)
        cuda_fake_sleep(cuda_fake_options.lazy_ms * CORE_NS_PER_MS);
}

cudaError_t cuda_fake_launch(const struct cuda_fake_kernel *kernel, cudaStream_t stream)
{
    const cudaError_t error = cuda_fake_call("cudaLaunchKernelEx");
    if (error != cudaSuccess)
        return error;
    if (kernel->blocks == 0 || kernel->block_threads == 0 || kernel->block_threads > CUDA_FAKE_BLOCK_THREADS)
        return cuda_fake_told(cudaErrorInvalidConfiguration);
    load(kernel->function);
    cuda_fake_put(stream, &(struct cuda_fake_operation){.work = CUDA_FAKE_KERNEL, .kernel = *kernel});
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
    CUDA_FAKE_CALL();
    (void)kernel;
    memset(attributes, 0, sizeof *attributes);
    attributes->numRegs = REGISTERS;
    attributes->sharedSizeBytes = (size_t)(__stop_fake_shared - __start_fake_shared);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                                    int block_threads, size_t shared_bytes)
{
    CUDA_FAKE_CALL();
    (void)kernel;
    TEST_REQUIRE(block_threads > 0 && block_threads <= CUDA_FAKE_BLOCK_THREADS && shared_bytes == 0);
    *blocks = SM_THREADS / block_threads;
    return cudaSuccess;
}
