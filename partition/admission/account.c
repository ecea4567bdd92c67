/* Admission: what units are charged for their streams, and for what may come to them. */
#include "partition/admission/internal.h"

#include <assert.h>

void admission_assign(struct admission_record *record, const struct admission_placement *placement)
{
    record->unit = placement->unit;
    record->spec = record->join;
    record->backup = (struct admission_backup){.unit = placement->backup_unit};
    if (placement->backup_unit == ADMISSION_NONE)
        return;
    record->spec.latency_ns = placement->gpu_bound_ns;
    record->backup.spec = placement->backup_spec;
    record->backup.gpu_bound_ns = placement->gpu_bound_ns;
    record->backup.detection_ns = placement->detection_ns;
}

static struct partition_demand demand_of(const struct admission *admission,
                                         const struct core_stream_spec *spec)
{
    return partition_demand_of(spec, admission->profile);
}

/* Instead of `less` (NULL: nothing) the unit is charged for `more` (NULL: nothing). */
static void charge(struct admission *admission, uint32_t unit, uint32_t scenario, uint32_t stream,
                   const struct core_stream_spec *less, const struct core_stream_spec *more)
{
    struct partition_demand old, new;
    struct partition_unit *of = admission->unit[unit];
    if (less != NULL)
        old = demand_of(admission, less);
    if (more != NULL)
        new = demand_of(admission, more);
    of->ops->charge(of, scenario, stream, less != NULL ? &old : NULL, more != NULL ? &new : NULL);
}

static void charge_own(struct admission *admission, uint32_t stream, const struct core_stream_spec *less,
                       const struct core_stream_spec *more)
{
    charge(admission, admission->record[stream].unit, PARTITION_OWN, stream, less, more);
}

/* Nothing where there is no backup. */
static void charge_backup(struct admission *admission, uint32_t stream, const struct core_stream_spec *less,
                          const struct core_stream_spec *more)
{
    const struct admission_record *record = &admission->record[stream];
    if (record->backup.unit == ADMISSION_NONE)
        return;
    admission->protected += more != NULL ? 1 : 0;
    admission->protected -= less != NULL ? 1 : 0;
    charge(admission, record->backup.unit, admission_gpu_of(admission, record->unit), stream, less, more);
}

void admission_add_demand(struct admission *admission, uint32_t stream)
{
    const struct admission_record *record = &admission->record[stream];
    charge_backup(admission, stream, NULL, &record->backup.spec);
    charge_own(admission, stream, NULL, &record->spec);
}

void admission_remove_demand(struct admission *admission, uint32_t stream)
{
    const struct admission_record *record = &admission->record[stream];
    charge_backup(admission, stream, &record->backup.spec, NULL);
    charge_own(admission, stream, &record->spec, NULL);
}

void admission_replace(struct admission *admission, uint32_t stream, const struct core_stream_spec *join)
{
    struct admission_record *record = &admission->record[stream];
    struct core_stream_spec own = *join, backup;
    if (record->backup.unit != ADMISSION_NONE) {
        bool can = partition_failover_backup_spec(join, record->backup.gpu_bound_ns,
                                                  record->backup.detection_ns, &backup);
        assert(can);
        (void)can;
        charge_backup(admission, stream, &record->backup.spec, &backup);
        record->backup.spec = backup;
        own.latency_ns = record->backup.gpu_bound_ns;
    }
    charge_own(admission, stream, &record->spec, &own);
    record->spec = own;
    record->join = *join;
}

void admission_retarget(struct admission *admission, uint32_t unit, core_ns period_ns, uint64_t memory_bytes)
{
    admission->unit[unit]->ops->retarget(admission->unit[unit], period_ns, memory_bytes);
}

void admission_set_periods(struct admission *admission, const struct admission_placement *placement)
{
    admission_retarget(admission, placement->unit, placement->period_ns, placement->memory_bytes);
    if (placement->backup_unit != ADMISSION_NONE)
        admission_retarget(admission, placement->backup_unit, placement->backup_period_ns,
                           placement->backup_memory_bytes);
}

