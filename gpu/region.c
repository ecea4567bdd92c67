#include "gpu/region.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART_BYTES (UINT64_C(2) << 20)
#define HUGE_BYTES (UINT64_C(2) << 20)

#define MAGIC UINT64_C(0x3352475545434c4d) /* "MLCEUGR3" */

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
    return jobs_at(shape) + pages(shape->segments * sizeof(struct gpu_job));
}

static uint64_t arena_at(const struct gpu_region_shape *shape, uint32_t arena)
{
    return pages(sizeof(struct header)) + arena * arena_stride(shape);
}

uint64_t gpu_region_bytes(const struct gpu_region_shape *shape)
{
    return arena_at(shape, shape->arenas);
}

/* ---- room ---- */

struct gpu_room gpu_room_most(const struct gpu_region_shape *shape)
{
    return (struct gpu_room){.bytes = shape->arena_bytes, .segments = shape->segments};
}

struct gpu_room gpu_room_within(const struct gpu_room *room, const struct gpu_region_shape *shape)
{
    return (struct gpu_room){.bytes = room->bytes < shape->arena_bytes ? room->bytes : shape->arena_bytes,
                             .segments = room->segments < shape->segments ? room->segments : shape->segments};
}

bool gpu_room_holds(const struct gpu_room *room, const struct gpu_room *need)
{
    return room->bytes >= need->bytes && room->segments >= need->segments;
}

uint32_t gpu_room_parts(const struct gpu_room *room, struct gpu_room parts[GPU_ROOM_PARTS_MAX])
{
    uint32_t halvings = 0;
    while (room->bytes >> halvings > PART_BYTES && halvings + 1 < GPU_ROOM_PARTS_MAX)
        halvings++;
    for (uint32_t i = 0; i < halvings; i++)
        parts[i] = (struct gpu_room){.bytes = pages(room->bytes >> (halvings - i)),
                                     .segments = room->segments >> (halvings - i)};
    parts[halvings] = *room;
    return halvings + 1;
}

/* Of the areas of an arena. A job has a segment at least. */
void gpu_region_area_bytes(const struct gpu_room *room, uint64_t bytes[GPU_REGION_AREAS])
{
    bytes[0] = bytes[1] = pages(room->bytes);
    bytes[2] = pages(room->segments * sizeof(struct gpu_segment));
    bytes[3] = pages(room->segments * sizeof(struct gpu_job));
}

uint64_t gpu_region_room_bytes(const struct gpu_region_shape *shape, const struct gpu_room *room)
{
    uint64_t bytes[GPU_REGION_AREAS], sum = 0;
    gpu_region_area_bytes(room, bytes);
    for (int area = 0; area < GPU_REGION_AREAS; area++)
        sum += bytes[area];
    return pages(sizeof(struct header)) + shape->arenas * sum;
}

void gpu_region_spans(const struct gpu_region *region, uint32_t arena, const struct gpu_room *less,
                      const struct gpu_room *more, struct gpu_region_span spans[GPU_REGION_AREAS])
{
    const uint64_t at[GPU_REGION_AREAS] = {0, pages(region->shape.arena_bytes), segments_at(&region->shape),
                                           jobs_at(&region->shape)};
    uint64_t from[GPU_REGION_AREAS], to[GPU_REGION_AREAS];
    gpu_region_area_bytes(less, from);
    gpu_region_area_bytes(more, to);
    for (int area = 0; area < GPU_REGION_AREAS; area++)
        spans[area] = (struct gpu_region_span){.at = gpu_region_input(region, arena) + at[area] + from[area],
                                               .bytes = to[area] > from[area] ? to[area] - from[area] : 0};
}

/* Huge pages for what they can have of the span, where the system has them for shared memory: one that lay
 * across its end would take memory beyond the room, and be split when the room shrinks to there. */
