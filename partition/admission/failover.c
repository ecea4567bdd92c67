/* Admission: guaranteed streams on GPUs, and the room that is held for them elsewhere. */
#include "partition/admission/internal.h"
#include "partition/admission/unit_worker.h"

#define PPB           INT64_C(1000000000)
#define CONFIRMATIONS 4

/* ---- contracts ---- */

bool partition_failover_backup_spec(const struct core_stream_spec *spec, core_ns gpu_bound_ns,
                                    core_ns detection_ns, struct core_stream_spec *backup)
{
    core_ns away_ns = gpu_bound_ns + detection_ns;
    core_ns missed = (away_ns + spec->interval_ns - 1) / spec->interval_ns;
    if (spec->latency_ns - away_ns < CORE_LATENCY_NS_MIN ||
        missed > (core_ns)(CORE_BURST_MAX - spec->burst_packets))
        return false;
    *backup = *spec;
    backup->burst_packets = spec->burst_packets + (uint32_t)missed;
    backup->latency_ns = spec->latency_ns - away_ns;
    return true;
}

/* Of a new stream, batches are asked, too. */
static bool has_room(const struct partition_failover_question *question, uint32_t g, uint32_t scenario,
                     const struct partition_demand *demand, core_ns period_ns)
{
    struct admission_refusal words;
    return !question->is_new ||
           admission_batches_fit(question->admission, g, scenario, demand, period_ns, &words);
}

/* ---- the GPU's part ---- */

static const struct partition_gpu *gpu_of(const struct partition_failover_question *question)
{
    return question->admission->gpu[question->g];
}

/* The GPU's load without the stream. */
static struct perfmodel_flow_load others_of(const struct partition_failover_question *question)
{
    struct perfmodel_flow_load load = gpu_of(question)->own.load;
    if (question->instead_of != NULL)
        perfmodel_flow_load_remove(&load, &question->instead_of->load);
    return load;
}

/* What the stream asks of a GPU that keeps this bound. */
static struct partition_demand with_bound(const struct partition_failover_question *question,
                                          core_ns gpu_bound_ns)
{
    struct core_stream_spec with = *question->spec;
    with.latency_ns = gpu_bound_ns;
    return (struct partition_demand){.spec = with,
                                     .load = partition_demand_load(&with, question->admission->profile)};
}

static struct partition_answer ask_with(const struct partition_failover_question *question,
                                        const struct partition_demand *demand)
{
    const struct partition_question asked = {.more = demand,
                                             .instead_of = question->instead_of,
                                             .scenario = PARTITION_OWN,
                                             .whole = question->whole,
                                             .period = question->period,
                                             .period_ns = question->period_ns};
    return partition_unit_ask(&gpu_of(question)->unit, &asked);
}

static struct partition_answer ask_gpu(const struct partition_failover_question *question,
                                       core_ns gpu_bound_ns)
{
    const struct partition_demand demand = with_bound(question, gpu_bound_ns);
    return ask_with(question, &demand);
}

/* d_g is rounded down to the grid of periods, so that a longer d leaves the chosen d_g as it is, and more
 * time to the backup (monotone acceptance). */
static core_ns bound_up_to(core_ns ns)
{
    uint32_t count = partition_gpu_grid_up_to(ns);
    return count > 0 ? partition_gpu_grid_ns(count - 1) : 0;
}

static core_ns widest_ns(const struct partition_failover_question *question)
{
    return bound_up_to(question->spec->latency_ns - question->admission->detection_ns - CORE_LATENCY_NS_MIN);
}

/* The first of the grid that leaves so much d'. */
static core_ns bound_for_work(const struct partition_failover_question *question, core_ns work_ns)
{
    const struct config_profile *profile = question->admission->profile;
    core_ns least_ns = work_ns + profile->margins.in_ns + profile->margins.out_ns;
    for (uint32_t n = partition_gpu_grid_up_to(least_ns - 1);; n++) {
        core_ns bound_ns = partition_gpu_grid_ns(n);
        struct core_stream_spec with = *question->spec;
        with.latency_ns = bound_ns;
        if (bound_ns > CORE_LATENCY_NS_MAX || perfmodel_gpu_work_ns(&with, profile) >= work_ns)
            return bound_ns;
    }
}

/* At a fixed period what a batch needs does not depend on d_g, so that it tells the least. */
static core_ns least_at_period(const struct partition_failover_question *question, core_ns widest)
{
    struct partition_answer answer = ask_gpu(question, widest);
    if (!answer.accepted)
        return 0;
    int64_t left_ppb = PPB - (question->whole ? 0 : gpu_of(question)->unit.reserve_ppb);
    core_ns work_ns = (core_ns)((long double)answer.verdict.latency_ns * PPB / (long double)left_ppb) + 1;
    core_ns bound_ns = bound_for_work(question, work_ns);
    for (int n = 0; n < CONFIRMATIONS && bound_ns < widest; n++) {
        if (ask_gpu(question, bound_ns).accepted)
            return bound_ns;
        bound_ns = partition_gpu_grid_ns(partition_gpu_grid_up_to(bound_ns));
    }
    return widest;
}

