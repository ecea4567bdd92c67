/* Standing plans: what units are charged for their streams, and for what may come to them. */
#include "partition/admission/internal.h"

#include <assert.h>

void partition_standing_assign(struct partition_standing_record *record,
                               const struct partition_standing_placement *placement)
{
    record->unit = placement->unit;
    record->spec = record->join;
    record->backup = (struct partition_standing_backup){.unit = placement->backup_unit};
    if (placement->backup_unit == PARTITION_STANDING_NONE)
        return;
    record->spec.latency_ns = placement->gpu_bound_ns;
    record->backup.spec = placement->backup_spec;
    record->backup.gpu_bound_ns = placement->gpu_bound_ns;
    record->backup.detection_ns = placement->detection_ns;
}

/* A GPU that its streams leave may give back pinned memory. */
static void begin_gpu(struct partition_standing *standing, const struct partition_gpu *gpu)
{
    standing->pinned_bytes -= gpu->memory_bytes;
}

static void end_gpu(struct partition_standing *standing, const struct partition_gpu *gpu)
{
    standing->pinned_bytes += gpu->memory_bytes;
}

static struct partition_gpu_backup load_of_backup(const struct partition_standing *standing,
                                                  const struct partition_standing_record *record)
{
    return (struct partition_gpu_backup){.loss = record->unit - standing->worker_count,
                                         .load = partition_gpu_load(&record->backup.spec, standing->profile)};
}

static void put_backup(struct partition_standing *standing, uint32_t stream)
{
    const struct partition_standing_record *record = &standing->record[stream];
    uint32_t unit = record->backup.unit;
    if (unit == PARTITION_STANDING_NONE)
        return;
    standing->guarded++;
    struct partition_gpu_backup backup = load_of_backup(standing, record);
    if (unit < standing->worker_count)
        partition_workers_put_backup(standing->workers, unit, backup.loss, &record->backup.spec);
    else
        partition_gpu_add_backup(&standing->gpu[unit - standing->worker_count], standing->backup_place,
                                 stream, &backup);
}

static void take_backup(struct partition_standing *standing, uint32_t stream)
{
    const struct partition_standing_record *record = &standing->record[stream];
    uint32_t unit = record->backup.unit;
    if (unit == PARTITION_STANDING_NONE)
        return;
    standing->guarded--;
    struct partition_gpu_backup backup = load_of_backup(standing, record);
    if (unit < standing->worker_count) {
        partition_workers_take_backup(standing->workers, unit, backup.loss, &record->backup.spec);
        return;
    }
    struct partition_gpu *gpu = &standing->gpu[unit - standing->worker_count];
    begin_gpu(standing, gpu);
    partition_gpu_remove_backup(gpu, standing->backup_place, stream, &backup);
    end_gpu(standing, gpu);
}

static void put_own(struct partition_standing *standing, uint32_t stream)
{
    const struct partition_standing_record *record = &standing->record[stream];
    if (record->unit < standing->worker_count) {
        bool put = partition_workers_put(standing->workers, record->unit, &record->spec);
        assert(put);
        (void)put;
        return;
    }
    struct perfmodel_flow_load load = partition_gpu_load(&record->spec, standing->profile);
    struct partition_gpu *gpu = &standing->gpu[record->unit - standing->worker_count];
    partition_gpu_add(gpu, standing->place, stream, &load);
    gpu->guaranteed += record->spec.guaranteed ? 1 : 0;
}

static void take_own(struct partition_standing *standing, uint32_t stream)
{
    const struct partition_standing_record *record = &standing->record[stream];
    if (record->unit < standing->worker_count) {
        partition_workers_take(standing->workers, record->unit, &record->spec);
        return;
    }
    struct partition_gpu *gpu = &standing->gpu[record->unit - standing->worker_count];
    struct perfmodel_flow_load load = partition_gpu_load(&record->spec, standing->profile);
    begin_gpu(standing, gpu);
    partition_gpu_remove(gpu, standing->place, stream, &load);
    gpu->guaranteed -= record->spec.guaranteed ? 1 : 0;
    end_gpu(standing, gpu);
}

