/* Standing plans: who may join, and why not. */
#include "partition/admission/internal.h"
#include "partition/admission/offer.h"
#include "partition/admission/reasons.h"

#include <stdio.h>
#include <string.h>

#define PPB       INT64_C(1000000000)
#define QUIET_PPB (PPB / 4) /* a worker below this is taken first */

/* ---- GPUs ---- */

/* The GPU that suits best so far, and of those that refuse the one that came closest. */
struct choice {
    const struct partition_standing *standing;
    const struct core_stream_spec *spec; /* of the newcomer, */
    struct perfmodel_flow_load load;     /* and what it asks */
    uint32_t among;
    uint32_t gpu, closest; /* NONE: none */
    struct perfmodel_flow_verdict taken, lacks;
};

static struct choice choice_of(const struct partition_standing *standing, const struct core_stream_spec *spec,
                               uint32_t among)
{
    return (struct choice){.standing = standing,
                           .spec = spec,
                           .load = partition_gpu_load(spec, standing->profile),
                           .among = among,
                           .gpu = PARTITION_STANDING_NONE,
                           .closest = PARTITION_STANDING_NONE,
                           .lacks = {.headroom_ppb = -PPB - 1}};
}

static bool chosen(const struct choice *choice)
{
    return choice->gpu != PARTITION_STANDING_NONE;
}

static void weigh(struct choice *choice, uint32_t g, const struct partition_gpu_answer *answer)
{
    const struct perfmodel_flow_verdict *verdict = &answer->verdict;
    if (!answer->accepted) {
        if (verdict->headroom_ppb > choice->lacks.headroom_ppb) {
            choice->closest = g;
            choice->lacks = *verdict;
        }
        return;
    }
    bool longer = verdict->period_ns > choice->taken.period_ns;
    bool roomier =
        verdict->period_ns == choice->taken.period_ns && verdict->headroom_ppb > choice->taken.headroom_ppb;
    if (!chosen(choice) || longer || roomier) {
        choice->gpu = g;
        choice->taken = *verdict;
    }
}

static bool may(const struct choice *choice, uint32_t g)
{
    const struct partition_gpu *gpu = &choice->standing->gpu[g];
    return !gpu->out && (choice->among >> gpu->kind & 1);
}

/* One that refuses only because its batches have no room is no candidate (say_rooms tells of it). */
static void weigh_with_room(struct choice *choice, uint32_t g, const struct partition_gpu_answer *answer)
{
    struct partition_standing_words words;
    if (!answer->accepted || partition_standing_room_for(choice->standing, g, PARTITION_STANDING_NONE,
                                                         choice->spec, answer->verdict.period_ns, &words))
        weigh(choice, g, answer);
}

static void ask_present(struct choice *choice, uint32_t g)
{
    const struct partition_standing *standing = choice->standing;
    struct partition_gpu_answer answer = partition_gpu_ask_present(
        &standing->gpu[g], &choice->load, partition_standing_room_bytes(standing, g));
    weigh_with_room(choice, g, &answer);
}

static void ask_other(struct choice *choice, uint32_t g)
{
    const struct partition_standing *standing = choice->standing;
    struct partition_gpu_answer answer = partition_gpu_ask_other(
        &standing->gpu[g], &choice->load, partition_standing_room_bytes(standing, g), false);
    weigh_with_room(choice, g, &answer);
}

static bool choose_present(struct choice *choice)
{
    for (uint32_t g = 0; g < choice->standing->gpus; g++)
        if (may(choice, g) && choice->standing->gpu[g].period_ns > 0)
            ask_present(choice, g);
    return chosen(choice);
}

/* At other periods. Of idle cards of a kind one is asked. */
static bool choose_other(struct choice *choice, bool idle)
{
    const struct partition_gpu *asked = NULL;
    for (uint32_t g = 0; g < choice->standing->gpus; g++) {
        const struct partition_gpu *gpu = &choice->standing->gpu[g];
        if (!may(choice, g) || (gpu->period_ns == 0) != idle || (idle && partition_gpu_alike(gpu, asked)))
            continue;
        ask_other(choice, g);
        asked = gpu;
    }
    return chosen(choice);
}

/* ---- the decision ---- */

static bool on_worker(const struct partition_placement *worker,
                      struct partition_standing_placement *placement)
{
    if (!worker->accepted)
        return false;
    placement->accepted = true;
    placement->unit = worker->worker;
    placement->task = worker->task;
    placement->bound_ns = worker->bound_ns;
    return true;
}

