#include "partition/admission/unit_gpu.h"

#include <stdlib.h>

#define PER_OCTAVE   8
#define OCTAVE_FIRST 11 /* the shortest period is 8 << 11 ns, 16 us: no launch and two copies take less */
#define OCTAVE_LAST  38
#define PERIODS      ((OCTAVE_LAST - OCTAVE_FIRST + 1) * PER_OCTAVE)
#define RISES_ENOUGH 4
#define PPB          INT64_C(1000000000)

__extension__ typedef __int128 wide;

/* ---- periods ---- */

core_ns partition_gpu_grid_ns(uint32_t n)
{
    return (core_ns)(PER_OCTAVE + n % PER_OCTAVE) << (OCTAVE_FIRST + n / PER_OCTAVE);
}

uint32_t partition_gpu_grid_up_to(core_ns ns)
{
    uint32_t low = 0, high = PERIODS;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (partition_gpu_grid_ns(middle) <= ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- questions ---- */

struct trial {
    const struct partition_gpu *gpu;
    struct perfmodel_flow_load own;    /* with the stream, if it is to be the GPU's own */
    struct perfmodel_flow_load backup; /* of the scenario, with the stream, if it is to be a backup */
    uint32_t scenario;
    uint64_t room_bytes;
    int64_t reserve_ppb;
    struct partition_answer best;
};

static const struct partition_gpu *gpu_const(const struct partition_unit *unit)
{
    return (const struct partition_gpu *)unit;
}

static struct partition_gpu *gpu_of(struct partition_unit *unit)
{
    return (struct partition_gpu *)unit;
}

/* Pinned memory that its arenas may have. */
static uint64_t room_bytes(const struct partition_gpu *gpu, uint64_t kept_bytes)
{
    uint64_t others = gpu->gpus->pinned_bytes - gpu->unit.memory_bytes + kept_bytes;
    uint64_t all = gpu->gpus->profile->pinned_bytes;
    return all > others ? all - others : 0;
}

/* The load without a stream is right in its sums; its maxima may be that stream's. Where the same stream asks
 * for more instead, they are not above its new ones. */
static void replace_in(struct perfmodel_flow_load *load, const struct partition_question *question)
{
    if (question->instead_of != NULL)
        perfmodel_flow_load_remove(load, &question->instead_of->load);
    if (question->more != NULL)
        perfmodel_flow_load_add(load, &question->more->load);
}

static struct trial trial_of(const struct partition_gpu *gpu, const struct partition_question *question)
{
    bool withheld = question->more != NULL && !question->whole;
    uint32_t scenario = question->scenario;
    struct trial trial = {.gpu = gpu,
                          .own = gpu->own.load,
                          .scenario = scenario,
                          .room_bytes = room_bytes(gpu, question->kept_bytes),
                          .reserve_ppb = withheld ? gpu->unit.reserve_ppb : 0,
                          .best.verdict.headroom_ppb = -PPB - 1};
    if (scenario != PARTITION_OWN && gpu->backups[scenario] != NULL)
        trial.backup = gpu->backups[scenario]->load;
    replace_in(scenario == PARTITION_OWN ? &trial.own : &trial.backup, question);
    return trial;
}

static struct trial trial_as_it_stands(const struct partition_gpu *gpu)
{
    const struct partition_question question = {.scenario = PARTITION_OWN};
    return trial_of(gpu, &question);
}

/* The load of the backups of a scenario; NULL: none. */
static const struct perfmodel_flow_load *load_at(const struct trial *trial, uint32_t scenario)
{
    const struct partition_gpu_crowd *crowd = trial->gpu->backups[scenario];
    if (scenario == trial->scenario)
        return &trial->backup;
    return crowd != NULL && crowd->load.streams > 0 ? &crowd->load : NULL;
}

static bool stable(const struct perfmodel_flow_verdict *verdict)
{
    return verdict->binding != PERFMODEL_LIMIT_GPU_COPY && verdict->binding != PERFMODEL_LIMIT_GPU_KERNEL;
}

/* What falls behind is worst, then what has least room. */
static void keep_worst(struct perfmodel_flow_verdict *worst, const struct perfmodel_flow_verdict *verdict)
{
    uint64_t memory_bytes =
        verdict->memory_bytes > worst->memory_bytes ? verdict->memory_bytes : worst->memory_bytes;
    core_ns latency_ns = core_time_max(verdict->latency_ns, worst->latency_ns);
    bool worse =
        stable(verdict) == stable(worst) ? verdict->headroom_ppb < worst->headroom_ppb : !stable(verdict);
    if (worse)
        *worst = *verdict;
    worst->memory_bytes = memory_bytes;
    worst->latency_ns = latency_ns;
}

/* The GPU by itself, and at each loss. */
static struct perfmodel_flow_verdict judge_scenarios(const struct trial *trial, core_ns period_ns)
{
    const struct partition_gpu *gpu = trial->gpu;
    struct perfmodel_flow_verdict worst = perfmodel_flow_judge(gpu->card, &trial->own, period_ns);
    worst.period_ns = period_ns;
    for (uint32_t failure = 0; failure < gpu->failures; failure++) {
        const struct perfmodel_flow_load *more = load_at(trial, failure);
        struct perfmodel_flow_load load = trial->own;
        if (more == NULL)
            continue;
        perfmodel_flow_load_add(&load, more);
        struct perfmodel_flow_verdict verdict = perfmodel_flow_judge(gpu->card, &load, period_ns);
        keep_worst(&worst, &verdict);
    }
    return worst;
}

/* The least d' of all cases. */
static core_ns shortest_of(const struct trial *trial)
{
    core_ns shortest_ns = trial->own.streams > 0 ? trial->own.shortest_ns : CORE_NS_NEVER;
    for (uint32_t failure = 0; failure < trial->gpu->failures; failure++) {
        const struct perfmodel_flow_load *more = load_at(trial, failure);
        if (more != NULL && more->shortest_ns < shortest_ns)
            shortest_ns = more->shortest_ns;
    }
    return shortest_ns;
}

static struct perfmodel_flow_verdict judge(const struct trial *trial, core_ns period_ns)
{
    struct perfmodel_flow_verdict verdict = judge_scenarios(trial, period_ns);
    verdict.headroom_ppb -= trial->reserve_ppb;
    if (verdict.binding == PERFMODEL_LIMIT_NONE && verdict.headroom_ppb < 0)
        verdict.binding = PERFMODEL_LIMIT_GPU_LATENCY;
    if (verdict.binding != PERFMODEL_LIMIT_NONE)
        return verdict;
    wide left = (wide)trial->room_bytes - verdict.memory_bytes;
    int64_t room_ppb = (int64_t)(left * PPB / ((wide)verdict.memory_bytes + 1));
    if (left < 0)
        verdict.binding = PERFMODEL_LIMIT_GPU_MEMORY;
    if (left < 0 && room_ppb == 0)
        room_ppb = -1;
    if (room_ppb < verdict.headroom_ppb)
        verdict.headroom_ppb = room_ppb;
    return verdict;
}

/* Keeps the better one: accepted before refused, then by headroom. */
static void weigh(struct trial *trial, const struct perfmodel_flow_verdict *verdict)
{
    bool fits = verdict->binding == PERFMODEL_LIMIT_NONE;
    struct partition_answer *best = &trial->best;
    if (fits < best->accepted ||
        (fits == best->accepted && verdict->headroom_ppb <= best->verdict.headroom_ppb))
        return;
    *best = (struct partition_answer){.accepted = fits, .verdict = *verdict};
}

/* The shortest period that the stages catch up at, of the first `periods`: what is stable is so at longer
 * ones. `periods` if none. */
static uint32_t first_stable(struct trial *trial, uint32_t periods)
{
    uint32_t low = 0, high = periods;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        struct perfmodel_flow_verdict verdict = judge(trial, partition_gpu_grid_ns(middle));
        if (stable(&verdict))
            high = middle;
        else
            low = middle + 1;
        weigh(trial, &verdict);
    }
    return low;
}

/* From the shortest stable period up. The latency falls at first, as the stages catch up sooner, and then
 * rises with the period: where it has risen a few times in a row, longer ones are left out. */
static void scan(struct trial *trial, bool any)
{
    uint32_t periods = partition_gpu_grid_up_to(shortest_of(trial)), rises = 0;
    core_ns before_ns = CORE_NS_NEVER;
    for (uint32_t i = first_stable(trial, periods); i < periods && rises < RISES_ENOUGH; i++) {
        if (any && trial->best.accepted)
            return;
        struct perfmodel_flow_verdict verdict = judge(trial, partition_gpu_grid_ns(i));
        weigh(trial, &verdict);
        rises = verdict.latency_ns > before_ns ? rises + 1 : 0;
        before_ns = verdict.latency_ns;
    }
}

/* d'/4 of the shortest d' where it holds, else the period with most headroom. */
static void ask_grid(struct trial *trial, bool any)
{
    uint32_t up_to = partition_gpu_grid_up_to(shortest_of(trial) / 4);
    struct perfmodel_flow_verdict verdict = judge(trial, partition_gpu_grid_ns(up_to > 0 ? up_to - 1 : 0));
    weigh(trial, &verdict);
    if (!trial->best.accepted)
        scan(trial, any);
}

static void ask_at(struct trial *trial, core_ns period_ns)
{
    if (period_ns == 0)
        return;
    struct perfmodel_flow_verdict verdict = judge(trial, period_ns);
    weigh(trial, &verdict);
}

static struct partition_answer ask(const struct partition_unit *unit,
                                   const struct partition_question *question)
{
    const struct partition_gpu *gpu = gpu_const(unit);
    struct trial trial = trial_of(gpu, question);
    if (question->period == PARTITION_PERIOD_AT)
        ask_at(&trial, question->period_ns);
    else if (question->period == PARTITION_PERIOD_PRESENT)
        ask_at(&trial, gpu->unit.period_ns);
    else if (question->period == PARTITION_PERIOD_BEST)
        ask_grid(&trial, false);
    else {
        ask_at(&trial, gpu->unit.period_ns);
        if (!trial.best.accepted)
            ask_grid(&trial, true);
    }
    return trial.best;
}

/* Streams that come later may make a batch fuller: its latency now is no promise, the contract's bound is. */
static core_ns bound_ns(const struct partition_unit *unit, const struct partition_demand *demand)
{
    (void)unit;
    return demand->spec.latency_ns;
}

/* What it adds to the busiest stage, at least 1. */
static int64_t backup_ppb(const struct partition_unit *unit, uint32_t scenario,
                          const struct partition_demand *backup, core_ns period_ns)
{
    const struct partition_gpu *gpu = gpu_const(unit);
    struct perfmodel_flow_load load = gpu->own.load;
    if (gpu->backups[scenario] != NULL)
        perfmodel_flow_load_add(&load, &gpu->backups[scenario]->load);
    int64_t before_ppb = perfmodel_flow_judge(gpu->card, &load, period_ns).busiest_ppb;
    perfmodel_flow_load_add(&load, &backup->load);
    int64_t after_ppb = perfmodel_flow_judge(gpu->card, &load, period_ns).busiest_ppb;
    return after_ppb > before_ppb ? after_ppb - before_ppb : 1;
}

/* ---- crowds ---- */

static core_status crowd_reserve(struct partition_gpu_crowd *crowd)
{
    core_status status = partition_sizes_reserve(&crowd->sizes);
    for (int h = 0; status == CORE_OK && h < PARTITION_GPU_HEAPS; h++)
        status = partition_heap_reserve(&crowd->heap[h]);
    return status;
}

/* Least d' as a key of which the greatest counts: d' is at most an hour. */
static uint64_t urgency_of(core_ns work_ns)
{
    return (uint64_t)(CORE_NS_NEVER - work_ns);
}

static void crowd_add(struct partition_gpu_crowd *crowd, uint32_t *const place[PARTITION_GPU_HEAPS],
                      uint32_t stream, const struct perfmodel_flow_load *load)
{
    partition_heap_push(&crowd->heap[0], place[0], stream, load->job_burst_bytes);
    partition_heap_push(&crowd->heap[1], place[1], stream, load->job_rate);
    partition_heap_push(&crowd->heap[2], place[2], stream, urgency_of(load->shortest_ns));
    partition_sizes_add(&crowd->sizes, load->unit_bytes);
    perfmodel_flow_load_add(&crowd->load, load);
}

static void crowd_remove(struct partition_gpu_crowd *crowd, uint32_t *const place[PARTITION_GPU_HEAPS],
                         uint32_t stream, const struct perfmodel_flow_load *load)
{
    for (int h = 0; h < PARTITION_GPU_HEAPS; h++)
        partition_heap_remove(&crowd->heap[h], place[h], stream);
    partition_sizes_remove(&crowd->sizes, load->unit_bytes);
    perfmodel_flow_load_remove(&crowd->load, load);
    if (crowd->load.streams == 0)
        return;
    crowd->load.job_burst_bytes = partition_heap_greatest(&crowd->heap[0]);
    crowd->load.job_rate = partition_heap_greatest(&crowd->heap[1]);
    crowd->load.unit_bytes = partition_sizes_divisor_bytes(&crowd->sizes);
    crowd->load.shortest_ns = CORE_NS_NEVER - (core_ns)partition_heap_greatest(&crowd->heap[2]);
}

static core_status crowd_copy(const struct partition_gpu_crowd *crowd, struct partition_gpu_crowd *copy)
{
    core_status status = partition_sizes_copy(&crowd->sizes, &copy->sizes);
    copy->load = crowd->load;
    for (int h = 0; status == CORE_OK && h < PARTITION_GPU_HEAPS; h++)
        status = partition_heap_copy(&crowd->heap[h], &copy->heap[h]);
    return status;
}

static void crowd_free(struct partition_gpu_crowd *crowd)
{
    for (int h = 0; h < PARTITION_GPU_HEAPS; h++)
        partition_heap_free(&crowd->heap[h]);
    partition_sizes_free(&crowd->sizes);
}

/* ---- charges ---- */

size_t partition_gpu_backups(const struct partition_gpu *gpu)
{
    size_t count = 0;
    for (uint32_t g = 0; g < gpu->failures; g++)
        count += gpu->backups[g] != NULL ? gpu->backups[g]->load.streams : 0;
    return count;
}

static void retarget(struct partition_unit *unit, core_ns period_ns, uint64_t memory_bytes)
{
    struct partition_gpu *gpu = gpu_of(unit);
    gpu->gpus->pinned_bytes += memory_bytes - gpu->unit.memory_bytes;
    gpu->unit.period_ns = period_ns;
    gpu->unit.memory_bytes = memory_bytes;
}

/* After a stream has left: no more memory than before, and no more than those who stay need. */
static void shrink(struct partition_gpu *gpu)
{
    if (gpu->own.load.streams == 0 && partition_gpu_backups(gpu) == 0) {
        retarget(&gpu->unit, 0, 0);
        return;
    }
    struct trial trial = trial_as_it_stands(gpu);
    struct perfmodel_flow_verdict verdict = judge_scenarios(&trial, gpu->unit.period_ns);
    if (verdict.memory_bytes < gpu->unit.memory_bytes)
        retarget(&gpu->unit, gpu->unit.period_ns, verdict.memory_bytes);
}

static core_status reserve(struct partition_unit *unit, uint32_t scenario)
{
    struct partition_gpu *gpu = gpu_of(unit);
    if (scenario == PARTITION_OWN)
        return crowd_reserve(&gpu->own);
    if (gpu->backups[scenario] == NULL)
        gpu->backups[scenario] = calloc(1, sizeof *gpu->backups[scenario]);
    return gpu->backups[scenario] != NULL ? crowd_reserve(gpu->backups[scenario]) : CORE_NO_MEMORY;
}

/* The GPU stays at its period where a stream's charge is replaced, even if the stream is its only one. */
static void charge(struct partition_unit *unit, uint32_t scenario, uint32_t stream,
                   const struct partition_demand *less, const struct partition_demand *more)
{
    struct partition_gpu *gpu = gpu_of(unit);
    bool own = scenario == PARTITION_OWN;
    struct partition_gpu_crowd *crowd = own ? &gpu->own : gpu->backups[scenario];
    uint32_t *const *place = own ? gpu->gpus->place : gpu->gpus->backup_place;
    if (less != NULL) {
        crowd_remove(crowd, place, stream, &less->load);
        gpu->guaranteed -= own && less->spec.guaranteed;
    }
    if (more != NULL) {
        crowd_add(crowd, place, stream, &more->load);
        gpu->guaranteed += own && more->spec.guaranteed;
    }
    if (less != NULL)
        shrink(gpu);
}

/* ---- life ---- */

static core_status copy(const struct partition_unit *unit, struct partition_unit *to)
{
    const struct partition_gpu *gpu = gpu_const(unit);
    struct partition_gpu *made = gpu_of(to);
    core_status status = crowd_copy(&gpu->own, &made->own);
    made->guaranteed = gpu->guaranteed;
    to->out = unit->out;
    to->reserve_ppb = unit->reserve_ppb;
    retarget(to, gpu->unit.period_ns, gpu->unit.memory_bytes);
    for (uint32_t g = 0; status == CORE_OK && g < gpu->failures; g++) {
        if (gpu->backups[g] == NULL)
            continue;
        made->backups[g] = calloc(1, sizeof *made->backups[g]);
        status = made->backups[g] != NULL ? crowd_copy(gpu->backups[g], made->backups[g]) : CORE_NO_MEMORY;
    }
    return status;
}

static void destroy(struct partition_unit *unit)
{
    struct partition_gpu *gpu = gpu_of(unit);
    for (uint32_t g = 0; g < gpu->failures; g++) {
        if (gpu->backups[g] != NULL)
            crowd_free(gpu->backups[g]);
        free(gpu->backups[g]);
    }
    crowd_free(&gpu->own);
    free(gpu);
}

static const struct partition_unit_ops ops = {.ask = ask,
                                              .bound_ns = bound_ns,
                                              .backup_ppb = backup_ppb,
                                              .reserve = reserve,
                                              .charge = charge,
                                              .retarget = retarget,
                                              .copy = copy,
                                              .destroy = destroy};

core_status partition_gpu_create(struct partition_gpu **gpu, struct partition_gpus *gpus,
                                 const struct perfmodel_flow_gpu *card, uint32_t kind, uint32_t failures)
{
    struct partition_gpu *made = calloc(1, sizeof *made + failures * sizeof(*made->backups));
    if (made == NULL)
        return CORE_NO_MEMORY;
    made->unit = (struct partition_unit){.ops = &ops, .kind = UINT32_C(1) << kind};
    made->gpus = gpus;
    made->card = card;
    made->failures = failures;
    *gpu = made;
    return CORE_OK;
}

/* ---- figures ---- */

bool partition_gpu_alike(const struct partition_gpu *a, const struct partition_gpu *b)
{
    return a != NULL && b != NULL && a->unit.kind == b->unit.kind &&
           a->unit.reserve_ppb == b->unit.reserve_ppb;
}

core_ns partition_gpu_shortest_ns(const struct partition_gpu *gpu)
{
    struct trial trial = trial_as_it_stands(gpu);
    core_ns shortest_ns = shortest_of(&trial);
    return shortest_ns < CORE_NS_NEVER ? shortest_ns : 0;
}
