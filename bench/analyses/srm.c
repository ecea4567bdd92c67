#include "bench/analyses/srm.h"

#include "bench/analyses/locks.h"
#include "bench/analyses/soft.h"

#include <math.h>

#define TURNS_MAX 200
#define ROUNDING  1e-9 /* a real number that is a whole one may come out so much more */

static enum analyses_lock_protocol protocol_of(enum analyses_srm_variant variant)
{
    switch (variant) {
    case ANALYSES_SRM_FMLP:
        return ANALYSES_LOCK_FMLP;
    case ANALYSES_SRM_OMLP:
        return ANALYSES_LOCK_OMLP_PRINTED;
    default:
        return ANALYSES_LOCK_OMLP;
    }
}

static void block(unsigned m, const struct analyses_srm_task *tasks, size_t count,
                  enum analyses_srm_variant variant, struct analyses_srm_result *result)
{
    const struct analyses_lock_system system = {.m = m, .per_cluster = m, .replicas = 1};
    struct analyses_lock_task users[ANALYSES_SRM_TASKS];

    for (size_t i = 0; i < count; i++)
        users[i] = (struct analyses_lock_task){.period = tasks[i].period,
                                               .response = tasks[i].period + result->tardiness[i],
                                               .request_count = tasks[i].section > 0,
                                               .requests = {{0, 1, tasks[i].section}}};
    for (size_t i = 0; i < count; i++) {
        int64_t arrival;
        result->blocking[i] =
            analyses_lock_blocking(&system, users, count, protocol_of(variant), i, &arrival);
    }
}

/* With all that counts as execution. Returns whether equations 9 and 10 hold. */
static bool inflate(unsigned m, const struct analyses_srm_task *tasks, size_t count,
                    struct analyses_srm_result *result, struct analyses_gedf_task *inflated)
{
    bool fits = true;

    result->utilisation = 0;
    for (size_t i = 0; i < count; i++) {
        const int64_t cost = tasks[i].cpu + tasks[i].gpu + result->blocking[i];
        inflated[i] = (struct analyses_gedf_task){cost, tasks[i].period, tasks[i].period};
        fits = fits && cost <= tasks[i].period;
        result->utilisation += (double)cost / (double)tasks[i].period;
    }
    return fits && analyses_gedf_compare_utilisation(inflated, count, m) <= 0;
}

/* Returns whether it is another tardiness than before. */
static bool tardy(unsigned m, const struct analyses_gedf_task *inflated, size_t count, bool compliant,
                  struct analyses_srm_result *result)
{
    double response[ANALYSES_SRM_TASKS];
    bool changed = false;

    if (compliant)
        analyses_soft_compliant(m, inflated, count, ANALYSES_SOFT_EDF, response);
    else {
        const double x = analyses_soft_devi(m, inflated, count);
        for (size_t i = 0; i < count; i++)
            response[i] = x + (double)(inflated[i].cost + inflated[i].period);
    }
    for (size_t i = 0; i < count; i++) {
        const double late = ceil(response[i] - (double)inflated[i].period - ROUNDING);
        const int64_t tardiness = late > 0 ? (int64_t)late : 0;
        changed = changed || tardiness != result->tardiness[i];
        result->tardiness[i] = tardiness;
    }
    return changed;
}

struct analyses_srm_result analyses_srm_shared(unsigned m, const struct analyses_srm_task *tasks,
                                               size_t count, enum analyses_srm_variant variant)
{
    struct analyses_srm_result result = {.passes = false};
    struct analyses_gedf_task inflated[ANALYSES_SRM_TASKS];
    bool changed;

    do {
        result.turns++;
        block(m, tasks, count, variant, &result);
        if (!inflate(m, tasks, count, &result, inflated))
            return result;
        changed = tardy(m, inflated, count, variant == ANALYSES_SRM_OMLP2_CVA, &result);
    } while (changed && variant != ANALYSES_SRM_FMLP && result.turns < TURNS_MAX); /* FMLP's b needs no x */
    result.passes = !changed || variant == ANALYSES_SRM_FMLP;
    return result;
}

struct analyses_srm_container analyses_srm_contain(unsigned m, const struct analyses_srm_task *tasks,
                                                   size_t count)
{
    struct analyses_srm_container result = {.passes = false};
    struct analyses_gedf_task gpu[ANALYSES_SRM_TASKS], all[ANALYSES_SRM_TASKS];
    size_t users = 0;

    for (size_t i = 0; i < count; i++) {
        const int64_t cost = tasks[i].cpu + tasks[i].gpu;
        const double share = (double)cost / (double)tasks[i].period;
        all[i] = (struct analyses_gedf_task){cost, tasks[i].period, tasks[i].period};
        result.total += share;
        if (tasks[i].section > 0) {
            gpu[users++] = all[i];
            result.gpu += share;
        }
    }
    result.passes = analyses_gedf_compare_utilisation(gpu, users, 1) <= 0 &&
                    analyses_gedf_compare_utilisation(all, count, m) <= 0;
    return result;
}

double analyses_srm_gpu_utilisation(const struct analyses_srm_task *tasks, size_t count)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += (double)tasks[i].section / (double)tasks[i].period;
    return sum;
}

double analyses_srm_effective_utilisation(const struct analyses_srm_task *tasks, size_t count, double speed)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += ((double)(tasks[i].cpu + tasks[i].gpu) + (speed - 1) * (double)tasks[i].section) /
               (double)tasks[i].period;
    return sum;
}
