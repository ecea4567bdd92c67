#include "perfmodel/edf_packets.h"

#include "perfmodel/wide.h"

#include <assert.h>
#include <stdlib.h>

#define MOST           PERFMODEL_EDF_PACKETS_MOST
#define HORIZON_NS_MAX (INT64_C(1) << 61)
#define PIECES_MAX     (INT64_C(1) << 40) /* of a stream in a window, more than any test needs */
#define STEP_BITS      6

/* The streams by falling cost, and what the streams together say. */
struct set {
    const struct perfmodel_cpu_task *task[MOST];
    size_t count;
    const struct perfmodel_cpu_worker *worker;
    core_ns lanes_ns, surcharge_ns; /* l, e */
    core_ns lag_ns;                 /* theta */
    core_ns left_ns, lane_ns; /* the two sums of H_c: what is left of packets; of a burst's other lanes */
    core_ns least_ns;         /* s */
    int64_t reserve_ppb;
    struct perfmodel_edf_result result;
};

static int by_cost_falling(const void *a, const void *b)
{
    const struct perfmodel_cpu_task *const *x = a, *const *y = b;
    return ((*x)->cost_ns < (*y)->cost_ns) - ((*x)->cost_ns > (*y)->cost_ns);
}

static int falling(const void *a, const void *b)
{
    core_ns x = *(const core_ns *)a, y = *(const core_ns *)b;
    return (x < y) - (x > y);
}

static core_ns sum_of_largest(core_ns *values, size_t count, size_t most)
{
    perfmodel_wide sum = 0;
    qsort(values, count, sizeof *values, falling);
    for (size_t i = 0; i < count && i < most; i++)
        sum += values[i];
    return perfmodel_wide_limit(sum, HORIZON_NS_MAX);
}

/* What may be left of long packets whose pieces are late by lag_ns at the most, and of it in one burst. */
static void set_left(struct set *set, core_ns lag_ns)
{
    core_ns left_ns[MOST], lane_ns[MOST];
    size_t count = 0;
    for (size_t i = 0; i < set->count; i++) {
        const struct perfmodel_cpu_task *task = set->task[i];
        if (task->pieces == 1)
            continue;
        perfmodel_wide late = perfmodel_wide_divide_up(lag_ns, task->deadline_ns);
        lane_ns[count] = task->cost_ns + set->surcharge_ns;
        left_ns[count] = perfmodel_wide_limit(
            (late < task->pieces ? late : task->pieces - 1) * lane_ns[count], HORIZON_NS_MAX);
        count++;
    }
    set->lag_ns = lag_ns;
    set->left_ns = sum_of_largest(left_ns, count, set->worker->burst_pieces - 1);
    set->lane_ns = sum_of_largest(lane_ns, count, set->worker->burst_pieces - 1);
}

static void fill(struct set *set, const struct perfmodel_cpu_task *tasks)
{
    uint32_t ciphers = 0;
    set->least_ns = CORE_NS_NEVER;
    for (size_t i = 0; i < set->count; i++) {
        set->task[i] = &tasks[i];
        ciphers |= 1U << (tasks[i].cipher - 1);
        if (tasks[i].spacing_ns < set->least_ns)
            set->least_ns = tasks[i].spacing_ns;
    }
    qsort(set->task, set->count, sizeof *set->task, by_cost_falling);
    set->lanes_ns = set->worker->lanes_ns[ciphers];
    set->surcharge_ns = set->worker->surcharge_ns[ciphers];
    set_left(set, CORE_LATENCY_NS_MAX);
}

/* m (c + e) k */
static perfmodel_wide burst_ns(const struct set *set, const struct perfmodel_cpu_task *task)
{
    return (perfmodel_wide)task->pieces * task->burst_packets * (task->cost_ns + set->surcharge_ns);
}

/* m (c + e) / t, in units of 2^-62. */
static perfmodel_wide share_of(const struct set *set, const struct perfmodel_cpu_task *task)
{
    return perfmodel_wide_share(task, task->cost_ns + set->surcharge_ns);
}

