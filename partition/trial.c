/* Trials of a split: deal, compute, judge. */
#include "partition/problem.h"

#include <stdlib.h>

__extension__ typedef __int128 wide;

#define PPB_PER_PERCENT 1e7

/* The windows that the burst test must look at grow as 1 / (1 - U): the last half of a per mille of a worker
 * would cost most of the time of a plan. */
#define SHARE_PLANNED (PARTITION_SHARE_ONE - PARTITION_SHARE_ONE / 2000)

/* ---- workers ---- */

static uint32_t least_loaded(const struct partition_problem *problem)
{
    uint32_t best = 0;
    for (uint32_t w = 1; w < problem->input->workers; w++)
        if (problem->load[w] < problem->load[best])
            best = w;
    return best;
}

static bool deal_to_workers(struct partition_problem *problem, const uint8_t *on_gpu,
                            struct partition_plan *plan)
{
    for (uint32_t w = 0; w < plan->workers; w++) {
        plan->worker[w] = (struct partition_plan_worker){0};
        problem->load[w] = 0;
    }
    int64_t limit_ppb = plan->paper ? PARTITION_SHARE_ONE : SHARE_PLANNED;
    for (size_t k = 0; k < problem->count; k++) {
        size_t i = problem->by_share[k];
        if (on_gpu[i])
            continue;
        uint32_t w = least_loaded(problem);
        plan->unit[i] = w;
        plan->worker[w].streams++;
        problem->load[w] += problem->share_ppb[i];
        if (problem->share_ppb[i] >= PARTITION_SHARE_NEVER) {
            partition_plan_refuse(plan, PARTITION_PLAN_CPU_DEMAND, w,
                                  "no worker can keep the latency bound of stream %zu", i);
            return false;
        }
        if (problem->load[w] > limit_ppb) {
            partition_plan_refuse(plan, PARTITION_PLAN_CPU_UTILISATION, w,
                                  "the least loaded of %u workers would need %.2f %% of its time",
                                  plan->workers, (double)problem->load[w] / PPB_PER_PERCENT);
            return false;
        }
    }
    return true;
}

/* Puts the tasks of each worker together. */
static void gather_tasks(struct partition_problem *problem, const uint8_t *on_gpu,
                         const struct partition_plan *plan)
{
    size_t sum = 0;
    for (uint32_t w = 0; w < plan->workers; w++) {
        problem->start[w] = sum;
        sum += plan->worker[w].streams;
    }
    for (size_t i = 0; i < problem->count; i++)
        if (!on_gpu[i])
            problem->dealt_task[problem->start[plan->unit[i]]++] = problem->task[i];
}

static bool test_worker(struct partition_problem *problem, struct partition_plan *plan, uint32_t w,
                        const struct perfmodel_cpu_task *tasks)
{
    struct partition_plan_worker *worker = &plan->worker[w];
    const struct config_profile *profile = problem->input->profile;
    if (plan->paper) {
        worker->test = (struct perfmodel_edf_result){.accepted = true, .utilisation_ppb = problem->load[w]};
        return true;
    }
    struct perfmodel_cpu_company company = {0};
    for (size_t i = 0; i < worker->streams; i++)
        company = perfmodel_cpu_company_with(company, &tasks[i]);
    worker->surcharge_ns = perfmodel_cpu_surcharge_ns(profile, company.ciphers);
    core_ns blocking_ns = 2 * perfmodel_cpu_blocking_ns(profile, company);
    worker->test = perfmodel_edf_test(tasks, worker->streams, worker->surcharge_ns, blocking_ns);
    if (worker->test.accepted)
        return true;
    if (worker->test.binding == PERFMODEL_EDF_UTILISATION)
        partition_plan_refuse(plan, PARTITION_PLAN_CPU_UTILISATION, w,
                              "worker %u of %u would need %.2f %% of its time", w, plan->workers,
                              (double)worker->test.utilisation_ppb / PPB_PER_PERCENT);
    else
        partition_plan_refuse(plan, PARTITION_PLAN_CPU_DEMAND, w,
                              "in windows of %.3f us worker %u of %u would need %.3f us",
                              (double)worker->test.window_ns / 1e3, w, plan->workers,
                              (double)worker->test.demand_ns / 1e3 + (double)blocking_ns / 1e3);
    return false;
}

