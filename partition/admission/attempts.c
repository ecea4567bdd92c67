/* Attempts to make room for a new stream: from none moved to a plan taken as it is. */
#include "partition/admission/attempts.h"

#include "partition/admission/migrate.h"

#include <stdlib.h>

#define ROOM_MOVERS_MAX 256 /* streams of a unit that are asked to make room */

/* ---- streams that change over ---- */

struct mover {
    bool first;            /* leaves the kind of unit that the new stream is to go to */
    uint64_t relief;       /* the greater the sooner */
    uint32_t stream, kind; /* to go to */
};

static int compare_movers(const void *a, const void *b)
{
    const struct mover *left = a, *right = b;
    if (left->first != right->first)
        return left->first ? -1 : 1;
    if (left->relief != right->relief)
        return left->relief > right->relief ? -1 : 1;
    return (left->stream > right->stream) - (left->stream < right->stream);
}

/* Those that the plan has on another kind of unit. */
static size_t list_movers(struct partition_attempt *attempt, struct mover *mover)
{
    const struct admission *admission = attempt->admission;
    uint32_t new_kind = admission->unit[attempt->plan->unit[admission->count]]->kind;
    size_t count = 0;
    for (uint32_t n = 0; n < admission->count; n++) {
        const struct admission_record *record = &admission->record[admission->listed[n]];
        uint32_t from = admission->unit[record->unit]->kind;
        uint32_t kind = admission->unit[attempt->plan->unit[n]]->kind;
        struct perfmodel_flow_load load = perfmodel_flow_load_of(&record->spec, admission->profile);
        if (from != kind && !record->moved)
            mover[count++] = (struct mover){from == new_kind, load.rate, admission->listed[n], kind};
    }
    qsort(mover, count, sizeof *mover, compare_movers);
    return count;
}

/* Those that are on a unit, to any of another kind: the greatest jobs first, or the shortest deadlines. */
static size_t list_unit(const struct admission *admission, uint32_t unit, bool by_deadline,
                        struct mover *mover)
{
    uint32_t kind = PARTITION_KIND_ANY & ~admission->unit[unit]->kind;
    size_t count = 0;
    for (uint32_t n = 0; n < admission->count; n++) {
        const struct admission_record *record = &admission->record[admission->listed[n]];
        struct perfmodel_flow_load load = perfmodel_flow_load_of(&record->spec, admission->profile);
        uint64_t relief = by_deadline ? (uint64_t)(CORE_LATENCY_NS_MAX - load.shortest_ns) : load.rate;
        if (record->unit == unit && !record->moved)
            mover[count++] = (struct mover){false, relief, admission->listed[n], kind};
    }
    qsort(mover, count, sizeof *mover, compare_movers);
    return count < ROOM_MOVERS_MAX ? count : ROOM_MOVERS_MAX;
}

/* ---- the new stream ---- */

core_status partition_attempt_present(struct partition_attempt *attempt, struct admission *after, bool *holds)
{
    struct admission_placement placement;
    *holds = admission_place(after, attempt->demand, attempt->io, PARTITION_KIND_ANY, &placement);
    if (!*holds)
        return CORE_OK;
    core_status status = admission_allocate(after, &placement);
    if (status != CORE_OK)
        return status;
    admission_set_periods(after, &placement);
    (void)admission_insert(after, &attempt->demand->spec, attempt->io, 0, &placement);
    return CORE_OK;
}

/* ---- moves ---- */

/* One mover after the other, and again those that had no room, until the new stream fits. */
static core_status change_one_by_one(struct partition_attempt *attempt, struct mover *mover, size_t count,
                                     struct admission *after, bool *holds)
{
    core_status status = CORE_OK;
    *holds = false;
    for (size_t left = count, before = count + 1; status == CORE_OK && !*holds && left < before;) {
        before = left;
        left = 0;
        for (size_t n = 0; status == CORE_OK && !*holds && n < before; n++) {
            bool found;
            status = partition_migrations_change(after, mover[n].stream, mover[n].kind, &found);
            if (status == CORE_OK && found)
                status = partition_attempt_present(attempt, after, holds);
            else
                mover[left++] = mover[n];
        }
    }
    return status;
}

/* The plan as it is, its units renumbered. There is no backup among its streams. */
static core_status take_plan(struct partition_attempt *attempt, const uint32_t *number,
                             struct admission *after)
{
    const struct partition_plan *plan = attempt->plan;
    struct admission_placement placement = {.backup_unit = ADMISSION_NONE};
    core_status status = CORE_OK;
    uint32_t count = after->count;
    for (uint32_t n = 0; n < count; n++)
        if (after->record[after->listed[n]].unit != number[plan->unit[n]])
            admission_remove_demand(after, after->listed[n]);
    for (uint32_t g = 0; g < plan->gpus; g++)
        admission_retarget(after, number[partition_unit_of_gpu(plan->workers, g)], plan->gpu[g].period_ns,
                           plan->gpu[g].memory_bytes);
    for (uint32_t n = 0; status == CORE_OK && n < count; n++) {
        uint32_t stream = after->listed[n];
        placement.unit = number[plan->unit[n]];
        if (after->record[stream].unit == placement.unit)
            continue;
        status = admission_allocate(after, &placement);
        if (status != CORE_OK)
            break;
        admission_assign(&after->record[stream], &placement);
        admission_add_demand(after, stream);
    }
    placement.unit = number[plan->unit[count]];
    if (status == CORE_OK)
        status = admission_allocate(after, &placement);
    if (status == CORE_OK)
        (void)admission_insert(after, &attempt->demand->spec, attempt->io, 0, &placement);
    return status;
}

/* ---- the attempts ---- */

core_status partition_attempt_room(struct partition_attempt *attempt, struct admission *after, bool *holds)
{
    struct mover *mover = malloc((attempt->admission->count + 1) * sizeof *mover);
    if (mover == NULL)
        return CORE_NO_MEMORY;
    size_t count = list_unit(attempt->admission, attempt->unit, attempt->by_deadline, mover);
    core_status status = change_one_by_one(attempt, mover, count, after, holds);
    free(mover);
    return status;
}

core_status partition_attempt_one_by_one(struct partition_attempt *attempt, struct admission *after,
                                         bool *holds)
{
    struct mover *mover = malloc((attempt->admission->count + 1) * sizeof *mover);
    if (mover == NULL)
        return CORE_NO_MEMORY;
    size_t count = list_movers(attempt, mover);
    core_status status = change_one_by_one(attempt, mover, count, after, holds);
    free(mover);
    return status;
}

core_status partition_attempt_as_planned(struct partition_attempt *attempt, struct admission *after,
                                         bool *holds)
{
    const struct admission *admission = attempt->admission;
    uint32_t *number = malloc(admission_units(admission) * sizeof *number);
    uint32_t *from = malloc((admission->count + 1) * sizeof *from);
    core_status status = number != NULL && from != NULL ? CORE_OK : CORE_NO_MEMORY;
    if (status == CORE_OK) {
        for (uint32_t n = 0; n < admission->count; n++)
            from[n] = admission->record[admission->listed[n]].unit;
        status =
            partition_migrations_renumber(admission, from, attempt->plan->unit, admission->count, number);
    }
    if (status == CORE_OK)
        status = take_plan(attempt, number, after);
    *holds = status == CORE_OK;
    free(from);
    free(number);
    return status;
}
