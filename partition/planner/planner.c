/* The planner: its life, reservations, plans of GPUs. */
#include "partition/planner/internal.h"

#include <assert.h>
#include <stdlib.h>

#define RESERVATIONS_MIN 64

/* ---- plans of GPUs ---- */

void planner_send_plans(struct partition_planner *planner)
{
    for (uint32_t gpu = 0; gpu < planner->options.gpus; gpu++) {
        const struct partition_gpu_plan *plan = admission_batches(planner->admission, gpu);
        if (plan->number != planner->gpus[gpu].sent && planner->host.put_plan(planner->context, gpu, plan))
            planner->gpus[gpu].sent = plan->number;
    }
}

static void add_plan(const struct partition_planner *planner, uint32_t unit,
                     struct partition_planner_plans *plans)
{
    uint32_t gpu = planner_gpu_of(planner, unit);

    if (gpu == PLANNER_NONE)
        return;
    plans->gpu[plans->count] = gpu;
    plans->number[plans->count++] = admission_batches(planner->admission, gpu)->number;
}

struct partition_planner_plans partition_planner_plans_of(const struct partition_planner *planner,
                                                          uint32_t stream)
{
    const struct admission_stream of = admission_stream_of(planner->admission, stream);
    struct partition_planner_plans plans = {.count = 0};

    add_plan(planner, of.unit, &plans);
    if (plans.count > 0)
        add_plan(planner, of.backup_unit, &plans);
    return plans;
}

bool partition_planner_in_force(const struct partition_planner *planner,
                                const struct partition_planner_plans *plans)
{
    for (uint32_t n = 0; n < plans->count; n++)
        if (planner->host.plan_in_force(planner->context, plans->gpu[n]) < plans->number[n])
            return false;
    return true;
}

/* ---- reservations ---- */

core_status planner_reserve(struct partition_planner *planner)
{
    uint32_t capacity =
        planner->capacity < RESERVATIONS_MIN ? RESERVATIONS_MIN : planner->capacity + planner->capacity / 4;

    /* A free number is given out before there are more. */
    if (admission_streams(planner->admission) < planner->capacity)
        return CORE_OK;
    struct planner_reservation *grown =
        realloc(planner->reservations, capacity * sizeof(struct planner_reservation));
    if (grown == NULL)
        return CORE_NO_MEMORY;
    for (uint32_t n = planner->capacity; n < capacity; n++)
        grown[n] = (struct planner_reservation){.owner = NULL};
    planner->reservations = grown;
    planner->capacity = capacity;
    return CORE_OK;
}

struct planner_reservation *planner_enter(struct partition_planner *planner, uint32_t number, void *owner,
                                          bool movable)
{
    const struct admission_stream stream = admission_stream_of(planner->admission, number);
    struct planner_reservation *reservation = &planner->reservations[number];

    assert(number < planner->capacity && reservation->owner == NULL && owner != NULL);
    *reservation = (struct planner_reservation){.owner = owner,
                                                .unit = stream.unit,
                                                .io = stream.io,
                                                .born = ++planner->born,
                                                .movable = movable,
                                                .target = PLANNER_NONE,
                                                .source = PLANNER_NONE,
                                                .evacuated_from = PLANNER_NONE,
                                                .next_retired = PLANNER_NONE,
                                                .next_changing = PLANNER_NONE};
    planner->host.charged(planner->context, stream.unit, stream.io);
    return reservation;
}

core_status partition_planner_admit(struct partition_planner *planner, const struct core_stream_spec *spec,
                                    uint32_t io, const struct partition_planner_memory *memory, void *owner,
                                    struct admission_placement *placement)
{
    bool movable;

    planner_note_service(planner);
    if (planner_reserve(planner) != CORE_OK)
        return CORE_NO_MEMORY;
    core_status status = admission_admit(planner->admission, spec, io, 0, placement, NULL);
    if (status != CORE_OK || !placement->accepted)
        return status;
    if (!memory->fits(memory->context, placement->unit, &movable)) {
        admission_release(planner->admission, placement->stream);
        placement->accepted = false;
        return CORE_FULL;
    }
    planner_enter(planner, placement->stream, owner, movable);
    planner_send_plans(planner);
    return CORE_OK;
}

void planner_settle(struct partition_planner *planner, uint32_t number)
{
    const struct planner_reservation *reservation = &planner->reservations[number];

    admission_finalize(planner->admission, number);
    planner_send_plans(planner);
    planner->host.charged(planner->context, reservation->unit, reservation->io);
}

static bool is_quiescent(const struct partition_planner *planner, uint32_t unit, uint64_t mark)
{
    return planner->host.quiescent(planner->context, unit, mark);
}