static int64_t lesser(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* A_i(L). */
static int64_t supply(const struct set *set, size_t i, core_ns length_ns)
{
    const struct perfmodel_cpu_task *task = set->task[i];
    core_ns x_ns = length_ns + set->worker->ahead_ns;
    int64_t packets = task->burst_packets + 1 + x_ns / task->interval_ns;
    return perfmodel_wide_limit((perfmodel_wide)packets * task->pieces, PIECES_MAX);
}

/* ---- n <= B ---- */

/* g_j(L) */
static core_ns rounds_ns(const struct set *set, size_t j, core_ns length_ns)
{
    const struct perfmodel_cpu_task *own = set->task[j];
    int64_t bursts = own->pieces + (set->count > 1);
    perfmodel_wide sum = (perfmodel_wide)bursts * set->lanes_ns + (perfmodel_wide)own->pieces * own->cost_ns;
    for (size_t i = 0; i < set->count; i++)
        if (i != j)
            sum += (perfmodel_wide)set->task[i]->cost_ns * lesser(bursts, supply(set, i, length_ns));
    return perfmodel_wide_limit(sum, HORIZON_NS_MAX);
}

/* Of a window, what is there. */
static core_ns there_ns(const struct set *set, core_ns window_ns)
{
    perfmodel_wide kept = (perfmodel_wide)window_ns * set->reserve_ppb;
    return window_ns - (core_ns)perfmodel_wide_divide_up(kept, PERFMODEL_PPB);
}

static void refuse(struct set *set, core_ns window_ns, core_ns need_ns)
{
    set->result.accepted = false;
    set->result.binding = PERFMODEL_LIMIT_CPU_DEMAND;
    set->result.window_ns = window_ns;
    set->result.demand_ns = need_ns;
}

/* The least L with g_j(L) <= L, from below. */
static void judge_rounds(struct set *set, size_t j)
{
    const core_ns window_ns = set->task[j]->spacing_ns, there = there_ns(set, window_ns);
    core_ns length_ns = 0, need_ns = rounds_ns(set, j, there);
    if (need_ns <= there)
        return;
    while ((need_ns = rounds_ns(set, j, length_ns)) > length_ns && need_ns <= there)
        length_ns = need_ns;
    if (need_ns > there)
        refuse(set, window_ns, need_ns);
}

/* ---- n > B ---- */

/* Of the packets, or their pieces before the last, that may be due in a window. */
struct those {
    int64_t most, least; /* pieces up to there */
};

static struct those packets_within(const struct set *set, core_ns window_ns)
{
    struct those those = {.most = 0, .least = INT64_MAX};
    for (size_t i = 0; i < set->count; i++) {
        const struct perfmodel_cpu_task *task = set->task[i];
        if (task->spacing_ns > window_ns)
            continue;
        those.most = task->pieces > those.most ? task->pieces : those.most;
        those.least = task->pieces < those.least ? task->pieces : those.least;
    }
    return those;
}

static struct those pieces_within(const struct set *set, core_ns window_ns)
{
    struct those those = {.most = 0, .least = 1};
    for (size_t i = 0; i < set->count; i++) {
        const struct perfmodel_cpu_task *task = set->task[i];
        int64_t pieces = lesser(task->pieces - 1, window_ns / task->deadline_ns);
        those.most = pieces > those.most ? pieces : those.most;
    }
    return those;
}

/* Of stream i beside what is due, at most. */
static int64_t beside(const struct set *set, size_t i, core_ns window_ns, int64_t due, int64_t bursts)
{
    if (set->worker->burst_pieces == 1)
        return due == 0;
    int64_t more = supply(set, i, window_ns) - due;
    return more > 0 ? lesser(bursts, more) : 0;
}

/* The left side. */
static core_ns need_ns(struct set *set, core_ns window_ns, struct those those)
{
    const int64_t burst = set->worker->burst_pieces;
    int64_t lanes = burst + those.most * (burst - 1), due_pieces = 0;
    perfmodel_wide due_ns = 0,
                   more_ns = set->lanes_ns + (perfmodel_wide)those.most * (set->lanes_ns - set->surcharge_ns);
    for (size_t i = 0; i < set->count; i++) {
        const struct perfmodel_cpu_task *task = set->task[i];
        core_ns x_ns = window_ns - task->urgency_ns;
        int64_t due = x_ns >= 0 ? perfmodel_cpu_count(task, x_ns) : 0;
        due_pieces += due;
        due_ns += (perfmodel_wide)due * (task->cost_ns + set->surcharge_ns);
        int64_t more = lanes > 0 ? lesser(lanes, beside(set, i, window_ns, due, those.most + 1)) : 0;
        lanes -= more;
        more_ns += (perfmodel_wide)more * task->cost_ns;
    }
    perfmodel_wide carried_ns = (perfmodel_wide)(due_pieces - those.least) * set->lane_ns;
    more_ns += carried_ns < set->left_ns ? carried_ns : set->left_ns;
    set->result.blocking_ns = perfmodel_wide_limit(more_ns, HORIZON_NS_MAX);
    return perfmodel_wide_limit(due_ns + more_ns, HORIZON_NS_MAX);
}

static int by_urgency_falling(const void *a, const void *b)
{
    const struct perfmodel_cpu_task *const *x = a, *const *y = b;
    return ((*x)->urgency_ns < (*y)->urgency_ns) - ((*x)->urgency_ns > (*y)->urgency_ns);
}

/* All of the left side but the first sum, at most. */
static perfmodel_wide beside_due_ns(const struct set *set)
{
    const int64_t burst = set->worker->burst_pieces, most = packets_within(set, HORIZON_NS_MAX).most;
    return set->left_ns + (perfmodel_wide)(most + 1) * set->lanes_ns +
           (burst + most * (burst - 1)) * (perfmodel_wide)set->task[0]->cost_ns;
}

/* H. In units of 2^-62, so that nothing is rounded but the shares, which fall with their intervals as they are. */
static perfmodel_wide horizon_ns(const struct set *set, perfmodel_wide share)
{
    const struct perfmodel_cpu_task *task[MOST];
    perfmodel_wide ahead = beside_due_ns(set) + 2; /* of what is withheld, rounded up */
    perfmodel_wide left = PERFMODEL_SHARE_ONE * (PERFMODEL_PPB - set->reserve_ppb) / PERFMODEL_PPB - share;
    for (size_t i = 0; i < set->count; i++) {
        task[i] = set->task[i];
        ahead += burst_ns(set, task[i]);
    }
    if (left <= 0 || ahead > HORIZON_NS_MAX)
        return (perfmodel_wide)HORIZON_NS_MAX + 1;
    ahead *= PERFMODEL_SHARE_ONE;
    for (size_t i = 0; i < set->count; i++)
        ahead -= task[i]->urgency_ns * share_of(set, task[i]);
    qsort(task, set->count, sizeof *task, by_urgency_falling);
    for (size_t i = 0; i < set->count; i++) {
        perfmodel_wide from_ns = perfmodel_wide_divide_up(ahead, left), own = share_of(set, task[i]);
        if (from_ns > task[i]->urgency_ns)
            return from_ns;
        ahead -= burst_ns(set, task[i]) * PERFMODEL_SHARE_ONE - task[i]->urgency_ns * own;
        left += own;
    }
    return 0;
}

/* Windows are judged in steps (lower, top], 64 an octave, the same for all sets: their length at one. */
static core_ns step_at(core_ns window_ns)
{
    int bits = 64 - __builtin_clzll((unsigned long long)(window_ns - 1) | 1);
    return (core_ns)1 << (bits > STEP_BITS + 1 ? bits - STEP_BITS - 1 : 0);
}

static core_ns step_lower(core_ns window_ns)
{
    return (window_ns - 1) / step_at(window_ns) * step_at(window_ns);
}

/* Is what is due in any window of least_ns and more done lag_ns after it? Until then others may go first. */
static bool judge_windows(struct set *set, core_ns from_ns, core_ns least_ns, core_ns lag_ns,
                          struct those (*within)(const struct set *, core_ns))
{
    const core_ns end_ns = least_ns + lag_ns;
    core_ns window_ns = from_ns;
    while (window_ns >= end_ns) {
        core_ns lower_ns = step_lower(window_ns),
                need = need_ns(set, window_ns, within(set, window_ns - lag_ns));
        core_ns kept_ns = window_ns - there_ns(set, window_ns);
        if (need > there_ns(set, core_time_max(lower_ns, end_ns))) {
            refuse(set, window_ns, need - set->result.blocking_ns);
            return false;
        }
        /* steps in which what is due now is not too much hold as well */
        core_ns next_ns = need + kept_ns > 0 ? step_lower(need + kept_ns) + step_at(need + kept_ns) : 0;
        window_ns = core_time_min(next_ns, lower_ns);
    }
    set->result.accepted = true;
    set->result.binding = PERFMODEL_LIMIT_NONE;
    return true;
}

/* The least theta that holds of none and of the profile's longest burst, halved and doubled; where none does
 * all of a packet may be late. They are the same for sets with fewer streams, longer deadlines and intervals,
 * which stay accepted if they were. */
static void find_lag(struct set *set, core_ns from_ns)
{
    core_ns least_ns = CORE_NS_NEVER, longest_ns = 0, lag_ns = 0;
    for (size_t i = 0; i < set->count; i++) {
        const struct perfmodel_cpu_task *task = set->task[i];
        if (task->pieces == 1)
            continue;
        least_ns = core_time_min(task->deadline_ns, least_ns);
        longest_ns = core_time_max(task->spacing_ns, longest_ns);
    }
    if (set->left_ns == 0)
        return;
    while (lag_ns < longest_ns) {
        set_left(set, lag_ns);
        if (judge_windows(set, from_ns, least_ns, lag_ns, pieces_within))
            return;
        lag_ns = lag_ns > 0 ? 2 * lag_ns : set->worker->burst_ns / 16 + 1;
    }
    set_left(set, CORE_LATENCY_NS_MAX);
}

struct perfmodel_edf_result perfmodel_edf_packets_test(const struct perfmodel_cpu_task *tasks, size_t count,
                                                       const struct perfmodel_cpu_worker *worker,
                                                       int64_t reserve_ppb)
{
    assert(count <= MOST && reserve_ppb >= 0 && reserve_ppb <= PERFMODEL_PPB);
    struct set set = {.count = count, .worker = worker, .reserve_ppb = reserve_ppb};
    perfmodel_wide share = 0;
    set.result = (struct perfmodel_edf_result){.accepted = true, .by_packets = true};
    if (count == 0)
        return set.result;
    fill(&set, tasks);
    for (size_t i = 0; i < count; i++)
        share += share_of(&set, &tasks[i]);
    set.result.utilisation_ppb = perfmodel_wide_share_ppb(share);
    for (size_t j = 0; j < count && count <= worker->burst_pieces && set.result.accepted; j++)
        judge_rounds(&set, j);
    if (count <= worker->burst_pieces)
        return set.result;
    perfmodel_wide from_ns = horizon_ns(&set, share);
    if (from_ns <= HORIZON_NS_MAX) {
        find_lag(&set, (core_ns)from_ns);
        (void)judge_windows(&set, (core_ns)from_ns, set.least_ns, 0, packets_within);
        set.result.lag_ns = set.lag_ns;
    } else {
        set.result.accepted = false;
        set.result.binding = PERFMODEL_LIMIT_CPU_UTILISATION;
    }
    return set.result;
}
