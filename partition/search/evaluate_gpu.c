/* Trials of the GPUs' part of a split: deal, compute, judge. */
#include "partition/search/order.h"
#include "partition/search/problem.h"
#include "partition/search/staircase.h"

#include <assert.h>
#include <string.h>

__extension__ typedef __int128 wide;

#define PAPER_ARENAS 5

/* ---- one GPU ---- */

static const char *const complaints[] = {
    [PERFMODEL_LIMIT_GPU_COPY] = "its copies do not fit",
    [PERFMODEL_LIMIT_GPU_KERNEL] = "its kernel does not fit",
    [PERFMODEL_LIMIT_GPU_LATENCY] = "period and stages together exceed the shortest bound",
    [PERFMODEL_LIMIT_GPU_MEMORY] = "its arenas do not fit the card",
};

static void refuse_gpu(struct partition_plan *plan, uint32_t g, enum perfmodel_limit binding)
{
    const struct partition_plan_gpu *gpu = &plan->gpu[g];
    if (gpu->stages.up_ns == CORE_NS_NEVER || gpu->stages.kernel_ns == CORE_NS_NEVER ||
        gpu->stages.down_ns == CORE_NS_NEVER)
        partition_plan_refuse(
            plan, binding, partition_unit_of_gpu(plan->workers, g),
            "GPU %u with %zu streams at a period of %.3f us would fall behind, with a stage "
            "that takes %.1f %% of the time: %s",
            g, gpu->streams, (double)gpu->period_ns / 1e3, (double)gpu->busiest_ppb / 1e7,
            complaints[binding]);
    else
        partition_plan_refuse(plan, binding, partition_unit_of_gpu(plan->workers, g),
                              "GPU %u with %zu streams at a period of %.3f us, copies of %.3f and %.3f us, a "
                              "kernel of %.3f us, a bound of %.3f us: %s",
                              g, gpu->streams, (double)gpu->period_ns / 1e3, (double)gpu->stages.up_ns / 1e3,
                              (double)gpu->stages.down_ns / 1e3, (double)gpu->stages.kernel_ns / 1e3,
                              (double)gpu->shortest_ns / 1e3, complaints[binding]);
}

/* The jobs of the members at a period, falling. */
static void gather_jobs(struct partition_problem *problem, const uint32_t *member, size_t count,
                        core_ns period_ns)
{
    struct perfmodel_jobs *jobs = problem->jobs[0], *sorted = problem->jobs[1];
    bool falls = true;
    for (size_t k = 0; k < count; k++) {
        jobs[k] = partition_problem_jobs(problem, member[k], period_ns);
        falls = falls && (k == 0 || jobs[k].bytes <= jobs[k - 1].bytes);
    }
    if (falls)
        return;
    for (size_t k = 0; k < count; k++)
        problem->key[0][k] = ~jobs[k].bytes;
    partition_order(problem->index[0], problem->key[0], count, problem->index[1], problem->key[1]);
    for (size_t k = 0; k < count; k++)
        sorted[k] = jobs[problem->index[0][k]];
    problem->jobs[0] = sorted;
    problem->jobs[1] = jobs;
}

static core_ns busiest_ns(const struct config_profile_gpu *card, const struct perfmodel_stages *stages,
                          bool paper)
{
    core_ns copies_ns = core_time_max(stages->up_ns, stages->down_ns);
    if (card->copy_engines < 2 && !paper)
        copies_ns = stages->up_ns + stages->down_ns;
    return core_time_max(copies_ns, stages->kernel_ns);
}

/* Of the batch with most packets. */
static core_ns host_ns(const struct partition_problem *problem, const struct config_profile_gpu *card,
                       const uint32_t *member, size_t count, core_ns period_ns)
{
    uint64_t packets = 0;
    for (size_t k = 0; k < count; k++)
        packets += perfmodel_gpu_job_packets(&problem->specs[member[k]], period_ns);
    return perfmodel_gpu_host_ns(card, packets);
}

/* Of the jobs that are gathered: bounds, or in paper mode what the utilisation table itself says of them. */
static struct perfmodel_stages stages_of(struct partition_problem *problem,
                                         const struct config_profile_gpu *card, size_t count)
{
    const struct config_profile_margins *margins = &problem->input->profile->margins;
    const bool busy = partition_problem_busy(problem, card);
    if (!problem->input->paper)
        return perfmodel_gpu_stages_falling(card, margins, problem->jobs[0], count, busy);
    for (size_t k = 0; k < count; k++)
        problem->key[0][k] = problem->jobs[0][k].bytes; /* a fluid: one job of each stream */
    return perfmodel_gpu_stages_measured(card, margins, problem->key[0], count, busy, problem->key[1]);
}

