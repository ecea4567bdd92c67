/* The arenas' memory as CUDA sees it: pinned in pieces, as it came, and copied piece by piece. */
#include "gpu/device_cuda.h"

/* ---- pinning ---- */

static void spans_unpin(const struct gpu_region_span *spans, int count)
{
    for (int area = 0; area < count; area++)
        if (spans[area].bytes > 0)
            (void)cudaHostUnregister(spans[area].at);
}

static core_status spans_pin(const struct gpu_region_span *spans, struct core_error *error)
{
    for (int area = 0; area < GPU_REGION_AREAS; area++) {
        if (spans[area].bytes == 0)
            continue;
        const core_status status =
            gpu_cuda_check(cudaHostRegister(spans[area].at, spans[area].bytes, cudaHostRegisterDefault),
                           "cudaHostRegister (if memory is short, raise RLIMIT_MEMLOCK)", error);
        if (status == CORE_OK)
            continue;
        spans_unpin(spans, area);
        return core_error_prefix(error, status, "can not pin %zu bytes more of batches", spans[area].bytes);
    }
    return CORE_OK;
}

static void piece_unpin(const struct gpu_device *device, uint32_t arenas, const struct gpu_room *from,
                        const struct gpu_room *to)
{
    struct gpu_region_span spans[GPU_REGION_AREAS];
    for (uint32_t arena = 0; arena < arenas; arena++) {
        gpu_region_spans(device->region, arena, from, to, spans);
        spans_unpin(spans, GPU_REGION_AREAS);
    }
}

static core_status piece_pin(const struct gpu_device *device, const struct gpu_room *from,
                             const struct gpu_room *to, struct core_error *error)
{
    struct gpu_region_span spans[GPU_REGION_AREAS];
    core_status status = CORE_OK;
    for (uint32_t arena = 0; arena < device->region->shape.arenas && status == CORE_OK; arena++) {
        gpu_region_spans(device->region, arena, from, to, spans);
        status = spans_pin(spans, error);
        if (status != CORE_OK)
            piece_unpin(device, arena, from, to);
    }
    return status;
}

/* Where the last pieces end that are within this room; less than that has no piece that ends there. */
static uint32_t pieces_within(const struct gpu_device *device, const struct gpu_room *room)
{
    uint32_t count = device->piece_count;
    while (count > 0 && !gpu_room_holds(room, &device->pieces[count - 1].room))
        count--;
    return count;
}

static core_status pieces_unpin(const struct gpu_device *device, const struct gpu_room *to,
                                struct core_error *error)
{
    const uint32_t left = pieces_within(device, to);
    const struct gpu_room none = {0}, *end = left > 0 ? &device->pieces[left - 1].room : &none;
    if (end->bytes != to->bytes || end->segments != to->segments)
        return core_error_set(error, CORE_INVALID, "no piece of the pinned memory ends at %llu bytes",
                              (unsigned long long)to->bytes);
    for (uint32_t i = device->piece_count; i > left; i--)
        piece_unpin(device, device->region->shape.arenas, i > 1 ? &device->pieces[i - 2].room : &none,
                    &device->pieces[i - 1].room);
    return CORE_OK;
}

core_status gpu_cuda_resize(struct gpu_device *device, const struct gpu_room *from, const struct gpu_room *to,
                            struct core_error *error)
{
    if (gpu_room_holds(from, to))
        return pieces_unpin(device, to, error);
    if (device->piece_count == GPU_CUDA_PIECES)
        return core_error_set(error, CORE_FULL, "the memory has been pinned in %d pieces", GPU_CUDA_PIECES);
    return piece_pin(device, from, to, error);
}

void gpu_cuda_set_room(struct gpu_device *device, const struct gpu_room *room)
{
    device->piece_count = pieces_within(device, room);
    if (device->piece_count > 0 && gpu_room_holds(&device->pieces[device->piece_count - 1].room, room))
        return; /* it ends there */
    struct gpu_cuda_piece *piece = &device->pieces[device->piece_count++];
    piece->room = *room;
    gpu_region_area_bytes(room, piece->end_bytes);
}

core_status gpu_cuda_pin(struct gpu_device *device, struct core_error *error)
{
    struct gpu_room parts[GPU_ROOM_PARTS_MAX], last = {0};
    const uint32_t count = gpu_room_parts(&device->region->room, parts);
    core_status status = CORE_OK;
    for (uint32_t i = 0; i < count && status == CORE_OK; i++) {
        status = gpu_cuda_resize(device, &last, &parts[i], error);
        if (status == CORE_OK)
            gpu_cuda_set_room(device, &parts[i]);
        last = parts[i];
    }
    return status;
}

void gpu_cuda_unpin(struct gpu_device *device)
{
    const struct gpu_room none = {0};
    (void)!pieces_unpin(device, &none, NULL);
    device->piece_count = 0;
}

/* ---- copying ---- */

/* `bytes` of the area, of which `at` are done: how many there are up to the end of the piece. */
static size_t part_bytes(const struct gpu_device *device, enum gpu_cuda_area area, size_t at, size_t bytes)
{
    uint32_t i = 0;
    while (i + 1 < device->piece_count && device->pieces[i].end_bytes[area] <= at)
        i++;
    const size_t end = device->pieces[i].end_bytes[area];
    return (end < bytes && end > at ? end : bytes) - at;
}

static cudaError_t copy(const struct gpu_device *device, enum gpu_cuda_area area, void *to, const void *from,
                        size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    cudaError_t result = cudaSuccess;
    for (size_t at = 0, part; at < bytes && result == cudaSuccess; at += part) {
        part = part_bytes(device, area, at, bytes);
        result = cudaMemcpyAsync((uint8_t *)to + at, (const uint8_t *)from + at, part, kind, stream);
    }
    return result;
}

cudaError_t gpu_cuda_copy_up(const struct gpu_device *device, enum gpu_cuda_area area, void *to,
                             const void *from, size_t bytes, cudaStream_t stream)
{
    return copy(device, area, to, from, bytes, cudaMemcpyHostToDevice, stream);
}

cudaError_t gpu_cuda_copy_down(const struct gpu_device *device, enum gpu_cuda_area area, void *to,
                               const void *from, size_t bytes, cudaStream_t stream)
{
    return copy(device, area, to, from, bytes, cudaMemcpyDeviceToHost, stream);
}
