#include "bench/analyses/gedf.h"

#include "bench/analyses/exact.h"
#include "bench/analyses/gedf_points.h"

#include <math.h>

#define NEAR 1e-9

const char *const analyses_gedf_names[ANALYSES_GEDF_TESTS] = {"GFB",  "BAK", "BAR",   "BCL",
                                                              "BCLI", "RTA", "FFDBF", "LOAD"};

typedef struct analyses_gedf_task task_type;

int analyses_gedf_compare_utilisation(const struct analyses_gedf_task *tasks, size_t count, int64_t bound)
{
    struct analyses_exact exact;
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += (double)tasks[i].cost / (double)tasks[i].period;
    if (fabs(sum - (double)bound) > NEAR * (1 + sum)) /* no rounding adds up to that */
        return sum < (double)bound ? -1 : 1;
    analyses_exact_set(&exact, 0, 1);
    for (size_t i = 0; i < count; i++)
        analyses_exact_add(&exact, tasks[i].cost, tasks[i].period);
    return analyses_exact_compare_to(&exact, bound, 1);
}

/* Each C within D and T, and all of it within m. */
static bool feasible(unsigned m, const task_type *tasks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (tasks[i].cost > analyses_min(tasks[i].deadline, tasks[i].period))
            return false;
    return analyses_gedf_compare_utilisation(tasks, count, m) <= 0;
}

/* ---- GFB ---- */

static bool gfb(unsigned m, const task_type *tasks, size_t count)
{
    const task_type *densest = &tasks[0];
    struct analyses_exact sum;

    analyses_exact_set(&sum, 0, 1);
    for (size_t i = 0; i < count; i++) {
        analyses_exact_add(&sum, tasks[i].cost, analyses_min(tasks[i].deadline, tasks[i].period));
        if (tasks[i].cost * analyses_min(densest->deadline, densest->period) >
            densest->cost * analyses_min(tasks[i].deadline, tasks[i].period))
            densest = &tasks[i];
    }
    analyses_exact_add(&sum, (m - 1) * densest->cost, analyses_min(densest->deadline, densest->period));
    return analyses_exact_compare_to(&sum, m, 1) <= 0;
}

/* ---- BAK ---- */

/* min(1, beta) of task i beside task k: u (1 + (T - D) / D_k), and (C - lambda T) / D_k where lambda_k < u. */
static void add_beta(struct analyses_exact *sum, const task_type *i, const task_type *k)
{
    const int64_t shortest = analyses_min(k->deadline, k->period);
    int64_t over = i->cost * (k->deadline + analyses_max(0, i->period - i->deadline)) * shortest;
    const int64_t under = i->period * k->deadline * shortest;

    if (k->cost * i->period < i->cost * shortest)
        over += i->period * (i->cost * shortest - k->cost * i->period);
    analyses_exact_add(sum, analyses_min(over, under), under);
}

static bool bak(unsigned m, const task_type *tasks, size_t count)
{
    for (size_t k = 0; k < count; k++) {
        const int64_t shortest = analyses_min(tasks[k].deadline, tasks[k].period);
        struct analyses_exact sum;
        analyses_exact_set(&sum, (m - 1) * tasks[k].cost, shortest);
        for (size_t i = 0; i < count; i++)
            add_beta(&sum, &tasks[i], &tasks[k]);
        if (analyses_exact_compare_to(&sum, m, 1) > 0)
            return false;
    }
    return true;
}

/* ---- BCL and BCLI ---- */

/* What the jobs of i with deadlines up to that of k can do in its window, when each ends slack before its own. */
static int64_t edf_work(const task_type *i, const task_type *k, int64_t slack)
{
    const int64_t jobs = k->deadline / i->period;

    return jobs * i->cost + analyses_min(i->cost, analyses_max(0, k->deadline - jobs * i->period - slack));
}

