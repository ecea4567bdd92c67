#include "gpu/schedule.h"

#include <string.h>

#define PERIOD_NS_MAX (3600 * CORE_NS_PER_S)

core_status gpu_schedule_init(struct gpu_schedule *schedule, core_ns base_ns, core_ns period_ns)
{
    if (period_ns < 1 || period_ns > PERIOD_NS_MAX)
        return CORE_INVALID;
    *schedule = (struct gpu_schedule){.rows[0] = {.first = 1, .base_ns = base_ns, .period_ns = period_ns},
                                      .count = 1};
    return CORE_OK;
}

core_status gpu_schedule_change(struct gpu_schedule *schedule, uint64_t first, core_ns period_ns)
{
    if (period_ns < 1 || period_ns > PERIOD_NS_MAX || first <= schedule->rows[0].first)
        return CORE_INVALID;
    core_ns base_ns = gpu_schedule_close_ns(schedule, first - 1);
    while (schedule->rows[schedule->count - 1].first >= first)
        schedule->count--;
    if (schedule->count == GPU_SCHEDULE_ROWS)
        memmove(schedule->rows, schedule->rows + 1, --schedule->count * sizeof schedule->rows[0]);
    schedule->rows[schedule->count++] = (struct gpu_schedule_row){first, base_ns, period_ns};
    return CORE_OK;
}

/* The newest row that begins with this batch or before. */
static const struct gpu_schedule_row *row_of(const struct gpu_schedule *schedule, uint64_t batch)
{
    uint32_t i = schedule->count - 1;
    while (i > 0 && schedule->rows[i].first > batch)
        i--;
    return &schedule->rows[i];
}

core_ns gpu_schedule_close_ns(const struct gpu_schedule *schedule, uint64_t batch)
{
    const struct gpu_schedule_row *row = row_of(schedule, batch);
    return row->base_ns + (core_ns)(batch + 1 - row->first) * row->period_ns;
}

uint64_t gpu_schedule_batch(const struct gpu_schedule *schedule, core_ns eligible_ns)
{
    uint32_t i = schedule->count - 1;
    while (i > 0 && schedule->rows[i].base_ns >= eligible_ns)
        i--;
    const struct gpu_schedule_row *row = &schedule->rows[i];
    if (eligible_ns <= row->base_ns)
        return row->first;
    return row->first + (uint64_t)((eligible_ns - row->base_ns - 1) / row->period_ns);
}

/* The newest batch that begins at time_ns or before. */
static uint64_t begun(const struct gpu_schedule *schedule, core_ns time_ns)
{
    return gpu_schedule_batch(schedule, time_ns + 1);
}

struct gpu_schedule_due gpu_schedule_due(const struct gpu_schedule *schedule, core_ns now_ns, core_ns lead_ns,
                                         core_ns in_ns)
{
    struct gpu_schedule_due due = {.open_until = begun(schedule, now_ns + lead_ns),
                                   .close_until = begun(schedule, now_ns - in_ns) - 1};
    core_ns next_open_ns = gpu_schedule_close_ns(schedule, due.open_until) - lead_ns;
    core_ns next_close_ns = gpu_schedule_close_ns(schedule, due.close_until + 1) + in_ns;
    due.wake_ns = core_time_min(next_open_ns, next_close_ns);
    return due;
}