static core_ns least_at_any_period(const struct partition_failover_question *question, core_ns widest)
{
    uint32_t low = 0, high = partition_gpu_grid_up_to(widest) - 1;
    if (!ask_gpu(question, widest).accepted)
        return 0;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (ask_gpu(question, partition_gpu_grid_ns(middle)).accepted)
            high = middle;
        else
            low = middle + 1;
    }
    return partition_gpu_grid_ns(low);
}

/* Half of the bound for each; less where the GPU's streams have a shorter d' anyway. */
static core_ns preferred_ns(const struct partition_failover_question *question)
{
    core_ns half_ns = bound_up_to(question->spec->latency_ns / 2);
    struct perfmodel_flow_load others = others_of(question);
    if (others.streams == 0 || question->period == PARTITION_PERIOD_BEST)
        return half_ns;
    core_ns match_ns = bound_for_work(question, others.shortest_ns);
    return core_time_min(match_ns, half_ns);
}

/* ---- the backup's part ---- */

struct search {
    const struct partition_failover_question *question;
    struct partition_demand demand; /* of the backup */
    uint64_t more_bytes;            /* pinned for the stream's own GPU, beyond what it has */
    struct admission_placement *placement;
};

static struct partition_answer ask_backup(const struct search *search, uint32_t u, bool instead_of_present)
{
    const struct partition_failover_question *question = search->question;
    const struct admission *admission = question->admission;
    bool idle = admission->unit[u]->period_ns == 0; /* a GPU */
    struct partition_demand present;
    struct partition_question asked = {.more = &search->demand,
                                       .scenario = question->g,
                                       .period = idle ? PARTITION_PERIOD_BEST : PARTITION_PERIOD_PRESENT,
                                       .kept_bytes = search->more_bytes};
    if (instead_of_present) {
        present = partition_demand_of(&question->present->spec, admission->profile);
        asked.instead_of = &present;
    }
    return partition_unit_ask(admission->unit[u], &asked);
}

static bool take(struct search *search, uint32_t u, const struct partition_answer *answer)
{
    const struct admission *admission = search->question->admission;
    const struct partition_unit *unit = admission->unit[u];
    struct admission_placement *placement = search->placement;
    placement->backup_unit = u;
    placement->backup_spec = search->demand.spec;
    placement->backup_bound_ns =
        placement->gpu_bound_ns + placement->detection_ns + partition_unit_bound_ns(unit, &search->demand);
    placement->backup_period_ns = answer->verdict.period_ns;
    placement->backup_memory_bytes = answer->verdict.memory_bytes;
    if (!admission_is_gpu(admission, u))
        placement->backup_task = search->demand.task;
    placement->reserved_ppb =
        unit->ops->backup_ppb(unit, search->question->g, &search->demand, answer->verdict.period_ns);
    return true;
}

/* Where it is now, if that has room. */
static bool on_present_unit(struct search *search)
{
    const struct admission_backup *present = search->question->present;
    if (present == NULL || present->unit == ADMISSION_NONE ||
        search->question->admission->unit[present->unit]->out)
        return false;
    struct partition_answer answer = ask_backup(search, present->unit, true);
    return answer.accepted && take(search, present->unit, &answer);
}

/* Of the workers that take it, the one with the least load in this scenario. */
static bool on_worker(struct search *search)
{
    const struct partition_failover_question *question = search->question;
    const struct admission *admission = question->admission;
    uint32_t chosen = ADMISSION_NONE;
    struct partition_answer best = {.accepted = false};
    int64_t least_ppb = INT64_MAX;
    for (uint32_t w = 0; w < admission->worker_count; w++) {
        int64_t ppb = partition_worker_utilisation_ppb(admission->unit[w], question->g);
        if (ppb >= least_ppb)
            continue;
        struct partition_answer answer = ask_backup(search, w, false);
        if (!answer.accepted)
            continue;
        chosen = w;
        best = answer;
        least_ppb = ppb;
    }
    return chosen != ADMISSION_NONE && take(search, chosen, &best);
}