static bool bcl(unsigned m, const task_type *tasks, size_t count)
{
    for (size_t k = 0; k < count; k++) {
        const int64_t room = tasks[k].deadline - tasks[k].cost;
        int64_t sum = 0;
        bool within = false; /* is some beta in (0, 1 - lambda_k]? */
        for (size_t i = 0; i < count; i++) {
            if (i == k)
                continue;
            const int64_t jobs =
                analyses_max(0, analyses_floor(tasks[k].deadline - tasks[i].deadline, tasks[i].period) + 1);
            const int64_t beta =
                jobs * tasks[i].cost +
                analyses_min(tasks[i].cost, analyses_max(0, tasks[k].deadline - jobs * tasks[i].period));
            sum += analyses_min(beta, room);
            within = within || (beta > 0 && beta <= room);
        }
        if (sum > m * room || (sum == m * room && !within))
            return false;
    }
    return true;
}

/* Rounds of one test with the slack that the tasks were found to have. `respond` gives the response of task k. */
static bool iterate(unsigned m, const task_type *tasks, size_t count, int64_t *response,
                    int64_t (*respond)(unsigned m, const task_type *tasks, size_t count, const int64_t *slack,
                                       size_t k))
{
    int64_t slack[ANALYSES_GEDF_TASKS] = {0};
    bool passes = false, changed = true;

    while (changed && !passes) {
        passes = true;
        changed = false;
        for (size_t k = 0; k < count; k++) {
            response[k] = respond(m, tasks, count, slack, k);
            if (response[k] > tasks[k].deadline) {
                response[k] = ANALYSES_NEVER;
                passes = false;
            } else if (tasks[k].deadline - response[k] > slack[k]) {
                slack[k] = tasks[k].deadline - response[k];
                changed = true;
            }
        }
    }
    return passes;
}

static int64_t respond_bcli(unsigned m, const task_type *tasks, size_t count, const int64_t *slack, size_t k)
{
    int64_t sum = 0;

    for (size_t i = 0; i < count; i++)
        if (i != k)
            sum +=
                analyses_min(edf_work(&tasks[i], &tasks[k], slack[i]), tasks[k].deadline - tasks[k].cost + 1);
    return tasks[k].cost + sum / m;
}

/* ---- RTA ---- */

/* What i can do in any window when each job ends slack before its deadline. */
static int64_t work(const task_type *i, int64_t window, int64_t slack)
{
    const int64_t reach = window + i->deadline - i->cost - slack;

    return reach / i->period * i->cost + analyses_min(i->cost, reach % i->period);
}

static int64_t respond_rta(unsigned m, const task_type *tasks, size_t count, const int64_t *slack, size_t k)
{
    int64_t response = tasks[k].cost, last;

    do {
        int64_t sum = 0;
        last = response;
        for (size_t i = 0; i < count; i++)
            if (i != k)
                sum += analyses_min(
                    analyses_min(edf_work(&tasks[i], &tasks[k], slack[i]), work(&tasks[i], last, slack[i])),
                    last - tasks[k].cost + 1);
        response = tasks[k].cost + sum / m;
    } while (response != last && response <= tasks[k].deadline);
    return response;
}

bool analyses_gedf_respond(unsigned m, const struct analyses_gedf_task *tasks, size_t count,
                           int64_t *response)
{
    for (size_t k = 0; k < count; k++)
        response[k] = ANALYSES_NEVER;
    return feasible(m, tasks, count) && iterate(m, tasks, count, response, respond_rta);
}

bool analyses_gedf_passes(enum analyses_gedf_test test, unsigned m, const struct analyses_gedf_task *tasks,
                          size_t count)
{
    int64_t response[ANALYSES_GEDF_TASKS];

    switch (test) {
    case ANALYSES_GFB:
        return gfb(m, tasks, count);
    case ANALYSES_BAK:
        return bak(m, tasks, count);
    case ANALYSES_BAR:
        return feasible(m, tasks, count) && analyses_gedf_bar(m, tasks, count);
    case ANALYSES_BCL:
        return bcl(m, tasks, count);
    case ANALYSES_BCLI:
        return feasible(m, tasks, count) && iterate(m, tasks, count, response, respond_bcli);
    case ANALYSES_RTA:
        return analyses_gedf_respond(m, tasks, count, response);
    case ANALYSES_FFDBF:
        return m >= 2 && feasible(m, tasks, count) && analyses_gedf_ffdbf(m, tasks, count);
    default:
        return feasible(m, tasks, count) && analyses_gedf_load(m, tasks, count);
    }
}
