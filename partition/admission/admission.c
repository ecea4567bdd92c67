/* Standing plans: the account. Decisions are in decide.c, plans anew in replan.c. */
#include "partition/admission/internal.h"
#include "partition/admission/unit_worker.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PPB          INT64_C(1000000000)
#define DETECTION_NS (2 * CORE_NS_PER_MS)
#define THREADS_MAX  1024 /* workers, and I/O threads */

/* ---- creating ---- */

/* Copies of a card are charged at their contended times where another card, or the other direction of the
 * same, may copy at once. */
static bool busy(const struct partition_standing *standing, const struct config_profile_gpu *gpu)
{
    return standing->gpus > 1 || gpu->copy_engines > 1;
}

static core_status create_workers(struct partition_standing *standing)
{
    core_status status = partition_worker_create(&standing->idle[0], standing->profile, standing->gpus);
    for (uint32_t w = 0; status == CORE_OK && w < standing->worker_count; w++)
        status = partition_worker_create(&standing->unit[w], standing->profile, standing->gpus);
    return status;
}

static core_status create_gpu(struct partition_standing *standing, uint32_t kind, uint32_t g)
{
    core_status status = partition_gpu_create(&standing->gpu[g], &standing->shared, standing->card[kind],
                                              kind, standing->gpus);
    if (status == CORE_OK)
        standing->unit[partition_unit_of_gpu(standing->worker_count, g)] = &standing->gpu[g]->unit;
    return status;
}

static core_status create_gpus(struct partition_standing *standing)
{
    const struct config_profile *profile = standing->profile;
    core_status status = CORE_OK;
    uint32_t g = 0;
    for (uint32_t kind = 0; status == CORE_OK && kind < profile->gpu_count; kind++) {
        const struct config_profile_gpu *gpu = &profile->gpus[kind];
        struct partition_gpu *idle = NULL;
        status = perfmodel_flow_card_create(&standing->card[kind], profile, gpu, busy(standing, gpu));
        if (status == CORE_OK)
            status = partition_gpu_create(&idle, &standing->alone, standing->card[kind], kind, 0);
        if (status == CORE_OK)
            standing->idle[1 + kind] = &idle->unit;
        for (uint32_t i = 0; status == CORE_OK && i < gpu->count; i++, g++)
            status = create_gpu(standing, kind, g);
    }
    return status;
}

static core_status create_units(struct partition_standing *standing)
{
    const struct config_profile *profile = standing->profile;
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++)
        standing->gpus += profile->gpus[kind].count;
    standing->shared.profile = standing->alone.profile = profile;
    standing->unit = calloc(partition_standing_units(standing), sizeof(*standing->unit));
    standing->gpu = calloc(standing->gpus + 1, sizeof(*standing->gpu));
    standing->io_ppb = calloc(standing->io_count, sizeof *standing->io_ppb);
    if (standing->unit == NULL || standing->gpu == NULL || standing->io_ppb == NULL)
        return CORE_NO_MEMORY;
    core_status status = create_workers(standing);
    return status == CORE_OK ? create_gpus(standing) : status;
}

/* config_profile_copy wants names. */
static core_status copy_profile(struct config_profile **copy, const struct config_profile *profile)
{
    struct config_profile named = *profile;
    static char none[] = "";
    named.name = named.machine = named.measured = named.cpu.engine = none;
    return config_profile_copy(&named, copy);
}

core_status partition_standing_create(struct partition_standing **standing,
                                      const struct config_profile *profile, uint32_t worker_count,
                                      uint32_t io_count, struct core_error *error)
{
    if (worker_count == 0 || worker_count > THREADS_MAX || io_count == 0 || io_count > THREADS_MAX)
        return core_error_set(error, CORE_INVALID, "%u workers and %u I/O threads: 1 to %d of each can be",
                              worker_count, io_count, THREADS_MAX);
    struct partition_standing *made = calloc(1, sizeof *made);
    if (made == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a standing plan");
    made->worker_count = worker_count;
    made->io_count = io_count;
    made->free = PARTITION_STANDING_NONE;
    made->detection_ns = DETECTION_NS;
    if (copy_profile(&made->profile, profile) != CORE_OK || create_units(made) != CORE_OK) {
        partition_standing_destroy(made);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the account of %u workers and the GPUs",
                              worker_count);
    }
    *standing = made;
    return CORE_OK;
}

