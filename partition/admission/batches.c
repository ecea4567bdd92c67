/* Admission: whether the arenas of GPUs hold their batches, and the plans of these. */
#include "partition/admission/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define PLAN_ARENAS UINT64_C(5)
#define SPARE_SLOTS 16 /* one in so many is kept for streams that are leaving */

/* ---- arenas ---- */

/* A plan has at least PLAN_ARENAS batches on the way, each with input and output: none is larger then than an
 * arena. */
static uint64_t memory_bytes(const struct partition_gpu_arenas *arenas)
{
    return PLAN_ARENAS * 2 * arenas->bytes;
}

uint32_t partition_gpu_arenas_streams(const struct partition_gpu_arenas *arenas)
{
    return arenas->slots - arenas->slots / SPARE_SLOTS;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The cards of the flow read the admission state's own profile. */
static void limit_memory(struct config_profile *profile, const struct partition_gpu_arenas *arenas)
{
    uint64_t pinned_bytes = 0;

    for (uint32_t kind = 0; kind < profile->gpu_count; kind++) {
        struct config_profile_gpu *gpu = &profile->gpus[kind];
        gpu->memory_bytes = less(gpu->memory_bytes, memory_bytes(&arenas[kind]));
        pinned_bytes += memory_bytes(&arenas[kind]) * gpu->count;
    }
    profile->pinned_bytes = less(profile->pinned_bytes, pinned_bytes);
}

static uint32_t kind_of(const struct partition_gpu *gpu)
{
    return (uint32_t)__builtin_ctz(gpu->unit.kind);
}

core_status admission_set_arenas(struct admission *admission, const struct partition_gpu_arenas *arenas)
{
    assert(admission->count == 0 && admission->batches == NULL);
    admission->batches = calloc(admission->gpus + 1, sizeof *admission->batches);
    if (admission->batches == NULL)
        return CORE_NO_MEMORY;
    for (uint32_t g = 0; g < admission->gpus; g++)
        admission->batches[g].arenas = arenas[kind_of(admission->gpu[g])];
    limit_memory(admission->profile, arenas);
    return CORE_OK;
}

/* ---- what batches are for ---- */

/* Whom a GPU serves, in all scenarios. */
struct batch_demand {
    struct perfmodel_flow_load own;
    struct perfmodel_flow_load all; /* with backups: no scenario exceeds it */
    uint64_t backups;
    uint32_t guaranteed; /* of its own */
};

/* With one stream more (NULL: none) in a scenario. */
static struct batch_demand batch_demand_of(const struct partition_gpu *gpu, uint32_t scenario,
                                           const struct partition_demand *more)
{
    struct batch_demand demand = {
        .own = gpu->own.load, .backups = partition_gpu_backups(gpu), .guaranteed = gpu->guaranteed};
    struct perfmodel_flow_load comes = {0};
    if (more != NULL && scenario == PARTITION_OWN) {
        perfmodel_flow_load_add(&demand.own, &more->load);
        demand.guaranteed += more->spec.guaranteed ? 1 : 0;
    } else if (more != NULL)
        demand.backups++;
    for (uint32_t g = 0; g < gpu->failures; g++) {
        struct perfmodel_flow_load load = {0};
        if (gpu->backups[g] != NULL)
            load = gpu->backups[g]->load;
        if (more != NULL && g == scenario)
            perfmodel_flow_load_add(&load, &more->load);
        perfmodel_flow_load_cover(&comes, &load);
    }
    demand.all = demand.own;
    perfmodel_flow_load_add(&demand.all, &comes);
    return demand;
}

/* ---- plans ---- */

/* How long an I/O thread may let packets gather that has the stream with the least d'. */
static core_ns rest_ns(const struct config_profile *profile, core_ns shortest_ns)
{
    core_ns left_ns = shortest_ns + shortest_ns / 15; /* left - left/16 = d', or less than this is left */
    return perfmodel_io_rest_ns(left_ns + profile->margins.in_ns + profile->margins.out_ns, profile) / 2;
}

/* From the end of a period to the closing of its batch. in_ns is for two hand-overs here: half of it into the
 * batch, half from there to the card. */
static core_ns delay_ns(const struct config_profile *profile, core_ns shortest_ns)
{
    return profile->margins.in_ns / 2 + rest_ns(profile, shortest_ns);
}

static uint64_t arenas_needed(const struct partition_gpu_plan *plan)
{
    core_ns held_ns = plan->latency_ns - plan->period_ns + plan->aside_ns;
    return 1 + (uint64_t)((held_ns + plan->period_ns - 1) / plan->period_ns);
}

/* With `last` as the one before. The stages' bounds are those of the verdict. */
static struct partition_gpu_plan plan_of(const struct admission *admission, uint32_t g,
                                         const struct batch_demand *demand,
                                         const struct perfmodel_flow_verdict *verdict)
{
    const struct config_profile *profile = admission->profile;
    const struct partition_gpu_arenas *arenas = &admission->batches[g].arenas;
    const struct perfmodel_flow_gpu *card = admission->gpu[g]->card;
    core_ns closing_ns = delay_ns(profile, demand->all.shortest_ns);
    int64_t own_ppb = perfmodel_flow_judge(card, &demand->own, verdict->period_ns).busiest_ppb;

    return (struct partition_gpu_plan){
        .number = admission->batches[g].plan.number + 1,
        .period_ns = verdict->period_ns,
        .delay_ns = closing_ns,
        .up_ns = verdict->bounds.up_ns,
        .kernel_ns = verdict->bounds.kernel_ns,
        .down_ns = verdict->bounds.down_ns,
        .latency_ns = verdict->latency_ns,
        .batch_ns = verdict->latency_ns - verdict->period_ns + profile->margins.in_ns / 2,
        .batch_bytes = verdict->batch_bytes,
        .batch_packets = perfmodel_flow_batch_packets(&demand->all, verdict->period_ns),
        .streams = (uint32_t)demand->own.streams,
        .guaranteed = demand->guaranteed,
        .backups = (uint32_t)demand->backups,
        .reserved_ppb = verdict->busiest_ppb - own_ppb,
        .card = card,
        .load = demand->all,
        .arenas = arenas->count,
        .aside_ns = arenas->lead_ns + closing_ns + profile->margins.out_ns,
        .batch_most_ns = demand->guaranteed > 0 ? arenas->hang_ns : CORE_NS_NEVER};
}

/* Do the arenas hold the batches of this plan? */
static bool holds(const struct partition_gpu_arenas *arenas, const struct partition_gpu_plan *plan,
                  struct admission_refusal *words)
{
    const struct {
        const char *what;
        uint64_t needed, there;
    } rows[] = {
        {"batches on the way", arenas_needed(plan), arenas->count},
        {"bytes in a batch", plan->batch_bytes, arenas->bytes},
        {"packets in a batch", plan->batch_packets, arenas->segments},
        {"streams", (uint64_t)plan->streams + plan->backups, partition_gpu_arenas_streams(arenas)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].needed > rows[i].there) {
            snprintf(words->reason, sizeof words->reason,
                     "the GPU would need room for %llu %s and has room for %llu; raise pinned_bytes in the "
                     "profile",
                     (unsigned long long)rows[i].needed, rows[i].what, (unsigned long long)rows[i].there);
            return false;
        }
    if (plan->batch_ns <= plan->batch_most_ns)
        return true;
    snprintf(words->reason, sizeof words->reason,
             "a batch of the GPU may take %.1f ms, but one with guaranteed streams counts as lost after "
             "%.1f ms (gpus.hang_ms)",
             (double)plan->batch_ns / 1e6, (double)plan->batch_most_ns / 1e6);
    return false;
}

/* The plan for this demand at this period. False: there is none, and why. */
static bool make(const struct admission *admission, uint32_t g, const struct batch_demand *demand,
                 core_ns period_ns, struct partition_gpu_plan *plan, struct admission_refusal *words)
{
    const struct partition_batches *batches = &admission->batches[g];

    words->constraint = PERFMODEL_LIMIT_GPU_MEMORY;
    if (demand->all.streams == 0) {
        *plan = (struct partition_gpu_plan){.number = batches->plan.number + 1};
        return true;
    }
    struct perfmodel_flow_verdict verdict =
        perfmodel_flow_judge(admission->gpu[g]->card, &demand->all, period_ns);
    if (verdict.binding != PERFMODEL_LIMIT_NONE) {
        snprintf(words->reason, sizeof words->reason, "the GPU can not keep a period of %.3f ms",
                 (double)period_ns / 1e6);
        return false;
    }
    verdict.period_ns = period_ns;
    *plan = plan_of(admission, g, demand, &verdict);
    return holds(&batches->arenas, plan, words);
}

/* May it follow the last one? */
static bool follows(const struct admission *admission, uint32_t g, const struct partition_gpu_plan *plan,
                    struct admission_refusal *words)
{
    const struct partition_gpu_plan *last = &admission->batches[g].plan;

    if (partition_gpu_plan_leads_to(last, plan))
        return true;
    words->constraint = PERFMODEL_LIMIT_GPU_LATENCY;
    snprintf(words->reason, sizeof words->reason,
             "GPU %u would have to change its batch period of %.3f ms, and its streams would miss deadlines "
             "during the change",
             g, (double)last->period_ns / 1e6);
    return false;
}

bool admission_batches_fit(const struct admission *admission, uint32_t g, uint32_t scenario,
                           const struct partition_demand *more, core_ns period_ns,
                           struct admission_refusal *words)
{
    struct partition_gpu_plan plan;
    if (admission->batches == NULL)
        return true;
    struct batch_demand demand = batch_demand_of(admission->gpu[g], scenario, more);
    return make(admission, g, &demand, period_ns, &plan, words) && follows(admission, g, &plan, words);
}

bool admission_plan_batches(struct admission *admission, uint32_t g, struct admission_refusal *words)
{
    assert(g < admission->gpus && admission->batches != NULL);
    const struct partition_gpu *gpu = admission->gpu[g];
    struct partition_gpu_plan *last = &admission->batches[g].plan, plan;
    struct admission_refusal again;
    struct batch_demand demand = batch_demand_of(gpu, PARTITION_OWN, NULL);
    bool made =
        make(admission, g, &demand, gpu->unit.period_ns, &plan, words) && follows(admission, g, &plan, words);
    /* Else the period that there is, which also fits once who came for another one has left. */
    if (!made && last->period_ns > 0 && admission_set_period(admission, g, last->period_ns))
        made = make(admission, g, &demand, gpu->unit.period_ns, &plan, &again);
    if (made)
        *last = plan;
    return made;
}

static bool plan_unit(struct admission *admission, uint32_t unit, struct admission_refusal *words)
{
    if (admission->batches == NULL || unit == ADMISSION_NONE || !admission_is_gpu(admission, unit))
        return true;
    return admission_plan_batches(admission, admission_gpu_of(admission, unit), words);
}

bool admission_plan_units(struct admission *admission, uint32_t unit, uint32_t backup_unit,
                          struct admission_refusal *words)
{
    return plan_unit(admission, unit, words) && plan_unit(admission, backup_unit, words);
}

void admission_plan_smaller(struct admission *admission, uint32_t unit, uint32_t backup_unit)
{
    struct admission_refusal words;
    (void)!plan_unit(admission, unit, &words);
    (void)!plan_unit(admission, backup_unit, &words);
}

const struct partition_gpu_plan *admission_batches(const struct admission *admission, uint32_t g)
{
    assert(g < admission->gpus && admission->batches != NULL);
    return &admission->batches[g].plan;
}
