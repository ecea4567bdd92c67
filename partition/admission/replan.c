/* Standing plans: plans anew, with as few moves as do. */
#include "partition/admission/attempts.h"
#include "partition/admission/migrate.h"
#include "perfmodel/demand.h"

#include <stdlib.h>

#define ROOM_GPUS_MAX 8

struct replan {
    struct partition_attempt attempt;
    struct partition_standing_proposal *proposal; /* accepted: there is no need to go on */
};

/* ---- the search ---- */

/* Are the moves from what stands to `after` such as can be made in turn, and the newcomer admitted then? */
static core_status judge_moves(struct replan *replan, const struct partition_standing *after)
{
    const struct partition_standing *standing = replan->attempt.standing;
    struct partition_moves moves = {.newcomer = replan->attempt.demand,
                                    .io = replan->attempt.io,
                                    .move = malloc((standing->count + 1) * sizeof *moves.move)};
    if (moves.move == NULL)
        return CORE_NO_MEMORY;
    core_status status = partition_moves_order(standing, after, &moves);
    if (status == CORE_OK && moves.admits)
        *replan->proposal =
            (struct partition_standing_proposal){.accepted = true, .moves = moves.count, .move = moves.move};
    else
        free(moves.move);
    return status;
}

static core_status try_run(struct replan *replan, partition_attempt_run *run)
{
    struct partition_standing *after = NULL;
    bool holds = false;
    core_status status = partition_standing_copy(replan->attempt.standing, &after);
    if (status == CORE_OK)
        status = run(&replan->attempt, after, &holds);
    if (status == CORE_OK && holds)
        status = judge_moves(replan, after);
    partition_standing_destroy(after);
    return status;
}

/* The worker that comes closest, and the GPUs, one after the other. */
static core_status try_room(struct replan *replan)
{
    struct partition_attempt *attempt = &replan->attempt;
    const struct partition_standing *standing = attempt->standing;
    struct partition_answer answer;
    if (standing->gpus == 0)
        return CORE_OK;
    attempt->unit = partition_standing_choose_worker(standing, attempt->demand, &answer);
    core_status status = try_run(replan, partition_attempt_room);
    for (uint32_t n = 0; status == CORE_OK && n < 2 * standing->gpus && n < 2 * ROOM_GPUS_MAX; n++) {
        if (replan->proposal->accepted)
            break;
        if (standing->gpu[n / 2]->unit.out)
            continue;
        attempt->unit = partition_unit_of_gpu(standing->worker_count, n / 2);
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
    for (uint32_t unit = 0; unit < partition_standing_units(standing); unit++)
        any = any || partition_standing_reserve_ppb(standing, unit) > 0;
    return any;
}

/* A plan as it is would not do where a GPU is out of service, a unit keeps a reserve, a stream is being
 * moved, or one is guaranteed: it knows nothing of all that. */
static bool plan_would_do(const struct replan *replan)
{
    const struct partition_standing *standing = replan->attempt.standing;
    return !partition_standing_any_out(standing) && !any_moving(standing) && !any_reserve(standing) &&
           standing->guarded == 0 && !replan->attempt.demand->spec.guaranteed &&
           within_account(replan->attempt.plan);
}

static core_status try_plan(struct replan *replan)
{
    core_status status = try_run(replan, partition_attempt_one_by_one);
    if (status == CORE_OK && !replan->proposal->accepted && plan_would_do(replan))
        status = try_run(replan, partition_attempt_as_planned);
    return status;
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
    specs[standing->count] = replan->attempt.demand->spec;
    input.specs = specs;
    core_status status = partition_plan_make(method, &input, &plan, error);
    if (status == CORE_OK && plan->accepted) {
        replan->attempt.plan = plan;
        status = try_plan(replan);
        if (status != CORE_OK)
            (void)core_error_set(error, status, "no memory for the moves of %zu streams", input.count);
    }
    partition_plan_destroy(plan);
    free(specs);
    return status;
}

/* ---- the proposal ---- */

core_status partition_standing_replan(const struct partition_standing *standing,
                                      const struct partition_plan_method *method,
                                      const struct core_stream_spec *spec, uint32_t io,
                                      struct partition_standing_proposal *proposal, struct core_error *error)
{
    struct partition_demand demand;
    struct replan replan = {.attempt = {.standing = standing, .demand = &demand, .io = io},
                            .proposal = proposal};
    *proposal = (struct partition_standing_proposal){.accepted = false};
    core_status status = partition_standing_check(standing, spec, io, error);
    if (status != CORE_OK)
        return status;
    if (!method->places)
        return core_error_set(error, CORE_INVALID, "method %s places no stream: take another", method->name);
    if (standing->count == PARTITION_PLAN_STREAMS_MAX)
        return core_error_set(error, CORE_REFUSED, "a plan holds %zu streams and no more",
                              PARTITION_PLAN_STREAMS_MAX);
    demand = partition_demand_of(spec, standing->profile);
    if (!partition_standing_io_fits(standing, io, 0, demand.io_ppb))
        return CORE_OK; /* whatever moves */
    status = try_run(&replan, partition_attempt_present);
    if (status == CORE_OK && !proposal->accepted)
        status = try_room(&replan);
    if (status == CORE_OK && !proposal->accepted)
        status = plan_anew(&replan, method, error);
    return status;
}

core_status partition_standing_move(struct partition_standing *standing, uint32_t stream, uint32_t to,
                                    core_ns period_ns, uint32_t *again, struct core_error *error)
{
    struct partition_standing_placement placement;
    struct partition_standing_words words;
    bool gpu = partition_standing_is_gpu(standing, to);
    if (to >= partition_standing_units(standing) || standing->record[stream].moved ||
        (gpu && (period_ns <= 0 || period_ns > CORE_LATENCY_NS_MAX)))
        return core_error_set(error, CORE_REFUSED,
                              "unit %u: there is none, or no period of %lld ns, or the "
                              "stream has been moved already",
                              to, (long long)period_ns);
    if (standing->unit[to]->out)
        return core_error_set(error, CORE_REFUSED, "GPU %u is out of service",
                              partition_standing_gpu_of(standing, to));
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
    partition_standing_charge_io(standing, record.io,
                                 perfmodel_io_utilisation_ppb(&record.join, standing->profile), 0);
    standing->record[stream].moved = true;
    standing->record[stream].target = *again;
    standing->record[*again].source = stream;
    if (partition_standing_plan_units(standing, placement.unit, placement.backup_unit, &words))
        return CORE_OK;
    partition_standing_release(standing, *again);
    return core_error_set(error, CORE_REFUSED, "%s", words.reason);
}
