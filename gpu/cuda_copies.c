/* What copies reach on a card, by the kind of the host's pages. */
#include "gpu/device_cuda.h"

#include "core/proc.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RUNS 8 /* the best is taken */
#define MIB  (UINT64_C(1) << 20)

enum direction { UP, DOWN, DIRECTIONS };

/* Host memory for the copies of both directions, as much on the card, and a stream for each. */
struct trial {
    uint64_t bytes; /* of a copy */
    uint8_t *host, *card;
    cudaStream_t streams[DIRECTIONS];
    cudaEvent_t begin[DIRECTIONS], end[DIRECTIONS];
};

/* ---- copies ---- */

static cudaError_t copy_queue(const struct trial *trial, enum direction direction)
{
    const cudaStream_t stream = trial->streams[direction];
    cudaError_t result = cudaEventRecord(trial->begin[direction], stream);
    if (result == cudaSuccess)
        result = direction == UP
                     ? cudaMemcpyAsync(trial->card, trial->host, trial->bytes, cudaMemcpyHostToDevice, stream)
                     : cudaMemcpyAsync(trial->host + trial->bytes, trial->card + trial->bytes, trial->bytes,
                                       cudaMemcpyDeviceToHost, stream);
    return result == cudaSuccess ? cudaEventRecord(trial->end[direction], stream) : result;
}

/* Waits for it, and keeps the rate if it is the best. */
static cudaError_t copy_end(const struct trial *trial, enum direction direction, int64_t *best)
{
    float ms = 0;
    cudaError_t result = cudaEventSynchronize(trial->end[direction]);
    if (result == cudaSuccess)
        result = cudaEventElapsedTime(&ms, trial->begin[direction], trial->end[direction]);
    const double rate = ms > 0 ? (double)trial->bytes / (double)ms * 1e3 : 1;
    if (result == cudaSuccess && rate > (double)*best)
        *best = (int64_t)rate;
    return result;
}

static cudaError_t alone(const struct trial *trial, enum direction direction, int64_t *best)
{
    const cudaError_t result = copy_queue(trial, direction);
    return result == cudaSuccess ? copy_end(trial, direction, best) : result;
}

static cudaError_t together(const struct trial *trial, struct gpu_copy_limits *limits)
{
    cudaError_t result = copy_queue(trial, UP);
    if (result == cudaSuccess)
        result = copy_queue(trial, DOWN);
    if (result == cudaSuccess)
        result = copy_end(trial, UP, &limits->up_beside);
    return result == cudaSuccess ? copy_end(trial, DOWN, &limits->down_beside) : result;
}

static cudaError_t rates_measure(const struct trial *trial, struct gpu_copy_limits *limits)
{
    cudaError_t result = cudaSuccess;
    for (int run = 0; run < RUNS && result == cudaSuccess; run++) {
        result = alone(trial, UP, &limits->up);
        if (result == cudaSuccess)
            result = alone(trial, DOWN, &limits->down);
        if (result == cudaSuccess)
            result = together(trial, limits);
    }
    if (result != cudaSuccess)
        (void)cudaDeviceSynchronize(); /* some may be under way, and the memory goes next */
    return result;
}

/* ---- memory ---- */

/* Shared memory as the batches have it, all of it there. NULL: there is none. */
static uint8_t *shared_map(uint64_t bytes, bool huge)
{
    const int file = memfd_create("millrace-copies", MFD_CLOEXEC);
    if (file < 0)
        return NULL;
    uint8_t *memory = ftruncate(file, (off_t)bytes) != 0
                          ? MAP_FAILED
                          : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)close(file);
    if (memory == MAP_FAILED)
        return NULL;
    (void)madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (madvise(memory, bytes, MADV_POPULATE_WRITE) == 0)
        return memory;
    (void)munmap(memory, bytes);
    return NULL;
}

/* Where the system has huge pages for shared memory (Documentation/admin-guide/mm/transhuge.rst). */
static bool has_huge_pages(void)
{
    char enabled[128];
    return core_proc_read("/sys/kernel/mm/transparent_hugepage/shmem_enabled", enabled, sizeof enabled) &&
           strstr(enabled, "[never]") == NULL && strstr(enabled, "[deny]") == NULL;
}