/* Who comes later may make a batch fuller, so that its latency is no promise; the contract's bound is. */
static bool on_gpu(const struct choice *choice, const struct core_stream_spec *spec,
                   struct partition_standing_placement *placement)
{
    const struct partition_gpu *gpu = &choice->standing->gpu[choice->gpu];
    placement->accepted = true;
    placement->unit = choice->standing->worker_count + choice->gpu;
    placement->period_ns = choice->taken.period_ns;
    placement->new_period = gpu->own.load.streams > 0 && gpu->period_ns != placement->period_ns;
    placement->memory_bytes = choice->taken.memory_bytes;
    placement->bound_ns = spec->latency_ns;
    return true;
}

static bool guard(const struct partition_standing *standing, const struct core_stream_spec *spec,
                  uint32_t among, enum partition_guard_ask ask,
                  struct partition_standing_placement *placement)
{
    struct partition_standing_placement one;
    bool found = partition_guard_place(standing, spec, among, ask, &one);
    if (found)
        *placement = one;
    return found;
}

static uint32_t gpus_in_service(const struct partition_standing *standing)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < standing->gpus; g++)
        count += !standing->gpu[g].out;
    return count;
}

/* With several GPUs the losses share the room that is held for them, and a GPU saves room on workers. With
 * one a backup asks more of a worker than the stream itself would. */
static bool place_guaranteed(const struct partition_standing *standing, const struct core_stream_spec *spec,
                             uint32_t among, const struct partition_placement *worker,
                             struct partition_standing_placement *placement)
{
    bool several = gpus_in_service(standing) > 1;
    if (several && (guard(standing, spec, among, PARTITION_GUARD_PRESENT, placement) ||
                    guard(standing, spec, among, PARTITION_GUARD_IDLE, placement)))
        return true;
    if (on_worker(worker, placement))
        return true;
    if (!several && (guard(standing, spec, among, PARTITION_GUARD_PRESENT, placement) ||
                     guard(standing, spec, among, PARTITION_GUARD_IDLE, placement)))
        return true;
    return guard(standing, spec, among, PARTITION_GUARD_OTHER, placement);
}

bool partition_standing_place(const struct partition_standing *standing, const struct core_stream_spec *spec,
                              uint32_t io, uint32_t among, struct partition_standing_placement *placement)
{
    struct partition_placement worker = {.accepted = false};
    *placement = (struct partition_standing_placement){.unit = PARTITION_STANDING_NONE,
                                                       .stream = PARTITION_STANDING_NONE,
                                                       .backup_unit = PARTITION_STANDING_NONE};
    if (!partition_workers_io_fits(standing->workers, spec, io))
        return false;
    if (among & PARTITION_STANDING_WORKERS)
        (void)partition_workers_place(standing->workers, spec, io, &worker);
    bool quiet = worker.accepted && worker.test.utilisation_ppb < QUIET_PPB;
    if (standing->gpus == 0 || quiet)
        return on_worker(&worker, placement);
    if (spec->guaranteed)
        return place_guaranteed(standing, spec, among, &worker, placement);
    struct choice choice = choice_of(standing, spec, among);
    if (choice.load.shortest_ns <= 0)
        return on_worker(&worker, placement);
    if (choose_present(&choice) || choose_other(&choice, true))
        return on_gpu(&choice, spec, placement);
    if (on_worker(&worker, placement))
        return true;
    return choose_other(&choice, false) && on_gpu(&choice, spec, placement);
}

/* ---- offers ---- */

/* One for which nothing is to be held. */
static bool gpu_takes(const struct partition_standing *standing, const struct partition_gpu *gpu,
                      uint64_t room_bytes, const struct core_stream_spec *spec)
{
    struct perfmodel_flow_load load = partition_gpu_load(spec, standing->profile);
    return load.shortest_ns > 0 && (partition_gpu_ask_present(gpu, &load, room_bytes).accepted ||
                                    partition_gpu_ask_other(gpu, &load, room_bytes, true).accepted);
}

/* The first unit that would take it but for its reserve; NONE. */
static uint32_t reserve_that_binds(const struct partition_standing *standing,
                                   const struct core_stream_spec *spec)
{
    for (uint32_t w = 0; w < standing->worker_count; w++)
        if (partition_workers_reserve_ppb(standing->workers, w) > 0 &&
            partition_workers_fits_all(standing->workers, w, spec))
            return w;
    for (uint32_t g = 0; g < standing->gpus; g++) {
        struct partition_gpu gpu = standing->gpu[g];
        if (gpu.out || gpu.reserve_ppb == 0)
            continue;
        gpu.reserve_ppb = 0;
        if (gpu_takes(standing, &gpu, partition_standing_room_bytes(standing, g), spec))
            return standing->worker_count + g;
    }
    return PARTITION_STANDING_NONE;
}

