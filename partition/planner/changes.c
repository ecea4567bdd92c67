/* Changes of contracts: in place, and on another unit. */
#include "partition/planner/internal.h"

#include <assert.h>
#include <stdio.h>

/* ---- the list of those that await plans, or settle ---- */

static void enlist(struct partition_planner *planner, uint32_t number)
{
    planner->reservations[number].next_changing = planner->changing;
    planner->changing = number;
}

static void delist(struct partition_planner *planner, uint32_t number)
{
    uint32_t *link = &planner->changing;

    while (*link != number && *link != PLANNER_NONE)
        link = &planner->reservations[*link].next_changing;
    if (*link == number)
        *link = planner->reservations[number].next_changing;
}

/* ---- states ---- */

static void agree(struct partition_planner *planner, uint32_t number, const struct planner_change *change)
{
    planner_forget_change(planner, number); /* the one before settles with this one */
    planner->reservations[number].change = *change;
    planner->reservations[number].change.state = PLANNER_AGREED;
    planner_count_busy(planner, number, 1);
    if (change->awaits_plans)
        enlist(planner, number);
}

static void end_change(struct partition_planner *planner, uint32_t number)
{
    planner->reservations[number].change.state = PLANNER_UNCHANGED;
    planner_count_busy(planner, number, -1);
}

void planner_forget_change(struct partition_planner *planner, uint32_t number)
{
    if (planner->reservations[number].change.state == PLANNER_UNCHANGED)
        return;
    assert(planner->reservations[number].change.state == PLANNER_SETTLING); /* else the host knows of it */
    delist(planner, number);
    end_change(planner, number);
}

void planner_agree_to_hold(struct partition_planner *planner, uint32_t number)
{
    agree(planner, number, &(struct planner_change){.owner = NULL});
}

void planner_pass_change(struct partition_planner *planner, uint32_t from, uint32_t to)
{
    struct planner_change change = planner->reservations[from].change;

    end_change(planner, from);
    change.elsewhere = false;
    agree(planner, to, &change);
    planner->reservations[to].evacuated_from = PLANNER_NONE;
}

static bool lacks(const struct partition_planner *planner, const struct partition_planner_plans *plans)
{
    bool lacking = false;
    for (uint32_t n = 0; n < plans->count; n++)
        lacking |= planner->host.plan_lacks(planner->context, plans->gpu[n], plans->number[n]);
    return lacking;
}

void planner_step_changes(struct partition_planner *planner)
{
    for (uint32_t number = planner->changing, next; number != PLANNER_NONE; number = next) {
        struct planner_reservation *reservation = &planner->reservations[number];
        struct planner_change *change = &reservation->change;
        next = reservation->next_changing;
        if (change->state == PLANNER_SETTLING) {
            if (!planner_is_quiescent(planner, number, &change->use))
                continue;
            planner_settle(planner, number);
            planner_forget_change(planner, number);
        } else if (partition_planner_in_force(planner, &change->plans) || lacks(planner, &change->plans)) {
            bool lacking = !partition_planner_in_force(planner, &change->plans);
            delist(planner, number);
            change->awaits_plans = false;
            planner->host.agreed(planner->context, change->owner, lacking);
        }
    }
}

/* ---- in place ---- */

void partition_planner_ask(struct partition_planner *planner, uint32_t stream)
{
    planner->reservations[stream].requests++;
}

void partition_planner_drop(struct partition_planner *planner, uint32_t stream)
{
    planner->reservations[stream].requests--;
}

static uint32_t backup_of(const struct partition_planner *planner, uint32_t stream)
{
    return admission_stream_of(planner->admission, stream).backup_unit;
}

static bool is_out(const struct partition_planner *planner, uint32_t unit)
{
    return planner_on_gpu(planner, unit) && planner->gpus[planner_gpu_of(planner, unit)].out;
}

enum partition_planner_readiness partition_planner_readiness(const struct partition_planner *planner,
                                                             uint32_t stream)
{
    const struct planner_reservation *reservation = &planner->reservations[stream];
    uint32_t backup = backup_of(planner, stream);

    if (reservation->superseded || reservation->retired)
        return PARTITION_PLANNER_SUPERSEDED;
    if (backup != ADMISSION_NONE && is_out(planner, reservation->unit))
        return PARTITION_PLANNER_GPU_OUT;
    if (is_out(planner, backup))
        return PARTITION_PLANNER_BACKUP_GPU_OUT;
    /* also after a migration that was given up, until its reservation has gone, which may wait for a batch */
    if (admission_stream_of(planner->admission, stream).moved)
        return PARTITION_PLANNER_MIGRATING;
    return reservation->target != PLANNER_NONE ? PARTITION_PLANNER_MIGRATING : PARTITION_PLANNER_READY;
}

static core_ns period_of(const struct partition_planner *planner, uint32_t unit)
{
    return admission_gpu_at(planner->admission, planner_gpu_of(planner, unit)).period_ns;
}

/* A backup on a GPU that has a period is only ever asked for at that. */
static bool keeps_periods(const struct partition_planner *planner,
                          const struct admission_placement *placement)
{
    uint32_t backup = placement->backup_unit;

    return placement->period_ns == period_of(planner, placement->unit) &&
           (!planner_on_gpu(planner, backup) || placement->backup_period_ns == period_of(planner, backup));
}

/* Would its backup stay where it is, and the periods of its GPU and the backup's? A backup that has to move
 * would leave its unit before the stream's packets do. And where another period comes to nothing, the stream
 * would keep a d_g that holds at that period only. */
