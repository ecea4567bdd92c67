/* Trials of the workers' part of a split: deal, compute, judge. */
#include "partition/search/problem.h"

#include <string.h>

#define PPB_PER_PERCENT 1e7

/* The windows that the burst test must look at grow as 1 / (1 - U): the last half of a per mille of a worker
 * would cost most of the time of a plan. */
#define SHARE_PLANNED (PARTITION_SHARE_ONE - PARTITION_SHARE_ONE / 2000)

/* ---- the least loaded worker, as a heap ---- */

static bool before(const struct partition_problem *problem, uint32_t a, uint32_t b)
{
    return problem->load[a] != problem->load[b] ? problem->load[a] < problem->load[b] : a < b;
}

/* The worker on top got more: moves it down to its place. */
static void sink(struct partition_problem *problem)
{
    uint32_t *heap = problem->heap, count = problem->input->workers, at = 0;
    for (;;) {
        uint32_t least = at;
        for (uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++)
            if (before(problem, heap[child], heap[least]))
                least = child;
        if (least == at)
            return;
        uint32_t moved = heap[at];
        heap[at] = heap[least];
        heap[least] = moved;
        at = least;
    }
}

/* What a stream may demand of a worker at once, against the time that it has for it. */
static int64_t density_ppb(const struct partition_problem *problem, size_t i)
{
    const struct perfmodel_cpu_task *task = &problem->task[i];
    double demand_ns = (double)task->pieces * task->burst_packets * (double)task->cost_ns;
    double window_ns = (double)task->deadline_ns * task->pieces * task->burst_packets;
    double share = (double)problem->share_ppb[i] / PARTITION_SHARE_ONE;
    double density = demand_ns / window_ns;
    return (int64_t)(PARTITION_SHARE_ONE * (density > share ? density : share));
}

/* Worst fit: by falling share, which evens out the long run; or from the shortest latency bound on by
 * density, which evens out what is due in any window. */
static bool deal(struct partition_problem *problem, const uint8_t *on_gpu, bool urgent,
                 struct partition_plan *plan)
{
    const uint32_t *order = urgent ? problem->by_latency : problem->by_share;
    for (uint32_t w = 0; w < plan->workers; w++) {
        plan->worker[w] = (struct partition_plan_worker){0};
        problem->load[w] = 0;
        problem->heap[w] = w;
    }
    int64_t limit_ppb = plan->paper ? PARTITION_SHARE_ONE : SHARE_PLANNED;
    for (size_t k = 0; k < problem->count; k++) {
        size_t i = order[k];
        if (on_gpu[i])
            continue;
        uint32_t w = problem->heap[0];
        int64_t *taken_ppb = &plan->worker[w].test.utilisation_ppb;
        plan->unit[i] = w;
        plan->worker[w].streams++;
        *taken_ppb += problem->share_ppb[i];
        if (problem->share_ppb[i] >= PARTITION_SHARE_NEVER) {
            partition_plan_refuse(plan, PERFMODEL_LIMIT_CPU_DEMAND, w,
                                  "no worker can keep the latency bound of stream %u", problem->origin[i]);
            return false;
        }
        if (*taken_ppb > limit_ppb) {
            partition_plan_refuse(plan, PERFMODEL_LIMIT_CPU_UTILISATION, w,
                                  "the least loaded of %u workers would need %.2f %% of its time",
                                  plan->workers, (double)*taken_ppb / PPB_PER_PERCENT);
            return false;
        }
        problem->load[w] += urgent ? density_ppb(problem, i) : problem->share_ppb[i];
        sink(problem);
    }
    return true;
}

/* ---- tests ---- */

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

/* A window more to look at first, for the next trials. */
static void remember(struct partition_problem *problem, core_ns window_ns)
{
    size_t at = 0;
    while (at < PARTITION_WINDOWS - 1 && problem->window_ns[at] != window_ns)
        at++;
    memmove(&problem->window_ns[1], &problem->window_ns[0], at * sizeof *problem->window_ns);
    problem->window_ns[0] = window_ns;
}

enum depth { NECESSARY, SUFFICIENT };

static struct perfmodel_edf_result test_set(struct partition_problem *problem, enum depth depth)
{
    struct perfmodel_edf_result result =
        perfmodel_edf_set_test_windows(problem->edf_set, problem->window_ns, PARTITION_WINDOWS);
    if (result.accepted && depth == SUFFICIENT)
        result = perfmodel_edf_set_test(problem->edf_set);
    if (result.binding == PERFMODEL_LIMIT_CPU_DEMAND)
        remember(problem, result.window_ns);
    return result;
}

