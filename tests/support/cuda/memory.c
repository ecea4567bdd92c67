/* CUDA's functions for memory. */
#include "tests/support/cuda/runtime.h"

#include "tests/support/require.h"

#include <stdlib.h>
#include <string.h>

#define RANGES       1024
#define BYTES_PER_MB ((size_t)1 << 20)
#define CARD_RUBBISH 0xcc
#define COPY_RUBBISH 0xdd
#define PAGE_BYTES   4096

enum memory { NOTHING, REGISTERED, ON_CARD };

static struct range {
    enum memory memory;
    char *from;
    size_t bytes;
} ranges[RANGES]; /* with the lock */

static bool range_add(enum memory memory, void *from, size_t bytes)
{
    bool fits = false;
    pthread_mutex_lock(&cuda_fake_lock);
    size_t on_card = memory == ON_CARD ? bytes : 0;
    for (size_t i = 0; i < RANGES; i++)
        on_card += ranges[i].memory == ON_CARD ? ranges[i].bytes : 0;
    for (size_t i = 0; i < RANGES && !fits && on_card <= (size_t)cuda_fake_options.memory_mb * BYTES_PER_MB;
         i++)
        if (ranges[i].memory == NOTHING) {
            ranges[i] = (struct range){memory, from, bytes};
            cuda_fake_counts.live++;
            fits = true;
        }
    pthread_mutex_unlock(&cuda_fake_lock);
    return fits;
}

/* NULL: there is none that begins there. */
static struct range *range_find(enum memory memory, const void *from)
{
    for (size_t i = 0; i < RANGES; i++)
        if (ranges[i].memory == memory && ranges[i].from == from)
            return &ranges[i];
    return NULL;
}

/* Its size; 0: there is none. */
static size_t range_remove(enum memory memory, const void *from)
{
    pthread_mutex_lock(&cuda_fake_lock);
    struct range *range = range_find(memory, from);
    const size_t bytes = range == NULL ? 0 : range->bytes;
    if (range != NULL) {
        range->memory = NOTHING;
        cuda_fake_counts.live--;
    }
    pthread_mutex_unlock(&cuda_fake_lock);
    return bytes;
}

/* In one range: a copy must not go over the border of two registrations. */
static bool is_in(enum memory memory, const void *from, size_t bytes)
{
    const char *at = from;
    bool found = false;
    pthread_mutex_lock(&cuda_fake_lock);
    for (size_t i = 0; i < RANGES; i++)
        found |= ranges[i].memory == memory && at >= ranges[i].from && bytes <= ranges[i].bytes &&
                 at + bytes <= ranges[i].from + ranges[i].bytes;
    pthread_mutex_unlock(&cuda_fake_lock);
    return found;
}

cudaError_t CUDARTAPI cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    CUDA_FAKE_CALL();
    TEST_REQUIRE((uintptr_t)memory % PAGE_BYTES == 0 && bytes > 0 && flags == cudaHostRegisterDefault);
    TEST_REQUIRE(!is_in(REGISTERED, memory, 1));
    return range_add(REGISTERED, memory, bytes) ? cudaSuccess : cuda_fake_told(cudaErrorMemoryAllocation);
}

cudaError_t CUDARTAPI cudaHostUnregister(void *memory)
{
    const cudaError_t error = cuda_fake_call(__func__);
    cuda_fake_drain(NULL);
    const size_t bytes = range_remove(REGISTERED, memory);
    return error == cudaSuccess && bytes == 0 ? cuda_fake_told(cudaErrorHostMemoryNotRegistered) : error;
}

static void *rubbish_new(size_t align, size_t bytes)
{
    void *memory = aligned_alloc(align, (bytes + align - 1) / align * align);
    TEST_REQUIRE(memory != NULL);
    return memset(memory, CARD_RUBBISH, bytes);
}