bool partition_trial_workers(struct partition_problem *problem, const uint8_t *on_gpu,
                             struct partition_plan *plan)
{
    if (!deal_to_workers(problem, on_gpu, plan))
        return false;
    if (!plan->paper)
        gather_tasks(problem, on_gpu, plan);
    for (uint32_t w = 0; w < plan->workers; w++) {
        const struct perfmodel_cpu_task *end = problem->dealt_task + problem->start[w];
        if (!test_worker(problem, plan, w, plan->paper ? NULL : end - plan->worker[w].streams))
            return false;
    }
    return true;
}

/* ---- GPUs ---- */

static const struct {
    enum partition_plan_constraint constraint;
    const char *text;
} gpu_bindings[] = {
    [PERFMODEL_GPU_FITS] = {PARTITION_PLAN_NONE, ""},
    [PERFMODEL_GPU_COPY] = {PARTITION_PLAN_GPU_COPY, "its copies do not fit"},
    [PERFMODEL_GPU_KERNEL] = {PARTITION_PLAN_GPU_KERNEL, "its kernel does not fit"},
    [PERFMODEL_GPU_LATENCY] = {PARTITION_PLAN_GPU_LATENCY, "all together exceeds the shortest bound"},
    [PERFMODEL_GPU_MEMORY] = {PARTITION_PLAN_GPU_MEMORY, "its arenas do not fit the card"},
    [PERFMODEL_GPU_JOB] = {PARTITION_PLAN_GPU_KERNEL, "one job alone takes too long"},
};

static void refuse_gpu(struct partition_plan *plan, uint32_t g, enum perfmodel_gpu_binding binding)
{
    const struct partition_plan_gpu *gpu = &plan->gpu[g];
    partition_plan_refuse(plan, gpu_bindings[binding].constraint, plan->workers + g,
                          "GPU %u with %zu streams at a period of %.3f us, copies of %.3f and %.3f us, a "
                          "kernel of %.3f us, a bound of %.3f us: %s",
                          g, gpu->streams, (double)gpu->period_ns / 1e3, (double)gpu->stages.up_ns / 1e3,
                          (double)gpu->stages.down_ns / 1e3, (double)gpu->stages.kernel_ns / 1e3,
                          (double)gpu->shortest_ns / 1e3, gpu_bindings[binding].text);
}

/* Of plan->gpu[g].streams jobs, which fall. */
static enum perfmodel_gpu_binding judge_gpu(struct partition_problem *problem, struct partition_plan *plan,
                                            uint32_t g, const uint64_t *job_bytes)
{
    const struct config_profile_gpu *card = problem->card[g];
    struct partition_plan_gpu *gpu = &plan->gpu[g];
    gpu->period_ns = problem->period_ns;
    gpu->stages = perfmodel_gpu_stages(card, &problem->input->profile->margins, job_bytes, gpu->streams,
                                       partition_problem_busy(problem, card), problem->sort_bytes);
    gpu->latency_ns = perfmodel_gpu_latency_ns(card, &gpu->stages, gpu->period_ns);
    gpu->batch_bytes = 0;
    for (size_t i = 0; i < gpu->streams; i++)
        gpu->batch_bytes += job_bytes[i];
    gpu->memory_bytes = perfmodel_gpu_memory_bytes(card, gpu->batch_bytes, gpu->streams);
    enum perfmodel_gpu_binding binding =
        perfmodel_gpu_judge(card, &gpu->stages, gpu->period_ns, gpu->shortest_ns, plan->paper);
    if (binding == PERFMODEL_GPU_FITS && gpu->memory_bytes > card->memory_bytes)
        binding = PERFMODEL_GPU_MEMORY;
    return binding;
}