/* Where the pieces do not, those of few streams. */
static bool packets_hold(const struct partition_problem *problem, const struct perfmodel_cpu_task *tasks,
                         struct partition_plan_worker *worker)
{
    if (worker->test.binding != PERFMODEL_LIMIT_CPU_DEMAND || worker->streams > PERFMODEL_EDF_PACKETS_MOST)
        return false;
    struct perfmodel_edf_result packets =
        perfmodel_edf_packets_test(tasks, worker->streams, &problem->worker, 0);
    if (packets.accepted) {
        packets.blocking_ns = worker->test.blocking_ns;
        packets.utilisation_ppb = worker->test.utilisation_ppb;
        worker->test = packets;
    }
    return packets.accepted;
}

static bool test_worker(struct partition_problem *problem, struct partition_plan *plan, uint32_t w,
                        const struct perfmodel_cpu_task *tasks, enum depth depth)
{
    struct partition_plan_worker *worker = &plan->worker[w];
    const struct config_profile *profile = problem->input->profile;
    if (plan->paper) {
        worker->test = (struct perfmodel_edf_result){.accepted = true, .utilisation_ppb = problem->load[w]};
        return true;
    }
    struct perfmodel_cpu_mix mix = {0};
    for (size_t i = 0; i < worker->streams; i++)
        perfmodel_cpu_mix_add(&mix, profile->cpu.burst_pieces, &tasks[i]);
    worker->surcharge_ns = perfmodel_cpu_surcharge_ns(profile, mix.ciphers);
    core_ns blocking_ns = 2 * perfmodel_cpu_blocking_ns(profile, &mix);
    perfmodel_edf_set_fill(problem->edf_set, tasks, worker->streams, worker->surcharge_ns, blocking_ns);
    worker->test = test_set(problem, depth);
    if (worker->test.accepted || packets_hold(problem, tasks, worker))
        return true;
    if (worker->test.binding == PERFMODEL_LIMIT_CPU_UTILISATION)
        partition_plan_refuse(plan, PERFMODEL_LIMIT_CPU_UTILISATION, w,
                              "worker %u of %u would need %.2f %% of its time", w, plan->workers,
                              (double)worker->test.utilisation_ppb / PPB_PER_PERCENT);
    else
        partition_plan_refuse(plan, PERFMODEL_LIMIT_CPU_DEMAND, w,
                              "worker %u of %u would need %.3f us in a window of %.3f us", w, plan->workers,
                              (double)worker->test.demand_ns / 1e3 + (double)blocking_ns / 1e3,
                              (double)worker->test.window_ns / 1e3);
    return false;
}

static bool test_workers(struct partition_problem *problem, const uint8_t *on_gpu,
                         struct partition_plan *plan, enum depth depth)
{
    if (!plan->paper)
        gather_tasks(problem, on_gpu, plan);
    for (uint32_t w = 0; w < plan->workers; w++) {
        const struct perfmodel_cpu_task *end = problem->dealt_task + problem->start[w];
        if (!test_worker(problem, plan, w, plan->paper ? NULL : end - plan->worker[w].streams, depth))
            return false;
    }
    return true;
}

static bool try_workers(struct partition_problem *problem, const uint8_t *on_gpu, struct partition_plan *plan,
                        enum depth depth)
{
    if (deal(problem, on_gpu, false, plan) && test_workers(problem, on_gpu, plan, depth))
        return true;
    /* of a worker alone, and where shares are what lacks, dealing anew is no help */
    if (plan->paper || plan->workers == 1 || plan->binding != PERFMODEL_LIMIT_CPU_DEMAND)
        return false;
    return deal(problem, on_gpu, true, plan) && test_workers(problem, on_gpu, plan, depth);
}

bool partition_evaluate_workers(struct partition_problem *problem, const uint8_t *on_gpu,
                                struct partition_plan *plan)
{
    return try_workers(problem, on_gpu, plan, SUFFICIENT);
}

bool partition_evaluate_workers_necessary(struct partition_problem *problem, const uint8_t *on_gpu,
                                          struct partition_plan *plan)
{
    return try_workers(problem, on_gpu, plan, NECESSARY);
}

bool partition_evaluate_workers_as_assigned(struct partition_problem *problem, const uint8_t *on_gpu,
                                            struct partition_plan *plan)
{
    for (uint32_t w = 0; w < plan->workers; w++)
        plan->worker[w] = (struct partition_plan_worker){0};
    for (size_t i = 0; i < problem->count; i++) {
        if (on_gpu[i])
            continue;
        if (problem->share_ppb[i] >= PARTITION_SHARE_NEVER) {
            partition_plan_refuse(plan, PERFMODEL_LIMIT_CPU_DEMAND, plan->unit[i],
                                  "no worker can keep the latency bound of stream %u", problem->origin[i]);
            return false;
        }
        plan->worker[plan->unit[i]].streams++;
    }
    return test_workers(problem, on_gpu, plan, SUFFICIENT);
}
