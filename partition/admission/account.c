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

static struct partition_demand demand_of(const struct partition_standing *standing,
                                         const struct core_stream_spec *spec)
{
    return partition_demand_of(spec, standing->profile);
}

/* Instead of `less` (NULL: nothing) the unit is charged for `more` (NULL: nothing). */
static void charge(struct partition_standing *standing, uint32_t unit, uint32_t scenario, uint32_t stream,
                   const struct core_stream_spec *less, const struct core_stream_spec *more)
{
    struct partition_demand old, new;
    struct partition_unit *of = standing->unit[unit];
    if (less != NULL)
        old = demand_of(standing, less);
    if (more != NULL)
        new = demand_of(standing, more);
    of->ops->charge(of, scenario, stream, less != NULL ? &old : NULL, more != NULL ? &new : NULL);
}

static void charge_own(struct partition_standing *standing, uint32_t stream,
                       const struct core_stream_spec *less, const struct core_stream_spec *more)
{
    charge(standing, standing->record[stream].unit, PARTITION_OWN, stream, less, more);
}

/* Nothing where there is no backup. */
static void charge_backup(struct partition_standing *standing, uint32_t stream,
                          const struct core_stream_spec *less, const struct core_stream_spec *more)
{
    const struct partition_standing_record *record = &standing->record[stream];
    if (record->backup.unit == PARTITION_STANDING_NONE)
        return;
    standing->guarded += more != NULL ? 1 : 0;
    standing->guarded -= less != NULL ? 1 : 0;
    charge(standing, record->backup.unit, partition_standing_gpu_of(standing, record->unit), stream, less,
           more);
}

void partition_standing_put(struct partition_standing *standing, uint32_t stream)
{
    const struct partition_standing_record *record = &standing->record[stream];
    charge_backup(standing, stream, NULL, &record->backup.spec);
    charge_own(standing, stream, NULL, &record->spec);
}

void partition_standing_take(struct partition_standing *standing, uint32_t stream)
{
    const struct partition_standing_record *record = &standing->record[stream];
    charge_backup(standing, stream, &record->backup.spec, NULL);
    charge_own(standing, stream, &record->spec, NULL);
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
        charge_backup(standing, stream, &record->backup.spec, &backup);
        record->backup.spec = backup;
        own.latency_ns = record->backup.gpu_bound_ns;
    }
    charge_own(standing, stream, &record->spec, &own);
    record->spec = own;
    record->join = *join;
}

void partition_standing_retarget(struct partition_standing *standing, uint32_t unit, core_ns period_ns,
                                 uint64_t memory_bytes)
{
    standing->unit[unit]->ops->retarget(standing->unit[unit], period_ns, memory_bytes);
}

void partition_standing_set(struct partition_standing *standing,
                            const struct partition_standing_placement *placement)
{
    partition_standing_retarget(standing, placement->unit, placement->period_ns, placement->memory_bytes);
    if (placement->backup_unit != PARTITION_STANDING_NONE)
        partition_standing_retarget(standing, placement->backup_unit, placement->backup_period_ns,
                                    placement->backup_memory_bytes);
}

/* A worker's scenario ends with its last backup, and memory for it could be wanting then: a backup that stays
 * where it is is replaced. */
void partition_standing_recharge(struct partition_standing *standing, uint32_t stream,
                                 const struct core_stream_spec *join,
                                 const struct partition_standing_placement *placement)
{
    struct partition_standing_record *record = &standing->record[stream];
    uint32_t backup = record->backup.unit;
    bool stays = backup == placement->backup_unit && !partition_standing_is_gpu(standing, backup);
    if (backup == PARTITION_STANDING_NONE) {
        partition_standing_set(standing, placement);
        partition_standing_replace(standing, stream, join);
        return;
    }
    charge_backup(standing, stream, &record->backup.spec, stays ? &placement->backup_spec : NULL);
    charge_own(standing, stream, &record->spec, NULL);
    record->join = *join;
    partition_standing_set(standing, placement);
    partition_standing_assign(record, placement);
    if (!stays)
        charge_backup(standing, stream, NULL, &record->backup.spec);
    charge_own(standing, stream, NULL, &record->spec);
}

/* ---- I/O threads ---- */

bool partition_standing_io_fits(const struct partition_standing *standing, uint32_t io, int64_t less_ppb,
                                int64_t more_ppb)
{
    return standing->io_ppb[io] - less_ppb + more_ppb <= perfmodel_io_limit_ppb(standing->profile);
}

void partition_standing_charge_io(struct partition_standing *standing, uint32_t io, int64_t less_ppb,
                                  int64_t more_ppb)
{
    assert(standing->io_ppb[io] >= less_ppb);
    standing->io_ppb[io] += more_ppb - less_ppb;
}

int64_t partition_standing_io_ppb(const struct partition_standing *standing, uint32_t io)
{
    return standing->io_ppb[io];
}

/* ---- what a stream has ---- */

static void tell_backup(const struct partition_standing *standing,
                        const struct partition_standing_record *record,
                        struct partition_standing_placement *placement)
{
    const struct partition_standing_backup *backup = &record->backup;
    const struct partition_unit *unit = standing->unit[backup->unit];
    struct partition_demand demand = demand_of(standing, &backup->spec);
    placement->gpu_bound_ns = backup->gpu_bound_ns;
    placement->detection_ns = backup->detection_ns;
    placement->backup_spec = backup->spec;
    placement->backup_bound_ns =
        backup->gpu_bound_ns + backup->detection_ns + partition_unit_bound_ns(unit, &demand);
    placement->backup_period_ns = unit->period_ns;
    placement->backup_memory_bytes = unit->memory_bytes;
    if (!partition_standing_is_gpu(standing, backup->unit))
        placement->backup_task = demand.task;
    placement->reserved_ppb = unit->ops->backup_ppb(unit, partition_standing_gpu_of(standing, record->unit),
                                                    &demand, placement->backup_period_ns);
}

struct partition_standing_placement partition_standing_placement_of(const struct partition_standing *standing,
                                                                    uint32_t stream)
{
    assert(stream < standing->capacity);
    const struct partition_standing_record *record = &standing->record[stream];
    const struct partition_unit *unit = standing->unit[record->unit];
    struct partition_demand join = demand_of(standing, &record->join);
    struct partition_demand contract = demand_of(standing, &record->contract);
    core_ns join_ns = partition_unit_bound_ns(unit, &join);
    struct partition_standing_placement placement = {.accepted = true,
                                                     .unit = record->unit,
                                                     .stream = stream,
                                                     .period_ns = unit->period_ns,
                                                     .memory_bytes = unit->memory_bytes,
                                                     .backup_unit = record->backup.unit,
                                                     .joined = partition_standing_joined(record),
                                                     .bound_ns = partition_unit_bound_ns(unit, &contract)};
    if (!partition_standing_is_gpu(standing, record->unit)) {
        placement.bound_ns = core_time_max(join_ns, placement.bound_ns);
        placement.task = join.task;
    }
    if (record->backup.unit != PARTITION_STANDING_NONE)
        tell_backup(standing, record, &placement);
    return placement;
}
