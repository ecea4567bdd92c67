/* Standing plans: the account. Decisions are in decide.c, plans anew in replan.c. */
#include "partition/admission/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PPB          INT64_C(1000000000)
#define DETECTION_NS (2 * CORE_NS_PER_MS)

/* ---- creating ---- */

/* Copies of a card are charged at their contended times where another card, or the other direction of the
 * same, may copy at once. */
static bool busy(const struct partition_standing *standing, const struct config_profile_gpu *gpu)
{
    return standing->gpus > 1 || gpu->copy_engines > 1;
}

static core_status create_gpus(struct partition_standing *standing)
{
    const struct config_profile *profile = standing->profile;
    core_status status = CORE_OK;
    uint32_t g = 0;
    for (uint32_t kind = 0; kind < profile->gpu_count; kind++)
        standing->gpus += profile->gpus[kind].count;
    standing->gpu = calloc(standing->gpus + 1, sizeof *standing->gpu);
    if (standing->gpu == NULL)
        return CORE_NO_MEMORY;
    for (uint32_t kind = 0; status == CORE_OK && kind < profile->gpu_count; kind++) {
        const struct config_profile_gpu *gpu = &profile->gpus[kind];
        status = perfmodel_flow_card_create(&standing->card[kind], profile, gpu, busy(standing, gpu));
        for (uint32_t i = 0; status == CORE_OK && i < gpu->count; i++, g++)
            status = partition_gpu_init(&standing->gpu[g], standing->card[kind], kind, standing->gpus);
    }
    return status;
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
    struct partition_standing *made = calloc(1, sizeof *made);
    if (made == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a standing plan");
    made->worker_count = worker_count;
    made->io_count = io_count;
    made->free = PARTITION_STANDING_NONE;
    made->detection_ns = DETECTION_NS;
    core_status status = partition_workers_create(&made->workers, profile, worker_count, io_count, error);
    if (status == CORE_OK &&
        (copy_profile(&made->profile, profile) != CORE_OK || create_gpus(made) != CORE_OK ||
         partition_workers_set_losses(made->workers, made->gpus) != CORE_OK))
        status = core_error_set(error, CORE_NO_MEMORY, "no memory for the account of the GPUs");
    if (status != CORE_OK) {
        partition_standing_destroy(made);
        return status;
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
    made->pinned_bytes = standing->pinned_bytes;
    if (n == 0)
        return CORE_OK;
    made->record = copied(standing->record, n * sizeof *made->record, n * sizeof *made->record, &status);
    made->listed =
        copied(standing->listed, standing->count * sizeof *made->listed, n * sizeof *made->listed, &status);
    for (int h = 0; h < PARTITION_GPU_HEAPS; h++) {
        made->place[h] =
            copied(standing->place[h], n * sizeof *made->place[h], n * sizeof *made->place[h], &status);
        made->backup_place[h] = copied(standing->backup_place[h], n * sizeof *made->backup_place[h],
                                       n * sizeof *made->backup_place[h], &status);
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
    partition_workers_destroy(made->workers);
    made->workers = NULL;
    status = partition_workers_copy(standing->workers, &made->workers);
    if (status == CORE_OK)
        status = copy_streams(standing, made);
    for (uint32_t g = 0; status == CORE_OK && g < standing->gpus; g++)
        status = partition_gpu_copy(&standing->gpu[g], &made->gpu[g]);
    if (status != CORE_OK) {
        partition_standing_destroy(made);
        return status;
    }
    *copy = made;
    return CORE_OK;
}

void partition_standing_destroy(struct partition_standing *standing)
{
    if (standing == NULL)
        return;
    for (uint32_t g = 0; standing->gpu != NULL && g < standing->gpus; g++)
        partition_gpu_free(&standing->gpu[g]);
    for (int kind = 0; kind < CONFIG_PROFILE_GPU_KINDS_MAX; kind++)
        perfmodel_flow_card_destroy(standing->card[kind]);
    for (int h = 0; h < PARTITION_GPU_HEAPS; h++) {
        free(standing->place[h]);
        free(standing->backup_place[h]);
    }
    free(standing->gpu);
    free(standing->batches);
    free(standing->record);
    free(standing->listed);
    partition_workers_destroy(standing->workers);
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
        standing->place[h] = grown(standing->place[h], capacity * sizeof *standing->place[h], &status);
        standing->backup_place[h] =
            grown(standing->backup_place[h], capacity * sizeof *standing->backup_place[h], &status);
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
    for (uint32_t g = 0; status == CORE_OK && g < standing->gpus; g++)
        status = partition_gpu_reserve(&standing->gpu[g]);
    if (status != CORE_OK || placement->backup_unit == PARTITION_STANDING_NONE)
        return status;
    uint32_t loss = placement->unit - standing->worker_count;
    if (placement->backup_unit < standing->worker_count)
        return partition_workers_reserve_backup(standing->workers, placement->backup_unit, loss);
    return partition_gpu_reserve_backup(&standing->gpu[placement->backup_unit - standing->worker_count],
                                        loss);
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
    partition_workers_io_put(standing->workers, spec, io);
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
    partition_workers_io_put(standing->workers, &source->join, source->io);
}

void partition_standing_release(struct partition_standing *standing, uint32_t stream)
{
    struct partition_standing_record *record = partition_standing_record_of(standing, stream);
    uint32_t unit = record->unit, backup_unit = record->backup.unit;
    partition_standing_take(standing, stream);
    if (!record->moved)
        partition_workers_io_take(standing->workers, &record->join, record->io);
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
    if (standing->gpu[gpu].out != out)
        standing->changes++;
    standing->gpu[gpu].out = out;
}

void partition_standing_set_hurried(struct partition_standing *standing, partition_standing_hurried *hurried,
                                    void *owner)
{
    standing->hurried = hurried;
    standing->hurry = owner;
}

void partition_standing_set_reserve(struct partition_standing *standing, uint32_t unit, int64_t share_ppb)
{
    assert(unit < standing->worker_count + standing->gpus && share_ppb >= 0 && share_ppb <= PPB);
    if (unit < standing->worker_count)
        partition_workers_set_reserve(standing->workers, unit, share_ppb);
    else
        standing->gpu[unit - standing->worker_count].reserve_ppb = share_ppb;
    standing->changes++;
}

int64_t partition_standing_reserve_ppb(const struct partition_standing *standing, uint32_t unit)
{
    assert(unit < standing->worker_count + standing->gpus);
    return unit < standing->worker_count ? partition_workers_reserve_ppb(standing->workers, unit)
                                         : standing->gpu[unit - standing->worker_count].reserve_ppb;
}

static void take_period(struct partition_standing *standing, struct partition_gpu *gpu,
                        const struct perfmodel_flow_verdict *verdict)
{
    standing->pinned_bytes += verdict->memory_bytes - gpu->memory_bytes;
    partition_gpu_set(gpu, verdict->period_ns, verdict->memory_bytes);
    standing->changes++;
}

bool partition_standing_retune(struct partition_standing *standing, uint32_t gpu, core_ns *period_ns)
{
    assert(gpu < standing->gpus);
    struct partition_gpu *of = &standing->gpu[gpu];
    const struct perfmodel_flow_load nobody = {0};
    *period_ns = of->period_ns;
    if (of->period_ns == 0)
        return false;
    struct partition_gpu_answer answer =
        partition_gpu_ask_other(of, &nobody, partition_standing_room_bytes(standing, gpu), false);
    if (!answer.accepted || answer.verdict.period_ns <= of->period_ns)
        return false;
    take_period(standing, of, &answer.verdict);
    *period_ns = of->period_ns;
    return true;
}

bool partition_standing_set_period(struct partition_standing *standing, uint32_t gpu, core_ns period_ns)
{
    assert(gpu < standing->gpus && period_ns > 0);
    struct partition_gpu *of = &standing->gpu[gpu];
    const struct perfmodel_flow_load nobody = {0};
    if (of->period_ns == 0)
        return false;
    struct partition_gpu_answer answer =
        partition_gpu_ask_at(of, &nobody, partition_standing_room_bytes(standing, gpu), period_ns);
    if (answer.accepted)
        take_period(standing, of, &answer.verdict);
    return answer.accepted;
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
        any = any || standing->gpu[g].out;
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
    if (!partition_standing_place(standing, spec, io, PARTITION_STANDING_ANY, placement))
        partition_standing_explain(standing, spec, io, with_offer, placement);
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
    if (!partition_standing_place(standing, spec, io, PARTITION_STANDING_ANY, placement)) {
        partition_standing_explain(standing, spec, io, true, placement);
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

const struct partition_workers *partition_standing_workers(const struct partition_standing *standing)
{
    return standing->workers;
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
    const struct partition_gpu *gpu = &standing->gpu[g];
    return (struct partition_standing_gpu){.streams = gpu->own.load.streams,
                                           .backups = partition_gpu_backups(gpu),
                                           .period_ns = gpu->period_ns,
                                           .shortest_ns = partition_gpu_shortest_ns(gpu),
                                           .memory_bytes = gpu->memory_bytes,
                                           .out = gpu->out};
}
