/* Standing plans: plans anew, with as few moves as do. */
#include "partition/admission/attempts.h"
#include "partition/admission/migrate.h"
#include "perfmodel/demand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_GPUS_MAX 8

struct proposal {
    struct partition_standing_proposal told; /* first: what the caller sees */
    const struct partition_standing *of;
    uint64_t changes;                 /* of `of` then */
    struct partition_standing *after; /* with all moves made, and the newcomer; NULL once committed */
    uint32_t stream;                  /* the newcomer there */
    struct partition_standing_move *move;
    core_ns *period_ns;
};

struct replan {
    struct partition_attempt attempt;
    struct proposal *proposal;
};

/* ---- the search ---- */

/* Leaves the plan in proposal->after if it holds. */
static core_status try_run(struct replan *replan, partition_attempt_run *run)
{
    struct partition_standing *after = NULL;
    bool holds = false;
    core_status status = partition_standing_copy(replan->attempt.standing, &after);
    if (status == CORE_OK)
        status = run(&replan->attempt, after, &holds);
    if (status == CORE_OK && holds) {
        replan->proposal->after = after;
        replan->proposal->stream = replan->attempt.stream;
    } else {
        partition_standing_destroy(after);
    }
    return status;
}

/* The worker that comes closest, and the GPUs, one after the other. */
static core_status try_room(struct replan *replan)
{
    struct partition_attempt *attempt = &replan->attempt;
    const struct partition_standing *standing = attempt->standing;
    struct partition_placement worker;
    if (standing->gpus == 0)
        return CORE_OK;
    (void)partition_workers_place(standing->workers, attempt->spec, attempt->io, &worker);
    attempt->unit = worker.worker;
    core_status status = try_run(replan, partition_attempt_room);
    for (uint32_t n = 0; status == CORE_OK && n < 2 * standing->gpus && n < 2 * ROOM_GPUS_MAX; n++) {
        if (replan->proposal->after != NULL)
            break;
        if (standing->gpu[n / 2].out)
            continue;
        attempt->unit = standing->worker_count + n / 2;
        attempt->by_deadline = n % 2 == 0;
        status = try_run(replan, partition_attempt_room);
    }
    return status;
}

/* The account of a worker holds no more streams than this (perfmodel/demand.h). */
static bool within_account(const struct partition_plan *plan)
{
    for (uint32_t w = 0; w < plan->workers; w++)
        if (plan->worker[w].streams > PERFMODEL_DEMAND_STREAMS_MAX)
            return false;
    return true;
}

static bool any_moving(const struct partition_standing *standing)
{
    bool any = false;
    for (uint32_t n = 0; n < standing->count; n++)
        any = any || standing->record[standing->listed[n]].moved;
    return any;
}

static bool any_reserve(const struct partition_standing *standing)
{
    bool any = false;
    for (uint32_t unit = 0; unit < standing->worker_count + standing->gpus; unit++)
        any = any || partition_standing_reserve_ppb(standing, unit) > 0;
    return any;
}

static core_status try_plan(struct replan *replan)
{
    struct partition_standing_proposal *told = &replan->proposal->told;
    core_status status = try_run(replan, partition_attempt_one_by_one);
    if (status == CORE_OK && replan->proposal->after == NULL)
        status = try_run(replan, partition_attempt_together);
    if (status != CORE_OK || replan->proposal->after != NULL)
        return status;
    const struct partition_standing *standing = replan->attempt.standing;
    bool fixed = partition_standing_any_out(standing) || any_moving(standing) || any_reserve(standing) ||
                 standing->guarded > 0 || replan->attempt.spec->guaranteed;
    if (!fixed && within_account(replan->attempt.plan))
        return try_run(replan, partition_attempt_as_planned);
    told->binding = fixed ? PARTITION_PLAN_STREAM : PARTITION_PLAN_CPU_DEMAND;
    if (fixed)
        snprintf(
            told->reason, sizeof told->reason,
            "no moves make room one by one, and a plan as it is would not do: a GPU is out of service, a "
            "unit keeps a reserve, a stream is being moved, or one is guaranteed");
    else
        snprintf(told->reason, sizeof told->reason, "the plan has more than %zu streams on a worker",
                 PERFMODEL_DEMAND_STREAMS_MAX);
    return CORE_OK;
}