void partition_standing_put(struct partition_standing *standing, uint32_t stream)
{
    put_backup(standing, stream);
    put_own(standing, stream);
}

void partition_standing_take(struct partition_standing *standing, uint32_t stream)
{
    take_backup(standing, stream);
    take_own(standing, stream);
}

static void replace_own(struct partition_standing *standing, uint32_t stream,
                        const struct core_stream_spec *by)
{
    const struct partition_standing_record *record = &standing->record[stream];
    if (record->unit < standing->worker_count) {
        partition_workers_take(standing->workers, record->unit, &record->spec);
        bool put = partition_workers_put(standing->workers, record->unit, by);
        assert(put);
        (void)put;
        return;
    }
    struct partition_gpu *gpu = &standing->gpu[record->unit - standing->worker_count];
    struct perfmodel_flow_load load = partition_gpu_load(&record->spec, standing->profile);
    struct perfmodel_flow_load by_load = partition_gpu_load(by, standing->profile);
    begin_gpu(standing, gpu);
    partition_gpu_replace(gpu, standing->place, stream, &load, &by_load);
    end_gpu(standing, gpu);
}

static void replace_backup(struct partition_standing *standing, uint32_t stream,
                           const struct core_stream_spec *by)
{
    const struct partition_standing_record *record = &standing->record[stream];
    uint32_t unit = record->backup.unit;
    struct partition_gpu_backup backup = load_of_backup(standing, record);
    if (unit < standing->worker_count) {
        partition_workers_replace_backup(standing->workers, unit, backup.loss, &record->backup.spec, by);
        return;
    }
    struct partition_gpu *gpu = &standing->gpu[unit - standing->worker_count];
    backup.instead_of = backup.load;
    backup.load = partition_gpu_load(by, standing->profile);
    begin_gpu(standing, gpu);
    partition_gpu_replace_backup(gpu, standing->backup_place, stream, &backup);
    end_gpu(standing, gpu);
}

void partition_standing_replace(struct partition_standing *standing, uint32_t stream,
                                const struct core_stream_spec *join)
{
    struct partition_standing_record *record = &standing->record[stream];
    struct core_stream_spec own = *join, backup;
    if (record->backup.unit != PARTITION_STANDING_NONE) {
        bool can = partition_guard_backup_spec(join, record->backup.gpu_bound_ns, record->backup.detection_ns,
                                               &backup);
        assert(can);
        (void)can;
        replace_backup(standing, stream, &backup);
        record->backup.spec = backup;
        own.latency_ns = record->backup.gpu_bound_ns;
    }
    replace_own(standing, stream, &own);
    record->spec = own;
    record->join = *join;
}

static void set_gpu(struct partition_standing *standing, uint32_t unit, core_ns period_ns,
                    uint64_t memory_bytes)
{
    struct partition_gpu *gpu = &standing->gpu[unit - standing->worker_count];
    begin_gpu(standing, gpu);
    partition_gpu_set(gpu, period_ns, memory_bytes);
    end_gpu(standing, gpu);
}

void partition_standing_set(struct partition_standing *standing,
                            const struct partition_standing_placement *placement)
{
    uint32_t backup = placement->backup_unit;
    if (placement->unit >= standing->worker_count)
        set_gpu(standing, placement->unit, placement->period_ns, placement->memory_bytes);
    if (backup != PARTITION_STANDING_NONE && backup >= standing->worker_count)
        set_gpu(standing, backup, placement->backup_period_ns, placement->backup_memory_bytes);
}

/* The case of a loss on a worker is dropped with its last backup, and memory for it could be wanting then: a
 * backup that stays where it is is replaced. */
