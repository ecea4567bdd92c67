/* Admission: why a stream is refused, and what would be accepted. */
#include "partition/admission/internal.h"
#include "partition/admission/offer.h"
#include "partition/admission/reasons.h"
#include "partition/admission/unit_worker.h"

#include <string.h>

#define PPB INT64_C(1000000000)

/* ---- units that would accept it ---- */

/* The first unit that would take it if nothing of it were withheld; NONE. */
static uint32_t reserve_that_binds(const struct admission *admission, const struct partition_demand *demand)
{
    const struct partition_question question = {
        .more = demand, .scenario = PARTITION_OWN, .whole = true, .period = PARTITION_PERIOD_ANY};
    for (uint32_t u = 0; u < admission_units(admission); u++) {
        const struct partition_unit *unit = admission->unit[u];
        if (!unit->out && unit->reserve_ppb > 0 && partition_unit_ask(unit, &question).accepted)
            return u;
    }
    return ADMISSION_NONE;
}

/* The first GPU that would take it if it were not out of service; NONE. */
static uint32_t out_that_takes(const struct admission *admission, const struct partition_demand *demand)
{
    for (uint32_t g = 0; g < admission->gpus; g++) {
        const struct partition_unit *unit = &admission->gpu[g]->unit;
        if (unit->out && partition_unit_takes(unit, demand))
            return g;
    }
    return ADMISSION_NONE;
}

static bool idle_gpus_take(const struct admission *admission, const struct partition_demand *demand)
{
    bool take = false;
    for (uint32_t kind = 0; kind < admission->profile->gpu_count; kind++)
        take = take || partition_unit_takes(admission->idle[1 + kind], demand);
    return take;
}

/* Have the batches of the GPU room for a standard stream that it would take? */
static bool gpu_has_room(const struct admission *admission, uint32_t g, const struct partition_demand *demand)
{
    struct partition_gpu_choice choice = partition_gpu_choice_of(admission, demand, PARTITION_KIND_ANY);
    if (admission->batches == NULL)
        return true;
    partition_gpu_choice_ask(&choice, g, PARTITION_PERIOD_PRESENT);
    if (choice.gpu == ADMISSION_NONE)
        partition_gpu_choice_ask(&choice, g, PARTITION_PERIOD_BEST);
    return choice.gpu != ADMISSION_NONE;
}

static bool gpu_protects(const struct admission *admission, uint32_t g, const struct core_stream_spec *spec)
{
    struct admission_placement placement;
    return partition_failover_ask(admission, spec, g, PARTITION_PERIOD_PRESENT, &placement) ||
           partition_failover_ask(admission, spec, g, PARTITION_PERIOD_BEST, &placement);
}

/* Would admission_place put it on this unit, if the others were full? */
static bool unit_takes(const struct admission *admission, uint32_t u, const struct partition_demand *demand)
{
    const struct partition_unit *unit = admission->unit[u];
    if (!admission_is_gpu(admission, u))
        return partition_unit_takes(unit, demand);
    uint32_t g = admission_gpu_of(admission, u);
    if (unit->out)
        return false;
    if (demand->spec.guaranteed)
        return gpu_protects(admission, g, &demand->spec);
    return partition_unit_takes(unit, demand) && gpu_has_room(admission, g, demand);
}

/* ---- offers ---- */

/* What a search varies, and whom it asks. */
struct search {
    const struct admission *admission;
    struct core_stream_spec spec;
    core_ns *value_ns; /* a field of spec */
    uint32_t unit;     /* idle: the kind, 0 for a worker */
    uint32_t io;
    bool idle;
};