static core_status plan_anew(struct replan *replan, const struct partition_plan_method *method,
                             struct core_error *error)
{
    const struct partition_standing *standing = replan->attempt.standing;
    struct partition_plan_input input = {.count = (size_t)standing->count + 1,
                                         .profile = standing->profile,
                                         .workers = standing->worker_count,
                                         .sums = true};
    struct core_stream_spec *specs = malloc(input.count * sizeof *specs);
    struct partition_plan *plan = NULL;
    if (specs == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a plan of %zu streams", input.count);
    for (uint32_t n = 0; n < standing->count; n++)
        specs[n] = standing->record[standing->listed[n]].join;
    specs[standing->count] = *replan->attempt.spec;
    input.specs = specs;
    core_status status = partition_plan_make(method, &input, &plan, error);
    if (status == CORE_OK && plan->accepted) {
        replan->attempt.plan = plan;
        status = try_plan(replan);
        if (status != CORE_OK)
            (void)core_error_set(error, status, "no memory for the moves of %zu streams", input.count);
    } else if (status == CORE_OK) {
        replan->proposal->told.binding = plan->binding;
        memcpy(replan->proposal->told.reason, plan->reason, sizeof plan->reason);
    }
    partition_plan_destroy(plan);
    free(specs);
    return status;
}

/* ---- the proposal ---- */

static core_status tell(const struct partition_attempt *attempt, struct proposal *proposal)
{
    struct partition_standing_proposal *told = &proposal->told;
    const struct partition_standing *standing = proposal->of, *after = proposal->after;
    told->unit = PARTITION_STANDING_NONE;
    if (after == NULL)
        return CORE_OK;
    proposal->move = malloc((standing->count + 1) * sizeof *proposal->move);
    proposal->period_ns = malloc((standing->gpus + 1) * sizeof *proposal->period_ns);
    if (proposal->move == NULL || proposal->period_ns == NULL)
        return CORE_NO_MEMORY;
    struct partition_moves moves = {.newcomer = attempt->spec, .io = attempt->io, .move = proposal->move};
    core_status status = partition_moves_order(standing, after, &moves);
    for (uint32_t g = 0; g < standing->gpus; g++)
        proposal->period_ns[g] = after->gpu[g].period_ns;
    told->accepted = true;
    told->unit = after->record[proposal->stream].unit;
    told->moves = moves.count;
    told->in_turn = moves.in_turn;
    told->admits = moves.admits;
    told->move = proposal->move;
    told->period_ns = proposal->period_ns;
    return status;
}

static core_status replan_run(struct replan *replan, const struct partition_plan_method *method,
                              struct core_error *error)
{
    struct proposal *proposal = replan->proposal;
    if (!partition_workers_io_fits(replan->attempt.standing->workers, replan->attempt.spec,
                                   replan->attempt.io)) {
        snprintf(proposal->told.reason, sizeof proposal->told.reason,
                 "I/O thread %u has no room for it, whatever the plan", replan->attempt.io);
        return tell(&replan->attempt, proposal);
    }
    core_status status = try_run(replan, partition_attempt_present);
    if (status == CORE_OK && proposal->after == NULL)
        status = try_room(replan);
    if (status == CORE_OK && proposal->after == NULL)
        status = plan_anew(replan, method, error);
    if (status == CORE_OK)
        status = tell(&replan->attempt, proposal);
    return status;
}

core_status partition_standing_replan(const struct partition_standing *standing,
                                      const struct partition_plan_method *method,
                                      const struct core_stream_spec *spec, uint32_t io,
                                      struct partition_standing_proposal **proposal, struct core_error *error)
{
    core_status status = partition_standing_check(standing, spec, io, error);
    if (status != CORE_OK)
        return status;
    if (!method->places)
        return core_error_set(error, CORE_INVALID, "method %s places no stream: take another", method->name);
    if (standing->count == PARTITION_PLAN_STREAMS_MAX)
        return core_error_set(error, CORE_REFUSED, "a plan holds %zu streams and no more",
                              PARTITION_PLAN_STREAMS_MAX);
    struct proposal *made = calloc(1, sizeof *made);
    if (made == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a proposal");
    made->of = standing;
    made->changes = standing->changes;
    struct replan replan = {.attempt = {.standing = standing, .spec = spec, .io = io}, .proposal = made};
    status = replan_run(&replan, method, error);
    if (status != CORE_OK) {
        partition_standing_drop(&made->told);
        return status;
    }
    *proposal = &made->told;
    return CORE_OK;
}

core_status partition_standing_commit(struct partition_standing *standing,
                                      struct partition_standing_proposal *proposal, uint64_t handle,
                                      uint32_t *stream, struct core_error *error)
{
    struct proposal *made = (struct proposal *)proposal;
    if (made->after == NULL || made->of != standing || made->changes != standing->changes)
        return core_error_set(error, CORE_REFUSED,
                              "the proposal is not of the plan that stands now: ask for another");
    struct partition_standing before = *standing;
    *standing = *made->after;
    partition_standing_set_rooms(standing, before.has_room, before.rooms);
    *made->after = before;
    partition_standing_destroy(made->after);
    made->after = NULL;
    standing->record[made->stream].handle = handle;
    *stream = made->stream;
    return CORE_OK;
}

void partition_standing_drop(struct partition_standing_proposal *proposal)
{
    struct proposal *made = (struct proposal *)proposal;
    if (made == NULL)
        return;
    partition_standing_destroy(made->after);
    free(made->move);
    free(made->period_ns);
    free(made);
}

core_status partition_standing_move(struct partition_standing *standing, uint32_t stream, uint32_t to,
                                    core_ns period_ns, uint32_t *again, struct core_error *error)
{
    struct partition_standing_placement placement;
    bool gpu = to >= standing->worker_count;
    if (to >= standing->worker_count + standing->gpus || standing->record[stream].moved ||
        (gpu && (period_ns <= 0 || period_ns > CORE_LATENCY_NS_MAX)))
        return core_error_set(error, CORE_REFUSED,
                              "unit %u: there is none, or no period of %lld ns, or the "
                              "stream has been moved already",
                              to, (long long)period_ns);
    if (gpu && standing->gpu[to - standing->worker_count].out)
        return core_error_set(error, CORE_REFUSED, "GPU %u is out of service", to - standing->worker_count);
    if (standing->count == PARTITION_PLAN_STREAMS_MAX)
        return core_error_set(error, CORE_REFUSED, "a plan holds %zu streams and no more",
                              PARTITION_PLAN_STREAMS_MAX);
    if (!partition_moves_may(standing, stream, to, period_ns, &placement))
        return core_error_set(error, CORE_REFUSED, "unit %u has no room for the stream as things stand", to);
    if (partition_standing_reserve(standing, &placement) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for one stream more");
    const struct partition_standing_record record = standing->record[stream];
    partition_standing_set(standing, &placement);
    *again = partition_standing_enter(standing, &record.join, record.io, record.handle, &placement);
    standing->record[*again].contract = record.contract;
    partition_workers_io_take(standing->workers, &record.join, record.io);
    standing->record[stream].moved = true;
    standing->record[stream].target = *again;
    standing->record[*again].source = stream;
    return CORE_OK;
}