static void span_advise(const struct gpu_region *region, const struct gpu_region_span *span)
{
    const uint64_t from = (uint64_t)(span->at - region->base), to = from + span->bytes;
    const uint64_t first = (from + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES,
                   end = to / HUGE_BYTES * HUGE_BYTES;
    if (first < end)
        (void)madvise(region->base + first, end - first, MADV_HUGEPAGE);
}

/* All pages are there afterwards, or it says so now, and nobody finds out by a signal. Taken through the
 * mapping, and not by fallocate, which knows nothing of the advice and takes small pages. */
static core_status span_open(const struct gpu_region *region, const struct gpu_region_span *span,
                             struct core_error *error)
{
    if (mprotect(span->at, span->bytes, PROT_READ | PROT_WRITE) == 0) {
        span_advise(region, span);
        if (madvise(span->at, span->bytes, MADV_POPULATE_WRITE) == 0)
            return CORE_OK;
    }
    return core_error_errno(error, "GPU region: no memory for %zu bytes more of batches", span->bytes);
}

/* What can not be taken back stays, and is found there when the room grows again. */
static void span_shut(const struct gpu_region *region, const struct gpu_region_span *span)
{
    (void)mprotect(span->at, span->bytes, PROT_NONE);
    if (!region->attached)
        (void)fallocate(region->descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        span->at - region->base, (off_t)span->bytes);
}

static core_status room_open(const struct gpu_region *region, const struct gpu_room *room,
                             struct core_error *error)
{
    struct gpu_region_span spans[GPU_REGION_AREAS];
    core_status status = CORE_OK;
    for (uint32_t arena = 0; arena < region->shape.arenas && status == CORE_OK; arena++) {
        gpu_region_spans(region, arena, &region->room, room, spans);
        for (int area = 0; area < GPU_REGION_AREAS && status == CORE_OK; area++)
            if (spans[area].bytes > 0)
                status = span_open(region, &spans[area], error);
    }
    return status;
}

static void room_shut(const struct gpu_region *region, const struct gpu_room *less,
                      const struct gpu_room *more)
{
    struct gpu_region_span spans[GPU_REGION_AREAS];
    for (uint32_t arena = 0; arena < region->shape.arenas; arena++) {
        gpu_region_spans(region, arena, less, more, spans);
        for (int area = 0; area < GPU_REGION_AREAS; area++)
            if (spans[area].bytes > 0)
                span_shut(region, &spans[area]);
    }
}

core_status gpu_region_resize(struct gpu_region *region, const struct gpu_room *room,
                              struct core_error *error)
{
    core_status status = CORE_OK;
    assert(gpu_room_holds(room, &region->room) || gpu_room_holds(&region->room, room));
    if (gpu_room_holds(&region->room, room))
        room_shut(region, room, &region->room);
    else
        status = room_open(region, room, error);
    if (status != CORE_OK)
        room_shut(region, &region->room, room);
    else
        region->room = *room;
    return status;
}

/* ---- life ---- */

/* All addresses, which can not be touched but for the header. */
static core_status map(struct gpu_region *region, struct core_error *error)
{
    void *base = mmap(NULL, region->bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, region->descriptor, 0);
    if (base == MAP_FAILED)
        return core_error_errno(error, "GPU region: cannot map %" PRIu64 " bytes", region->bytes);
    region->base = base;
    if (madvise(base, region->bytes, MADV_DONTDUMP) != 0)
        return core_error_errno(error, "GPU region: cannot keep it out of core dumps");
    return span_open(region, &(struct gpu_region_span){base, pages(sizeof(struct header))}, error);
}

static core_status seal(const struct gpu_region *region, struct core_error *error)
{
    if (ftruncate(region->descriptor, (off_t)region->bytes) != 0 ||
        fcntl(region->descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return core_error_errno(error, "GPU region: cannot size its file to %" PRIu64 " bytes",
                                region->bytes);
    return CORE_OK;
}

core_status gpu_region_create(struct gpu_region *region, const struct gpu_region_shape *shape,
                              const struct gpu_room *room, struct core_error *error)
{
    const struct gpu_room most = gpu_room_most(shape);
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
    status = seal(region, error);
    if (status == CORE_OK)
        status = map(region, error);
    if (status == CORE_OK) {
        *(struct header *)region->base = (struct header){.magic = MAGIC, .shape = *shape};
        status = gpu_region_resize(region, room != NULL ? room : &most, error);
    }
    if (status != CORE_OK)
        gpu_region_close(region);
    return status;
}

core_status gpu_region_attach(struct gpu_region *region, int descriptor, const struct gpu_room *room,
                              struct core_error *error)
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
    *region = (struct gpu_region){
        .shape = header.shape, .bytes = (uint64_t)file.st_size, .descriptor = descriptor, .attached = true};
    const struct gpu_room most = gpu_room_most(&header.shape);
    const struct gpu_room within = gpu_room_within(room != NULL ? room : &most, &header.shape);
    core_status status = map(region, error);
    if (status == CORE_OK)
        status = gpu_region_resize(region, &within, error);
    if (status != CORE_OK)
        gpu_region_close(region);
    return status;
}

void gpu_region_close(struct gpu_region *region)
{
    if (region->bytes == 0)
        return;
    if (region->base != NULL)
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
