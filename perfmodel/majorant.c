#include "perfmodel/majorant.h"

#include "perfmodel/kernel.h"

#include <stdlib.h>

/* Not below either end, and so nowhere between; both figures rounded up. */
static struct perfmodel_line line_between(const struct perfmodel_majorant *majorant,
                                          const struct perfmodel_corner *a, const struct perfmodel_corner *b)
{
    const unsigned shift = majorant->shift;
    perfmodel_wide rise = b->y - a->y, run = b->x - a->x;
    perfmodel_wide whole = rise * a->x / run, part = rise * a->x % run;
    perfmodel_wide start = (a->y << shift) - (whole << shift) - (part << shift) / run;
    perfmodel_wide slope = perfmodel_wide_divide_up(rise << shift, run);
    return (struct perfmodel_line){.start = perfmodel_wide_with_margin(start, majorant->margin_ppm),
                                   .slope = perfmodel_wide_with_margin(slope, majorant->margin_ppm),
                                   .left = a->x};
}

struct perfmodel_line perfmodel_majorant_flat(const struct perfmodel_majorant *majorant, perfmodel_wide y)
{
    return (struct perfmodel_line){
        .start = perfmodel_wide_with_margin(y << majorant->shift, majorant->margin_ppm)};
}

/* From which corner the hull goes on to `to`, if it ends at `last` now. */
static size_t tangent(const struct perfmodel_majorant *majorant, size_t last,
                      const struct perfmodel_corner *to)
{
    for (;;) {
        const struct perfmodel_corner *at = &majorant->corner[last];
        const struct perfmodel_corner *before = &majorant->corner[at->before];
        if (at == before || (at->y - before->y) * (to->x - at->x) > (to->y - at->y) * (at->x - before->x))
            return last;
        last = at->before; /* it lies below the line past it */
    }
}

static void add_corner(struct perfmodel_majorant *majorant, perfmodel_wide x, perfmodel_wide y)
{
    struct perfmodel_corner corner = {.x = x, .y = y};
    if (majorant->count > 0) {
        corner.before = tangent(majorant, majorant->count - 1, &corner);
        corner.line = line_between(majorant, &majorant->corner[corner.before], &corner);
    }
    majorant->corner[majorant->count++] = corner;
}

static core_status prepare(struct perfmodel_majorant *majorant, size_t corners, unsigned shift,
                           uint32_t margin_ppm)
{
    *majorant = (struct perfmodel_majorant){.shift = shift, .margin_ppm = margin_ppm};
    majorant->corner = malloc(corners * sizeof *majorant->corner);
    return majorant->corner != NULL ? CORE_OK : CORE_NO_MEMORY;
}

void perfmodel_majorant_free(struct perfmodel_majorant *majorant)
{
    free(majorant->corner);
}

core_status perfmodel_majorant_copy(struct perfmodel_majorant *majorant, const struct config_profile_gpu *gpu,
                                    enum perfmodel_direction direction, bool busy, uint32_t margin_ppm)
{
    core_status status = prepare(majorant, gpu->copy_count + 1, PERFMODEL_LINE_BITS, margin_ppm);
    if (status != CORE_OK)
        return status;
    add_corner(majorant, 0, perfmodel_copy_ns(gpu, direction, busy, 1));
    for (uint32_t i = 0; i < gpu->copy_count; i++)
        add_corner(majorant, (perfmodel_wide)gpu->copies[i].bytes,
                   perfmodel_copy_ns(gpu, direction, busy, gpu->copies[i].bytes));
    return CORE_OK;
}

_Static_assert(PERFMODEL_LINE_BITS == PERFMODEL_COST_BITS, "costs are figures of lines");

/* It rises with the first job above what every SM has in the row before. Beyond the last row, where it rises
 * with every round, all such corners are on one line, but for rounding. */
static struct perfmodel_corner beyond(const struct config_profile_gpu *gpu, uint64_t on_sm)
{
    const struct perfmodel_cost_tail tail = perfmodel_cost_tail(gpu);
    return (struct perfmodel_corner){.x = (perfmodel_wide)(on_sm - 1) * gpu->sms + 1,
                                     .y = perfmodel_cost_beyond(&tail, on_sm) + 1};
}

core_status perfmodel_majorant_kernel(struct perfmodel_majorant *majorant,
                                      const struct config_profile_gpu *gpu, uint32_t margin_ppm)
{
    perfmodel_wide most = 0, before = 0;
    core_status status = prepare(majorant, (size_t)gpu->utilisation_count + 2, 0, margin_ppm);
    if (status != CORE_OK)
        return status;
    add_corner(majorant, 0, 0);
    for (uint32_t i = 0; i < gpu->utilisation_count; i++) {
        const struct config_profile_utilisation *row = &gpu->utilisation[i];
        perfmodel_wide cost = perfmodel_cost_row(gpu, row->jobs, row->share_ppm);
        most = cost > most ? cost : most;
        if (most <= PERFMODEL_LINE_MOST)
            add_corner(majorant, before * gpu->sms + 1, most);
        before = row->jobs;
    }
    struct perfmodel_corner last = beyond(gpu, (uint64_t)before + 1);
    if (last.y <= PERFMODEL_LINE_MOST)
        add_corner(majorant, last.x, last.y);
    else
        majorant->count = 0;
    return CORE_OK;
}

/* The last corner up to x. */
static size_t corner_at(const struct perfmodel_majorant *majorant, perfmodel_wide x)
{
    size_t low = 0, high = majorant->count - 1;
    while (low < high) {
        size_t middle = (low + high + 1) / 2;
        if (majorant->corner[middle].x <= x)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

struct perfmodel_corner perfmodel_majorant_jobs(const struct perfmodel_majorant *kernel,
                                                const struct config_profile_gpu *gpu, uint64_t jobs)
{
    const struct config_profile_utilisation *last = &gpu->utilisation[gpu->utilisation_count - 1];
    uint64_t on_sm = (jobs + gpu->sms - 1) / gpu->sms;
    if (on_sm <= last->jobs)
        return kernel->corner[corner_at(kernel, (perfmodel_wide)jobs)];
    return beyond(gpu, on_sm);
}

struct perfmodel_majorant_walk perfmodel_majorant_to(const struct perfmodel_majorant *majorant,
                                                     perfmodel_wide x, perfmodel_wide y)
{
    size_t last = corner_at(majorant, x);
    struct perfmodel_corner end = {.x = x, .y = y};
    if (majorant->corner[last].x == x)
        return (struct perfmodel_majorant_walk){.corner = last};
    size_t from = tangent(majorant, last, &end);
    return (struct perfmodel_majorant_walk){
        .end = true, .corner = from, .line = line_between(majorant, &majorant->corner[from], &end)};
}

bool perfmodel_majorant_next(const struct perfmodel_majorant *majorant, struct perfmodel_majorant_walk *walk,
                             struct perfmodel_line *line)
{
    const struct perfmodel_corner *corner = &majorant->corner[walk->corner];
    if (walk->end) {
        walk->end = false;
        *line = walk->line;
        return true;
    }
    if (walk->corner == corner->before)
        return false;
    *line = corner->line;
    walk->corner = corner->before;
    return true;
}