/* The fullest batch at this period. */
static enum perfmodel_limit judge_batch(struct partition_problem *problem, struct partition_plan *plan,
                                        uint32_t g, const uint32_t *member, core_ns period_ns)
{
    const struct config_profile_gpu *card = problem->card[g];
    const struct config_profile *profile = problem->input->profile;
    struct partition_plan_gpu *gpu = &plan->gpu[g];
    gather_jobs(problem, member, gpu->streams, period_ns);
    gpu->rule = PARTITION_PLAN_BATCH;
    gpu->period_ns = period_ns;
    gpu->batch_bytes = 0;
    uint64_t jobs = 0;
    for (size_t k = 0; k < gpu->streams; k++) {
        gpu->batch_bytes += problem->jobs[0][k].bytes * problem->jobs[0][k].count;
        jobs += problem->jobs[0][k].count;
    }
    gpu->stages = stages_of(problem, card, gpu->streams);
    gpu->stages.host_ns = plan->paper ? 0 : host_ns(problem, card, member, gpu->streams, period_ns);
    gpu->latency_ns = perfmodel_gpu_latency_ns(card, &gpu->stages, period_ns);
    core_ns busy_ns = busiest_ns(card, &gpu->stages, plan->paper);
    gpu->busiest_ppb = busy_ns <= period_ns ? (int64_t)((wide)busy_ns * PARTITION_SHARE_ONE / period_ns)
                                            : PARTITION_SHARE_NEVER;
    enum perfmodel_limit binding =
        perfmodel_gpu_judge(card, &gpu->stages, period_ns, gpu->shortest_ns, plan->paper);
    uint64_t arenas = binding != PERFMODEL_LIMIT_NONE || plan->paper
                          ? PAPER_ARENAS
                          : perfmodel_flow_arenas(profile, gpu->latency_ns - period_ns, period_ns);
    gpu->arenas = arenas < PERFMODEL_FLOW_ARENAS_MAX ? (uint32_t)arenas : PERFMODEL_FLOW_ARENAS_MAX;
    gpu->memory_bytes = perfmodel_flow_memory_bytes(card, arenas, gpu->batch_bytes, jobs);
    if (binding == PERFMODEL_LIMIT_NONE &&
        (arenas > PERFMODEL_FLOW_ARENAS_MAX || gpu->memory_bytes > card->memory_bytes))
        return PERFMODEL_LIMIT_GPU_MEMORY;
    return binding;
}

static void report_verdict(const struct perfmodel_flow_verdict *verdict, enum partition_plan_rule rule,
                           struct partition_plan_gpu *gpu)
{
    gpu->rule = rule;
    gpu->period_ns = verdict->period_ns;
    gpu->stages = verdict->bounds;
    gpu->latency_ns = verdict->latency_ns;
    gpu->batch_bytes = verdict->batch_bytes;
    gpu->arenas = verdict->arenas;
    gpu->memory_bytes = verdict->memory_bytes;
    gpu->busiest_ppb = verdict->busiest_ppb;
}

/* The load of the members; also their count and least d' into the plan. */
static struct perfmodel_flow_load gather_load(const struct partition_problem *problem,
                                              struct partition_plan_gpu *gpu, const uint32_t *member,
                                              size_t count)
{
    struct perfmodel_flow_load load = {0};
    for (size_t k = 0; k < count; k++) {
        struct perfmodel_flow_load one = partition_problem_load(problem, member[k]);
        perfmodel_flow_load_add(&load, &one);
    }
    gpu->streams = count;
    gpu->shortest_ns = load.shortest_ns;
    return load;
}

/* Could the fullest batch at this period hold? A stream has more than k - 1 + T/t packets in it, so that its
 * bytes are more than the straight line's, and copies take no less than theirs. Costs nothing beside looking
 * at all its jobs. */
static bool batch_may_fit(const struct partition_problem *problem, const struct partition_plan_gpu *gpu,
                          const struct perfmodel_flow_load *load, core_ns period_ns)
{
    const struct config_profile_gpu *card = &problem->input->profile->gpus[gpu->kind];
    if (problem->input->paper)
        return true;
    /* each rate is rounded up by less than one; P alone counts k packets of each, not k - 1 */
    wide flowing = ((wide)load->rate - (wide)load->streams) * period_ns >> 32;
    uint64_t bytes = load->burst_bytes;
    if (flowing > (wide)bytes)
        bytes = (uint64_t)flowing;
    struct perfmodel_stages least =
        perfmodel_gpu_stages(card, &problem->input->profile->margins, &bytes, 1,
                             partition_problem_busy(problem, card), &(uint64_t){0});
    least.kernel_ns = 0;
    return perfmodel_gpu_judge(card, &least, period_ns, gpu->shortest_ns, false) == PERFMODEL_LIMIT_NONE;
}