static void *copied(const void *array, size_t used, size_t bytes, core_status *status)
{
    void *made = malloc(bytes);
    if (made == NULL)
        *status = CORE_NO_MEMORY;
    else
        memcpy(made, array, used);
    return made;
}

static core_status copy_streams(const struct partition_standing *standing, struct partition_standing *made)
{
    core_status status = CORE_OK;
    size_t n = standing->capacity;
    made->capacity = standing->capacity;
    made->free = standing->free;
    made->count = standing->count;
    made->changes = standing->changes;
    made->detection_ns = standing->detection_ns;
    made->guarded = standing->guarded;
    if (n == 0)
        return CORE_OK;
    made->record = copied(standing->record, n * sizeof *made->record, n * sizeof *made->record, &status);
    made->listed =
        copied(standing->listed, standing->count * sizeof *made->listed, n * sizeof *made->listed, &status);
    for (int h = 0; h < PARTITION_GPU_HEAPS; h++) {
        made->shared.place[h] =
            copied(standing->shared.place[h], n * sizeof(uint32_t), n * sizeof(uint32_t), &status);
        made->shared.backup_place[h] =
            copied(standing->shared.backup_place[h], n * sizeof(uint32_t), n * sizeof(uint32_t), &status);
    }
    return status;
}

core_status partition_standing_copy(const struct partition_standing *standing,
                                    struct partition_standing **copy)
{
    struct partition_standing *made = NULL;
    core_status status =
        partition_standing_create(&made, standing->profile, standing->worker_count, standing->io_count, NULL);
    if (status != CORE_OK)
        return status;
    memcpy(made->io_ppb, standing->io_ppb, standing->io_count * sizeof *made->io_ppb);
    status = copy_streams(standing, made);
    for (uint32_t u = 0; status == CORE_OK && u < partition_standing_units(standing); u++)
        status = standing->unit[u]->ops->copy(standing->unit[u], made->unit[u]);
    if (status != CORE_OK) {
        partition_standing_destroy(made);
        return status;
    }
    *copy = made;
    return CORE_OK;
}

static void destroy_unit(struct partition_unit *unit)
{
    if (unit != NULL)
        unit->ops->destroy(unit);
}

void partition_standing_destroy(struct partition_standing *standing)
{
    if (standing == NULL)
        return;
    for (uint32_t u = 0; standing->unit != NULL && u < partition_standing_units(standing); u++)
        destroy_unit(standing->unit[u]);
    for (int kind = 0; kind <= CONFIG_PROFILE_GPU_KINDS_MAX; kind++)
        destroy_unit(standing->idle[kind]);
    for (int kind = 0; kind < CONFIG_PROFILE_GPU_KINDS_MAX; kind++)
        perfmodel_flow_card_destroy(standing->card[kind]);
    for (int h = 0; h < PARTITION_GPU_HEAPS; h++) {
        free(standing->shared.place[h]);
        free(standing->shared.backup_place[h]);
    }
    free(standing->unit);
    free(standing->gpu);
    free(standing->io_ppb);
    free(standing->batches);
    free(standing->record);
    free(standing->listed);
    config_profile_free(standing->profile);
    free(standing);
}

/* ---- streams ---- */

/* The array with the new size, or as it was. */
static void *grown(void *array, size_t bytes, core_status *status)
{
    void *made = *status == CORE_OK ? realloc(array, bytes) : NULL;
    if (made == NULL)
        *status = CORE_NO_MEMORY;
    return made != NULL ? made : array;
}