bool partition_trial_pinned(const struct partition_problem *problem, struct partition_plan *plan)
{
    wide sum = 0;
    for (uint32_t g = 0; g < plan->gpus; g++)
        sum += plan->gpu[g].memory_bytes;
    if (sum <= problem->input->profile->pinned_bytes)
        return true;
    partition_plan_refuse(plan, PARTITION_PLAN_GPU_MEMORY, plan->workers,
                          "the arenas of all GPUs need %.1f MB of pinned memory, and %.1f MB may be",
                          (double)sum / 1e6, (double)problem->input->profile->pinned_bytes / 1e6);
    return false;
}

void partition_trial_no_gpu(const struct partition_problem *problem, struct partition_plan *plan)
{
    for (uint32_t g = 0; g < plan->gpus; g++)
        plan->gpu[g] =
            (struct partition_plan_gpu){.kind = (uint32_t)(problem->card[g] - problem->input->profile->gpus)};
}

/* Smooth weighted round robin: in any run of jobs each GPU has its part, to within one job. */
static uint32_t next_gpu(struct partition_problem *problem, int64_t sum)
{
    int64_t *credit = problem->load;
    uint32_t best = 0;
    for (uint32_t g = 0; g < problem->gpus; g++) {
        credit[g] += (int64_t)problem->capacity[g];
        if (credit[g] > credit[best])
            best = g;
    }
    credit[best] -= sum;
    return best;
}

static void deal_to_gpus(struct partition_problem *problem, const uint8_t *on_gpu,
                         struct partition_plan *plan)
{
    int64_t sum = 0;
    for (uint32_t g = 0; g < problem->gpus; g++) {
        problem->load[g] = 0;
        sum += (int64_t)problem->capacity[g];
    }
    for (size_t k = 0; k < problem->count; k++) {
        size_t i = problem->by_job[k];
        if (!on_gpu[i])
            continue;
        uint32_t g = next_gpu(problem, sum);
        struct partition_plan_gpu *gpu = &plan->gpu[g];
        plan->unit[i] = plan->workers + g;
        if (gpu->streams == 0 || problem->work_ns[i] < gpu->shortest_ns)
            gpu->shortest_ns = problem->work_ns[i];
        gpu->streams++;
    }
}

/* Puts the jobs of each GPU together, falling; afterwards start[g] is the end of those of GPU g. */
static void gather_jobs(struct partition_problem *problem, const uint8_t *on_gpu,
                        const struct partition_plan *plan)
{
    size_t sum = 0;
    for (uint32_t g = 0; g < plan->gpus; g++) {
        problem->start[g] = sum;
        sum += plan->gpu[g].streams;
    }
    for (size_t k = 0; k < problem->count; k++) {
        size_t i = problem->by_job[k];
        if (on_gpu[i])
            problem->dealt_bytes[problem->start[plan->unit[i] - plan->workers]++] = problem->job_bytes[i];
    }
}

bool partition_trial_virtual(struct partition_problem *problem, const uint8_t *on_gpu,
                             struct partition_plan *plan)
{
    partition_trial_no_gpu(problem, plan);
    if (problem->gpus == 0)
        return true;
    deal_to_gpus(problem, on_gpu, plan);
    gather_jobs(problem, on_gpu, plan);
    for (uint32_t g = 0; g < plan->gpus; g++) {
        if (plan->gpu[g].streams == 0)
            continue;
        const uint64_t *jobs = problem->dealt_bytes + problem->start[g] - plan->gpu[g].streams;
        enum perfmodel_gpu_binding binding = judge_gpu(problem, plan, g, jobs);
        if (binding != PERFMODEL_GPU_FITS) {
            refuse_gpu(plan, g, binding);
            return false;
        }
    }
    return partition_trial_pinned(problem, plan);
}

