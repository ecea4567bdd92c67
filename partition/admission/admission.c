/* Admission: the account. Decisions are in decide.c, plans anew in replan.c. */
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
static bool busy(const struct admission *admission, const struct config_profile_gpu *gpu)
{
    return admission->gpus > 1 || gpu->copy_engines > 1;
}

static core_status create_workers(struct admission *admission)
{
    core_status status = partition_worker_create(&admission->idle[0], admission->profile, admission->gpus);
    for (uint32_t w = 0; status == CORE_OK && w < admission->worker_count; w++)
        status = partition_worker_create(&admission->unit[w], admission->profile, admission->gpus);
    return status;
}

static core_status create_gpu(struct admission *admission, uint32_t kind, uint32_t g)
{
    core_status status = partition_gpu_create(&admission->gpu[g], &admission->shared, admission->card[kind],
                                              kind, admission->gpus);
    if (status == CORE_OK)
        admission->unit[partition_unit_of_gpu(admission->worker_count, g)] = &admission->gpu[g]->unit;
    return status;
}

static core_status create_gpus(struct admission *admission)
{
    const struct config_profile *profile = admission->profile;
    core_status status = CORE_OK;
    uint32_t g = 0;
    for (uint32_t kind = 0; status == CORE_OK && kind < profile->gpu_count; kind++) {
        const struct config_profile_gpu *gpu = &profile->gpus[kind];
        struct partition_gpu *idle = NULL;
        status = perfmodel_flow_gpu_create(&admission->card[kind], profile, gpu, busy(admission, gpu));
        if (status == CORE_OK)
            status = partition_gpu_create(&idle, &admission->alone, admission->card[kind], kind, 0);
        if (status == CORE_OK)
            admission->idle[1 + kind] = &idle->unit;
        for (uint32_t i = 0; status == CORE_OK && i < gpu->count; i++, g++)
            status = create_gpu(admission, kind, g);
    }
    return status;
}

static core_status create_units(struct admission *admission)
{
    const struct config_profile *profile = admission->profile;
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++)
        admission->gpus += profile->gpus[kind].count;
    admission->shared.profile = admission->alone.profile = profile;
    admission->unit = calloc(admission_units(admission), sizeof(*admission->unit));
    admission->gpu = calloc(admission->gpus + 1, sizeof(*admission->gpu));
    admission->io_ppb = calloc(admission->io_count, sizeof *admission->io_ppb);
    if (admission->unit == NULL || admission->gpu == NULL || admission->io_ppb == NULL)
        return CORE_NO_MEMORY;
    core_status status = create_workers(admission);
    return status == CORE_OK ? create_gpus(admission) : status;
}

/* config_profile_copy wants names. */
static core_status copy_profile(struct config_profile **copy, const struct config_profile *profile)
{
    struct config_profile named = *profile;
    static char none[] = "";
    named.name = named.machine = named.measured = named.cpu.engine = none;
    return config_profile_copy(&named, copy);
}

