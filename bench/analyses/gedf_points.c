#include "bench/analyses/gedf_points.h"

#include "bench/analyses/exact.h"

#include <math.h>
#include <stdlib.h>

#define BAR_POINTS_MAX   1000000
#define EPSILON_PER_UNIT 10 /* epsilon is 1 / 10 */
#define SPEEDS           50 /* sigma in multiples of 1 / 50 */

typedef struct analyses_gedf_task task_type;

/* Jobs that come and are due within t. */
static int64_t demand(const task_type *task, int64_t t)
{
    return t < task->deadline ? 0 : ((t - task->deadline) / task->period + 1) * task->cost;
}

/* With a job that is carried in. */
static int64_t demand_carried(const task_type *task, int64_t t)
{
    return t / task->period * task->cost + analyses_min(task->cost, t % task->period);
}

static int greatest_first(const void *left, const void *right)
{
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;

    return (a < b) - (a > b);
}

/* ---- BAR ---- */

static bool bar_holds(unsigned m, const task_type *tasks, size_t count, size_t k, int64_t a)
{
    const int64_t window = a + tasks[k].deadline, room = window - tasks[k].cost;
    int64_t sum = 0, more[ANALYSES_GEDF_TASKS];

    for (size_t i = 0; i < count; i++) {
        const int64_t cut = i == k ? a : room + 1, own = i == k ? tasks[k].cost : 0;
        const int64_t i1 = analyses_min(demand(&tasks[i], window) - own, cut);
        sum += i1;
        more[i] = analyses_min(demand_carried(&tasks[i], window) - own, cut) - i1;
    }
    qsort(more, count, sizeof more[0], greatest_first);
    for (size_t i = 0; i + 1 < m && i < count; i++)
        sum += more[i];
    return sum <= m * room;
}

/* Beyond it the condition holds. */
static int64_t bar_last(unsigned m, const task_type *tasks, size_t count, size_t k)
{
    int64_t cost[ANALYSES_GEDF_TASKS];
    long double left = m, sum = 0;

    for (size_t i = 0; i < count; i++) {
        cost[i] = tasks[i].cost;
        left -= (long double)tasks[i].cost / (long double)tasks[i].period;
        sum += (long double)((tasks[i].period - tasks[i].deadline) * tasks[i].cost) /
               (long double)tasks[i].period;
    }
    qsort(cost, count, sizeof cost[0], greatest_first);
    for (size_t i = 0; i + 1 < m && i < count; i++)
        sum += (long double)cost[i];
    sum += (long double)(m * tasks[k].cost);
    if (left < 1e-15L)
        return INT64_MAX;
    const long double last = sum / left - (long double)tasks[k].deadline;
    return last < 0 ? -1 : (int64_t)fminl(last + 1e-9L, 4e18L);
}

bool analyses_gedf_bar(unsigned m, const struct analyses_gedf_task *tasks, size_t count)
{
    int64_t points = 0;

    for (size_t k = 0; k < count; k++) {
        const int64_t last = bar_last(m, tasks, count, k);
        for (size_t i = 0; i < count; i++) {
            int64_t a = tasks[i].deadline - tasks[k].deadline;
            if (a < 0)
                a += analyses_ceil(-a, tasks[i].period) * tasks[i].period;
            for (; a <= last; a += tasks[i].period)
                if (points++ == BAR_POINTS_MAX || !bar_holds(m, tasks, count, k, a))
                    return false;
        }
    }
    return true;
}

/* ---- FFDBF ---- */

/* A time or a speed. */
struct fraction {
    int64_t over, under;
};

static int compare(struct fraction a, struct fraction b)
{
    const __int128 left = (__int128)a.over * b.under, right = (__int128)b.over * a.under;

    return (left > right) - (left < right);
}

/* Forced-forward demand of all tasks in a window of t against what is left at this speed. */
static bool speed_holds(unsigned m, const task_type *tasks, size_t count, struct fraction t,
                        struct fraction speed)
{
    const __int128 unit = (__int128)t.under * speed.under; /* everything below is in 1 / unit */
    __int128 sum = 0;

    for (size_t i = 0; i < count; i++) {
        const int64_t jobs = t.over / (tasks[i].period * t.under);
        const __int128 rest = t.over - (__int128)jobs * tasks[i].period * t.under; /* in 1 / t.under */
        const __int128 lacks = (__int128)tasks[i].deadline * t.under - rest;
        sum += jobs * tasks[i].cost * unit;
        /* rest >= D - C / speed */
        if (lacks * speed.over <= (__int128)tasks[i].cost * speed.under * t.under)
            sum += tasks[i].cost * unit - (lacks >= 0 ? lacks * speed.over : 0);
    }
    return sum <= ((__int128)m * speed.under - (__int128)(m - 1) * speed.over) * t.over;
}

/* The next point after t, of all D + j T and those by C / speed (not more than D) before. */
static struct fraction next_point(const task_type *tasks, size_t count, struct fraction t,
                                  struct fraction speed)
{
    struct fraction next = {INT64_MAX, 1};