bool planner_is_quiescent(const struct partition_planner *planner, uint32_t number,
                          const struct partition_planner_use *use)
{
    const struct admission_stream stream = admission_stream_of(planner->admission, number);

    if (use->backup_used && !is_quiescent(planner, stream.backup_unit, use->backup_mark))
        return false;
    return !use->used || is_quiescent(planner, stream.unit, use->mark);
}

void planner_count_busy(struct partition_planner *planner, uint32_t number, int more)
{
    const struct admission_stream stream = admission_stream_of(planner->admission, number);
    const uint32_t gpus[2] = {planner_gpu_of(planner, stream.unit),
                              planner_gpu_of(planner, stream.backup_unit)};

    for (int n = 0; n < 2; n++)
        if (gpus[n] != PLANNER_NONE)
            planner->gpus[gpus[n]].busy += (uint32_t)more;
}

void partition_planner_retire(struct partition_planner *planner, uint32_t stream,
                              const struct partition_planner_use *use)
{
    struct planner_reservation *reservation = &planner->reservations[stream];

    assert(reservation->owner != NULL && !reservation->retired);
    reservation->retired = true;
    reservation->use = *use;
    reservation->next_retired = planner->retired;
    planner->retired = stream;
}

static bool may_reclaim(const struct partition_planner *planner, uint32_t number)
{
    const struct planner_reservation *reservation = &planner->reservations[number];

    return reservation->requests == 0 && reservation->target == PLANNER_NONE &&
           reservation->source == PLANNER_NONE && reservation->change.state != PLANNER_AGREED &&
           planner_is_quiescent(planner, number, &reservation->use);
}

static void reclaim(struct partition_planner *planner, uint32_t number)
{
    struct planner_reservation reservation = planner->reservations[number];

    planner_forget_change(planner, number);
    admission_release(planner->admission, number);
    planner->reservations[number].owner = NULL;
    planner_send_plans(planner);
    planner->host.reclaimed(planner->context, reservation.owner, reservation.superseded);
    planner->host.charged(planner->context, reservation.unit, reservation.io);
}

static void reclaim_retired(struct partition_planner *planner)
{
    uint32_t number = planner->retired;

    planner->retired = PLANNER_NONE;
    while (number != PLANNER_NONE) {
        struct planner_reservation *reservation = &planner->reservations[number];
        uint32_t next = reservation->next_retired;
        if (may_reclaim(planner, number))
            reclaim(planner, number);
        else {
            reservation->next_retired = planner->retired;
            planner->retired = number;
        }
        number = next;
    }
}

/* ---- time ---- */

void partition_planner_step(struct partition_planner *planner, core_ns now_ns)
{
    planner_note_service(planner);
    planner_step_changes(planner);
    reclaim_retired(planner);
    planner_step_evacuation(planner, now_ns);
}

void partition_planner_maintain(struct partition_planner *planner, core_ns now_ns)
{
    planner_maintain_requests(planner, now_ns);
    planner_retune(planner, now_ns);
    planner_send_plans(planner);
}

bool partition_planner_waits(const struct partition_planner *planner)
{
    return planner->retired != PLANNER_NONE || planner->changing != PLANNER_NONE ||
           planner->pending_count > 0;
}

/* ---- life ---- */

core_status partition_planner_create(struct partition_planner **planner, struct admission *admission,
                                     const struct partition_planner_options *options,
                                     const struct partition_planner_host *host, void *context,
                                     struct core_error *error)
{
    struct partition_planner *fresh = calloc(1, sizeof *fresh);

    if (fresh != NULL) {
        *fresh = (struct partition_planner){.admission = admission,
                                            .options = *options,
                                            .host = *host,
                                            .context = context,
                                            .retired = PLANNER_NONE,
                                            .changing = PLANNER_NONE};
        fresh->gpus = calloc(options->gpus + 1, sizeof *fresh->gpus);
    }
    if (fresh == NULL || fresh->gpus == NULL) {
        free(fresh);
        admission_destroy(admission);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the planner");
    }
    *planner = fresh;
    return CORE_OK;
}

void partition_planner_destroy(struct partition_planner *planner)
{
    if (planner == NULL)
        return;
    planner_drop_pending(planner);
    for (uint32_t number = 0; number < planner->capacity; number++)
        if (planner->reservations[number].owner != NULL)
            planner->host.reclaimed(planner->context, planner->reservations[number].owner,
                                    planner->reservations[number].superseded);
    admission_destroy(planner->admission);
    free(planner->reservations);
    free(planner->gpus);
    free(planner);
}

struct admission *partition_planner_admission(struct partition_planner *planner)
{
    return planner->admission;
}
