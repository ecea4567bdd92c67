#include "perfmodel/edf.h"

#include "perfmodel/wide.h"

#define HORIZON_MAX (INT64_C(1) << 61)

static const struct perfmodel_edf_verdict accepted = {
    .accepted = true, .window = -1, .demand = -1, .blocking = -1};
static const struct perfmodel_edf_verdict overloaded = {
    .accepted = false, .window = -1, .demand = -1, .blocking = -1};

static int64_t demand_at(const struct perfmodel_edf_task *tasks, size_t count, int64_t window)
{
    perfmodel_wide sum = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t left = window - tasks[i].deadline;
        if (left >= 0)
            sum += (perfmodel_wide)tasks[i].cost * (left / tasks[i].period + 1);
    }
    return perfmodel_wide_limit(sum, INT64_MAX / 2);
}

static int64_t blocking_at(const struct perfmodel_edf_task *tasks, size_t count, int64_t delta,
                           int64_t window)
{
    int64_t longest = 0;
    for (size_t i = 0; i < count; i++)
        if (tasks[i].deadline > window && tasks[i].section - delta > longest)
            longest = tasks[i].section - delta;
    return longest;
}

/* Latest absolute deadline before `before`, -1 if none. */
static int64_t deadline_before(const struct perfmodel_edf_task *tasks, size_t count, int64_t before)
{
    int64_t latest = -1;
    for (size_t i = 0; i < count; i++) {
        int64_t left = before - 1 - tasks[i].deadline;
        if (left >= 0 && before - 1 - left % tasks[i].period > latest)
            latest = before - 1 - left % tasks[i].period;
    }
    return latest;
}

/* Earliest absolute deadline after `after`. */
static int64_t deadline_after(const struct perfmodel_edf_task *tasks, size_t count, int64_t after)
{
    int64_t earliest = INT64_MAX;
    for (size_t i = 0; i < count; i++) {
        int64_t next = tasks[i].deadline;
        if (next <= after)
            next += ((after - next) / tasks[i].period + 1) * tasks[i].period;
        earliest = next < earliest ? next : earliest;
    }
    return earliest;
}

/* Latest relative deadline up to `window`: blocking is the same from there to `window`. */
static int64_t blocking_changed_at(const struct perfmodel_edf_task *tasks, size_t count, int64_t window)
{
    int64_t latest = 0;
    for (size_t i = 0; i < count; i++)
        if (tasks[i].deadline <= window && tasks[i].deadline > latest)
            latest = tasks[i].deadline;
    return latest;
}

/* Length of the synchronous busy period; above HORIZON_MAX if it does not end before. */
static int64_t busy_period(const struct perfmodel_edf_task *tasks, size_t count)
{
    perfmodel_wide length = 1, next = 0;
    while (length <= HORIZON_MAX) {
        next = 0;
        for (size_t i = 0; i < count; i++)
            next += perfmodel_wide_divide_up(length, tasks[i].period) * tasks[i].cost;
        if (next == length)
            break;
        length = next;
    }
    return perfmodel_wide_limit(length, HORIZON_MAX + 1);
}

/* No violation is beyond: above the longest deadline nothing blocks, and then dbf(Z) <= U Z + sum U_i (T_i -
 * D_i)^+. Where U is 1 to within rounding, the busy period bounds the first violation. -1: U exceeds 1. */
static int64_t horizon(const struct perfmodel_edf_task *tasks, size_t count)
{
    perfmodel_wide up = 0, down = 0, ahead = 0;
    int64_t longest = 0;
    for (size_t i = 0; i < count; i++) {
        const struct perfmodel_edf_task *task = &tasks[i];
        longest = task->deadline > longest ? task->deadline : longest;
        up += perfmodel_wide_divide_up((perfmodel_wide)task->cost << 62, task->period);
        down += ((perfmodel_wide)task->cost << 62) / task->period;
        if (task->period > task->deadline)
            ahead += perfmodel_wide_divide_up((perfmodel_wide)task->cost * (task->period - task->deadline),
                                              task->period);
    }
    if (down > PERFMODEL_SHARE_ONE)
        return -1;
    int64_t end = up < PERFMODEL_SHARE_ONE
                      ? perfmodel_wide_limit((ahead << 62) / (PERFMODEL_SHARE_ONE - up), HORIZON_MAX)
                      : busy_period(tasks, count);
    if (end > HORIZON_MAX)
        return -1;
    return end > longest ? end : longest;
}

static struct perfmodel_edf_verdict violation(const struct perfmodel_edf_task *tasks, size_t count,
                                              int64_t delta, int64_t window)
{
    return (struct perfmodel_edf_verdict){.accepted = false,
                                          .window = window,
                                          .demand = demand_at(tasks, count, window),
                                          .blocking = blocking_at(tasks, count, delta, window)};
}

/* QPA, cut at the relative deadlines: going down, blocking grows there, and only between two of them does
 * need <= window clear everything from need to window. */
struct perfmodel_edf_verdict perfmodel_edf_sporadic_test(const struct perfmodel_edf_task *tasks, size_t count,
                                                         int64_t delta)
{
    int64_t end = horizon(tasks, count);
    if (end < 0)
        return overloaded;
    int64_t window = deadline_before(tasks, count, end + 1);
    while (window > 0) {
        int64_t need = demand_at(tasks, count, window) + blocking_at(tasks, count, delta, window);
        if (need > window)
            return violation(tasks, count, delta, window);
        int64_t floor = blocking_changed_at(tasks, count, window);
        if (need < floor)
            window = deadline_before(tasks, count, floor);
        else if (need < window)
            window = deadline_before(tasks, count, need + 1);
        else
            window = deadline_before(tasks, count, window);
    }
    return accepted;
}

struct perfmodel_edf_verdict perfmodel_edf_sporadic_exhaustive(const struct perfmodel_edf_task *tasks,
                                                               size_t count, int64_t delta)
{
    int64_t end = horizon(tasks, count);
    for (int64_t window = deadline_after(tasks, count, 0); window <= end;
         window = deadline_after(tasks, count, window))
        if (demand_at(tasks, count, window) + blocking_at(tasks, count, delta, window) > window)
            return violation(tasks, count, delta, window);
    return end < 0 ? overloaded : accepted;
}
