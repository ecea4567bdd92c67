#include "perfmodel/edf.h"

#include "perfmodel/wide.h"

#define HORIZON_NS_MAX (INT64_C(1) << 61)

/* The latest deadline before `before_ns` in the pattern that attains count(x); 0 if there is none. */
static core_ns task_deadline_before_ns(const struct perfmodel_cpu_task *task, core_ns before_ns)
{
    core_ns x_ns = before_ns - 1 - task->urgency_ns;
    if (x_ns < 0)
        return 0;
    struct perfmodel_wide_position last =
        perfmodel_wide_position_of(task, x_ns, x_ns / task->spacing_ns, x_ns / task->interval_ns);
    int64_t piece = last.offset_ns / task->deadline_ns;
    if (piece >= task->pieces)
        piece = task->pieces - 1;
    return x_ns - last.offset_ns + piece * task->deadline_ns + task->urgency_ns;
}

/* The streams of a worker and what a piece is charged beside its own cost. */
struct set {
    const struct perfmodel_cpu_task *tasks;
    size_t count;
    core_ns surcharge_ns, blocking_ns;
};

static core_ns charge_ns(const struct set *set, size_t i)
{
    return set->tasks[i].cost_ns + set->surcharge_ns;
}

static core_ns deadline_before_ns(const struct set *set, core_ns before_ns)
{
    core_ns latest_ns = 0;
    for (size_t i = 0; i < set->count; i++) {
        core_ns deadline_ns = task_deadline_before_ns(&set->tasks[i], before_ns);
        latest_ns = core_time_max(deadline_ns, latest_ns);
    }
    return latest_ns;
}

static core_ns demand_ns(const struct set *set, core_ns window_ns)
{
    perfmodel_wide sum = 0;
    for (size_t i = 0; i < set->count; i++) {
        core_ns x_ns = window_ns - set->tasks[i].urgency_ns;
        if (x_ns >= 0)
            sum += (perfmodel_wide)perfmodel_cpu_count(&set->tasks[i], x_ns) * charge_ns(set, i);
    }
    return perfmodel_wide_limit(sum, INT64_MAX);
}

static perfmodel_wide share_of(const struct set *set)
{
    perfmodel_wide share = 0;
    for (size_t i = 0; i < set->count; i++)
        share += perfmodel_wide_share(&set->tasks[i], charge_ns(set, i));
    return share;
}

/* The window of one whole burst of `task`: its k m pieces are all due in it. */
static core_ns burst_window_ns(const struct perfmodel_cpu_task *task)
{
    return (task->burst_packets - 1) * task->spacing_ns + (task->pieces - 1) * task->deadline_ns +
           task->urgency_ns;
}

static void set_violation(struct perfmodel_edf_result *result, const struct set *set, core_ns window_ns)
{
    result->accepted = false;
    result->binding = PERFMODEL_LIMIT_CPU_DEMAND;
    result->window_ns = window_ns;
    result->demand_ns = demand_ns(set, window_ns);
}

/* A burst whose work alone exceeds its own window: refused here so that L's products stay in range. */
static bool burst_too_long(struct perfmodel_edf_result *result, const struct set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        const struct perfmodel_cpu_task *task = &set->tasks[i];
        perfmodel_wide work_ns = (perfmodel_wide)task->pieces * task->burst_packets * charge_ns(set, i);
        if (work_ns > burst_window_ns(task)) {
            set_violation(result, set, burst_window_ns(task));
            return true;
        }
    }
    return false;
}

/* L, rounded up; above HORIZON_NS_MAX where there is none to speak of. Every m C k is at most 2^42
 * (burst_too_long), so the sum over 2^20 tasks is below 2^62 and fits 128 bits shifted by 62. */
static perfmodel_wide horizon_ns(const struct set *set, perfmodel_wide share)
{
    perfmodel_wide ahead_ns = set->blocking_ns;
    for (size_t i = 0; i < set->count; i++)
        ahead_ns += perfmodel_wide_tail(&set->tasks[i], charge_ns(set, i), 0);
    return perfmodel_wide_divide_up(ahead_ns << 62, PERFMODEL_SHARE_ONE - share);
}

static void check_windows(struct perfmodel_edf_result *result, const struct set *set, core_ns from_ns)
{
    core_ns window_ns = from_ns;
    for (;;) {
        core_ns need_ns = demand_ns(set, window_ns);
        if (need_ns == 0)
            return;
        if (need_ns > window_ns - set->blocking_ns) {
            set_violation(result, set, deadline_before_ns(set, window_ns + 1));
            return;
        }
        need_ns += set->blocking_ns;
        window_ns = need_ns < window_ns ? need_ns : deadline_before_ns(set, window_ns);
    }
}

struct perfmodel_edf_result perfmodel_edf_test(const struct perfmodel_cpu_task *tasks, size_t count,
                                               core_ns surcharge_ns, core_ns blocking_ns)
{
    const struct set set = {tasks, count, surcharge_ns, blocking_ns};
    perfmodel_wide share = share_of(&set);
    struct perfmodel_edf_result result = {
        .accepted = true, .blocking_ns = blocking_ns, .utilisation_ppb = perfmodel_wide_share_ppb(share)};
    if (count == 0)
        return result;
    if (share < PERFMODEL_SHARE_ONE) {
        if (burst_too_long(&result, &set))
            return result;
        perfmodel_wide from_ns = horizon_ns(&set, share);
        if (from_ns <= HORIZON_NS_MAX) {
            check_windows(&result, &set, (core_ns)from_ns);
            return result;
        }
    }
    result.accepted = false;
    result.binding = PERFMODEL_LIMIT_CPU_UTILISATION;
    return result;
}
