#include "partition/search/problem.h"

#include "partition/search/order.h"

#include <math.h>
#include <stdlib.h>

#define RATE_BITS 40 /* a packet has at most 2^20 bytes */

__extension__ typedef __int128 wide;

static bool problem_allocate(struct partition_problem *problem, size_t units)
{
    size_t n = problem->count > 0 ? problem->count : 1;
    size_t gpus = problem->gpus > 0 ? problem->gpus : 1;
    problem->card = calloc(gpus, sizeof *problem->card);
    problem->capacity = calloc(gpus, sizeof *problem->capacity);
    problem->task = malloc(n * sizeof *problem->task);
    problem->dealt_task = malloc(n * sizeof *problem->dealt_task);
    problem->share_ppb = malloc(n * sizeof *problem->share_ppb);
    problem->origin = malloc(n * sizeof *problem->origin);
    problem->number = malloc(n * sizeof *problem->number);
    problem->specs = malloc(n * sizeof *problem->specs);
    problem->traffic = malloc(n * sizeof *problem->traffic);
    problem->by_rate = malloc(n * sizeof *problem->by_rate);
    problem->by_latency = malloc(n * sizeof *problem->by_latency);
    problem->by_share = malloc(n * sizeof *problem->by_share);
    problem->member = malloc(n * sizeof *problem->member);
    for (int i = 0; i < 2; i++) {
        problem->key[i] = malloc(n * sizeof *problem->key[i]);
        problem->index[i] = malloc(n * sizeof *problem->index[i]);
        problem->jobs[i] = malloc(n * sizeof *problem->jobs[i]);
    }
    problem->start = calloc(units + 1, sizeof *problem->start);
    problem->load = calloc(units, sizeof *problem->load);
    problem->heap = calloc(units, sizeof *problem->heap);
    return problem->card && problem->capacity && problem->task && problem->dealt_task && problem->share_ppb &&
           problem->origin && problem->number && problem->specs && problem->traffic && problem->by_rate &&
           problem->by_latency && problem->by_share && problem->jobs[0] && problem->jobs[1] &&
           problem->member && problem->key[0] && problem->key[1] && problem->index[0] && problem->index[1] &&
           problem->start && problem->load && problem->heap;
}

void partition_problem_destroy(struct partition_problem *problem)
{
    if (problem == NULL)
        return;
    for (int kind = 0; kind < CONFIG_PROFILE_GPU_KINDS_MAX; kind++)
        perfmodel_flow_gpu_destroy(problem->flow[kind]);
    free(problem->card);
    free(problem->capacity);
    free(problem->task);
    free(problem->dealt_task);
    free(problem->share_ppb);
    free(problem->origin);
    free(problem->number);
    free(problem->specs);
    free(problem->traffic);
    free(problem->by_rate);
    free(problem->by_latency);
    free(problem->by_share);
    free(problem->member);
    for (int i = 0; i < 2; i++) {
        free(problem->key[i]);
        free(problem->index[i]);
        free(problem->jobs[i]);
    }
    free(problem->start);
    free(problem->load);
    free(problem->heap);
    perfmodel_edf_set_destroy(problem->edf_set);
    free(problem);
}

/* Not even beside nobody: a packet needs a burst for each of its pieces. */
static bool too_urgent(const struct partition_problem *problem, size_t i)
{
    const struct perfmodel_cpu_task *task = &problem->task[i];
    const core_ns *lanes_ns = problem->worker.lanes_ns;
    return task->pieces * (task->cost_ns + lanes_ns[1U << (task->cipher - 1)]) > task->spacing_ns;
}

/* In paper mode a fluid of r bytes a second, else pieces at their own cost. */
static int64_t share_of(struct partition_problem *problem, size_t i)
{
    const struct core_stream_spec *spec = &problem->specs[i];
    const struct config_profile *profile = problem->input->profile;
    if (problem->input->paper) {
        core_ns cost_ns =
            perfmodel_cpu_piece_cost_ns(profile, spec->cipher, spec->direction, spec->packet_bytes);
        wide share = ((wide)cost_ns * PARTITION_SHARE_ONE + spec->interval_ns - 1) / spec->interval_ns;
        return share < PARTITION_SHARE_NEVER ? (int64_t)share : PARTITION_SHARE_NEVER;
    }
    if (perfmodel_cpu_task_from(spec, profile, &problem->task[i], NULL) != CORE_OK || too_urgent(problem, i))
        return PARTITION_SHARE_NEVER;
    return perfmodel_cpu_utilisation_ppb(&problem->task[i]);
}