/* Where a part fails the others are larger than they need be, no more. */
static core_status grow_streams(struct partition_standing *standing)
{
    uint32_t capacity = standing->capacity < 64 ? 64 : 2 * standing->capacity;
    core_status status = CORE_OK;
    standing->record = grown(standing->record, capacity * sizeof *standing->record, &status);
    standing->listed = grown(standing->listed, capacity * sizeof *standing->listed, &status);
    for (int h = 0; h < PARTITION_GPU_HEAPS; h++) {
        standing->shared.place[h] = grown(standing->shared.place[h], capacity * sizeof(uint32_t), &status);
        standing->shared.backup_place[h] =
            grown(standing->shared.backup_place[h], capacity * sizeof(uint32_t), &status);
    }
    if (status != CORE_OK)
        return status;
    for (uint32_t number = capacity; number-- > standing->capacity;) {
        standing->record[number] = (struct partition_standing_record){.rank = standing->free};
        standing->free = number;
    }
    standing->capacity = capacity;
    return CORE_OK;
}

core_status partition_standing_reserve(struct partition_standing *standing,
                                       const struct partition_standing_placement *placement)
{
    core_status status = standing->free != PARTITION_STANDING_NONE ? CORE_OK : grow_streams(standing);
    struct partition_unit *unit = standing->unit[placement->unit];
    if (status == CORE_OK)
        status = unit->ops->reserve(unit, PARTITION_OWN);
    if (status != CORE_OK || placement->backup_unit == PARTITION_STANDING_NONE)
        return status;
    unit = standing->unit[placement->backup_unit];
    return unit->ops->reserve(unit, partition_standing_gpu_of(standing, placement->unit));
}

static int64_t io_ppb(const struct partition_standing *standing, const struct core_stream_spec *spec)
{
    return perfmodel_io_utilisation_ppb(spec, standing->profile);
}

uint32_t partition_standing_enter(struct partition_standing *standing, const struct core_stream_spec *spec,
                                  uint32_t io, uint64_t handle,
                                  const struct partition_standing_placement *placement)
{
    uint32_t stream = standing->free;
    struct partition_standing_record *record = &standing->record[stream];
    standing->free = record->rank;
    *record = (struct partition_standing_record){.contract = *spec,
                                                 .join = *spec,
                                                 .handle = handle,
                                                 .io = io,
                                                 .rank = standing->count,
                                                 .source = PARTITION_STANDING_NONE,
                                                 .target = PARTITION_STANDING_NONE};
    partition_standing_assign(record, placement);
    standing->listed[standing->count++] = stream;
    partition_standing_put(standing, stream);
    partition_standing_charge_io(standing, io, 0, io_ppb(standing, spec));
    standing->changes++;
    return stream;
}

struct partition_standing_record *partition_standing_record_of(struct partition_standing *standing,
                                                               uint32_t stream)
{
    assert(stream < standing->capacity);
    struct partition_standing_record *record = &standing->record[stream];
    assert(record->rank < standing->count && standing->listed[record->rank] == stream);
    return record;
}

/* Of two numbers of one stream one goes. If it is the one that the stream was to be moved to, the other is
 * the stream again, with the I/O thread's share. */
static void part(struct partition_standing *standing, struct partition_standing_record *record)
{
    if (record->target != PARTITION_STANDING_NONE)
        standing->record[record->target].source = PARTITION_STANDING_NONE;
    if (record->source == PARTITION_STANDING_NONE)
        return;
    struct partition_standing_record *source = &standing->record[record->source];
    source->target = PARTITION_STANDING_NONE;
    if (record->moved)
        return;
    source->moved = false;
    partition_standing_charge_io(standing, source->io, 0, io_ppb(standing, &source->join));
}

void partition_standing_release(struct partition_standing *standing, uint32_t stream)
{
    struct partition_standing_record *record = partition_standing_record_of(standing, stream);
    uint32_t unit = record->unit, backup_unit = record->backup.unit;
    partition_standing_take(standing, stream);
    if (!record->moved)
        partition_standing_charge_io(standing, record->io, io_ppb(standing, &record->join), 0);
    part(standing, record);
    uint32_t last = standing->listed[--standing->count];
    standing->listed[record->rank] = last;
    standing->record[last].rank = record->rank;
    record->rank = standing->free;
    standing->free = stream;
    standing->changes++;
    partition_standing_plan_less(standing, unit, backup_unit);
}