static bool search_ask(void *owner, core_ns value_ns)
{
    struct search *search = owner;
    const struct admission *admission = search->admission;
    if (admission_is_cancelled(admission))
        return true; /* the shortest way to the end */
    *search->value_ns = value_ns;
    const struct partition_demand demand = partition_demand_of(&search->spec, admission->profile);
    if (search->idle)
        return partition_unit_takes(admission->idle[search->unit], &demand);
    return admission_io_fits(admission, search->io, 0, demand.io_ppb) &&
           unit_takes(admission, search->unit, &demand);
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

/* units: that are asked, idle ones by kind. */
static core_ns latency_least_ns(const struct admission *admission, const struct core_stream_spec *spec,
                                uint32_t io, bool idle, uint32_t units)
{
    struct search search = {.admission = admission, .spec = *spec, .io = io, .idle = idle};
    search.value_ns = &search.spec.latency_ns;
    return search_all(&search, units, CORE_LATENCY_NS_MAX);
}

static core_ns interval_least_ns(const struct admission *admission, const struct core_stream_spec *spec,
                                 uint32_t io)
{
    struct search search = {.admission = admission, .spec = *spec, .io = io};
    search.value_ns = &search.spec.interval_ns;
    return search_all(&search, admission_units(admission), CORE_INTERVAL_NS_MAX);
}

/* ---- words ---- */

void admission_explain_io(const struct admission *admission, int64_t io_ppb, uint32_t io, int64_t was_ppb,
                          struct admission_placement *placement)
{
    placement->constraint = PERFMODEL_LIMIT_IO;
    partition_explain_io(io, admission->io_ppb[io] - was_ppb + io_ppb, io_ppb,
                         perfmodel_io_limit_ppb(admission->profile), placement->reason);
}

void admission_explain_withheld(const struct admission *admission, uint32_t unit,
                                struct admission_placement *placement)
{
    bool gpu = admission_is_gpu(admission, unit);
    placement->constraint = PERFMODEL_LIMIT_RESERVE;
    partition_explain_reserve(gpu ? "GPU" : "worker", gpu ? admission_gpu_of(admission, unit) : unit,
                              admission_withheld_ppb(admission, unit), placement->reason);
}

static void write_out(uint32_t gpu, struct admission_placement *placement)
{
    placement->constraint = PERFMODEL_LIMIT_GPU_OUT;
    partition_explain_out(gpu, placement->reason);
}

static void write_gpu(const struct partition_gpu_choice *choice, struct admission_placement *placement)
{
    const struct partition_gpu *gpu = choice->admission->gpu[choice->closest];
    struct perfmodel_flow_load load = gpu->own.load;
    perfmodel_flow_load_add(&load, &choice->demand->load);
    struct partition_gpu_refusal refusal = {.verdict = &choice->lacks,
                                            .gpu = choice->closest,
                                            .gpus = choice->admission->gpus,
                                            .streams = gpu->own.load.streams,
                                            .shortest_ns = load.shortest_ns};
    placement->constraint = choice->lacks.binding;
    partition_explain_gpu(&refusal, placement->reason);
}

/* What a refused worker lacks, relative to what it has. */
static double lack_of(const struct perfmodel_edf_result *test)
{
    if (test->binding == PERFMODEL_LIMIT_CPU_UTILISATION)
        return (double)test->utilisation_ppb / PPB - 1;
    return (double)(test->demand_ns + test->blocking_ns) / ((double)test->window_ns + 1) - 1;
}

/* Not even an idle worker takes it: because of the latency bound, or whatever that is. */
static void say_idle_worker(const struct admission *admission, const struct partition_demand *demand,
                            struct admission_placement *placement)
{
    const struct partition_question question = {.more = demand, .scenario = PARTITION_OWN};
    const struct perfmodel_edf_result test = partition_unit_ask(admission->idle[0], &question).test;
    core_ns least_ns = latency_least_ns(admission, &demand->spec, 0, true, 1);
    if (least_ns > 0)
        placement->constraint = PERFMODEL_LIMIT_DEADLINE;
    else if (test.binding == PERFMODEL_LIMIT_CPU_UTILISATION)
        placement->constraint = PERFMODEL_LIMIT_CPU_UTILISATION;
    else
        placement->constraint = PERFMODEL_LIMIT_CPU_DEMAND;
    partition_explain_idle_worker(&demand->spec, &test, least_ns, placement->reason);
}

/* The worker that came closest. */
static void write_worker(const struct admission *admission, const struct partition_demand *demand,
                         uint32_t worker, const struct perfmodel_edf_result *test,
                         struct admission_placement *placement)
{
    placement->constraint = test->binding;
    partition_explain_worker(test, worker, admission->worker_count,
                             partition_worker_added_ppb(admission->unit[worker], demand), placement->reason);
}

/* Not even idle units take it. */
static void explain_idle(const struct admission *admission, const struct partition_demand *demand,
                         uint32_t io, struct admission_placement *placement)
{
    say_idle_worker(admission, demand, placement);
    if (admission->gpus == 0)
        return;
    core_ns least_ns =
        latency_least_ns(admission, &demand->spec, io, true, 1 + admission->profile->gpu_count);
    if (least_ns == 0)
        return;
    placement->constraint = PERFMODEL_LIMIT_DEADLINE;
    partition_explain_latency(&demand->spec, least_ns, placement->reason);
}

/* Of the units that could take it if they were idle, the one that came closest. */
static void explain_taken(const struct admission *admission, const struct partition_demand *demand,
                          bool worker_could, bool gpu_could, struct admission_placement *placement)
{
    struct partition_gpu_choice choice = partition_gpu_choice_of(admission, demand, PARTITION_KIND_ANY);
    struct partition_answer answer;
    if (gpu_could) {
        (void)partition_gpu_choose_present(&choice);
        (void)partition_gpu_choose_other(&choice, true);
        (void)partition_gpu_choose_other(&choice, false);
    }
    gpu_could = choice.closest != ADMISSION_NONE;
    if (!worker_could && !gpu_could) {
        say_idle_worker(admission, demand, placement);
        return;
    }
    uint32_t worker = admission_choose_worker(admission, demand, &answer);
    if (worker_could && (!gpu_could || lack_of(&answer.test) <= -(double)choice.lacks.headroom_ppb / PPB))
        write_worker(admission, demand, worker, &answer.test, placement);
    else
        write_gpu(&choice, placement);
}

/* A guaranteed stream that would be accepted as a standard one: *unit is where. */
static bool standard_fits(const struct admission *admission, const struct partition_demand *demand,
                          uint32_t io, uint32_t *unit)
{
    struct partition_demand standard = *demand;
    struct admission_placement one;
    standard.spec.guaranteed = false;
    if (!demand->spec.guaranteed || !admission_place(admission, &standard, io, PARTITION_KIND_ANY, &one))
        return false;
    *unit = one.unit;
    return true;
}

/* Have the batches of the unit room for a stream with this contract? Those of a worker have. */
static bool room_on(const struct admission *admission, uint32_t unit, uint32_t scenario,
                    const struct core_stream_spec *spec, core_ns period_ns, struct admission_refusal *words)
{
    if (unit == ADMISSION_NONE || !admission_is_gpu(admission, unit))
        return true;
    const struct partition_demand demand = partition_demand_of(spec, admission->profile);
    return admission_batches_fit(admission, admission_gpu_of(admission, unit), scenario, &demand, period_ns,
                                 words);
}

/* Refused only because batches have no room for it. False: there is more to it. */
static bool write_rooms(const struct admission *admission, const struct partition_demand *demand, uint32_t io,
                        struct admission_placement *placement)
{
    struct admission without = *admission;
    struct admission_placement one;
    struct admission_refusal words;
    struct core_stream_spec own = demand->spec;
    without.batches = NULL;
    if (admission->batches == NULL || !admission_place(&without, demand, io, PARTITION_KIND_ANY, &one))
        return false;
    if (one.backup_unit != ADMISSION_NONE)
        own.latency_ns = one.gpu_bound_ns;
    if (room_on(admission, one.unit, PARTITION_OWN, &own, one.period_ns, &words) &&
        room_on(admission, one.backup_unit, admission_gpu_of(admission, one.unit), &one.backup_spec,
                one.backup_period_ns, &words))
        return false;
    placement->constraint = words.constraint;
    memcpy(placement->reason, words.reason, sizeof placement->reason);
    return true;
}

static void say(const struct admission *admission, const struct partition_demand *demand, uint32_t io,
                struct admission_placement *placement)
{
    bool worker_could = partition_unit_takes(admission->idle[0], demand);
    bool gpu_could = idle_gpus_take(admission, demand);
    uint32_t out = out_that_takes(admission, demand), reserve = reserve_that_binds(admission, demand), unit;
    if (standard_fits(admission, demand, io, &unit)) {
        placement->constraint = PERFMODEL_LIMIT_BACKUP;
        partition_explain_backup(admission_gpu_of(admission, unit), placement->reason);
    } else if (!worker_could && !gpu_could)
        explain_idle(admission, demand, io, placement);
    else if (!admission_io_fits(admission, io, 0, demand->io_ppb))
        admission_explain_io(admission, demand->io_ppb, io, 0, placement);
    else if (reserve != ADMISSION_NONE)
        admission_explain_withheld(admission, reserve, placement);
    else if (out != ADMISSION_NONE)
        write_out(out, placement);
    else
        explain_taken(admission, demand, worker_could, gpu_could, placement);
}

void admission_explain(const struct admission *admission, const struct partition_demand *demand, uint32_t io,
                       bool with_offer, struct admission_placement *placement)
{
    if (admission_is_cancelled(admission))
        return;
    if (!write_rooms(admission, demand, io, placement))
        say(admission, demand, io, placement);
    if (with_offer) {
        placement->offer.interval_ns = interval_least_ns(admission, &demand->spec, io);
        placement->offer.latency_ns =
            latency_least_ns(admission, &demand->spec, io, false, admission_units(admission));
    }
}
