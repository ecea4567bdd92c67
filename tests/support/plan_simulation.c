#include "tests/support/plan_simulation.h"

#include "perfmodel/demand.h"
#include "tests/support/random.h"
#include "tests/support/simulator.h"

#include <stdio.h>
#include <stdlib.h>

#define PARTS_PER_BILLION 1e9L

void plan_simulation_tally_init(struct plan_simulation_tally *tally)
{
    *tally = (struct plan_simulation_tally){
        .least_gpu_ppb = INT64_MAX, .least_promised_ppb = INT64_MAX, .least_worker_ns = CORE_NS_NEVER};
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Whether nothing was told yet: the first fault is the one to look at. */
static bool first_fault(const struct plan_simulation_tally *tally)
{
    return tally->first[0] == '\0';
}

/* ---- GPUs ---- */

static uint32_t cards_of(const struct config_profile *profile)
{
    uint32_t cards = 0;
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++)
        cards += profile->gpus[kind].count;
    return cards;
}

/* With one copy engine a copy may wait for one of the other direction, which a batch's own times leave out.
 */
static void promise(const struct partition_plan_gpu *gpu, struct pipeline_gpu *made)
{
    const struct perfmodel_stages *stages = &gpu->stages;
    bool turns = made->card->copy_engines < 2 && gpu->rule == PARTITION_PLAN_BATCH;
    core_ns up_ns = turns ? stages->up_ns + stages->down_ns : stages->up_ns;
    core_ns down_ns = turns ? stages->up_ns + stages->down_ns : stages->down_ns;
    made->end_ns[PIPELINE_UP] = stages->host_ns + up_ns;
    made->end_ns[PIPELINE_KERNEL] = made->end_ns[PIPELINE_UP] + stages->kernel_ns;
    made->end_ns[PIPELINE_DOWN] = made->end_ns[PIPELINE_KERNEL] + down_ns;
}

core_status plan_simulation_gpu(const struct partition_plan_input *input, const struct partition_plan *plan,
                                uint32_t g, struct pipeline_gpu *gpu, struct core_stream_spec **specs)
{
    *gpu = (struct pipeline_gpu){.profile = input->profile, .period_ns = plan->gpu[g].period_ns};
    gpu->card = &input->profile->gpus[plan->gpu[g].kind];
    gpu->busy = cards_of(input->profile) > 1 || gpu->card->copy_engines > 1;
    promise(&plan->gpu[g], gpu);
    *specs = malloc((plan->gpu[g].streams + 1) * sizeof **specs);
    if (*specs == NULL)
        return CORE_NO_MEMORY;
    for (size_t i = 0; i < plan->count; i++)
        if (plan->unit[i] == plan->workers + g)
            (*specs)[gpu->count++] = input->specs[i];
    gpu->specs = *specs;
    return CORE_OK;
}

static void add_gpu(const struct partition_plan_gpu *certificate, uint32_t g,
                    const struct pipeline_pattern *pattern, const struct pipeline_result *result,
                    struct plan_simulation_tally *tally)
{
    bool broken = result->late_ns[PIPELINE_UP] > 0 || result->late_ns[PIPELINE_KERNEL] > 0 ||
                  result->late_ns[PIPELINE_DOWN] > 0;
    bool missing = result->arenas > certificate->arenas;
    if (first_fault(tally) && (result->misses > 0 || broken || missing))
        snprintf(
            tally->first, sizeof tally->first,
            "GPU %u, arrivals %d execution %d closing %d seed %llu: slack %lld ns, late by %lld %lld %lld, "
            "%u arenas of %u",
            g, pattern->arrivals, pattern->execution, pattern->closing, (unsigned long long)pattern->seed,
            (long long)result->least_slack_ns, (long long)result->late_ns[PIPELINE_UP],
            (long long)result->late_ns[PIPELINE_KERNEL], (long long)result->late_ns[PIPELINE_DOWN],
            result->arenas, certificate->arenas);
    tally->packets += result->packets;
    tally->batches += result->batches;
    tally->misses += result->misses;
    tally->broken += broken;
    tally->arenas_missing += missing;
    tally->least_gpu_ppb = smaller(tally->least_gpu_ppb, result->least_slack_ppb);
}

static struct pipeline_pattern pattern_of(uint32_t number, const struct plan_simulation_effort *effort,
                                          struct test_random *random)
{
    struct pipeline_pattern pattern = {.batches = effort->batches, .seed = test_random_next(random)};
    if (number < PIPELINE_ARRIVALS) {
        pattern.arrivals = (enum pipeline_arrivals)number;
        return pattern;
    }
    pattern.arrivals = (enum pipeline_arrivals)test_random_in(random, 0, PIPELINE_ARRIVALS - 1);
    pattern.execution = (enum pipeline_execution)test_random_in(random, 0, PIPELINE_EXECUTIONS - 1);
    pattern.closing = (enum pipeline_closing)test_random_in(random, 0, PIPELINE_CLOSINGS - 1);
    pattern.small_too = test_random_chance(random, 30);
    return pattern;
}