static core_status shared_measure(struct trial *trial, struct gpu_copy_limits *limits,
                                  struct core_error *error)
{
    const uint64_t bytes = DIRECTIONS * trial->bytes;
    trial->host = shared_map(bytes, limits->pages == GPU_COPY_HUGE);
    if (trial->host == NULL)
        return core_error_errno(error, "no shared memory of %llu bytes", (unsigned long long)bytes);
    const core_ns start_ns = core_time_now_ns();
    cudaError_t result = cudaHostRegister(trial->host, bytes, cudaHostRegisterDefault);
    limits->pin_ns = (core_time_now_ns() - start_ns) / (core_ns)(bytes / MIB);
    if (result == cudaSuccess) {
        result = rates_measure(trial, limits);
        (void)cudaHostUnregister(trial->host);
    }
    (void)munmap(trial->host, bytes);
    return gpu_cuda_check(result, "copies of shared memory (if memory is short, raise RLIMIT_MEMLOCK)",
                          error);
}

static core_status driver_measure(struct trial *trial, struct gpu_copy_limits *limits,
                                  struct core_error *error)
{
    const uint64_t bytes = DIRECTIONS * trial->bytes;
    void *memory = NULL;
    const core_ns start_ns = core_time_now_ns();
    cudaError_t result = cudaHostAlloc(&memory, bytes, cudaHostAllocMapped);
    limits->pin_ns = (core_time_now_ns() - start_ns) / (core_ns)(bytes / MIB);
    if (result == cudaSuccess) {
        memset(memory, 0, bytes);
        trial->host = memory;
        result = rates_measure(trial, limits);
        (void)cudaFreeHost(memory);
    }
    return gpu_cuda_check(result, "copies of memory that the driver pins", error);
}

/* ---- a trial ---- */

static void trial_free(const struct trial *trial)
{
    for (int direction = 0; direction < DIRECTIONS; direction++) {
        if (trial->begin[direction] != NULL)
            (void)cudaEventDestroy(trial->begin[direction]);
        if (trial->end[direction] != NULL)
            (void)cudaEventDestroy(trial->end[direction]);
        if (trial->streams[direction] != NULL)
            (void)cudaStreamDestroy(trial->streams[direction]);
    }
    (void)cudaFree(trial->card);
}

static cudaError_t trial_make(struct trial *trial)
{
    void *card = NULL;
    cudaError_t result = cudaMalloc(&card, DIRECTIONS * trial->bytes);
    trial->card = card;
    for (int direction = 0; direction < DIRECTIONS && result == cudaSuccess; direction++) {
        result = cudaStreamCreateWithFlags(&trial->streams[direction], cudaStreamNonBlocking);
        if (result == cudaSuccess)
            result = cudaEventCreateWithFlags(&trial->begin[direction], cudaEventDefault);
        if (result == cudaSuccess)
            result = cudaEventCreateWithFlags(&trial->end[direction], cudaEventDefault);
    }
    return result;
}

core_status gpu_cuda_copies(uint32_t index, uint64_t bytes, struct gpu_copy_limits limits[GPU_COPY_PAGES],
                            uint32_t *count, struct core_error *error)
{
    struct trial trial = {.bytes = bytes / MIB * MIB};
    core_status status = gpu_cuda_context(index, error);
    if (status == CORE_OK)
        status = gpu_cuda_check(trial_make(&trial), "memory, streams and events for copies", error);
    *count = 0;
    for (enum gpu_copy_pages pages = 0; pages < GPU_COPY_PAGES && status == CORE_OK; pages++) {
        struct gpu_copy_limits *measured = &limits[*count];
        if (pages == GPU_COPY_HUGE && !has_huge_pages())
            continue;
        *measured = (struct gpu_copy_limits){.pages = pages};
        status = pages == GPU_COPY_DRIVER ? driver_measure(&trial, measured, error)
                                          : shared_measure(&trial, measured, error);
        ++*count;
    }
    trial_free(&trial);
    return status;
}