static cudaError_t memory_new(enum memory kind, size_t align, void **memory, size_t bytes)
{
    void *made = rubbish_new(align, bytes);
    if (!range_add(kind, made, bytes)) {
        free(made);
        return cuda_fake_told(cudaErrorMemoryAllocation);
    }
    *memory = made;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    CUDA_FAKE_CALL();
    TEST_REQUIRE(flags == cudaHostAllocMapped);
    return memory_new(REGISTERED, PAGE_BYTES, memory, bytes);
}

cudaError_t CUDARTAPI cudaFreeHost(void *memory)
{
    const cudaError_t error = cuda_fake_call(__func__);
    cuda_fake_drain(NULL);
    TEST_REQUIRE(memory == NULL || range_remove(REGISTERED, memory) > 0);
    free(memory);
    return error;
}

cudaError_t CUDARTAPI cudaHostGetDevicePointer(void **on_card, void *memory, unsigned flags)
{
    CUDA_FAKE_CALL();
    TEST_REQUIRE(flags == 0 && is_in(REGISTERED, memory, 1));
    *on_card = memory;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMalloc(void **memory, size_t bytes)
{
    CUDA_FAKE_CALL();
    return memory_new(ON_CARD, 256, memory, bytes);
}

cudaError_t CUDARTAPI cudaFree(void *memory)
{
    const cudaError_t error = cuda_fake_call(__func__);
    cuda_fake_drain(NULL);
    const size_t bytes = range_remove(ON_CARD, memory);
    const char *byte = memory;
    bool wiped = true;
    TEST_REQUIRE(memory == NULL || bytes > 0);
    for (size_t i = 0; i < bytes; i++)
        wiped &= byte[i] == 0;
    pthread_mutex_lock(&cuda_fake_lock);
    cuda_fake_counts.was_wiped = wiped;
    pthread_mutex_unlock(&cuda_fake_lock);
    free(memory);
    return error;
}

cudaError_t CUDARTAPI cudaMemset(void *memory, int value, size_t bytes)
{
    CUDA_FAKE_CALL();
    TEST_REQUIRE(is_in(ON_CARD, memory, bytes));
    cuda_fake_put(NULL, &(struct cuda_fake_operation){
                            .work = CUDA_FAKE_SET, .to = memory, .value = value, .bytes = bytes});
    return cudaSuccess;
}

/* From memory that is not registered: it comes back once the bytes are on their way, not when they have come. */
static cudaError_t copy_up(void *to, const void *from, size_t bytes)
{
    void *staged = malloc(bytes);
    TEST_REQUIRE(staged != NULL && is_in(ON_CARD, to, bytes));
    cuda_fake_put(NULL, &(struct cuda_fake_operation){.work = CUDA_FAKE_COPY,
                                                      .to = to,
                                                      .staged = memcpy(staged, from, bytes),
                                                      .bytes = bytes,
                                                      .up = true});
    return cudaSuccess;
}

static cudaError_t copy_down(void *to, const void *from, size_t bytes)
{
    TEST_REQUIRE(is_in(ON_CARD, from, bytes));
    cuda_fake_put(
        NULL, &(struct cuda_fake_operation){.work = CUDA_FAKE_COPY, .to = to, .from = from, .bytes = bytes});
    cuda_fake_drain(NULL);
    return cuda_fake_state();
}

cudaError_t CUDARTAPI cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    CUDA_FAKE_CALL();
    if (bytes == 0)
        return cudaSuccess;
    return kind == cudaMemcpyHostToDevice ? copy_up(to, from, bytes) : copy_down(to, from, bytes);
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                      cudaStream_t stream)
{
    const bool up = kind == cudaMemcpyHostToDevice;
    CUDA_FAKE_CALL();
    TEST_REQUIRE(bytes > 0 && stream != NULL);
    TEST_REQUIRE(is_in(REGISTERED, up ? from : to, bytes));
    TEST_REQUIRE(is_in(ON_CARD, up ? to : from, bytes));
    cuda_fake_count_copies(stream, false);
    if (!up)
        memset(to, COPY_RUBBISH, bytes);
    cuda_fake_put(stream, &(struct cuda_fake_operation){
                              .work = CUDA_FAKE_COPY, .to = to, .from = from, .bytes = bytes, .up = up});
    return cudaSuccess;
}
