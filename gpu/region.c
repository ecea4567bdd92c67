#include "gpu/region.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x3252475545434c4d) /* "MLCEUGR2" */

/* The region's first page. Written once by the server, read once by the child. */
struct header {
    uint64_t magic;
    struct gpu_region_shape shape;
};

static uint64_t pages(uint64_t bytes)
{
    return (bytes + GPU_REGION_PAGE_BYTES - 1) / GPU_REGION_PAGE_BYTES * GPU_REGION_PAGE_BYTES;
}

static core_status check(const char *field, uint64_t value, uint64_t low, uint64_t high,
                         struct core_error *error)
{
    if (value >= low && value <= high)
        return CORE_OK;
    return core_error_set(error, CORE_INVALID,
                          "GPU region: %s is %" PRIu64 ", must be %" PRIu64 " to %" PRIu64, field, value, low,
                          high);
}

core_status gpu_region_shape_check(const struct gpu_region_shape *shape, struct core_error *error)
{
    core_status status = check("arenas", shape->arenas, 1, GPU_REGION_ARENAS_MAX, error);
    if (status == CORE_OK)
        status = check("slots", shape->slots, 1, GPU_REGION_SLOTS_MAX, error);
    if (status == CORE_OK)
        status = check("segments", shape->segments, 1, GPU_REGION_SEGMENTS_MAX, error);
    if (status == CORE_OK)
        status = check("reserved", shape->reserved, 0, 0, error);
    if (status == CORE_OK)
        status = check("arena_bytes", shape->arena_bytes, GPU_BLOCK_BYTES, GPU_REGION_ARENA_BYTES_MAX, error);
    if (status == CORE_OK)
        status = check("arena_bytes modulo 16", shape->arena_bytes % GPU_BLOCK_BYTES, 0, 0, error);
    return status;
}

/* From the beginning of an arena. */
static uint64_t segments_at(const struct gpu_region_shape *shape)
{
    return 2 * pages(shape->arena_bytes);
}

static uint64_t jobs_at(const struct gpu_region_shape *shape)
{
    return segments_at(shape) + pages(shape->segments * sizeof(struct gpu_segment));
}

static uint64_t arena_stride(const struct gpu_region_shape *shape)
{
    return jobs_at(shape) + pages(shape->slots * sizeof(struct gpu_job));
}

static uint64_t arena_at(const struct gpu_region_shape *shape, uint32_t arena)
{
    return pages(sizeof(struct header)) + arena * arena_stride(shape);
}

uint64_t gpu_region_bytes(const struct gpu_region_shape *shape)
{
    return arena_at(shape, shape->arenas);
}

static core_status map(struct gpu_region *region, struct core_error *error)
{
    void *base =
        mmap(NULL, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, region->descriptor, 0);
    if (base == MAP_FAILED)
        return core_error_errno(error, "GPU region: cannot map %" PRIu64 " bytes", region->bytes);
    if (madvise(base, region->bytes, MADV_DONTDUMP) != 0) {
        munmap(base, region->bytes);
        return core_error_errno(error, "GPU region: cannot keep it out of core dumps");
    }
    region->base = base;
    return CORE_OK;
}

/* All of the memory now, so that nobody finds out later, with a signal, that there is too little. */
static core_status reserve(int descriptor, uint64_t bytes, struct core_error *error)
{
    int failure;
    do
        failure = posix_fallocate(descriptor, 0, (off_t)bytes);
    while (failure == EINTR);
    errno = failure;
    if (failure != 0)
        return core_error_errno(
            error, "GPU region: cannot take %" PRIu64 " bytes of memory; make the arenas smaller, or fewer",
            bytes);
    if (fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return core_error_errno(error, "GPU region: cannot seal its size");
    return CORE_OK;
}

core_status gpu_region_create(struct gpu_region *region, const struct gpu_region_shape *shape,
                              struct core_error *error)
{
    *region = (struct gpu_region){.shape = *shape, .descriptor = -1};
    core_status status = gpu_region_shape_check(shape, error);
    if (status != CORE_OK)
        return status;
    region->bytes = gpu_region_bytes(shape);
    region->descriptor = memfd_create("millrace-gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (region->descriptor < 0) {
        *region = (struct gpu_region){0};
        return core_error_errno(error, "GPU region: cannot make a memory file");
    }
    status = reserve(region->descriptor, region->bytes, error);
    if (status == CORE_OK)
        status = map(region, error);
    if (status != CORE_OK) {
        close(region->descriptor);
        *region = (struct gpu_region){0};
        return status;
    }
    *(struct header *)region->base = (struct header){.magic = MAGIC, .shape = *shape};
    return CORE_OK;
}

core_status gpu_region_attach(struct gpu_region *region, int descriptor, struct core_error *error)
{
    struct header header;
    struct stat file;

    *region = (struct gpu_region){0};
    if (fstat(descriptor, &file) != 0)
        return core_error_errno(error, "GPU region: cannot ask for the size of descriptor %d", descriptor);
    ssize_t got = pread(descriptor, &header, sizeof header, 0);
    if (got < 0)
        return core_error_errno(error, "GPU region: cannot read its header");
    if (got != sizeof header || header.magic != MAGIC ||
        gpu_region_shape_check(&header.shape, NULL) != CORE_OK ||
        gpu_region_bytes(&header.shape) != (uint64_t)file.st_size)
        return core_error_set(error, CORE_MISMATCH,
                              "GPU region: descriptor %d is not a region of this version; use a server and a "
                              "millrace-gpu of the same build",
                              descriptor);
    *region =
        (struct gpu_region){.shape = header.shape, .bytes = (uint64_t)file.st_size, .descriptor = descriptor};
    core_status status = map(region, error);
    if (status != CORE_OK)
        *region = (struct gpu_region){0};
    else
        region->attached = true;
    return status;
}

void gpu_region_close(struct gpu_region *region)
{
    if (region->base == NULL)
        return;
    munmap(region->base, region->bytes);
    if (!region->attached)
        close(region->descriptor);
    *region = (struct gpu_region){0};
}

uint8_t *gpu_region_input(const struct gpu_region *region, uint32_t arena)
{
    return region->base + arena_at(&region->shape, arena);
}

uint8_t *gpu_region_output(const struct gpu_region *region, uint32_t arena)
{
    return gpu_region_input(region, arena) + pages(region->shape.arena_bytes);
}

struct gpu_segment *gpu_region_segments(const struct gpu_region *region, uint32_t arena)
{
    return (struct gpu_segment *)(gpu_region_input(region, arena) + segments_at(&region->shape));
}

struct gpu_job *gpu_region_jobs(const struct gpu_region *region, uint32_t arena)
{
    return (struct gpu_job *)(gpu_region_input(region, arena) + jobs_at(&region->shape));
}
