#include "bench/analyses/soft.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct analyses_gedf_task task_type;

static int greatest_first(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;

    return (a < b) - (a > b);
}

/* ceil(sum C / T), more than m where jobs' lateness is not bounded. */
static int64_t whole_utilisation(unsigned m, const task_type *tasks, size_t count)
{
    int64_t whole = 0;

    for (size_t i = 0; i < count; i++)
        if (tasks[i].cost > tasks[i].period)
            return (int64_t)m + 1;
    while (whole <= m && analyses_gedf_compare_utilisation(tasks, count, whole) > 0)
        whole++;
    return whole;
}

static double sum_of_first(double *values, size_t count, int64_t first)
{
    double sum = 0;

    qsort(values, count, sizeof values[0], greatest_first);
    for (int64_t i = 0; i < first && (size_t)i < count; i++)
        sum += values[i];
    return sum;
}

double analyses_soft_devi(unsigned m, const struct analyses_gedf_task *tasks, size_t count)
{
    const int64_t whole = whole_utilisation(m, tasks, count);
    double cost[ANALYSES_GEDF_TASKS], utilisation[ANALYSES_GEDF_TASKS], least = INFINITY;

    if (whole > m)
        return INFINITY;
    if (m == 1)
        return 0;
    for (size_t i = 0; i < count; i++) {
        cost[i] = (double)tasks[i].cost;
        utilisation[i] = cost[i] / (double)tasks[i].period;
        least = fmin(least, cost[i]);
    }
    const double work = sum_of_first(cost, count, whole - 1) - least;
    return fmax(0, work) / (m - sum_of_first(utilisation, count, whole - 2));
}

int64_t analyses_soft_point(unsigned m, const struct analyses_gedf_task *task, enum analyses_soft_rule rule)
{
    return task->deadline - (rule == ANALYSES_SOFT_FL ? (m - 1) * task->cost / m : 0);
}

/* A task's part of m s = sum S + (greatest parts): a line over s. */
struct line {
    double at_zero, slope, value;
};

static int by_value(const void *left, const void *right)
{
    const struct line *a = left, *b = right;

    return (a->value < b->value) - (a->value > b->value);
}

/* The least s that is enough. The greatest lines at one s give the next s, which is not beyond the solution, since
 * others can only be greater there; when the choice does not change any more, that is it. */
static double solve(unsigned m, double sum, struct line *lines, size_t count, int64_t picked)
{
    double s = 0, last = -1;

    while (s > last) {
        double work = sum, left = m;
        for (size_t i = 0; i < count; i++)
            lines[i].value = lines[i].at_zero + s * lines[i].slope;
        qsort(lines, count, sizeof lines[0], by_value);
        for (int64_t i = 0; i < picked && (size_t)i < count; i++) {
            work += lines[i].at_zero;
            left -= lines[i].slope;
        }
        last = s;
        s = work / left;
    }
    return s;
}

double analyses_soft_compliant(unsigned m, const struct analyses_gedf_task *tasks, size_t count,
                               enum analyses_soft_rule rule, double *response)
{
    const int64_t whole = whole_utilisation(m, tasks, count);
    struct line lines[ANALYSES_GEDF_TASKS];
    double sum = 0, s = INFINITY;
    int64_t least = rule == ANALYSES_SOFT_EDF_UNREDUCED ? 0 : INT64_MAX;

    for (size_t i = 0; i < count; i++)
        least = analyses_min(least, analyses_soft_point(m, &tasks[i], rule));
    for (size_t i = 0; i < count; i++) {
        const double cost = (double)tasks[i].cost;
        const double point = (double)(analyses_soft_point(m, &tasks[i], rule) - least);
        const double carried = cost * fmax(0, 1 - point / (double)tasks[i].period);
        lines[i].slope = cost / (double)tasks[i].period;
        lines[i].at_zero = cost - cost / m * lines[i].slope - carried;
        sum += carried;
    }
    if (whole <= m)
        s = solve(m, sum, lines, count, whole - 1);
    for (size_t i = 0; i < count; i++)
        response[i] = s - (double)tasks[i].cost / m + (double)tasks[i].cost +
                      (double)(analyses_soft_point(m, &tasks[i], rule) - least);
    return s;
}