/* Other periods for a batch by itself: the jobs are as they are without a sum that rounds packets up. */
static bool other_batches(struct partition_problem *problem, struct partition_plan *plan, uint32_t g,
                          const uint32_t *member, const struct perfmodel_flow_load *load)
{
    core_ns period_ns;
    for (uint32_t n = 1;
         (period_ns = partition_candidate_period_ns(problem, plan->gpu[g].shortest_ns, n)) > 0; n++)
        if (batch_may_fit(problem, &plan->gpu[g], load, period_ns) &&
            judge_batch(problem, plan, g, member, period_ns) == PERFMODEL_LIMIT_NONE)
            return true;
    return false;
}

/* By the stairs, at the period that a sample finds, and around it. *closest becomes the verdict that came
 * closest. */
static bool climb_staircase(struct partition_problem *problem, struct partition_plan *plan, uint32_t g,
                            const uint32_t *member, const struct perfmodel_flow_load *sums,
                            struct perfmodel_flow_verdict *closest)
{
    static const int per_mille[] = {1000, 980, 1020};
    struct partition_plan_gpu *gpu = &plan->gpu[g];
    core_ns found_ns = partition_staircase_period_ns(problem, gpu->kind, member, sums);
    for (size_t i = 0; found_ns > 0 && i < sizeof per_mille / sizeof *per_mille; i++) {
        if (judge_batch(problem, plan, g, member, found_ns * per_mille[i] / 1000 + 1) == PERFMODEL_LIMIT_NONE)
            return true;
        struct perfmodel_flow_load load = {0};
        for (size_t k = 0; k < gpu->streams; k++) {
            struct perfmodel_flow_load one =
                perfmodel_flow_load_at(&problem->specs[member[k]], problem->input->profile, gpu->period_ns);
            perfmodel_flow_load_add(&load, &one);
        }
        struct perfmodel_flow_verdict verdict =
            perfmodel_flow_judge_staircase(problem->flow[gpu->kind], &load, &gpu->stages, gpu->period_ns);
        if (verdict.binding == PERFMODEL_LIMIT_NONE) {
            report_verdict(&verdict, PARTITION_PLAN_STAIRCASE, gpu);
            return true;
        }
        if (verdict.headroom_ppb > closest->headroom_ppb)
            *closest = verdict;
    }
    return false;
}

/* The default period by a batch or by sums; then whatever holds. */
static bool judge_gpu(struct partition_problem *problem, struct partition_plan *plan, uint32_t g,
                      const uint32_t *member, size_t count)
{
    struct partition_plan_gpu *gpu = &plan->gpu[g];
    *gpu = (struct partition_plan_gpu){.kind = (uint32_t)(problem->card[g] - problem->input->profile->gpus)};
    if (count == 0)
        return true;
    struct perfmodel_flow_load load = gather_load(problem, gpu, member, count);
    core_ns default_period_ns = partition_candidate_period_ns(problem, gpu->shortest_ns, 0);
    enum perfmodel_limit binding = PERFMODEL_LIMIT_GPU_LATENCY;
    if (default_period_ns > 0)
        binding = judge_batch(problem, plan, g, member, default_period_ns);
    if (binding == PERFMODEL_LIMIT_NONE)
        return true;
    if (!plan->paper) {
        struct perfmodel_flow_verdict verdict = perfmodel_flow_fit(problem->flow[gpu->kind], &load);
        if (verdict.binding != PERFMODEL_LIMIT_NONE &&
            (other_batches(problem, plan, g, member, &load) ||
             climb_staircase(problem, plan, g, member, &load, &verdict)))
            return true;
        binding = verdict.binding;
        report_verdict(&verdict, PARTITION_PLAN_BACKLOG, gpu);
    }
    if (binding == PERFMODEL_LIMIT_NONE)
        return true;
    refuse_gpu(plan, g, binding);
    return false;
}

/* ---- all of them ---- */

