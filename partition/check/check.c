#include "partition/check/check.h"

#include "partition/check/check_gpu.h"
#include "partition/check/check_worker.h"

#include <stdlib.h>

static uint32_t cards_of(const struct config_profile *profile)
{
    uint32_t cards = 0;
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++)
        cards += profile->gpus[kind].count;
    return cards;
}

static core_status check_shape(const struct partition_plan_input *input, const struct partition_plan *plan,
                               struct core_error *error)
{
    if (!plan->accepted || plan->unit == NULL)
        return core_error_set(error, CORE_REFUSED, "the plan places nothing");
    if (plan->count != input->count || plan->workers != input->workers || plan->paper != input->paper ||
        plan->gpus != cards_of(input->profile))
        return core_error_set(error, CORE_REFUSED, "the plan is of another input");
    for (size_t i = 0; i < plan->count; i++)
        if (plan->unit[i] >= plan->workers + plan->gpus)
            return core_error_set(error, CORE_REFUSED, "stream %zu is on unit %u, of which there is none", i,
                                  plan->unit[i]);
    return CORE_OK;
}

static core_status check_kinds(const struct partition_plan_input *input, const struct partition_plan *plan,
                               struct core_error *error)
{
    uint32_t g = 0;
    for (uint32_t kind = 0; kind < input->profile->gpu_count; kind++)
        for (uint32_t i = 0; i < input->profile->gpus[kind].count; i++, g++)
            if (plan->gpu[g].kind != kind)
                return core_error_set(error, CORE_REFUSED, "GPU %u is taken for another kind of card", g);
    return CORE_OK;
}

/* The streams of a unit, in the order of the input. */
static size_t members_of(const struct partition_plan *plan, uint32_t unit, size_t *member)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->count; i++)
        if (plan->unit[i] == unit)
            member[count++] = i;
    return count;
}

static core_status check_pinned(const struct partition_plan_input *input, const struct partition_plan *plan,
                                struct core_error *error)
{
    long double pinned = 0;
    for (uint32_t g = 0; g < plan->gpus; g++)
        pinned += (long double)plan->gpu[g].memory_bytes;
    if (plan->gpus > 0 && pinned > (long double)input->profile->pinned_bytes)
        return core_error_set(error, CORE_REFUSED, "the arenas of all GPUs exceed the pinned budget");
    return CORE_OK;
}

core_status partition_check(const struct partition_plan_input *input, const struct partition_plan *plan,
                            struct core_error *error)
{
    core_status status = check_shape(input, plan, error);
    if (status == CORE_OK)
        status = check_kinds(input, plan, error);
    if (status != CORE_OK)
        return status;
    size_t *member = malloc((plan->count + 1) * sizeof *member);
    if (member == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a check of %zu streams", plan->count);
    for (uint32_t w = 0; status == CORE_OK && w < plan->workers; w++) {
        size_t count = members_of(plan, w, member);
        status = partition_check_worker(input, &plan->worker[w], member, count, error);
        if (status != CORE_OK)
            status = core_error_prefix(error, status, "worker %u", w);
    }
    for (uint32_t g = 0; status == CORE_OK && g < plan->gpus; g++) {
        size_t count = members_of(plan, plan->workers + g, member);
        status = partition_check_gpu(input, &plan->gpu[g], member, count, error);
        if (status != CORE_OK)
            status = core_error_prefix(error, status, "GPU %u", g);
    }
    free(member);
    return status == CORE_OK ? check_pinned(input, plan, error) : status;
}