/* ---- GPUs in service ---- */

void partition_standing_set_out(struct partition_standing *standing, uint32_t gpu, bool out)
{
    assert(gpu < standing->gpus);
    struct partition_unit *unit = &standing->gpu[gpu]->unit;
    if (unit->out != out)
        standing->changes++;
    unit->out = out;
}

void partition_standing_set_hurried(struct partition_standing *standing, partition_standing_hurried *hurried,
                                    void *owner)
{
    standing->hurried = hurried;
    standing->hurry = owner;
}

void partition_standing_set_reserve(struct partition_standing *standing, uint32_t unit, int64_t share_ppb)
{
    assert(unit < partition_standing_units(standing) && share_ppb >= 0 && share_ppb <= PPB);
    standing->unit[unit]->reserve_ppb = share_ppb;
    standing->changes++;
}

int64_t partition_standing_reserve_ppb(const struct partition_standing *standing, uint32_t unit)
{
    assert(unit < partition_standing_units(standing));
    return standing->unit[unit]->reserve_ppb;
}

/* The GPU as it stands, at another period from now on, if that holds. */
static bool take_period(struct partition_standing *standing, struct partition_gpu *gpu,
                        const struct partition_question *question, core_ns longer_than_ns)
{
    struct partition_answer answer = partition_unit_ask(&gpu->unit, question);
    if (!answer.accepted || answer.verdict.period_ns <= longer_than_ns)
        return false;
    gpu->unit.ops->retarget(&gpu->unit, answer.verdict.period_ns, answer.verdict.memory_bytes);
    standing->changes++;
    return true;
}

bool partition_standing_retune(struct partition_standing *standing, uint32_t gpu, core_ns *period_ns)
{
    assert(gpu < standing->gpus);
    struct partition_gpu *of = standing->gpu[gpu];
    const struct partition_question question = {.scenario = PARTITION_OWN, .period = PARTITION_PERIOD_BEST};
    bool retuned = of->unit.period_ns > 0 && take_period(standing, of, &question, of->unit.period_ns);
    *period_ns = of->unit.period_ns;
    return retuned;
}

bool partition_standing_set_period(struct partition_standing *standing, uint32_t gpu, core_ns period_ns)
{
    assert(gpu < standing->gpus && period_ns > 0);
    struct partition_gpu *of = standing->gpu[gpu];
    const struct partition_question question = {
        .scenario = PARTITION_OWN, .period = PARTITION_PERIOD_AT, .period_ns = period_ns};
    return of->unit.period_ns > 0 && take_period(standing, of, &question, 0);
}

void partition_standing_set_detection(struct partition_standing *standing, core_ns ns)
{
    assert(ns >= 0 && ns <= CORE_LATENCY_NS_MAX);
    standing->detection_ns = ns;
    standing->changes++;
}

bool partition_standing_any_out(const struct partition_standing *standing)
{
    bool any = false;
    for (uint32_t g = 0; g < standing->gpus; g++)
        any = any || standing->gpu[g]->unit.out;
    return any;
}

/* ---- asking and admitting ---- */

core_status partition_standing_check(const struct partition_standing *standing,
                                     const struct core_stream_spec *spec, uint32_t io,
                                     struct core_error *error)
{
    if (io >= standing->io_count)
        return core_error_set(error, CORE_INVALID, "I/O thread %u: there are %u, from 0 on", io,
                              standing->io_count);
    return core_stream_spec_check(spec, error);
}