/* Do the arenas of all GPUs fit the pinned budget? */
static bool judge_pinned(const struct partition_problem *problem, struct partition_plan *plan)
{
    wide sum = 0;
    for (uint32_t g = 0; g < plan->gpus; g++)
        sum += plan->gpu[g].memory_bytes;
    if (sum <= problem->input->profile->pinned_bytes)
        return true;
    partition_plan_refuse(
        plan, PERFMODEL_LIMIT_GPU_MEMORY, plan->workers,
        "the arenas of all GPUs need %.1f MB of pinned memory, but only %.1f MB may be pinned",
        (double)sum / 1e6, (double)problem->input->profile->pinned_bytes / 1e6);
    return false;
}

void partition_plan_clear_gpus(const struct partition_problem *problem, struct partition_plan *plan)
{
    for (uint32_t g = 0; g < plan->gpus; g++)
        plan->gpu[g] =
            (struct partition_plan_gpu){.kind = (uint32_t)(problem->card[g] - problem->input->profile->gpus)};
}

/* Puts the members of each GPU together; start[g] is the end of g's, which is the start of g + 1. */
static void gather_members(struct partition_problem *problem, const struct partition_plan *plan)
{
    size_t *start = problem->start;
    for (uint32_t g = 0; g <= plan->gpus; g++)
        start[g] = 0;
    for (size_t i = 0; i < problem->count; i++)
        if (partition_unit_is_gpu(plan->workers, plan->unit[i]))
            start[partition_unit_gpu(plan->workers, plan->unit[i]) + 1]++;
    for (uint32_t g = 0; g < plan->gpus; g++)
        start[g + 1] += start[g];
    for (size_t k = 0; k < problem->count; k++) {
        size_t i = problem->by_rate[problem->count - 1 - k];
        if (partition_unit_is_gpu(plan->workers, plan->unit[i]))
            problem->member[start[partition_unit_gpu(plan->workers, plan->unit[i])]++] = (uint32_t)i;
    }
}

bool partition_evaluate_gpus(struct partition_problem *problem, struct partition_plan *plan)
{
    const size_t *end = problem->start;
    gather_members(problem, plan);
    for (uint32_t g = 0; g < plan->gpus; g++) {
        size_t from = g > 0 ? end[g - 1] : 0;
        if (!judge_gpu(problem, plan, g, problem->member + from, end[g] - from))
            return false;
    }
    return judge_pinned(problem, plan);
}

/* At this period, by the rule that holds. */
static bool judge_gpu_at(struct partition_problem *problem, struct partition_plan *plan, uint32_t g,
                         const uint32_t *member, size_t count, core_ns period_ns)
{
    struct partition_plan_gpu *gpu = &plan->gpu[g];
    *gpu = (struct partition_plan_gpu){.kind = (uint32_t)(problem->card[g] - problem->input->profile->gpus)};
    if (count == 0)
        return true;
    struct perfmodel_flow_load load = gather_load(problem, gpu, member, count);
    if (judge_batch(problem, plan, g, member, period_ns) == PERFMODEL_LIMIT_NONE)
        return true;
    struct perfmodel_flow_verdict verdict = perfmodel_flow_judge(problem->flow[gpu->kind], &load, period_ns);
    report_verdict(&verdict, PARTITION_PLAN_BACKLOG, gpu);
    if (verdict.binding == PERFMODEL_LIMIT_NONE)
        return true;
    refuse_gpu(plan, g, verdict.binding);
    return false;
}

