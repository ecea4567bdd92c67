#include "perfmodel/edf.h"

#include "perfmodel/wide.h"

#define HORIZON_NS_MAX (INT64_C(1) << 61)

/* The latest deadline before `before_ns` in the pattern that attains count(x); 0 if there is none. */
static core_ns task_deadline_before_ns(const struct perfmodel_cpu_task *task, core_ns before_ns)
{
    core_ns x_ns = before_ns - 1 - task->urgency_ns;
    if (x_ns < 0)
        return 0;
    struct perfmodel_wide_place last =
        perfmodel_wide_place_of(task, x_ns, x_ns / task->spacing_ns, x_ns / task->interval_ns);
    int64_t piece = last.offset_ns / task->deadline_ns;
    if (piece >= task->pieces)
        piece = task->pieces - 1;
    return x_ns - last.offset_ns + piece * task->deadline_ns + task->urgency_ns;
}

static core_ns deadline_before_ns(const struct perfmodel_cpu_task *tasks, size_t count, core_ns before_ns)
{
    core_ns latest_ns = 0;
    for (size_t i = 0; i < count; i++) {
        core_ns deadline_ns = task_deadline_before_ns(&tasks[i], before_ns);
        latest_ns = deadline_ns > latest_ns ? deadline_ns : latest_ns;
    }
    return latest_ns;
}

static core_ns demand_ns(const struct perfmodel_cpu_task *tasks, size_t count, core_ns window_ns)
{
    perfmodel_wide sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += perfmodel_cpu_demand_ns(&tasks[i], window_ns);
    return perfmodel_wide_limit(sum, INT64_MAX);
}

static perfmodel_wide share_of(const struct perfmodel_cpu_task *tasks, size_t count)
{
    perfmodel_wide share = 0;
    for (size_t i = 0; i < count; i++)
        share += perfmodel_wide_share(&tasks[i]);
    return share;
}

/* The window of one whole burst of `task`: its k m pieces are all due in it. */
static core_ns burst_window_ns(const struct perfmodel_cpu_task *task)
{
    return (task->burst_packets - 1) * task->spacing_ns + (task->pieces - 1) * task->deadline_ns +
           task->urgency_ns;
}

static void set_violation(struct perfmodel_edf_result *result, const struct perfmodel_cpu_task *tasks,
                          size_t count, core_ns window_ns)
{
    result->accepted = false;
    result->binding = PERFMODEL_EDF_DEMAND;
    result->window_ns = window_ns;
    result->demand_ns = demand_ns(tasks, count, window_ns);
}

/* A burst whose work alone exceeds its own window: refused here so that L's products stay in range. */
static bool burst_too_long(struct perfmodel_edf_result *result, const struct perfmodel_cpu_task *tasks,
                           size_t count)
{
    for (size_t i = 0; i < count; i++) {
        perfmodel_wide work = perfmodel_wide_packet_work(&tasks[i]) * tasks[i].burst_packets;
        if (work > burst_window_ns(&tasks[i])) {
            set_violation(result, tasks, count, burst_window_ns(&tasks[i]));
            return true;
        }
    }
    return false;
}

/* L, rounded up; above HORIZON_NS_MAX where there is none to speak of. Every m C k is at most 2^42
 * (burst_too_long), so the sum over 2^20 tasks is below 2^62 and fits 128 bits shifted by 62. */
static perfmodel_wide horizon_ns(const struct perfmodel_cpu_task *tasks, size_t count, core_ns blocking_ns,
                                 perfmodel_wide share)
{
    perfmodel_wide ahead = blocking_ns;
    for (size_t i = 0; i < count; i++)
        ahead += perfmodel_wide_tail(&tasks[i], 0);
    return perfmodel_wide_divide_up(ahead << 62, PERFMODEL_SHARE_ONE - share);
}

static void check_windows(struct perfmodel_edf_result *result, const struct perfmodel_cpu_task *tasks,
                          size_t count, core_ns blocking_ns, core_ns from_ns)
{
    core_ns window_ns = from_ns;
    for (;;) {
        result->steps++;
        core_ns need_ns = demand_ns(tasks, count, window_ns);
        if (need_ns == 0)
            return;
        if (need_ns > window_ns - blocking_ns) {
            set_violation(result, tasks, count, deadline_before_ns(tasks, count, window_ns + 1));
            return;
        }
        need_ns += blocking_ns;
        window_ns = need_ns < window_ns ? need_ns : deadline_before_ns(tasks, count, window_ns);
    }
}

struct perfmodel_edf_result perfmodel_edf_test(const struct perfmodel_cpu_task *tasks, size_t count,
                                               core_ns blocking_ns)
{
    perfmodel_wide share = share_of(tasks, count);
    struct perfmodel_edf_result result = {.accepted = true,
                                          .utilisation_ppb = perfmodel_wide_share_ppb(share)};
    if (count == 0)
        return result;
    if (share < PERFMODEL_SHARE_ONE) {
        if (burst_too_long(&result, tasks, count))
            return result;
        perfmodel_wide from = horizon_ns(tasks, count, blocking_ns, share);
        if (from <= HORIZON_NS_MAX) {
            check_windows(&result, tasks, count, blocking_ns, (core_ns)from);
            return result;
        }
    }
    result.accepted = false;
    result.binding = PERFMODEL_EDF_UTILISATION;
    return result;
}
