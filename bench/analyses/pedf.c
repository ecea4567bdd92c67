#include "bench/analyses/pedf.h"

#include <math.h>

typedef struct analyses_gedf_task task_type;

static int64_t busy_period(const task_type *tasks, size_t count)
{
    int64_t length = 0, next = 0;

    for (size_t i = 0; i < count; i++)
        next += tasks[i].cost;
    while (next != length) {
        length = next;
        next = 0;
        for (size_t i = 0; i < count; i++)
            next += analyses_ceil(length, tasks[i].period) * tasks[i].cost;
    }
    return length;
}

static int64_t horizon(const task_type *tasks, size_t count, int64_t busy)
{
    long double left = 1, sum = 0;
    int64_t longest = 0;

    for (size_t i = 0; i < count; i++) {
        const long double share = (long double)tasks[i].cost / (long double)tasks[i].period;
        left -= share;
        sum += (long double)(tasks[i].period - tasks[i].deadline) * share;
        longest = analyses_max(longest, tasks[i].deadline);
    }
    if (analyses_gedf_compare_utilisation(tasks, count, 1) < 0) {
        const long double last = ceill(sum / left - 1e-12L);
        busy = last < (long double)busy ? (int64_t)last : busy;
    }
    return analyses_max(longest, busy);
}

static int64_t demand(const task_type *tasks, size_t count, int64_t t)
{
    int64_t sum = 0;

    for (size_t i = 0; i < count; i++)
        if (tasks[i].deadline <= t)
            sum += ((t - tasks[i].deadline) / tasks[i].period + 1) * tasks[i].cost;
    return sum;
}

struct analyses_pedf analyses_pedf_test(const struct analyses_gedf_task *tasks, size_t count)
{
    struct analyses_pedf result = {.violation = -1,
                                   .demand = -1,
                                   .slack = ANALYSES_NEVER,
                                   .slack_at = -1,
                                   .horizon = -1,
                                   .busy_period = -1};

    result.overloaded = analyses_gedf_compare_utilisation(tasks, count, 1) > 0;
    if (result.overloaded)
        return result;
    result.busy_period = busy_period(tasks, count);
    result.horizon = horizon(tasks, count, result.busy_period);
    for (size_t i = 0; i < count; i++)
        for (int64_t t = tasks[i].deadline; t <= result.horizon; t += tasks[i].period) {
            const int64_t due = demand(tasks, count, t), slack = t - due;
            if (slack < result.slack || (slack == result.slack && t < result.slack_at)) {
                result.slack = slack;
                result.slack_at = t;
            }
            if (slack < 0 && (result.violation < 0 || t < result.violation)) {
                result.violation = t;
                result.demand = due;
            }
        }
    result.passes = result.violation < 0;
    return result;
}

/* L(a) - a, not less than C. */
static int64_t response_from(const task_type *tasks, size_t count, size_t task, int64_t a)
{
    const int64_t due = a + tasks[task].deadline;
    int64_t length = 0, next = 1;

    while (next > length) {
        length = next;
        next = (a / tasks[task].period + 1) * tasks[task].cost;
        for (size_t j = 0; j < count; j++)
            if (j != task && tasks[j].deadline <= due)
                next += analyses_min(analyses_ceil(length, tasks[j].period),
                                     (due - tasks[j].deadline) / tasks[j].period + 1) *
                        tasks[j].cost;
    }
    return analyses_max(tasks[task].cost, next - a);
}

int64_t analyses_pedf_respond(const struct analyses_gedf_task *tasks, size_t count, size_t task)
{
    const int64_t busy = busy_period(tasks, count);
    int64_t longest = tasks[task].cost;

    for (size_t j = 0; j < count; j++) {
        int64_t a = tasks[j].deadline - tasks[task].deadline;
        if (a < 0)
            a += analyses_ceil(-a, tasks[j].period) * tasks[j].period;
        for (; a < busy; a += tasks[j].period)
            longest = analyses_max(longest, response_from(tasks, count, task, a));
    }
    return longest;
}