/* By rising rate of the payload in bytes per ns times 2^40, ties as in the input. */
static void number_streams(struct partition_problem *problem)
{
    const struct core_stream_spec *specs = problem->input->specs;
    for (size_t at = 0; at < problem->count; at++)
        problem->key[0][at] =
            ((uint64_t)specs[at].packet_bytes << RATE_BITS) / (uint64_t)specs[at].interval_ns;
    partition_order(problem->origin, problem->key[0], problem->count, problem->index[0], problem->key[1]);
    for (size_t i = 0; i < problem->count; i++) {
        problem->number[problem->origin[i]] = (uint32_t)i;
        problem->specs[i] = specs[problem->origin[i]];
        problem->by_rate[i] = (uint32_t)i;
    }
}

static void describe_streams(struct partition_problem *problem)
{
    const struct config_profile *profile = problem->input->profile;
    for (size_t i = 0; i < problem->count; i++) {
        const struct core_stream_spec *spec = &problem->specs[i];
        struct perfmodel_flow_load load = perfmodel_flow_load_of(spec, profile);
        problem->share_ppb[i] = share_of(problem, i);
        problem->traffic[i] = (struct partition_traffic){.rate = load.rate,
                                                         .packet_rate = load.packet_rate,
                                                         .interval_ns = spec->interval_ns,
                                                         .work_ns = load.shortest_ns,
                                                         .packet_bytes = core_stream_packet_bytes(spec),
                                                         .burst_packets = spec->burst_packets,
                                                         .alone = core_stream_packets_alone(spec)};
    }
}

/* By rising keys, which are in the order of the input, as ties are. */
static void sort_by(struct partition_problem *problem, uint32_t *order)
{
    partition_order(order, problem->key[0], problem->count, problem->index[0], problem->key[1]);
    for (size_t k = 0; k < problem->count; k++)
        order[k] = problem->number[order[k]];
}

static void sort_streams(struct partition_problem *problem)
{
    uint64_t *key = problem->key[0];
    for (size_t i = 0; i < problem->count; i++)
        key[problem->origin[i]] = (uint64_t)problem->specs[i].latency_ns;
    sort_by(problem, problem->by_latency);
    for (size_t i = 0; i < problem->count; i++)
        key[problem->origin[i]] = (uint64_t)(PARTITION_SHARE_NEVER - problem->share_ppb[i]);
    sort_by(problem, problem->by_share);
}

/* The stage functions of every kind of card. */
static core_status name_stages(struct partition_problem *problem)
{
    const struct config_profile *profile = problem->input->profile;
    core_status status = CORE_OK;
    for (uint32_t kind = 0; status == CORE_OK && kind < profile->gpu_count && !problem->input->paper; kind++)
        status = perfmodel_flow_gpu_create(&problem->flow[kind], profile, &profile->gpus[kind],
                                           partition_problem_busy(problem, &profile->gpus[kind]));
    return status;
}

static void name_cards(struct partition_problem *problem)
{
    const struct config_profile *profile = problem->input->profile;
    uint32_t g = 0;
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++)
        for (uint32_t i = 0; i < profile->gpus[kind].count; i++)
            problem->card[g++] = &profile->gpus[kind];
}

/* From the least in which anything is due to four times the longest deadline. */
static void choose_windows(struct partition_problem *problem)
{
    core_ns least_ns = CORE_NS_NEVER, most_ns = 0;
    for (size_t i = 0; i < problem->count; i++) {
        if (problem->share_ppb[i] > PARTITION_SHARE_ONE)
            continue;
        if (problem->task[i].urgency_ns < least_ns)
            least_ns = problem->task[i].urgency_ns;
        if (problem->specs[i].latency_ns > most_ns)
            most_ns = problem->specs[i].latency_ns;
    }
    if (most_ns == 0)
        least_ns = most_ns = 1;
    double factor = pow(4 * (double)most_ns / (double)least_ns, 1.0 / (PARTITION_WINDOWS - 1));
    for (int i = 0; i < PARTITION_WINDOWS; i++)
        problem->window_ns[i] = (core_ns)((double)least_ns * pow(factor, i));
}

core_status partition_problem_create(const struct partition_plan_input *input,
                                     struct partition_problem **problem)
{
    struct partition_problem *made = calloc(1, sizeof *made);
    if (made == NULL)
        return CORE_NO_MEMORY;
    made->input = input;
    made->count = input->count;
    for (uint32_t kind = 0; kind < input->profile->gpu_count; kind++)
        made->gpus += input->profile->gpus[kind].count;
    if (!problem_allocate(made, input->workers + made->gpus)) {
        partition_problem_destroy(made);
        return CORE_NO_MEMORY;
    }
    made->worker = perfmodel_cpu_worker_of(input->profile);
    name_cards(made);
    core_status status = name_stages(made);
    if (status == CORE_OK && !input->paper)
        status = perfmodel_edf_set_create(&made->edf_set);
    if (status != CORE_OK) {
        partition_problem_destroy(made);
        return status;
    }
    number_streams(made);
    describe_streams(made);
    sort_streams(made);
    if (!input->paper)
        choose_windows(made);
    *problem = made;
    return CORE_OK;
}