/* The jobs of plan->unit's streams on GPU g at the problem's period, falling. */
static void gather_gpu(struct partition_problem *problem, const struct partition_plan *plan, uint32_t g)
{
    size_t count = 0;
    for (size_t k = 0; k < problem->count; k++)
        if (plan->unit[problem->by_job[k]] == plan->workers + g)
            problem->dealt_bytes[count++] = problem->job_bytes[problem->by_job[k]];
}

bool partition_trial_gpu(struct partition_problem *problem, uint32_t g, struct partition_plan *plan)
{
    struct partition_plan_gpu *gpu = &plan->gpu[g];
    enum perfmodel_gpu_binding first = PERFMODEL_GPU_LATENCY;
    *gpu = (struct partition_plan_gpu){.kind = (uint32_t)(problem->card[g] - problem->input->profile->gpus),
                                       .shortest_ns = CORE_NS_NEVER};
    for (size_t i = 0; i < problem->count; i++) {
        if (plan->unit[i] != plan->workers + g)
            continue;
        gpu->streams++;
        if (problem->work_ns[i] < gpu->shortest_ns)
            gpu->shortest_ns = problem->work_ns[i];
    }
    if (gpu->streams == 0) {
        gpu->shortest_ns = 0;
        return true;
    }
    core_ns period_ns;
    for (uint32_t n = 0; (period_ns = partition_trial_period_ns(problem, gpu->shortest_ns, n)) > 0; n++) {
        partition_problem_period(problem, period_ns);
        gather_gpu(problem, plan, g);
        enum perfmodel_gpu_binding binding = judge_gpu(problem, plan, g, problem->dealt_bytes);
        if (binding == PERFMODEL_GPU_FITS)
            return true;
        first = n == 0 ? binding : first;
    }
    refuse_gpu(plan, g, first);
    return false;
}

/* ---- what binds ---- */

static void take(struct partition_plan *plan, enum partition_plan_constraint constraint, uint32_t unit,
                 wide used, wide limit)
{
    int64_t room_ppb = (int64_t)((limit - used) * PARTITION_SHARE_ONE / limit);
    if (plan->binding != PARTITION_PLAN_NONE && room_ppb >= plan->headroom_ppb)
        return;
    plan->binding = constraint;
    plan->binding_unit = unit;
    plan->headroom_ppb = room_ppb;
}

static void take_gpu(const struct partition_problem *problem, struct partition_plan *plan, uint32_t g)
{
    const struct partition_plan_gpu *gpu = &plan->gpu[g];
    const struct config_profile_gpu *card = problem->card[g];
    uint32_t unit = plan->workers + g;
    core_ns up_ns = gpu->stages.up_ns, down_ns = gpu->stages.down_ns;
    core_ns copies_ns = up_ns > down_ns ? up_ns : down_ns;
    if (card->copy_engines < 2 && !plan->paper)
        copies_ns = up_ns + down_ns;
    take(plan, PARTITION_PLAN_GPU_COPY, unit, copies_ns, gpu->period_ns);
    take(plan, PARTITION_PLAN_GPU_KERNEL, unit, gpu->stages.kernel_ns, gpu->period_ns);
    take(plan, PARTITION_PLAN_GPU_MEMORY, unit, (wide)gpu->memory_bytes, (wide)card->memory_bytes);
    if (!plan->paper) /* there the period is as long as the bound allows, always */
        take(plan, PARTITION_PLAN_GPU_LATENCY, unit, gpu->latency_ns, gpu->shortest_ns);
}

void partition_trial_conclude(const struct partition_problem *problem, struct partition_plan *plan)
{
    plan->accepted = true;
    plan->binding = PARTITION_PLAN_NONE;
    plan->headroom_ppb = PARTITION_SHARE_ONE;
    for (uint32_t w = 0; w < plan->workers; w++)
        if (plan->worker[w].streams > 0)
            take(plan, PARTITION_PLAN_CPU_UTILISATION, w, plan->worker[w].test.utilisation_ppb,
                 PARTITION_SHARE_ONE);
    for (uint32_t g = 0; g < plan->gpus; g++)
        if (plan->gpu[g].streams > 0)
            take_gpu(problem, plan, g);
}