/* The first GPU that would take it if it were not out of service; NONE. */
static uint32_t out_that_takes(const struct partition_standing *standing, const struct core_stream_spec *spec)
{
    for (uint32_t g = 0; g < standing->gpus; g++) {
        const struct partition_gpu *gpu = &standing->gpu[g];
        if (gpu->out && gpu_takes(standing, gpu, partition_standing_room_bytes(standing, g), spec))
            return g;
    }
    return PARTITION_STANDING_NONE;
}

/* Would an idle worker, or an idle GPU of this kind with all the pinned memory? */
static bool idle_worker_takes(const struct partition_standing *standing, const struct core_stream_spec *spec)
{
    return partition_workers_fits(standing->workers, standing->worker_count, spec);
}

static bool idle_gpu_takes(const struct partition_standing *standing, uint32_t kind,
                           const struct core_stream_spec *spec)
{
    const struct partition_gpu idle = {.card = standing->card[kind], .kind = kind};
    return gpu_takes(standing, &idle, standing->profile->pinned_bytes, spec);
}

static bool idle_gpus_take(const struct partition_standing *standing, const struct core_stream_spec *spec)
{
    bool take = false;
    for (uint32_t kind = 0; kind < standing->profile->gpu_count; kind++)
        take = take || idle_gpu_takes(standing, kind, spec);
    return take;
}

/* Of a standard stream that the GPU would take. */
static bool gpu_has_room(const struct partition_standing *standing, uint32_t g,
                         const struct core_stream_spec *spec)
{
    struct choice choice = choice_of(standing, spec, PARTITION_STANDING_ANY);
    if (standing->batches == NULL)
        return true;
    ask_present(&choice, g);
    if (!chosen(&choice))
        ask_other(&choice, g);
    return chosen(&choice);
}

static bool gpu_guards(const struct partition_standing *standing, uint32_t g,
                       const struct core_stream_spec *spec)
{
    struct partition_standing_placement placement;
    if (standing->gpu[g].period_ns == 0)
        return partition_guard_ask(standing, spec, g, PARTITION_GUARD_IDLE, &placement);
    return partition_guard_ask(standing, spec, g, PARTITION_GUARD_PRESENT, &placement) ||
           partition_guard_ask(standing, spec, g, PARTITION_GUARD_OTHER, &placement);
}

/* Would partition_standing_place put it on this unit, if the others were full? */
static bool unit_takes(const struct partition_standing *standing, uint32_t unit,
                       const struct core_stream_spec *spec)
{
    if (unit < standing->worker_count)
        return partition_workers_fits(standing->workers, unit, spec);
    uint32_t g = unit - standing->worker_count;
    const struct partition_gpu *gpu = &standing->gpu[g];
    if (gpu->out)
        return false;
    if (spec->guaranteed)
        return gpu_guards(standing, g, spec);
    return gpu_takes(standing, gpu, partition_standing_room_bytes(standing, g), spec) &&
           gpu_has_room(standing, g, spec);
}

/* What a search varies, and whom it asks. */
struct search {
    const struct partition_standing *standing;
    struct core_stream_spec spec;
    core_ns *value_ns; /* a field of spec */
    uint32_t unit;     /* idle: 0 for a worker, 1 + kind for a GPU */
    uint32_t io;
    bool idle;
};

static bool search_ask(void *owner, core_ns value_ns)
{
    struct search *search = owner;
    if (partition_standing_is_hurried(search->standing))
        return true; /* the shortest way to the end */
    *search->value_ns = value_ns;
    if (search->idle)
        return search->unit == 0 ? idle_worker_takes(search->standing, &search->spec)
                                 : idle_gpu_takes(search->standing, search->unit - 1, &search->spec);
    return partition_workers_io_fits(search->standing->workers, &search->spec, search->io) &&
           unit_takes(search->standing, search->unit, &search->spec);
}

/* The least over all units: a unit that does not beat what another offers is asked once. */
static core_ns search_all(struct search *search, uint32_t units, core_ns limit_ns)
{
    core_ns asked_ns = *search->value_ns, least_ns = 0;
    for (search->unit = 0; search->unit < units; search->unit++) {
        if (limit_ns <= asked_ns)
            break;
        if (least_ns > 0 && !search_ask(search, limit_ns))
            continue;
        core_ns ns = partition_search_least(asked_ns, limit_ns, search_ask, search);
        if (ns > 0) {
            least_ns = ns;
            limit_ns = ns - 1;
        }
    }
    return least_ns;
}