/* Of those that have streams, or that have none, the one with the longest period, and the most room. */
static bool on_other_gpu(struct search *search, bool idle)
{
    const struct partition_failover_question *question = search->question;
    const struct admission *admission = question->admission;
    const struct admission_backup *present = question->present;
    struct partition_answer best = {.verdict.period_ns = 0};
    const struct partition_gpu *asked = NULL;
    uint32_t chosen = ADMISSION_NONE;
    for (uint32_t u = 0; u < admission->gpus; u++) {
        const struct partition_gpu *gpu = admission->gpu[u];
        uint32_t unit = partition_unit_of_gpu(admission->worker_count, u);
        if (u == question->g || gpu->unit.out || (gpu->unit.period_ns == 0) != idle ||
            (idle && partition_gpu_alike(gpu, asked)))
            continue;
        struct partition_answer answer = ask_backup(search, unit, present != NULL && present->unit == unit);
        const struct perfmodel_flow_verdict *verdict = &answer.verdict;
        asked = gpu;
        bool better = verdict->period_ns > best.verdict.period_ns ||
                      (verdict->period_ns == best.verdict.period_ns &&
                       verdict->headroom_ppb > best.verdict.headroom_ppb);
        if (!answer.accepted || !better ||
            !has_room(question, u, question->g, &search->demand, verdict->period_ns))
            continue;
        chosen = unit;
        best = answer;
    }
    return chosen != ADMISSION_NONE && take(search, chosen, &best);
}

static bool find_backup(const struct partition_failover_question *question,
                        const struct perfmodel_flow_verdict *verdict, struct admission_placement *placement)
{
    uint64_t has_bytes = gpu_of(question)->unit.memory_bytes;
    struct search search = {.question = question, .placement = placement};
    struct core_stream_spec spec;
    if (!partition_failover_backup_spec(question->spec, placement->gpu_bound_ns, placement->detection_ns,
                                        &spec))
        return false;
    search.demand = partition_demand_of(&spec, question->admission->profile);
    search.more_bytes = verdict->memory_bytes > has_bytes ? verdict->memory_bytes - has_bytes : 0;
    return on_present_unit(&search) || on_worker(&search) || on_other_gpu(&search, false) ||
           on_other_gpu(&search, true);
}

/* ---- both ---- */

static bool try_candidate_assignment(const struct partition_failover_question *question, core_ns gpu_bound_ns,
                                     struct admission_placement *placement, bool *taken)
{
    const struct admission *admission = question->admission;
    const struct partition_gpu *gpu = gpu_of(question);
    if (gpu_bound_ns <= 0 || gpu_bound_ns > widest_ns(question))
        return false;
    const struct partition_demand with = with_bound(question, gpu_bound_ns);
    struct partition_answer answer = ask_with(question, &with);
    if (!answer.accepted || !has_room(question, question->g, PARTITION_OWN, &with, answer.verdict.period_ns))
        return false;
    *taken = true;
    *placement =
        (struct admission_placement){.unit = partition_unit_of_gpu(admission->worker_count, question->g),
                                     .stream = ADMISSION_NONE,
                                     .backup_unit = ADMISSION_NONE,
                                     .period_ns = answer.verdict.period_ns,
                                     .memory_bytes = answer.verdict.memory_bytes,
                                     .gpu_bound_ns = gpu_bound_ns,
                                     .detection_ns = admission->detection_ns,
                                     .bound_ns = question->spec->latency_ns};
    placement->new_period = others_of(question).streams > 0 && gpu->unit.period_ns != placement->period_ns;
    placement->accepted = find_backup(question, &answer.verdict, placement);
    return placement->accepted;
}

bool partition_failover_on_gpu(const struct partition_failover_question *question,
                               struct admission_placement *placement, bool *taken)
{
    core_ns widest = widest_ns(question);
    bool fixed = question->period != PARTITION_PERIOD_BEST;
    *taken = false;
    if (widest <= 0)
        return false;
    if (try_candidate_assignment(question, preferred_ns(question), placement, taken))
        return true;
    core_ns least_ns = fixed ? least_at_period(question, widest) : least_at_any_period(question, widest);
    return try_candidate_assignment(question, least_ns, placement, taken);
}

bool partition_failover_ask(const struct admission *admission, const struct core_stream_spec *spec,
                            uint32_t g, enum partition_period period, struct admission_placement *placement)
{
    const struct partition_failover_question question = {
        .admission = admission, .spec = spec, .g = g, .period = period, .is_new = true};
    bool taken;
    return partition_failover_on_gpu(&question, placement, &taken);
}

bool partition_failover_place(const struct admission *admission, const struct core_stream_spec *spec,
                              uint32_t among, bool idle, enum partition_period period,
                              struct admission_placement *placement)
{
    const struct partition_gpu *asked = NULL;
    bool found = false;
    for (uint32_t g = 0; g < admission->gpus; g++) {
        const struct partition_gpu *gpu = admission->gpu[g];
        const struct partition_unit *unit = &gpu->unit;
        struct admission_placement one;
        if (unit->out || !(among & unit->kind) || (unit->period_ns == 0) != idle ||
            (idle && partition_gpu_alike(gpu, asked)))
            continue;
        asked = gpu;
        if (found && period == PARTITION_PERIOD_PRESENT && unit->period_ns <= placement->period_ns)
            continue;
        if (!partition_failover_ask(admission, spec, g, period, &one) ||
            (found && one.period_ns <= placement->period_ns))
            continue;
        *placement = one;
        found = true;
    }
    return found;
}