static bool keeps_backup(struct partition_planner *planner, uint32_t stream,
                         const struct core_stream_spec *spec, struct admission_placement *placement)
{
    uint32_t unit = backup_of(planner, stream);

    if (unit == ADMISSION_NONE ||
        admission_change_query(planner->admission, stream, spec, false, placement, NULL) != CORE_OK ||
        !placement->accepted || (placement->backup_unit == unit && keeps_periods(planner, placement)))
        return true;
    placement->accepted = false;
    placement->constraint = PERFMODEL_LIMIT_BACKUP;
    snprintf(placement->reason, sizeof placement->reason, "%s",
             placement->backup_unit == unit
                 ? "the stream's GPU would need another batch period, which the capacity reserved for its "
                   "backup does not cover"
                 : "the unit that holds the stream's backup has no capacity for this contract");
    return false;
}

/* Nothing comes into force on a GPU that is out of service. */
static bool is_in_service(const struct partition_planner *planner, uint32_t stream,
                          struct admission_placement *placement)
{
    uint32_t unit = planner->reservations[stream].unit;

    if (!is_out(planner, unit))
        return true;
    *placement = (struct admission_placement){.unit = unit,
                                              .stream = ADMISSION_NONE,
                                              .backup_unit = ADMISSION_NONE,
                                              .constraint = PERFMODEL_LIMIT_GPU_OUT};
    snprintf(placement->reason, sizeof placement->reason,
             "GPU %u is out of service; ask again when it is back", planner_gpu_of(planner, unit));
    return false;
}

core_status partition_planner_change(struct partition_planner *planner, uint32_t stream,
                                     const struct core_stream_spec *spec, void *change,
                                     struct admission_placement *placement, bool *ready)
{
    struct planner_change agreed = {.owner = change,
                                    .before = admission_stream_of(planner->admission, stream).contract};

    planner_note_service(planner);
    if (!is_in_service(planner, stream, placement) || !keeps_backup(planner, stream, spec, placement))
        return CORE_OK;
    core_status status = admission_change(planner->admission, stream, spec, placement, NULL);
    if (status != CORE_OK || !placement->accepted)
        return status;
    planner_send_plans(planner);
    agreed.plans = partition_planner_plans_of(planner, stream);
    *ready = partition_planner_in_force(planner, &agreed.plans);
    agreed.awaits_plans = !*ready;
    agree(planner, stream, &agreed);
    return CORE_OK;
}

/* ---- elsewhere ---- */

/* Admits the stream with its new contract as a new one; no unit but in the admission state knows of it yet. A
 * guaranteed stream goes to workers only. */
static bool admit(struct partition_planner *planner, const struct core_stream_spec *spec, uint32_t io,
                  struct admission_placement *placement)
{
    struct admission *admission = planner->admission;

    if (admission_query(admission, spec, io, false, placement, NULL) != CORE_OK || !placement->accepted ||
        (spec->guaranteed && planner_on_gpu(planner, placement->unit)) || planner_reserve(planner) != CORE_OK)
        return false;
    return admission_admit(admission, spec, io, 0, placement, NULL) == CORE_OK && placement->accepted;
}

bool partition_planner_change_elsewhere(struct partition_planner *planner, uint32_t stream,
                                        const struct core_stream_spec *spec,
                                        const struct partition_planner_memory *memory, core_ns timeout_ns,
                                        void *change, core_ns now_ns, struct admission_placement *placement)
{
    char reason[256];
    bool movable;

    planner_note_service(planner);
    if (!admit(planner, spec, planner->reservations[stream].io, placement))
        return false;
    const struct planner_move move = {.stream = stream,
                                      .unit = placement->unit,
                                      .timeout_ns = timeout_ns,
                                      .now_ns = now_ns,
                                      .purpose = change};
    if (!memory->fits(memory->context, placement->unit, &movable)) {
        admission_release(planner->admission, placement->stream);
        planner_send_plans(planner);
        return false;
    }
    if (!planner_begin(planner, &move, placement->stream, true, reason, sizeof reason))
        return false;
    agree(planner, stream, &(struct planner_change){.owner = change, .elsewhere = true});
    return true;
}

/* ---- the end ---- */

/* The stream keeps the contract that it had: less than what is reserved, so that it can not be refused. */
static void put_back(struct partition_planner *planner, uint32_t stream)
{
    struct admission_placement placement;
    core_status status = admission_change(planner->admission, stream,
                                          &planner->reservations[stream].change.before, &placement, NULL);

    assert(status == CORE_OK && placement.accepted);
    (void)status;
    planner_send_plans(planner);
}

void partition_planner_changed(struct partition_planner *planner, uint32_t stream,
                               enum partition_planner_end end, const struct partition_planner_use *use,
                               bool movable)
{
    struct planner_reservation *reservation = &planner->reservations[stream];
    struct planner_change *change = &reservation->change;

    assert(change->state == PLANNER_AGREED && !change->awaits_plans);
    if (end == PARTITION_PLANNER_CLOSING) {
        end_change(planner, stream); /* all that is reserved is reclaimed with the reservation */
        return;
    }
    if (end == PARTITION_PLANNER_GIVEN_UP && !change->elsewhere)
        put_back(planner, stream);
    if (end == PARTITION_PLANNER_IN_FORCE && change->owner != NULL)
        reservation->movable = movable;
    change->state = PLANNER_SETTLING;
    change->use = *use;
    enlist(planner, stream);
}
