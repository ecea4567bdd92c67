/* Transfer tables. */
#include "perfmodel/gpu.h"

#include "perfmodel/wide.h"

static core_ns row_ns(const struct config_profile_copy *row, enum perfmodel_direction direction, bool busy)
{
    if (direction == PERFMODEL_UP)
        return busy ? row->up_busy_ns : row->up_ns;
    return busy ? row->down_busy_ns : row->down_ns;
}

/* (b - a) x / span, rounded up. At most 2^42 * 2^64 inside. */
static perfmodel_wide part_ns(core_ns a_ns, core_ns b_ns, uint64_t x, uint64_t span)
{
    return perfmodel_wide_divide_up((perfmodel_wide)(b_ns - a_ns) * x, (perfmodel_wide)span);
}

/* The first row of at least so many bytes, where the last is one. */
static uint32_t row_above(const struct config_profile_gpu *gpu, uint64_t bytes)
{
    uint32_t low = 0, high = gpu->copy_count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (gpu->copies[middle].bytes < bytes)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static core_ns beyond_ns(const struct config_profile_gpu *gpu, enum perfmodel_direction direction, bool busy,
                         uint64_t bytes)
{
    const struct config_profile_copy *last = &gpu->copies[gpu->copy_count - 1];
    core_ns last_ns = row_ns(last, direction, busy);
    perfmodel_wide ns = part_ns(0, last_ns, bytes, last->bytes);
    if (gpu->copy_count > 1) {
        const struct config_profile_copy *before = last - 1;
        perfmodel_wide line_ns = last_ns + part_ns(row_ns(before, direction, busy), last_ns,
                                                   bytes - last->bytes, last->bytes - before->bytes);
        ns = line_ns > ns ? line_ns : ns;
    }
    return perfmodel_wide_limit(ns, CORE_NS_NEVER);
}

core_ns perfmodel_copy_ns(const struct config_profile_gpu *gpu, enum perfmodel_direction direction, bool busy,
                          uint64_t bytes)
{
    if (bytes == 0)
        return 0;
    if (bytes > gpu->copies[gpu->copy_count - 1].bytes)
        return core_time_max(beyond_ns(gpu, direction, busy, bytes), beyond_ns(gpu, direction, false, bytes));
    uint32_t above = row_above(gpu, bytes);
    const struct config_profile_copy *row = &gpu->copies[above];
    if (above == 0)
        return row_ns(row, direction, busy);
    const struct config_profile_copy *below = row - 1;
    core_ns below_ns = row_ns(below, direction, busy);
    return below_ns + (core_ns)part_ns(below_ns, row_ns(row, direction, busy), bytes - below->bytes,
                                       row->bytes - below->bytes);
}