core_status partition_standing_query(const struct partition_standing *standing,
                                     const struct core_stream_spec *spec, uint32_t io, bool with_offer,
                                     struct partition_standing_placement *placement, struct core_error *error)
{
    core_status status = partition_standing_check(standing, spec, io, error);
    if (status != CORE_OK)
        return status;
    const struct partition_demand demand = partition_demand_of(spec, standing->profile);
    if (!partition_standing_place(standing, &demand, io, PARTITION_KIND_ANY, placement))
        partition_standing_explain(standing, &demand, io, with_offer, placement);
    return CORE_OK;
}

core_status partition_standing_admit(struct partition_standing *standing, const struct core_stream_spec *spec,
                                     uint32_t io, uint64_t handle,
                                     struct partition_standing_placement *placement, struct core_error *error)
{
    struct partition_standing_words words;
    core_status status = partition_standing_check(standing, spec, io, error);
    if (status != CORE_OK)
        return status;
    if (standing->count == PARTITION_PLAN_STREAMS_MAX)
        return core_error_set(error, CORE_REFUSED, "a plan holds %zu streams and no more",
                              PARTITION_PLAN_STREAMS_MAX);
    const struct partition_demand demand = partition_demand_of(spec, standing->profile);
    if (!partition_standing_place(standing, &demand, io, PARTITION_KIND_ANY, placement)) {
        partition_standing_explain(standing, &demand, io, true, placement);
        return CORE_OK;
    }
    if (partition_standing_reserve(standing, placement) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for one stream more");
    partition_standing_set(standing, placement);
    placement->stream = partition_standing_enter(standing, spec, io, handle, placement);
    bool planned = partition_standing_plan_units(standing, placement->unit, placement->backup_unit, &words);
    assert(planned); /* it has been asked for room */
    (void)planned;
    return CORE_OK;
}

/* ---- what stands ---- */

size_t partition_standing_streams(const struct partition_standing *standing)
{
    return standing->count;
}

uint32_t partition_standing_worker_for(const struct partition_standing *standing,
                                       const struct core_stream_spec *spec, uint32_t io)
{
    const struct partition_demand demand = partition_demand_of(spec, standing->profile);
    struct partition_answer answer;
    uint32_t worker = partition_standing_choose_worker(standing, &demand, &answer);
    bool fits = answer.accepted && partition_standing_io_fits(standing, io, 0, demand.io_ppb);
    return fits ? worker : PARTITION_STANDING_NONE;
}

struct partition_standing_worker partition_standing_worker_at(const struct partition_standing *standing,
                                                              uint32_t worker)
{
    assert(worker < standing->worker_count);
    return partition_worker_load(standing->unit[worker]);
}

struct partition_standing_stream partition_standing_stream_at(const struct partition_standing *standing,
                                                              size_t n)
{
    assert(n < standing->count);
    return partition_standing_stream_of(standing, standing->listed[n]);
}

struct partition_standing_stream partition_standing_stream_of(const struct partition_standing *standing,
                                                              uint32_t stream)
{
    assert(stream < standing->capacity);
    const struct partition_standing_record *record = &standing->record[stream];
    return (struct partition_standing_stream){.stream = stream,
                                              .handle = record->handle,
                                              .unit = record->unit,
                                              .io = record->io,
                                              .spec = record->spec,
                                              .contract = record->contract,
                                              .join = record->join,
                                              .backup_unit = record->backup.unit,
                                              .backup_spec = record->backup.spec,
                                              .gpu_bound_ns = record->backup.gpu_bound_ns,
                                              .detection_ns = record->backup.detection_ns,
                                              .joined = partition_standing_joined(record),
                                              .moved = record->moved};
}

struct partition_standing_gpu partition_standing_gpu_at(const struct partition_standing *standing, uint32_t g)
{
    assert(g < standing->gpus);
    const struct partition_gpu *gpu = standing->gpu[g];
    return (struct partition_standing_gpu){.streams = gpu->own.load.streams,
                                           .backups = partition_gpu_backups(gpu),
                                           .period_ns = gpu->unit.period_ns,
                                           .shortest_ns = partition_gpu_shortest_ns(gpu),
                                           .memory_bytes = gpu->unit.memory_bytes,
                                           .out = gpu->unit.out};
}
