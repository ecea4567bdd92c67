#include "gpu/device.h"

core_status gpu_order_check(const struct gpu_order *order, const struct gpu_region_shape *shape,
                            struct core_error *error)
{
    const unsigned long long number = order->number;
    if (order->number == 0 || order->arena >= shape->arenas)
        return core_error_set(error, CORE_INVALID, "batch %llu in arena %u: there are %u arenas", number,
                              order->arena, shape->arenas);
    if (order->job_count > shape->segments || order->segment_count > shape->segments)
        return core_error_set(error, CORE_INVALID,
                              "batch %llu has %u jobs and %u segments; there is room for %u and %u", number,
                              order->job_count, order->segment_count, shape->segments, shape->segments);
    if (order->used_bytes > shape->arena_bytes || order->used_bytes % GPU_BLOCK_BYTES != 0)
        return core_error_set(error, CORE_INVALID,
                              "batch %llu uses %llu bytes: whole blocks up to %llu are possible", number,
                              (unsigned long long)order->used_bytes, (unsigned long long)shape->arena_bytes);
    return CORE_OK;
}