core_status admission_create(struct admission **admission, const struct config_profile *profile,
                             uint32_t worker_count, uint32_t io_count, struct core_error *error)
{
    if (worker_count == 0 || worker_count > THREADS_MAX || io_count == 0 || io_count > THREADS_MAX)
        return core_error_set(error, CORE_INVALID, "%u workers and %u I/O threads: 1 to %d of each can be",
                              worker_count, io_count, THREADS_MAX);
    struct admission *made = calloc(1, sizeof *made);
    if (made == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the admission state");
    made->worker_count = worker_count;
    made->io_count = io_count;
    made->free = ADMISSION_NONE;
    made->detection_ns = DETECTION_NS;
    if (copy_profile(&made->profile, profile) != CORE_OK || create_units(made) != CORE_OK) {
        admission_destroy(made);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the account of %u workers and the GPUs",
                              worker_count);
    }
    *admission = made;
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

static core_status copy_streams(const struct admission *admission, struct admission *made)
{
    core_status status = CORE_OK;
    size_t n = admission->capacity;
    made->capacity = admission->capacity;
    made->free = admission->free;
    made->count = admission->count;
    made->changes = admission->changes;
    made->detection_ns = admission->detection_ns;
    made->protected = admission->protected;
    if (n == 0)
        return CORE_OK;
    made->record = copied(admission->record, n * sizeof *made->record, n * sizeof *made->record, &status);
    made->listed =
        copied(admission->listed, admission->count * sizeof *made->listed, n * sizeof *made->listed, &status);
    for (int h = 0; h < PARTITION_GPU_HEAPS; h++) {
        made->shared.place[h] =
            copied(admission->shared.place[h], n * sizeof(uint32_t), n * sizeof(uint32_t), &status);
        made->shared.backup_place[h] =
            copied(admission->shared.backup_place[h], n * sizeof(uint32_t), n * sizeof(uint32_t), &status);
    }
    return status;
}

core_status admission_copy(const struct admission *admission, struct admission **copy)
{
    struct admission *made = NULL;
    core_status status =
        admission_create(&made, admission->profile, admission->worker_count, admission->io_count, NULL);
    if (status != CORE_OK)
        return status;
    memcpy(made->io_ppb, admission->io_ppb, admission->io_count * sizeof *made->io_ppb);
    status = copy_streams(admission, made);
    for (uint32_t u = 0; status == CORE_OK && u < admission_units(admission); u++)
        status = admission->unit[u]->ops->copy(admission->unit[u], made->unit[u]);
    if (status != CORE_OK) {
        admission_destroy(made);
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

void admission_destroy(struct admission *admission)
{
    if (admission == NULL)
        return;
    for (uint32_t u = 0; admission->unit != NULL && u < admission_units(admission); u++)
        destroy_unit(admission->unit[u]);
    for (int kind = 0; kind <= CONFIG_PROFILE_GPU_KINDS_MAX; kind++)
        destroy_unit(admission->idle[kind]);
    for (int kind = 0; kind < CONFIG_PROFILE_GPU_KINDS_MAX; kind++)
        perfmodel_flow_gpu_destroy(admission->card[kind]);
    for (int h = 0; h < PARTITION_GPU_HEAPS; h++) {
        free(admission->shared.place[h]);
        free(admission->shared.backup_place[h]);
    }
    free(admission->unit);
    free(admission->gpu);
    free(admission->io_ppb);
    free(admission->batches);
    free(admission->record);
    free(admission->listed);
    config_profile_free(admission->profile);
    free(admission);
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
static core_status grow_streams(struct admission *admission)
{
    uint32_t capacity = admission->capacity < 64 ? 64 : admission->capacity + admission->capacity / 4;
    core_status status = CORE_OK;
    admission->record = grown(admission->record, capacity * sizeof *admission->record, &status);
    admission->listed = grown(admission->listed, capacity * sizeof *admission->listed, &status);
    for (int h = 0; h < PARTITION_GPU_HEAPS; h++) {
        admission->shared.place[h] = grown(admission->shared.place[h], capacity * sizeof(uint32_t), &status);
        admission->shared.backup_place[h] =
            grown(admission->shared.backup_place[h], capacity * sizeof(uint32_t), &status);
    }
    if (status != CORE_OK)
        return status;
    for (uint32_t number = capacity; number-- > admission->capacity;) {
        admission->record[number] = (struct admission_record){.rank = admission->free};
        admission->free = number;
    }
    admission->capacity = capacity;
    return CORE_OK;
}

core_status admission_allocate(struct admission *admission, const struct admission_placement *placement)
{
    core_status status = admission->free != ADMISSION_NONE ? CORE_OK : grow_streams(admission);
    struct partition_unit *unit = admission->unit[placement->unit];
    if (status == CORE_OK)
        status = unit->ops->reserve(unit, PARTITION_OWN);
    if (status != CORE_OK || placement->backup_unit == ADMISSION_NONE)
        return status;
    unit = admission->unit[placement->backup_unit];
    return unit->ops->reserve(unit, admission_gpu_of(admission, placement->unit));
}

static int64_t io_ppb(const struct admission *admission, const struct core_stream_spec *spec)
{
    return perfmodel_io_utilisation_ppb(spec, admission->profile);
}

uint32_t admission_insert(struct admission *admission, const struct core_stream_spec *spec, uint32_t io,
                          uint64_t handle, const struct admission_placement *placement)
{
    uint32_t stream = admission->free;
    struct admission_record *record = &admission->record[stream];
    admission->free = record->rank;
    *record = (struct admission_record){.contract = *spec,
                                        .join = *spec,
                                        .handle = handle,
                                        .io = io,
                                        .rank = admission->count,
                                        .source = ADMISSION_NONE,
                                        .target = ADMISSION_NONE};
    admission_assign(record, placement);
    admission->listed[admission->count++] = stream;
    admission_add_demand(admission, stream);
    admission_charge_io(admission, io, 0, io_ppb(admission, spec));
    admission->changes++;
    return stream;
}

struct admission_record *admission_record_of(struct admission *admission, uint32_t stream)
{
    assert(stream < admission->capacity);
    struct admission_record *record = &admission->record[stream];
    assert(record->rank < admission->count && admission->listed[record->rank] == stream);
    return record;
}

/* Of two numbers of one stream one goes. If it is the one that the stream was to be moved to, the other is
 * the stream again, with the I/O thread's share. */
static void part(struct admission *admission, struct admission_record *record)
{
    if (record->target != ADMISSION_NONE)
        admission->record[record->target].source = ADMISSION_NONE;
    if (record->source == ADMISSION_NONE)
        return;
    struct admission_record *source = &admission->record[record->source];
    source->target = ADMISSION_NONE;
    if (record->moved)
        return;
    source->moved = false;
    admission_charge_io(admission, source->io, 0, io_ppb(admission, &source->join));
}

void admission_release(struct admission *admission, uint32_t stream)
{
    struct admission_record *record = admission_record_of(admission, stream);
    uint32_t unit = record->unit, backup_unit = record->backup.unit;
    admission_remove_demand(admission, stream);
    if (!record->moved)
        admission_charge_io(admission, record->io, io_ppb(admission, &record->join), 0);
    part(admission, record);
    uint32_t last = admission->listed[--admission->count];
    admission->listed[record->rank] = last;
    admission->record[last].rank = record->rank;
    record->rank = admission->free;
    admission->free = stream;
    admission->changes++;
    admission_plan_smaller(admission, unit, backup_unit);
}

/* ---- GPUs in service ---- */

void admission_set_out(struct admission *admission, uint32_t gpu, bool out)
{
    assert(gpu < admission->gpus);
    struct partition_unit *unit = &admission->gpu[gpu]->unit;
    if (unit->out != out)
        admission->changes++;
    unit->out = out;
}

void admission_set_cancel(struct admission *admission, admission_cancel *cancelled, void *owner)
{
    admission->cancelled = cancelled;
    admission->cancel_owner = owner;
}

void admission_set_withheld(struct admission *admission, uint32_t unit, int64_t share_ppb)
{
    assert(unit < admission_units(admission) && share_ppb >= 0 && share_ppb <= PPB);
    admission->unit[unit]->reserve_ppb = share_ppb;
    admission->changes++;
}

int64_t admission_withheld_ppb(const struct admission *admission, uint32_t unit)
{
    assert(unit < admission_units(admission));
    return admission->unit[unit]->reserve_ppb;
}

/* The GPU as it stands, at another period from now on, if that holds. */
static bool take_period(struct admission *admission, struct partition_gpu *gpu,
                        const struct partition_question *question, core_ns longer_than_ns)
{
    struct partition_answer answer = partition_unit_ask(&gpu->unit, question);
    if (!answer.accepted || answer.verdict.period_ns <= longer_than_ns)
        return false;
    gpu->unit.ops->retarget(&gpu->unit, answer.verdict.period_ns, answer.verdict.memory_bytes);
    admission->changes++;
    return true;
}

bool admission_retune(struct admission *admission, uint32_t gpu, core_ns *period_ns)
{
    assert(gpu < admission->gpus);
    struct partition_gpu *of = admission->gpu[gpu];
    const struct partition_question question = {.scenario = PARTITION_OWN, .period = PARTITION_PERIOD_BEST};
    bool retuned = of->unit.period_ns > 0 && take_period(admission, of, &question, of->unit.period_ns);
    *period_ns = of->unit.period_ns;
    return retuned;
}

bool admission_set_period(struct admission *admission, uint32_t gpu, core_ns period_ns)
{
    assert(gpu < admission->gpus && period_ns > 0);
    struct partition_gpu *of = admission->gpu[gpu];
    const struct partition_question question = {
        .scenario = PARTITION_OWN, .period = PARTITION_PERIOD_AT, .period_ns = period_ns};
    return of->unit.period_ns > 0 && take_period(admission, of, &question, 0);
}

void admission_set_detection(struct admission *admission, core_ns ns)
{
    assert(ns >= 0 && ns <= CORE_LATENCY_NS_MAX);
    admission->detection_ns = ns;
    admission->changes++;
}

bool admission_any_out(const struct admission *admission)
{
    bool any = false;
    for (uint32_t g = 0; g < admission->gpus; g++)
        any = any || admission->gpu[g]->unit.out;
    return any;
}

/* ---- asking and admitting ---- */

core_status admission_check(const struct admission *admission, const struct core_stream_spec *spec,
                            uint32_t io, struct core_error *error)
{
    if (io >= admission->io_count)
        return core_error_set(error, CORE_INVALID, "I/O thread %u: there are %u, from 0 on", io,
                              admission->io_count);
    return core_stream_spec_check(spec, error);
}

core_status admission_query(const struct admission *admission, const struct core_stream_spec *spec,
                            uint32_t io, bool with_offer, struct admission_placement *placement,
                            struct core_error *error)
{
    core_status status = admission_check(admission, spec, io, error);
    if (status != CORE_OK)
        return status;
    const struct partition_demand demand = partition_demand_of(spec, admission->profile);
    if (!admission_place(admission, &demand, io, PARTITION_KIND_ANY, placement))
        admission_explain(admission, &demand, io, with_offer, placement);
    return CORE_OK;
}

core_status admission_admit(struct admission *admission, const struct core_stream_spec *spec, uint32_t io,
                            uint64_t handle, struct admission_placement *placement, struct core_error *error)
{
    struct admission_refusal words;
    core_status status = admission_check(admission, spec, io, error);
    if (status != CORE_OK)
        return status;
    if (admission->count == PARTITION_PLAN_STREAMS_MAX)
        return core_error_set(error, CORE_REFUSED, "a plan holds %zu streams and no more",
                              PARTITION_PLAN_STREAMS_MAX);
    const struct partition_demand demand = partition_demand_of(spec, admission->profile);
    if (!admission_place(admission, &demand, io, PARTITION_KIND_ANY, placement)) {
        admission_explain(admission, &demand, io, true, placement);
        return CORE_OK;
    }
    if (admission_allocate(admission, placement) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for one stream more");
    admission_set_periods(admission, placement);
    placement->stream = admission_insert(admission, spec, io, handle, placement);
    bool planned = admission_plan_units(admission, placement->unit, placement->backup_unit, &words);
    assert(planned); /* it has been asked for room */
    (void)planned;
    return CORE_OK;
}

/* ---- what stands ---- */

uint64_t admission_changes(const struct admission *admission)
{
    return admission->changes;
}

size_t admission_streams(const struct admission *admission)
{
    return admission->count;
}

uint32_t admission_worker_for(const struct admission *admission, const struct core_stream_spec *spec,
                              uint32_t io)
{
    const struct partition_demand demand = partition_demand_of(spec, admission->profile);
    struct partition_answer answer;
    uint32_t worker = admission_choose_worker(admission, &demand, &answer);
    bool fits = answer.accepted && admission_io_fits(admission, io, 0, demand.io_ppb);
    return fits ? worker : ADMISSION_NONE;
}

struct admission_worker admission_worker_at(const struct admission *admission, uint32_t worker)
{
    assert(worker < admission->worker_count);
    return partition_worker_load(admission->unit[worker]);
}

struct admission_stream admission_stream_at(const struct admission *admission, size_t n)
{
    assert(n < admission->count);
    return admission_stream_of(admission, admission->listed[n]);
}

struct admission_stream admission_stream_of(const struct admission *admission, uint32_t stream)
{
    assert(stream < admission->capacity);
    const struct admission_record *record = &admission->record[stream];
    return (struct admission_stream){.stream = stream,
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
                                     .joined = admission_joined(record),
                                     .moved = record->moved};
}

struct admission_gpu admission_gpu_at(const struct admission *admission, uint32_t g)
{
    assert(g < admission->gpus);
    const struct partition_gpu *gpu = admission->gpu[g];
    return (struct admission_gpu){.streams = gpu->own.load.streams,
                                  .backups = partition_gpu_backups(gpu),
                                  .period_ns = gpu->unit.period_ns,
                                  .shortest_ns = partition_gpu_shortest_ns(gpu),
                                  .memory_bytes = gpu->unit.memory_bytes,
                                  .out = gpu->unit.out};
}