    for (size_t i = 0; i < count; i++) {
        const struct fraction before = {
            analyses_min(tasks[i].cost * speed.under, tasks[i].deadline * speed.over), speed.over};
        for (int64_t due = t.over / (tasks[i].period * t.under) * tasks[i].period + tasks[i].deadline -
                           2 * tasks[i].period;
             ; due += tasks[i].period) {
            const struct fraction points[2] = {{due * speed.over - before.over, speed.over}, {due, 1}};
            if (due >= tasks[i].deadline)
                for (int p = 0; p < 2; p++)
                    if (compare(points[p], t) > 0 && compare(points[p], next) < 0)
                        next = points[p];
            if (due >= tasks[i].deadline && compare(points[0], t) > 0)
                break;
        }
    }
    return next;
}

bool analyses_gedf_ffdbf(unsigned m, const struct analyses_gedf_task *tasks, size_t count)
{
    struct fraction speed = {0, 1}, t = {0, 1};
    struct analyses_exact most; /* m - (m - 1) (speed + epsilon) must be U at least */
    int64_t last = 0;

    for (size_t i = 0; i < count; i++) {
        const struct fraction density = {tasks[i].cost, tasks[i].deadline};
        if (compare(density, speed) > 0)
            speed = density;
        last += EPSILON_PER_UNIT * tasks[i].cost;
    }
    int64_t step = speed.over * SPEEDS / speed.under;
    for (;;) {
        analyses_exact_set(&most, (m - 1) * speed.over, speed.under);
        analyses_exact_add(&most, m - 1, EPSILON_PER_UNIT);
        for (size_t i = 0; i < count; i++)
            analyses_exact_add(&most, tasks[i].cost, tasks[i].period);
        if (speed.over > speed.under || analyses_exact_compare_to(&most, m, 1) > 0)
            return false;
        if (t.over == 0 || speed_holds(m, tasks, count, t, speed)) {
            do
                t = next_point(tasks, count, t, speed);
            while (compare(t, (struct fraction){last, 1}) <= 0 && speed_holds(m, tasks, count, t, speed));
            if (compare(t, (struct fraction){last, 1}) > 0)
                return true;
        }
        speed = (struct fraction){++step, SPEEDS};
    }
}

/* ---- LOAD ---- */

/* Sums what all tasks demand of a window t, over t: exact for the first jobs[i] + 1 jobs of each, from above later. */
static void load_at(const task_type *tasks, size_t count, const int64_t *jobs, int64_t t,
                    struct analyses_exact *load)
{
    int64_t whole = 0;

    analyses_exact_set(load, 0, 1);
    for (size_t i = 0; i < count; i++) {
        if (t <= jobs[i] * tasks[i].period + tasks[i].deadline)
            whole += demand(&tasks[i], t);
        else {
            whole += tasks[i].cost;
            analyses_exact_add(load, tasks[i].cost * (t - tasks[i].deadline), tasks[i].period * t);
        }
    }
    analyses_exact_add(load, whole, t);
}

/* The load, or the sum of densities where that is less: it is enough. */
static void approximate_load(const task_type *tasks, size_t count, struct analyses_exact *load)
{
    struct analyses_exact density, at;
    int64_t jobs[ANALYSES_GEDF_TASKS];

    analyses_exact_set(load, 0, 1);
    analyses_exact_set(&density, 0, 1);
    for (size_t i = 0; i < count; i++) {
        analyses_exact_add(load, tasks[i].cost, tasks[i].period);
        analyses_exact_add(&density, tasks[i].cost, tasks[i].deadline);
        jobs[i] = analyses_max(
            0, analyses_ceil(tasks[i].cost * (int64_t)count * EPSILON_PER_UNIT - tasks[i].deadline,
                             tasks[i].period));
    }
    if (analyses_exact_compare(&density, load) <= 0)
        return;
    analyses_exact_add(load, 1, EPSILON_PER_UNIT);
    for (size_t i = 0; i < count; i++)
        for (int64_t j = 0; j <= jobs[i]; j++) {
            load_at(tasks, count, jobs, tasks[i].deadline + j * tasks[i].period, &at);
            if (analyses_exact_compare(&at, &density) > 0) {
                *load = density;
                return;
            }
            if (analyses_exact_compare(&at, load) > 0)
                *load = at;
        }
}

bool analyses_gedf_load(unsigned m, const struct analyses_gedf_task *tasks, size_t count)
{
    struct fraction d = {0, 1};
    struct analyses_exact load;

    for (size_t i = 0; i < count; i++)
        if (compare((struct fraction){tasks[i].cost, tasks[i].deadline}, d) > 0)
            d = (struct fraction){tasks[i].cost, tasks[i].deadline};
    const int64_t mu = m * d.under - (m - 1) * d.over,
                  above = analyses_ceil(mu, d.under) - 1; /* mu over d.under */
    const int64_t bound = analyses_max(mu - above * d.over, above * d.under - (above - 1) * d.over);
    approximate_load(tasks, count, &load);
    return analyses_exact_compare_to(&load, bound, d.under) <= 0;
}