void partition_standing_recharge(struct partition_standing *standing, uint32_t stream,
                                 const struct core_stream_spec *join,
                                 const struct partition_standing_placement *placement)
{
    struct partition_standing_record *record = &standing->record[stream];
    uint32_t backup = record->backup.unit;
    bool stays = backup == placement->backup_unit && backup < standing->worker_count;
    if (backup == PARTITION_STANDING_NONE) {
        partition_standing_set(standing, placement);
        partition_standing_replace(standing, stream, join);
        return;
    }
    if (stays)
        replace_backup(standing, stream, &placement->backup_spec);
    else
        take_backup(standing, stream);
    take_own(standing, stream);
    record->join = *join;
    partition_standing_set(standing, placement);
    partition_standing_assign(record, placement);
    if (!stays)
        put_backup(standing, stream);
    put_own(standing, stream);
}

void partition_standing_count_pinned(struct partition_standing *standing)
{
    standing->pinned_bytes = 0;
    for (uint32_t g = 0; g < standing->gpus; g++)
        standing->pinned_bytes += standing->gpu[g].memory_bytes;
}

uint64_t partition_standing_room_bytes(const struct partition_standing *standing, uint32_t g)
{
    uint64_t others = standing->pinned_bytes - standing->gpu[g].memory_bytes;
    return standing->profile->pinned_bytes > others ? standing->profile->pinned_bytes - others : 0;
}

/* ---- what a stream has ---- */

static core_ns bound_of(const struct partition_standing *standing, uint32_t unit,
                        const struct core_stream_spec *spec)
{
    return unit < standing->worker_count ? partition_workers_bound_ns(standing->workers, spec)
                                         : spec->latency_ns;
}

static struct perfmodel_cpu_task task_of(const struct partition_standing *standing, uint32_t unit,
                                         const struct core_stream_spec *spec)
{
    struct perfmodel_cpu_task task = {.pieces = 0};
    if (unit < standing->worker_count &&
        perfmodel_cpu_task_from(spec, standing->profile, &task, NULL) != CORE_OK)
        task = (struct perfmodel_cpu_task){.pieces = 0};
    return task;
}

static void tell_backup(const struct partition_standing *standing,
                        const struct partition_standing_record *record,
                        struct partition_standing_placement *placement)
{
    const struct partition_standing_backup *backup = &record->backup;
    placement->gpu_bound_ns = backup->gpu_bound_ns;
    placement->detection_ns = backup->detection_ns;
    placement->backup_spec = backup->spec;
    placement->backup_task = task_of(standing, backup->unit, &backup->spec);
    placement->backup_bound_ns =
        backup->gpu_bound_ns + backup->detection_ns + bound_of(standing, backup->unit, &backup->spec);
    if (backup->unit < standing->worker_count) {
        placement->reserved_ppb = perfmodel_cpu_utilisation_ppb(&placement->backup_task);
        return;
    }
    const struct partition_gpu *gpu = &standing->gpu[backup->unit - standing->worker_count];
    struct partition_gpu_backup load = load_of_backup(standing, record);
    placement->backup_period_ns = gpu->period_ns;
    placement->backup_memory_bytes = gpu->memory_bytes;
    placement->reserved_ppb = partition_gpu_backup_ppb(gpu, &load, gpu->period_ns);
}

struct partition_standing_placement partition_standing_placement_of(const struct partition_standing *standing,
                                                                    uint32_t stream)
{
    assert(stream < standing->capacity);
    const struct partition_standing_record *record = &standing->record[stream];
    struct partition_standing_placement placement = {.accepted = true,
                                                     .unit = record->unit,
                                                     .stream = stream,
                                                     .joined = partition_standing_joined(record),
                                                     .backup_unit = record->backup.unit,
                                                     .bound_ns = record->contract.latency_ns};
    if (record->unit < standing->worker_count) {
        core_ns join_ns = bound_of(standing, record->unit, &record->join);
        placement.bound_ns = bound_of(standing, record->unit, &record->contract);
        placement.bound_ns = join_ns > placement.bound_ns ? join_ns : placement.bound_ns;
        placement.task = task_of(standing, record->unit, &record->join);
        return placement;
    }
    const struct partition_gpu *gpu = &standing->gpu[record->unit - standing->worker_count];
    placement.period_ns = gpu->period_ns;
    placement.memory_bytes = gpu->memory_bytes;
    if (record->backup.unit != PARTITION_STANDING_NONE)
        tell_backup(standing, record, &placement);
    return placement;
}