static uint32_t units_of(const struct partition_standing *standing)
{
    return standing->worker_count + standing->gpus;
}

static core_ns latency_least_ns(const struct partition_standing *standing,
                                const struct core_stream_spec *spec, uint32_t io, bool idle)
{
    struct search search = {.standing = standing, .spec = *spec, .io = io, .idle = idle};
    search.value_ns = &search.spec.latency_ns;
    uint32_t units = idle ? 1 + standing->profile->gpu_count : units_of(standing);
    return search_all(&search, units, CORE_LATENCY_NS_MAX);
}

static core_ns interval_least_ns(const struct partition_standing *standing,
                                 const struct core_stream_spec *spec, uint32_t io)
{
    struct search search = {.standing = standing, .spec = *spec, .io = io};
    search.value_ns = &search.spec.interval_ns;
    return search_all(&search, units_of(standing), CORE_INTERVAL_NS_MAX);
}

/* ---- words ---- */

static void say_worker(const struct partition_placement *worker,
                       struct partition_standing_placement *placement)
{
    placement->constraint = worker->constraint;
    memcpy(placement->reason, worker->reason, sizeof placement->reason);
}

void partition_standing_say_io(const struct partition_standing *standing, const struct core_stream_spec *spec,
                               uint32_t io, const struct core_stream_spec *instead_of,
                               struct partition_standing_placement *placement)
{
    struct partition_placement worker = {.constraint = PERFMODEL_LIMIT_IO};
    worker.io_ppb = perfmodel_io_utilisation_ppb(spec, standing->profile);
    struct partition_refusal refusal = {.spec = spec,
                                        .io = io,
                                        .io_taken_ppb =
                                            partition_workers_io_ppb(standing->workers, io) + worker.io_ppb,
                                        .io_limit_ppb = perfmodel_io_limit_ppb(standing->profile)};
    if (instead_of != NULL)
        refusal.io_taken_ppb -= perfmodel_io_utilisation_ppb(instead_of, standing->profile);
    partition_explain(&refusal, &worker);
    say_worker(&worker, placement);
}

void partition_standing_say_reserve(const struct partition_standing *standing, uint32_t unit,
                                    struct partition_standing_placement *placement)
{
    bool worker = unit < standing->worker_count;
    placement->constraint = PERFMODEL_LIMIT_RESERVE;
    partition_explain_reserve(worker ? "worker" : "GPU", worker ? unit : unit - standing->worker_count,
                              partition_standing_reserve_ppb(standing, unit), placement->reason);
}

static void say_out(uint32_t gpu, struct partition_standing_placement *placement)
{
    placement->constraint = PERFMODEL_LIMIT_GPU_OUT;
    partition_explain_out(gpu, placement->reason);
}

static void say_gpu(const struct choice *choice, struct partition_standing_placement *placement)
{
    const struct partition_gpu *gpu = &choice->standing->gpu[choice->closest];
    struct perfmodel_flow_load load = gpu->own.load;
    perfmodel_flow_load_add(&load, &choice->load);
    struct partition_gpu_refusal refusal = {.verdict = &choice->lacks,
                                            .gpu = choice->closest,
                                            .gpus = choice->standing->gpus,
                                            .streams = gpu->own.load.streams,
                                            .shortest_ns = load.shortest_ns};
    placement->constraint = choice->lacks.binding;
    partition_explain_gpu(&refusal, placement->reason);
}

/* What a refused worker lacks, relative to what it has. */
static double lack_of(const struct partition_placement *worker)
{
    const struct perfmodel_edf_result *test = &worker->test;
    if (test->binding == PERFMODEL_LIMIT_CPU_UTILISATION)
        return (double)test->utilisation_ppb / PPB - 1;
    return (double)(test->demand_ns + test->blocking_ns) / ((double)test->window_ns + 1) - 1;
}

/* Not even idle units take it. */
static void explain_idle(const struct partition_standing *standing, const struct core_stream_spec *spec,
                         uint32_t io, struct partition_standing_placement *placement)
{
    struct partition_placement worker;
    partition_workers_query(standing->workers, spec, io, false, &worker);
    say_worker(&worker, placement);
    if (standing->gpus == 0)
        return;
    core_ns least_ns = latency_least_ns(standing, spec, io, true);
    if (least_ns == 0)
        return;
    placement->constraint = PERFMODEL_LIMIT_DEADLINE;
    partition_explain_latency(spec, least_ns, placement->reason);
}