bool partition_evaluate_gpus_at(struct partition_problem *problem, const core_ns *period_ns,
                                struct partition_plan *plan)
{
    const size_t *end = problem->start;
    gather_members(problem, plan);
    for (uint32_t g = 0; g < plan->gpus; g++) {
        size_t from = g > 0 ? end[g - 1] : 0;
        if (!judge_gpu_at(problem, plan, g, problem->member + from, end[g] - from, period_ns[g]))
            return false;
    }
    return judge_pinned(problem, plan);
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

static core_ns shortest_of(const struct partition_problem *problem, const uint8_t *on_gpu)
{
    core_ns shortest_ns = CORE_NS_NEVER;
    for (size_t i = 0; i < problem->count; i++)
        if (on_gpu[i] && problem->traffic[i].work_ns < shortest_ns)
            shortest_ns = problem->traffic[i].work_ns;
    return shortest_ns;
}

/* In the order of what they have in a batch at the common default period. */
static void deal_to_gpus(struct partition_problem *problem, const uint8_t *on_gpu, core_ns default_period_ns,
                         struct partition_plan *plan)
{
    int64_t sum = 0;
    size_t count = 0;
    partition_problem_weigh(problem, default_period_ns);
    for (uint32_t g = 0; g < problem->gpus; g++) {
        problem->load[g] = 0;
        sum += (int64_t)problem->capacity[g];
    }
    for (size_t k = 0; k < problem->count; k++) {
        size_t i = problem->by_rate[problem->count - 1 - k];
        if (on_gpu[i]) {
            problem->member[count] = (uint32_t)i;
            const struct perfmodel_jobs jobs = partition_problem_jobs(problem, i, default_period_ns);
            problem->key[0][count++] = ~(jobs.bytes * jobs.count);
        }
    }
    partition_order(problem->index[0], problem->key[0], count, problem->index[1], problem->key[1]);
    for (size_t k = 0; k < count; k++)
        plan->unit[problem->member[problem->index[0][k]]] =
            partition_unit_of_gpu(plan->workers, next_gpu(problem, sum));
}

bool partition_evaluate_virtual(struct partition_problem *problem, const uint8_t *on_gpu,
                                struct partition_plan *plan)
{
    partition_plan_clear_gpus(problem, plan);
    core_ns shortest_ns = shortest_of(problem, on_gpu);
    if (problem->gpus == 0 || shortest_ns == CORE_NS_NEVER)
        return true;
    core_ns default_period_ns = partition_candidate_period_ns(problem, shortest_ns, 0);
    deal_to_gpus(problem, on_gpu, default_period_ns > 0 ? default_period_ns : 1, plan);
    return partition_evaluate_gpus(problem, plan);
}

/* ---- what binds ---- */

static void take(struct partition_plan *plan, enum perfmodel_limit constraint, uint32_t unit, wide used,
                 wide limit)
{
    int64_t room_ppb = (int64_t)((limit - used) * PARTITION_SHARE_ONE / limit);
    if (plan->binding != PERFMODEL_LIMIT_NONE && room_ppb >= plan->headroom_ppb)
        return;
    plan->binding = constraint;
    plan->binding_unit = unit;
    plan->headroom_ppb = room_ppb;
}

static void take_gpu(const struct partition_problem *problem, struct partition_plan *plan, uint32_t g)
{
    const struct partition_plan_gpu *gpu = &plan->gpu[g];
    const struct config_profile_gpu *card = problem->card[g];
    uint32_t unit = partition_unit_of_gpu(plan->workers, g);
    core_ns copies_ns = core_time_max(gpu->stages.up_ns, gpu->stages.down_ns);
    if (card->copy_engines < 2 && !plan->paper)
        copies_ns = gpu->stages.up_ns + gpu->stages.down_ns;
    bool kernel = gpu->stages.kernel_ns > copies_ns;
    take(plan, kernel ? PERFMODEL_LIMIT_GPU_KERNEL : PERFMODEL_LIMIT_GPU_COPY, unit, gpu->busiest_ppb,
         PARTITION_SHARE_ONE);
    take(plan, PERFMODEL_LIMIT_GPU_MEMORY, unit, (wide)gpu->memory_bytes, (wide)card->memory_bytes);
    if (!plan->paper) /* there the period is as long as the bound allows, always */
        take(plan, PERFMODEL_LIMIT_GPU_LATENCY, unit, gpu->latency_ns, gpu->shortest_ns);
}

static size_t placed(const struct partition_plan *plan)
{
    size_t sum = 0;
    for (uint32_t w = 0; w < plan->workers; w++)
        sum += plan->worker[w].streams;
    for (uint32_t g = 0; g < plan->gpus; g++)
        sum += plan->gpu[g].streams;
    return sum;
}

static void name_units(struct partition_problem *problem, struct partition_plan *plan)
{
    memcpy(problem->index[0], plan->unit, plan->count * sizeof *plan->unit);
    for (size_t i = 0; i < plan->count; i++)
        plan->unit[problem->origin[i]] = problem->index[0][i];
}

void partition_plan_conclude(struct partition_problem *problem, struct partition_plan *plan)
{
    assert(placed(plan) == plan->count);
    name_units(problem, plan);
    plan->accepted = true;
    plan->binding = PERFMODEL_LIMIT_NONE;
    plan->headroom_ppb = PARTITION_SHARE_ONE;
    for (uint32_t w = 0; w < plan->workers; w++)
        if (plan->worker[w].streams > 0)
            take(plan, PERFMODEL_LIMIT_CPU_UTILISATION, w, plan->worker[w].test.utilisation_ppb,
                 PARTITION_SHARE_ONE);
    for (uint32_t g = 0; g < plan->gpus; g++)
        if (plan->gpu[g].streams > 0)
            take_gpu(problem, plan, g);
}