/* A worker's scenario ends with its last backup, and memory for it could be wanting then: a backup that stays
 * where it is is replaced. */
void admission_reserve_join(struct admission *admission, uint32_t stream, const struct core_stream_spec *join,
                            const struct admission_placement *placement)
{
    struct admission_record *record = &admission->record[stream];
    uint32_t backup = record->backup.unit;
    bool stays = backup == placement->backup_unit && !admission_is_gpu(admission, backup);
    if (backup == ADMISSION_NONE) {
        admission_set_periods(admission, placement);
        admission_replace(admission, stream, join);
        return;
    }
    charge_backup(admission, stream, &record->backup.spec, stays ? &placement->backup_spec : NULL);
    charge_own(admission, stream, &record->spec, NULL);
    record->join = *join;
    admission_set_periods(admission, placement);
    admission_assign(record, placement);
    if (!stays)
        charge_backup(admission, stream, NULL, &record->backup.spec);
    charge_own(admission, stream, NULL, &record->spec);
}

/* ---- I/O threads ---- */

bool admission_io_fits(const struct admission *admission, uint32_t io, int64_t less_ppb, int64_t more_ppb)
{
    return admission->io_ppb[io] - less_ppb + more_ppb <= perfmodel_io_limit_ppb(admission->profile);
}

void admission_charge_io(struct admission *admission, uint32_t io, int64_t less_ppb, int64_t more_ppb)
{
    assert(admission->io_ppb[io] >= less_ppb);
    admission->io_ppb[io] += more_ppb - less_ppb;
}

int64_t admission_io_ppb(const struct admission *admission, uint32_t io)
{
    return admission->io_ppb[io];
}

/* ---- what a stream has ---- */

static void report_backup(const struct admission *admission, const struct admission_record *record,
                          struct admission_placement *placement)
{
    const struct admission_backup *backup = &record->backup;
    const struct partition_unit *unit = admission->unit[backup->unit];
    struct partition_demand demand = demand_of(admission, &backup->spec);
    placement->gpu_bound_ns = backup->gpu_bound_ns;
    placement->detection_ns = backup->detection_ns;
    placement->backup_spec = backup->spec;
    placement->backup_bound_ns =
        backup->gpu_bound_ns + backup->detection_ns + partition_unit_bound_ns(unit, &demand);
    placement->backup_period_ns = unit->period_ns;
    placement->backup_memory_bytes = unit->memory_bytes;
    if (!admission_is_gpu(admission, backup->unit))
        placement->backup_task = demand.task;
    placement->reserved_ppb = unit->ops->backup_ppb(unit, admission_gpu_of(admission, record->unit), &demand,
                                                    placement->backup_period_ns);
}

struct admission_placement admission_placement_of(const struct admission *admission, uint32_t stream)
{
    assert(stream < admission->capacity);
    const struct admission_record *record = &admission->record[stream];
    const struct partition_unit *unit = admission->unit[record->unit];
    struct partition_demand join = demand_of(admission, &record->join);
    struct partition_demand contract = demand_of(admission, &record->contract);
    core_ns join_ns = partition_unit_bound_ns(unit, &join);
    struct admission_placement placement = {.accepted = true,
                                            .unit = record->unit,
                                            .stream = stream,
                                            .period_ns = unit->period_ns,
                                            .memory_bytes = unit->memory_bytes,
                                            .backup_unit = record->backup.unit,
                                            .joined = admission_joined(record),
                                            .bound_ns = partition_unit_bound_ns(unit, &contract)};
    if (!admission_is_gpu(admission, record->unit)) {
        placement.bound_ns = core_time_max(join_ns, placement.bound_ns);
        placement.task = join.task;
    }
    if (record->backup.unit != ADMISSION_NONE)
        report_backup(admission, record, &placement);
    return placement;
}