/* Of the units that could take it if they were idle, the one that came closest. */
static void explain_taken(const struct partition_standing *standing, const struct core_stream_spec *spec,
                          uint32_t io, bool worker_could, bool gpu_could,
                          struct partition_standing_placement *placement)
{
    struct partition_placement worker;
    struct choice choice = choice_of(standing, spec, PARTITION_STANDING_ANY);
    if (gpu_could) {
        (void)choose_present(&choice);
        (void)choose_other(&choice, true);
        (void)choose_other(&choice, false);
    }
    gpu_could = choice.closest != PARTITION_STANDING_NONE;
    if (worker_could || !gpu_could) {
        partition_workers_query(standing->workers, spec, io, false, &worker);
        if (!gpu_could || lack_of(&worker) <= -(double)choice.lacks.headroom_ppb / PPB) {
            say_worker(&worker, placement);
            return;
        }
    }
    say_gpu(&choice, placement);
}

/* A guaranteed stream that would be accepted as a standard one: placement->unit is where. */
static bool standard_fits(const struct partition_standing *standing, const struct core_stream_spec *spec,
                          uint32_t io, struct partition_standing_placement *placement)
{
    struct core_stream_spec standard = *spec;
    struct partition_standing_placement one;
    standard.guaranteed = false;
    if (!spec->guaranteed || !partition_standing_place(standing, &standard, io, PARTITION_STANDING_ANY, &one))
        return false;
    placement->unit = one.unit;
    return true;
}

/* Refused only because batches have no room for it. False: there is more to it. */
static bool say_rooms(const struct partition_standing *standing, const struct core_stream_spec *spec,
                      uint32_t io, struct partition_standing_placement *placement)
{
    struct partition_standing without = *standing;
    struct partition_standing_placement one;
    struct partition_standing_words words;
    struct core_stream_spec own = *spec;
    without.batches = NULL;
    if (standing->batches == NULL ||
        !partition_standing_place(&without, spec, io, PARTITION_STANDING_ANY, &one) ||
        one.unit < standing->worker_count)
        return false;
    uint32_t g = one.unit - standing->worker_count, backup = one.backup_unit;
    if (backup != PARTITION_STANDING_NONE)
        own.latency_ns = one.gpu_bound_ns;
    bool room =
        partition_standing_room_for(standing, g, PARTITION_STANDING_NONE, &own, one.period_ns, &words);
    if (room && backup != PARTITION_STANDING_NONE && backup >= standing->worker_count)
        room = partition_standing_room_for(standing, backup - standing->worker_count, g, &one.backup_spec,
                                           one.backup_period_ns, &words);
    if (room)
        return false;
    placement->constraint = words.constraint;
    memcpy(placement->reason, words.reason, sizeof placement->reason);
    return true;
}

static void say_backup(const struct partition_standing *standing,
                       struct partition_standing_placement *placement)
{
    placement->constraint = PERFMODEL_LIMIT_BACKUP;
    partition_explain_backup(placement->unit - standing->worker_count, placement->reason);
    placement->unit = PARTITION_STANDING_NONE;
}

static void say(const struct partition_standing *standing, const struct core_stream_spec *spec, uint32_t io,
                struct partition_standing_placement *placement)
{
    bool worker_could = idle_worker_takes(standing, spec), gpu_could = idle_gpus_take(standing, spec);
    uint32_t out = out_that_takes(standing, spec), reserve = reserve_that_binds(standing, spec);
    if (standard_fits(standing, spec, io, placement))
        say_backup(standing, placement);
    else if (!worker_could && !gpu_could)
        explain_idle(standing, spec, io, placement);
    else if (!partition_workers_io_fits(standing->workers, spec, io))
        partition_standing_say_io(standing, spec, io, NULL, placement);
    else if (reserve != PARTITION_STANDING_NONE)
        partition_standing_say_reserve(standing, reserve, placement);
    else if (out != PARTITION_STANDING_NONE)
        say_out(out, placement);
    else
        explain_taken(standing, spec, io, worker_could, gpu_could, placement);
}

void partition_standing_explain(const struct partition_standing *standing,
                                const struct core_stream_spec *spec, uint32_t io, bool with_offer,
                                struct partition_standing_placement *placement)
{
    if (partition_standing_is_hurried(standing))
        return;
    if (!say_rooms(standing, spec, io, placement))
        say(standing, spec, io, placement);
    if (with_offer) {
        placement->offer.interval_ns = interval_least_ns(standing, spec, io);
        placement->offer.latency_ns = latency_least_ns(standing, spec, io, false);
    }
}
