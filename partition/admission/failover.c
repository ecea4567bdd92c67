/* Standing plans: guaranteed streams on GPUs, and the room that is held for them elsewhere. */
#include "partition/admission/internal.h"

#define PPB           INT64_C(1000000000)
#define CONFIRMATIONS 4

/* ---- contracts ---- */

bool partition_guard_backup_spec(const struct core_stream_spec *spec, core_ns gpu_bound_ns,
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

static struct core_stream_spec with_bound(const struct core_stream_spec *spec, core_ns gpu_bound_ns)
{
    struct core_stream_spec with = *spec;
    with.latency_ns = gpu_bound_ns;
    return with;
}

/* Of a newcomer, batches are asked, too. */
static bool has_room(const struct partition_guard_question *question, uint32_t g, uint32_t loss,
                     const struct core_stream_spec *spec, core_ns period_ns)
{
    struct partition_standing_words words;
    return !question->newcomer ||
           partition_standing_room_for(question->standing, g, loss, spec, period_ns, &words);
}

/* ---- the GPU's part ---- */

static struct partition_gpu_answer ask_gpu(const struct partition_guard_question *question,
                                           core_ns gpu_bound_ns)
{
    const struct partition_standing *standing = question->standing;
    struct core_stream_spec with = with_bound(question->spec, gpu_bound_ns);
    struct perfmodel_flow_load load = partition_gpu_load(&with, standing->profile);
    uint64_t room_bytes = partition_standing_room_bytes(standing, question->g);
    if (load.shortest_ns <= 0)
        return (struct partition_gpu_answer){.verdict.headroom_ppb = -PPB - 1};
    if (question->ask == PARTITION_GUARD_AT)
        return partition_gpu_ask_at(question->gpu, &load, room_bytes, question->period_ns);
    if (question->ask == PARTITION_GUARD_PRESENT)
        return partition_gpu_ask_present(question->gpu, &load, room_bytes);
    return partition_gpu_ask_other(question->gpu, &load, room_bytes, false);
}

/* d_g is rounded down to the grid of periods, so that a longer d leaves the chosen d_g as it is, and more
 * time to the backup (monotone acceptance). */
static core_ns bound_up_to(core_ns ns)
{
    uint32_t count = partition_gpu_grid_up_to(ns);
    return count > 0 ? partition_gpu_grid_ns(count - 1) : 0;
}

static core_ns widest_ns(const struct partition_guard_question *question)
{
    return bound_up_to(question->spec->latency_ns - question->standing->detection_ns - CORE_LATENCY_NS_MIN);
}

/* The first of the grid that leaves so much d'. */
static core_ns bound_for_work(const struct partition_guard_question *question, core_ns work_ns)
{
    const struct config_profile *profile = question->standing->profile;
    core_ns least_ns = work_ns + profile->margins.in_ns + profile->margins.out_ns;
    for (uint32_t n = partition_gpu_grid_up_to(least_ns - 1);; n++) {
        core_ns bound_ns = partition_gpu_grid_ns(n);
        struct core_stream_spec with = with_bound(question->spec, bound_ns);
        if (bound_ns > CORE_LATENCY_NS_MAX || partition_gpu_load(&with, profile).shortest_ns >= work_ns)
            return bound_ns;
    }
}

/* At a fixed period what a batch needs does not depend on d_g, so that it tells the least. */
static core_ns least_at_period(const struct partition_guard_question *question, core_ns widest)
{
    struct partition_gpu_answer answer = ask_gpu(question, widest);
    if (!answer.accepted)
        return 0;
    int64_t left_ppb = PPB - question->gpu->reserve_ppb;
    core_ns work_ns = (core_ns)((long double)answer.verdict.latency_ns * PPB / (long double)left_ppb) + 1;
    core_ns bound_ns = bound_for_work(question, work_ns);
    for (int n = 0; n < CONFIRMATIONS && bound_ns < widest; n++) {
        if (ask_gpu(question, bound_ns).accepted)
            return bound_ns;
        bound_ns = partition_gpu_grid_ns(partition_gpu_grid_up_to(bound_ns));
    }
    return widest;
}

static core_ns least_at_any_period(const struct partition_guard_question *question, core_ns widest)
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
static core_ns preferred_ns(const struct partition_guard_question *question)
{
    core_ns half_ns = bound_up_to(question->spec->latency_ns / 2);
    if (question->gpu->own.load.streams == 0 || question->ask == PARTITION_GUARD_OTHER)
        return half_ns;
    core_ns match_ns = bound_for_work(question, question->gpu->own.load.shortest_ns);
    return match_ns < half_ns ? match_ns : half_ns;
}

/* ---- the backup's part ---- */

struct search {
    const struct partition_guard_question *question;
    struct core_stream_spec spec;
    struct partition_gpu_backup load; /* on a GPU */
    uint64_t more_bytes;              /* pinned for the stream's own GPU, beyond what it has */
    struct partition_standing_placement *placement;
};

static void take_backup(struct search *search, uint32_t unit, core_ns bound_ns)
{
    struct partition_standing_placement *placement = search->placement;
    placement->backup_unit = unit;
    placement->backup_spec = search->spec;
    placement->backup_bound_ns = placement->gpu_bound_ns + placement->detection_ns + bound_ns;
}

static bool on_worker(struct search *search)
{
    const struct partition_guard_question *question = search->question;
    const struct partition_standing *standing = question->standing;
    const struct partition_standing_backup *present = question->present;
    struct partition_placement worker = {.accepted = false};
    if (present != NULL && present->unit < standing->worker_count)
        (void)partition_workers_ask_backup(standing->workers, present->unit, question->g, &present->spec,
                                           &search->spec, &worker);
    if (!worker.accepted &&
        !partition_workers_place_backup(standing->workers, &search->spec, question->g, &worker))
        return false;
    take_backup(search, worker.worker, worker.bound_ns);
    search->placement->backup_task = worker.task;
    search->placement->reserved_ppb = perfmodel_cpu_utilisation_ppb(&worker.task);
    return true;
}

static struct partition_gpu_answer ask_other_gpu(const struct search *search, uint32_t u)
{
    const struct partition_guard_question *question = search->question;
    const struct partition_standing *standing = question->standing;
    const struct partition_standing_backup *present = question->present;
    struct partition_gpu_backup more = search->load;
    uint64_t room_bytes = partition_standing_room_bytes(standing, u);
    room_bytes = room_bytes > search->more_bytes ? room_bytes - search->more_bytes : 0;
    if (present != NULL && present->unit == standing->worker_count + u)
        more.instead_of = partition_gpu_load(&present->spec, standing->profile);
    return partition_gpu_ask_backup(&standing->gpu[u], &more, room_bytes);
}

static void take_gpu(struct search *search, uint32_t u, const struct perfmodel_flow_verdict *verdict)
{
    const struct partition_standing *standing = search->question->standing;
    struct partition_standing_placement *placement = search->placement;
    take_backup(search, standing->worker_count + u, search->spec.latency_ns);
    placement->backup_period_ns = verdict->period_ns;
    placement->backup_memory_bytes = verdict->memory_bytes;
    placement->reserved_ppb = partition_gpu_backup_ppb(&standing->gpu[u], &search->load, verdict->period_ns);
}

/* Of those that have streams, or that have none, the one with the longest period, and the most room. */
static bool on_other_gpu(struct search *search, bool idle)
{
    const struct partition_guard_question *question = search->question;
    const struct partition_standing *standing = question->standing;
    struct perfmodel_flow_verdict best = {.period_ns = 0};
    const struct partition_gpu *asked = NULL;
    uint32_t chosen = PARTITION_STANDING_NONE;
    for (uint32_t u = 0; u < standing->gpus; u++) {
        const struct partition_gpu *gpu = &standing->gpu[u];
        if (u == question->g || gpu->out || (gpu->period_ns == 0) != idle ||
            (idle && partition_gpu_alike(gpu, asked)))
            continue;
        struct partition_gpu_answer answer = ask_other_gpu(search, u);
        asked = gpu;
        bool better =
            answer.verdict.period_ns > best.period_ns ||
            (answer.verdict.period_ns == best.period_ns && answer.verdict.headroom_ppb > best.headroom_ppb);
        if (!answer.accepted || !better ||
            !has_room(question, u, question->g, &search->spec, answer.verdict.period_ns))
            continue;
        chosen = u;
        best = answer.verdict;
    }
    if (chosen == PARTITION_STANDING_NONE)
        return false;
    take_gpu(search, chosen, &best);
    return true;
}

/* Where it is now, if that has room. */
static bool on_present_gpu(struct search *search)
{
    const struct partition_guard_question *question = search->question;
    const struct partition_standing *standing = question->standing;
    const struct partition_standing_backup *present = question->present;
    if (present == NULL || present->unit == PARTITION_STANDING_NONE || present->unit < standing->worker_count)
        return false;
    uint32_t u = present->unit - standing->worker_count;
    if (standing->gpu[u].out || search->load.load.shortest_ns <= 0)
        return false;
    struct partition_gpu_answer answer = ask_other_gpu(search, u);
    if (answer.accepted)
        take_gpu(search, u, &answer.verdict);
    return answer.accepted;
}

static bool find_backup(const struct partition_guard_question *question,
                        const struct perfmodel_flow_verdict *verdict,
                        struct partition_standing_placement *placement)
{
    const struct partition_standing *standing = question->standing;
    uint64_t has_bytes = standing->gpu[question->g].memory_bytes;
    struct search search = {.question = question, .placement = placement};
    if (!partition_guard_backup_spec(question->spec, placement->gpu_bound_ns, placement->detection_ns,
                                     &search.spec))
        return false;
    search.load = (struct partition_gpu_backup){.loss = question->g,
                                                .load = partition_gpu_load(&search.spec, standing->profile)};
    search.more_bytes = verdict->memory_bytes > has_bytes ? verdict->memory_bytes - has_bytes : 0;
    if (on_present_gpu(&search) || on_worker(&search))
        return true;
    if (search.load.load.shortest_ns <= 0)
        return false;
    return on_other_gpu(&search, false) || on_other_gpu(&search, true);
}

/* ---- both ---- */

static bool try_split(const struct partition_guard_question *question, core_ns gpu_bound_ns,
                      struct partition_standing_placement *placement, bool *taken)
{
    const struct partition_standing *standing = question->standing;
    const struct core_stream_spec with = with_bound(question->spec, gpu_bound_ns);
    struct partition_gpu_answer answer = {.accepted = false};
    if (gpu_bound_ns > 0 && gpu_bound_ns <= widest_ns(question))
        answer = ask_gpu(question, gpu_bound_ns);
    if (!answer.accepted ||
        !has_room(question, question->g, PARTITION_STANDING_NONE, &with, answer.verdict.period_ns))
        return false;
    *taken = true;
    *placement = (struct partition_standing_placement){.unit = standing->worker_count + question->g,
                                                       .stream = PARTITION_STANDING_NONE,
                                                       .backup_unit = PARTITION_STANDING_NONE,
                                                       .period_ns = answer.verdict.period_ns,
                                                       .memory_bytes = answer.verdict.memory_bytes,
                                                       .gpu_bound_ns = gpu_bound_ns,
                                                       .detection_ns = standing->detection_ns,
                                                       .bound_ns = question->spec->latency_ns};
    placement->new_period =
        question->gpu->own.load.streams > 0 && question->gpu->period_ns != placement->period_ns;
    placement->accepted = find_backup(question, &answer.verdict, placement);
    return placement->accepted;
}

bool partition_guard_on_gpu(const struct partition_guard_question *question,
                            struct partition_standing_placement *placement, bool *taken)
{
    core_ns widest = widest_ns(question);
    bool fixed = question->ask == PARTITION_GUARD_PRESENT || question->ask == PARTITION_GUARD_AT;
    *taken = false;
    if (widest <= 0)
        return false;
    if (try_split(question, preferred_ns(question), placement, taken))
        return true;
    core_ns least_ns = fixed ? least_at_period(question, widest) : least_at_any_period(question, widest);
    return try_split(question, least_ns, placement, taken);
}

static bool may(const struct partition_gpu *gpu, enum partition_guard_ask ask, uint32_t among)
{
    bool idle = gpu->period_ns == 0;
    return !gpu->out && (among >> gpu->kind & 1) && idle == (ask == PARTITION_GUARD_IDLE);
}

bool partition_guard_ask(const struct partition_standing *standing, const struct core_stream_spec *spec,
                         uint32_t g, enum partition_guard_ask ask,
                         struct partition_standing_placement *placement)
{
    const struct partition_guard_question question = {
        .standing = standing, .spec = spec, .g = g, .gpu = &standing->gpu[g], .ask = ask, .newcomer = true};
    bool taken;
    return partition_guard_on_gpu(&question, placement, &taken);
}

bool partition_guard_place(const struct partition_standing *standing, const struct core_stream_spec *spec,
                           uint32_t among, enum partition_guard_ask ask,
                           struct partition_standing_placement *placement)
{
    const struct partition_gpu *asked = NULL;
    bool found = false;
    for (uint32_t g = 0; g < standing->gpus; g++) {
        const struct partition_gpu *gpu = &standing->gpu[g];
        struct partition_standing_placement one;
        if (!may(gpu, ask, among) || (ask == PARTITION_GUARD_IDLE && partition_gpu_alike(gpu, asked)))
            continue;
        asked = gpu;
        if (found && ask == PARTITION_GUARD_PRESENT && gpu->period_ns <= placement->period_ns)
            continue;
        if (!partition_guard_ask(standing, spec, g, ask, &one) ||
            (found && one.period_ns <= placement->period_ns))
            continue;
        *placement = one;
        found = true;
    }
    return found;
}