static core_status run_gpu(const struct partition_plan_input *input, const struct partition_plan *plan,
                           uint32_t g, const struct plan_simulation_effort *effort,
                           struct plan_simulation_tally *tally)
{
    const struct partition_plan_gpu *certificate = &plan->gpu[g];
    struct test_random random = {effort->seed + g};
    struct core_stream_spec *specs;
    struct pipeline_gpu gpu;
    core_status status = plan_simulation_gpu(input, plan, g, &gpu, &specs);
    for (uint32_t number = 0; status == CORE_OK && number < PIPELINE_ARRIVALS + effort->mixtures; number++) {
        struct pipeline_pattern pattern = pattern_of(number, effort, &random);
        struct pipeline_result result;
        status = pipeline_run(&gpu, &pattern, &result);
        if (status == CORE_OK)
            add_gpu(certificate, g, &pattern, &result, tally);
    }
    tally->gpus++;
    long double room = (long double)(certificate->shortest_ns - certificate->latency_ns);
    tally->least_promised_ppb =
        smaller(tally->least_promised_ppb,
                (int64_t)(room / (long double)certificate->shortest_ns * PARTS_PER_BILLION));
    free(specs);
    return status;
}

/* ---- workers ---- */

static struct simulator *simulator_for(uint32_t burst_pieces)
{
    static struct simulator *simulators[129]; /* one each, for as long as the process lives */
    if (simulators[burst_pieces] == NULL)
        simulators[burst_pieces] = simulator_create(burst_pieces);
    return simulators[burst_pieces];
}

static void add_worker(uint32_t w, const struct simulator_pattern *pattern,
                       const struct simulator_result *result, struct plan_simulation_tally *tally)
{
    if (first_fault(tally) && (result->misses > 0 || result->long_bursts > 0))
        snprintf(tally->first, sizeof tally->first,
                 "worker %u, arrivals %d seed %llu: slack %lld ns, %llu bursts too long", w,
                 pattern->arrivals, (unsigned long long)pattern->seed, (long long)result->least_slack_ns,
                 (unsigned long long)result->long_bursts);
    tally->packets += result->packets;
    tally->bursts += result->bursts;
    tally->misses += result->misses;
    tally->broken += result->long_bursts;
    tally->least_worker_ns = smaller(tally->least_worker_ns, result->least_slack_ns);
}

/* Twice the tightest window, and at least every stream's burst. */
static core_status window_of(const struct config_profile *profile, const struct simulator_stream *streams,
                             size_t count, core_ns *window_ns)
{
    struct perfmodel_demand *demand;
    core_status status = perfmodel_demand_create(&demand, profile);
    if (status != CORE_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        perfmodel_demand_add(demand, &streams[i].task);
    (void)perfmodel_demand_headroom_ppb(demand, window_ns);
    perfmodel_demand_destroy(demand);
    *window_ns = 2 * smaller(*window_ns, 15 * CORE_NS_PER_S);
    for (size_t i = 0; i < count; i++) {
        core_ns burst_ns = streams[i].task.spacing_ns * streams[i].task.burst_packets;
        *window_ns = core_time_max(burst_ns, *window_ns);
    }
    return CORE_OK;
}

/* Each pattern at its most hostile. */
static core_status run_worker(const struct config_profile *profile, struct simulator *simulator,
                              const struct simulator_stream *streams, size_t count, uint32_t w,
                              const struct plan_simulation_effort *effort,
                              struct plan_simulation_tally *tally)
{
    core_ns window_ns;
    core_status status = window_of(profile, streams, count, &window_ns);
    for (int kind = 0; status == CORE_OK && kind < SIMULATOR_ARRIVALS; kind++) {
        struct simulator_pattern pattern = {.arrivals = (enum simulator_arrivals)kind,
                                            .window_ns = window_ns,
                                            .pieces_max = effort->worker_pieces,
                                            .seed = effort->seed + w};
        struct simulator_result result = simulator_run(simulator, profile, streams, count, &pattern);
        add_worker(w, &pattern, &result, tally);
    }
    tally->workers++;
    return status;
}

static core_status run_workers(const struct partition_plan_input *input, const struct partition_plan *plan,
                               const struct plan_simulation_effort *effort,
                               struct plan_simulation_tally *tally)
{
    struct simulator *simulator = simulator_for(input->profile->cpu.burst_pieces);
    struct simulator_stream *streams = malloc((plan->count + 1) * sizeof *streams);
    core_status status = simulator != NULL && streams != NULL ? CORE_OK : CORE_NO_MEMORY;
    for (uint32_t w = 0; status == CORE_OK && w < plan->workers; w++) {
        size_t count = 0;
        for (size_t i = 0; i < plan->count && status == CORE_OK; i++) {
            if (plan->unit[i] != w)
                continue;
            streams[count].spec = input->specs[i];
            status = perfmodel_cpu_task_from(&input->specs[i], input->profile, &streams[count++].task, NULL);
        }
        if (status == CORE_OK && count > 0)
            status = run_worker(input->profile, simulator, streams, count, w, effort, tally);
    }
    free(streams);
    return status;
}

core_status plan_simulation_run(const struct partition_plan_input *input, const struct partition_plan *plan,
                                const struct plan_simulation_effort *effort,
                                struct plan_simulation_tally *tally)
{
    core_status status = run_workers(input, plan, effort, tally);
    for (uint32_t g = 0; status == CORE_OK && g < plan->gpus; g++)
        if (plan->gpu[g].streams > 0)
            status = run_gpu(input, plan, g, effort, tally);
    return status;
}
