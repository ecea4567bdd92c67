/* Migrations: capacity at the new unit, and for packets that are held on the way. */
#include "partition/planner/internal.h"

#include <stdio.h>

/* What the present unit keeps is known if its plan is in force; and held packets have to be somewhere. */
static bool may_hold(const struct partition_planner *planner, const struct planner_reservation *from)
{
    uint32_t gpu = planner_gpu_of(planner, from->unit);

    if (!from->movable)
        return false;
    return gpu == PLANNER_NONE ||
           (!planner->gpus[gpu].out && planner->host.plan_in_force(planner->context, gpu) ==
                                           admission_batches(planner->admission, gpu)->number);
}

/* An idle moment delays nothing, and most streams have one, so it is waited for first. And packets that were
 * at a GPU before the charge are back within the latency bound. */
static core_ns wait_ns(core_ns timeout_ns, core_ns latency_ns)
{
    core_ns half_ns = timeout_ns / 2;

    if (half_ns < latency_ns)
        return latency_ns;
    return half_ns < 2 * latency_ns ? half_ns : 2 * latency_ns;
}

/* Charges both units for packets that are held, if they can be (admission_reserve_catch_up). */
static void charge_hold(struct partition_planner *planner, const struct planner_move *move,
                        struct partition_planner_migration *migration)
{
    const struct planner_reservation *from = &planner->reservations[move->stream];
    uint32_t gpu = planner_gpu_of(planner, from->unit);
    core_ns batches_ns = gpu != PLANNER_NONE ? admission_batches(planner->admission, gpu)->latency_ns : 0;
    core_ns latency_ns = admission_stream_of(planner->admission, move->stream).contract.latency_ns;
    core_ns wait = wait_ns(move->timeout_ns, latency_ns);

    if (migration->changes_contract || !may_hold(planner, from) || wait >= move->timeout_ns ||
        !admission_reserve_catch_up(planner->admission, migration->to, batches_ns, &migration->hold_ns))
        return;
    migration->hold_from_ns = move->now_ns + wait;
}

/* One binding to a GPU goes with a migration: a guaranteed stream has its backup on a worker. */
static bool has_backup_on_gpu(const struct partition_planner *planner, uint32_t number)
{
    return planner_on_gpu(planner, admission_stream_of(planner->admission, number).backup_unit);
}

static void release(struct partition_planner *planner, const struct partition_planner_migration *migration)
{
    admission_release(planner->admission, migration->to);
    if (migration->hold_ns > 0)
        planner_settle(planner, migration->from);
    planner_send_plans(planner);
}

/* The stream comes back to where it was evacuated from, or is still not there. */
static uint32_t evacuated_gpu_of(const struct partition_planner *planner,
                                 const struct planner_reservation *from, uint32_t unit)
{
    return from->evacuated_from == planner_gpu_of(planner, unit) ? PLANNER_NONE : from->evacuated_from;
}

bool planner_begin(struct partition_planner *planner, const struct planner_move *move, uint32_t to,
                   bool changes, char *reason, size_t size)
{
    struct planner_reservation *from = &planner->reservations[move->stream], *fresh;
    struct partition_planner_migration migration = {.from_owner = from->owner,
                                                    .purpose = move->purpose,
                                                    .from = move->stream,
                                                    .to = to,
                                                    .unit = move->unit,
                                                    .changes_contract = changes,
                                                    .hold_from_ns = CORE_NS_NEVER,
                                                    .until_ns = move->now_ns + move->timeout_ns};

    if (has_backup_on_gpu(planner, to)) {
        snprintf(reason, size, "no worker has capacity for its backup");
        release(planner, &migration);
        return false;
    }
    charge_hold(planner, move, &migration);
    planner_send_plans(planner);
    migration.plan = partition_planner_plans_of(planner, to).number[0];
    void *owner = planner->host.migrate(planner->context, &migration);
    if (owner == NULL) {
        snprintf(reason, size, "the server is out of memory");
        release(planner, &migration);
        return false;
    }
    fresh = planner_enter(planner, to, owner, from->movable);
    fresh->superseded = true;
    fresh->source = move->stream;
    fresh->holds = migration.hold_ns > 0;
    fresh->pending = move->pending;
    fresh->evacuated_from = evacuated_gpu_of(planner, from, move->unit);
    fresh->evacuated_period_ns = from->evacuated_period_ns;
    from->target = to;
    planner_count_busy(planner, move->stream, 1);
    planner_count_busy(planner, to, 1);
    return true;
}

static bool is_free(const struct planner_reservation *reservation)
{
    return reservation->target == PLANNER_NONE && reservation->change.state == PLANNER_UNCHANGED &&
           !reservation->superseded && !reservation->retired;
}

bool planner_move(struct partition_planner *planner, const struct planner_move *move, char *reason,
                  size_t size)
{
    const struct planner_reservation *from = &planner->reservations[move->stream];
    struct core_error error = {""};
    uint32_t to;

    if (!is_free(from)) {
        snprintf(reason, size, "the stream is already migrating or being modified, or it is closing");
        return false;
    }
    if (planner_on_gpu(planner, move->unit) && !from->movable) {
        snprintf(reason, size, "the packet memory reserved for the stream is enough for workers only");
        return false;
    }
    if (planner_reserve(planner) != CORE_OK || admission_move(planner->admission, move->stream, move->unit,
                                                              move->period_ns, &to, &error) != CORE_OK) {
        snprintf(reason, size, "%s", error.text[0] != '\0' ? error.text : "the server is out of memory");
        return false;
    }
    return planner_begin(planner, move, to, false, reason, size);
}

bool partition_planner_move(struct partition_planner *planner, uint32_t stream, uint32_t unit,
                            core_ns period_ns, core_ns timeout_ns, void *purpose, core_ns now_ns,
                            char *reason, size_t size)
{
    const struct planner_move move = {.stream = stream,
                                      .unit = unit,
                                      .period_ns = period_ns,
                                      .timeout_ns = timeout_ns,
                                      .now_ns = now_ns,
                                      .purpose = purpose};

    planner_note_service(planner);
    return planner_move(planner, &move, reason, size);
}

/* Where packets may be late, the host tells when none is any more. Else no unit serves, or served, the stream
 * as it was charged for that. */
static void end_hold(struct partition_planner *planner, uint32_t number, bool holds, bool late)
{
    if (late)
        planner_agree_to_hold(planner, number);
    else if (holds)
        planner_settle(planner, number);
}

void partition_planner_moved(struct partition_planner *planner, uint32_t to,
                             enum partition_planner_outcome outcome, bool late)
{
    struct planner_reservation *fresh = &planner->reservations[to];
    uint32_t from = fresh->source, gpu = planner_gpu_of(planner, fresh->unit);
    struct planner_reservation *old = &planner->reservations[from];
    struct planner_pending *pending = fresh->pending;

    planner_count_busy(planner, from, -1);
    planner_count_busy(planner, to, -1);
    old->target = PLANNER_NONE;
    fresh->source = PLANNER_NONE;
    fresh->pending = NULL;
    if (outcome == PARTITION_PLANNER_MOVED) {
        old->superseded = true;
        fresh->superseded = false;
        if (old->change.state == PLANNER_AGREED && old->change.elsewhere)
            planner_pass_change(planner, from, to);
        end_hold(planner, to, fresh->holds, late);
        if (gpu != PLANNER_NONE && planner->gpus[gpu].out)
            planner_scan(planner, gpu); /* it went out of service while packets were held for it */
    } else {
        end_hold(planner, from, fresh->holds, late);
    }
    if (pending != NULL)
        planner_made_room(pending);
}