bool partition_problem_busy(const struct partition_problem *problem, const struct config_profile_gpu *card)
{
    return problem->gpus > 1 || (card->copy_engines > 1 && !problem->input->paper);
}

/* ---- periods ---- */

static bool carries(const struct partition_problem *problem, const struct config_profile_gpu *card,
                    uint64_t bytes)
{
    bool busy = partition_problem_busy(problem, card);
    core_ns up_ns = perfmodel_copy_ns(card, PERFMODEL_UP, busy, bytes);
    core_ns down_ns = perfmodel_copy_ns(card, PERFMODEL_DOWN, busy, bytes);
    wide copies_ns = card->copy_engines > 1 ? core_time_max(up_ns, down_ns) : (wide)up_ns + down_ns;
    wide sm_bytes_per_s = (wide)card->sms * card->sm_bytes_per_s;
    wide kernel_ns = card->launch_ns + (wide)bytes * CORE_NS_PER_S / sm_bytes_per_s;
    return copies_ns <= problem->weighed_ns && kernel_ns <= problem->weighed_ns;
}

/* The most bytes that the card carries in a period, were they dealt evenly. */
static uint64_t capacity_of(const struct partition_problem *problem, const struct config_profile_gpu *card)
{
    uint64_t low = 0, high = CONFIG_PROFILE_COPY_BYTES_MAX;
    while (high - low > 1 + low / 1024) {
        uint64_t middle = low + (high - low) / 2;
        if (carries(problem, card, middle))
            low = middle;
        else
            high = middle;
    }
    return low;
}

void partition_problem_weigh(struct partition_problem *problem, core_ns period_ns)
{
    uint64_t sum = 0;
    if (problem->weighed_ns == period_ns)
        return;
    problem->weighed_ns = period_ns;
    bool alike = problem->input->profile->gpu_count == 1;
    for (uint32_t g = 0; g < problem->gpus; g++) {
        bool same = g > 0 && problem->card[g] == problem->card[g - 1];
        problem->capacity[g] = alike  ? 1
                               : same ? problem->capacity[g - 1]
                                      : capacity_of(problem, problem->card[g]);
        sum += problem->capacity[g];
    }
    for (uint32_t g = 0; sum == 0 && g < problem->gpus; g++)
        problem->capacity[g] = 1;
}

core_ns partition_candidate_period_ns(const struct partition_problem *problem, core_ns shortest_ns,
                                      uint32_t n)
{
    static const int per_mille[] = {250, 333, 400, 450, 480, 200, 150};
    uint32_t count = problem->input->paper ? 1 : sizeof per_mille / sizeof *per_mille;
    return n < count ? shortest_ns * per_mille[n] / 1000 : 0;
}

static bool gpu_alone(const struct partition_problem *problem, const struct config_profile_gpu *card,
                      size_t i)
{
    const struct partition_plan_input *input = problem->input;
    core_ns period_ns, work_ns = problem->traffic[i].work_ns;
    for (uint32_t n = 0; (period_ns = partition_candidate_period_ns(problem, work_ns, n)) > 0; n++) {
        const struct perfmodel_jobs jobs = partition_problem_jobs(problem, i, period_ns);
        struct perfmodel_stages stages = perfmodel_gpu_stages_falling(
            card, &input->profile->margins, &jobs, 1, partition_problem_busy(problem, card));
        stages.host_ns =
            perfmodel_gpu_host_ns(card, perfmodel_gpu_job_packets(&problem->specs[i], period_ns));
        if (perfmodel_gpu_judge(card, &stages, period_ns, work_ns, false) == PERFMODEL_LIMIT_NONE)
            return true;
    }
    struct perfmodel_flow_load load = partition_problem_load(problem, i);
    return perfmodel_flow_fit(problem->flow[card - input->profile->gpus], &load).binding ==
           PERFMODEL_LIMIT_NONE;
}

bool partition_problem_infeasible(const struct partition_problem *problem, struct partition_plan *plan)
{
    if (problem->input
            ->paper) /* by the table itself a stream may fit beside others that would not fit alone */
        return false;
    for (size_t k = 0; k < problem->count; k++) {
        size_t i = problem->by_share[k];
        if (problem->share_ppb[i] <= PARTITION_SHARE_ONE)
            return false; /* by_share falls */
        bool fits = false;
        for (uint32_t g = 0; g < problem->gpus && !fits; g++)
            fits = (g == 0 || problem->card[g] != problem->card[g - 1]) &&
                   gpu_alone(problem, problem->card[g], i);
        if (!fits) {
            partition_plan_refuse(plan, PERFMODEL_LIMIT_DEADLINE, 0,
                                  "neither a worker nor a GPU can keep the latency bound of stream %u, even "
                                  "without other streams",
                                  problem->origin[i]);
            return true;
        }
    }
    return false;
}
