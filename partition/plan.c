#include "partition/plan.h"

#include "partition/search/methods.h"
#include "partition/search/problem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct partition_plan_method partition_plan_methods[] = {
    {"rectangle", "a rectangle of rates and deadlines to the GPUs as one (SYSTOR 2012: Virtual GPU)", true,
     partition_rectangle_make},
    {"bands", "bands of deadlines, one a GPU with a period of its own; or the rectangle where that holds",
     true, partition_bands_make},
    {"min-rate", "the highest rates to the CPUs, the rest to the GPUs at random (baseline)", true,
     partition_min_rate_make},
    {"max-deadline", "the shortest deadlines to the CPUs, the rest to the GPUs at random (baseline)", true,
     partition_max_deadline_make},
    {"bound", "fluid upper bound: refuses what no plan could carry", false, partition_bound_make},
    {0},
};

const struct partition_plan_method *partition_plan_method_find(const char *name)
{
    for (const struct partition_plan_method *method = partition_plan_methods; method->name != NULL; method++)
        if (strcmp(method->name, name) == 0)
            return method;
    return NULL;
}

void partition_plan_refuse(struct partition_plan *plan, enum perfmodel_limit binding, uint32_t unit,
                           const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(plan->reason, sizeof plan->reason, format, arguments);
    va_end(arguments);
    plan->accepted = false;
    plan->binding = binding;
    plan->binding_unit = unit;
}

static core_status check_input(const struct partition_plan_input *input, struct core_error *error)
{
    if (input->workers == 0 || input->workers > PARTITION_PLAN_WORKERS_MAX)
        return core_error_set(error, CORE_INVALID, "%u workers: must be 1 to %d", input->workers,
                              PARTITION_PLAN_WORKERS_MAX);
    if (input->count > PARTITION_PLAN_STREAMS_MAX)
        return core_error_set(error, CORE_INVALID, "%zu streams: must be at most %zu", input->count,
                              PARTITION_PLAN_STREAMS_MAX);
    for (size_t i = 0; i < input->count; i++)
        if (core_stream_spec_check(&input->specs[i], error) != CORE_OK)
            return core_error_prefix(error, CORE_INVALID, "stream %zu", i);
    return CORE_OK;
}

struct partition_plan *partition_plan_create(const struct partition_plan_method *method,
                                             const struct partition_plan_input *input)
{
    struct partition_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return NULL;
    plan->method = method;
    plan->paper = input->paper;
    plan->count = input->count;
    plan->workers = input->workers;
    for (uint32_t kind = 0; kind < input->profile->gpu_count; kind++)
        plan->gpus += input->profile->gpus[kind].count;
    plan->unit = calloc(plan->count + 1, sizeof *plan->unit);
    plan->worker = calloc(plan->workers, sizeof *plan->worker);
    plan->gpu = calloc(plan->gpus + 1, sizeof *plan->gpu);
    if (plan->unit != NULL && plan->worker != NULL && plan->gpu != NULL)
        return plan;
    partition_plan_destroy(plan);
    return NULL;
}

void partition_plan_destroy(struct partition_plan *plan)
{
    if (plan == NULL)
        return;
    free(plan->unit);
    free(plan->worker);
    free(plan->gpu);
    free(plan);
}

void partition_plan_explain_accepted(struct partition_plan *plan)
{
    if (plan->binding == PERFMODEL_LIMIT_NONE || !plan->method->places)
        return;
    bool worker = !partition_unit_is_gpu(plan->workers, plan->binding_unit);
    snprintf(plan->reason, sizeof plan->reason, "%.2f %% of room left, where %s %u is bound by %s",
             (double)plan->headroom_ppb / 1e7, worker ? "worker" : "GPU",
             worker ? plan->binding_unit : partition_unit_gpu(plan->workers, plan->binding_unit),
             perfmodel_limit_name(plan->binding));
}

core_status partition_plan_make(const struct partition_plan_method *method,
                                const struct partition_plan_input *input, struct partition_plan **plan,
                                struct core_error *error)
{
    core_status status = check_input(input, error);
    if (status != CORE_OK)
        return status;
    struct partition_plan *made = partition_plan_create(method, input);
    status = made != NULL ? method->make(input, made) : CORE_NO_MEMORY;
    if (status != CORE_OK) {
        partition_plan_destroy(made);
        return core_error_set(error, status, "no memory for a plan of %zu streams", input->count);
    }
    if (made->accepted)
        partition_plan_explain_accepted(made);
    if (!made->accepted || !method->places) {
        free(made->unit);
        made->unit = NULL;
    }
    *plan = made;
    return CORE_OK;
}
