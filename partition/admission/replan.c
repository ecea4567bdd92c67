/* Admission: plans anew, with as few moves as do. */
#include "partition/admission/attempts.h"
#include "partition/admission/migrate.h"
#include "perfmodel/demand.h"

#include <stdlib.h>

#define ROOM_GPUS_MAX 8

struct replan {
    struct partition_attempt attempt;
    struct admission_proposal *proposal; /* accepted: there is no need to go on */
};

/* ---- the search ---- */

/* Are the moves from what stands to `after` such as can be made in turn, and the new stream admitted then? */
static core_status judge_moves(struct replan *replan, const struct admission *after)
{
    const struct admission *admission = replan->attempt.admission;
    struct partition_migrations moves = {.request = replan->attempt.demand,
                                         .io = replan->attempt.io,
                                         .move = malloc((admission->count + 1) * sizeof *moves.move)};
    if (moves.move == NULL)
        return CORE_NO_MEMORY;
    core_status status = partition_migrations_order(admission, after, &moves);
    if (status == CORE_OK && moves.admits)
        *replan->proposal =
            (struct admission_proposal){.accepted = true, .moves = moves.count, .move = moves.move};
    else
        free(moves.move);
    return status;
}

static core_status try_run(struct replan *replan, partition_attempt_run *run)
{
    struct admission *after = NULL;
    bool holds = false;
    core_status status = admission_copy(replan->attempt.admission, &after);
    if (status == CORE_OK)
        status = run(&replan->attempt, after, &holds);
    if (status == CORE_OK && holds)
        status = judge_moves(replan, after);
    admission_destroy(after);
    return status;
}

/* The worker that comes closest, and the GPUs, one after the other. */
static core_status try_room(struct replan *replan)
{
    struct partition_attempt *attempt = &replan->attempt;
    const struct admission *admission = attempt->admission;
    struct partition_answer answer;
    if (admission->gpus == 0)
        return CORE_OK;
    attempt->unit = admission_choose_worker(admission, attempt->demand, &answer);
    core_status status = try_run(replan, partition_attempt_room);
    for (uint32_t n = 0; status == CORE_OK && n < 2 * admission->gpus && n < 2 * ROOM_GPUS_MAX; n++) {
        if (replan->proposal->accepted)
            break;
        if (admission->gpu[n / 2]->unit.out)
            continue;
        attempt->unit = partition_unit_of_gpu(admission->worker_count, n / 2);
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

static bool any_moving(const struct admission *admission)
{
    bool any = false;
    for (uint32_t n = 0; n < admission->count; n++)
        any = any || admission->record[admission->listed[n]].moved;
    return any;
}

static bool any_reserve(const struct admission *admission)
{
    bool any = false;
    for (uint32_t unit = 0; unit < admission_units(admission); unit++)
        any = any || admission_withheld_ppb(admission, unit) > 0;
    return any;
}

/* A plan as it is would not do where a GPU is out of service, a unit keeps a reserve, a stream is being
 * moved, or one is guaranteed: it knows nothing of all that. */
static bool plan_would_do(const struct replan *replan)
{
    const struct admission *admission = replan->attempt.admission;
    return !admission_any_out(admission) && !any_moving(admission) && !any_reserve(admission) &&
           admission->protected == 0 && !replan->attempt.demand->spec.guaranteed &&
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
    const struct admission *admission = replan->attempt.admission;
    struct partition_plan_input input = {.count = (size_t)admission->count + 1,
                                         .profile = admission->profile,
                                         .workers = admission->worker_count,
                                         .sums = true};
    struct core_stream_spec *specs = malloc(input.count * sizeof *specs);
    struct partition_plan *plan = NULL;
    if (specs == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a plan of %zu streams", input.count);
    for (uint32_t n = 0; n < admission->count; n++)
        specs[n] = admission->record[admission->listed[n]].join;
    specs[admission->count] = replan->attempt.demand->spec;
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

core_status admission_replan(const struct admission *admission, const struct partition_plan_method *method,
                             const struct core_stream_spec *spec, uint32_t io,
                             struct admission_proposal *proposal, struct core_error *error)
{
    struct partition_demand demand;
    struct replan replan = {.attempt = {.admission = admission, .demand = &demand, .io = io},
                            .proposal = proposal};
    *proposal = (struct admission_proposal){.accepted = false};
    core_status status = admission_check(admission, spec, io, error);
    if (status != CORE_OK)
        return status;
    if (!method->places)
        return core_error_set(error, CORE_INVALID, "method %s places no stream: take another", method->name);
    if (admission->count == PARTITION_PLAN_STREAMS_MAX)
        return core_error_set(error, CORE_REFUSED, "a plan holds %zu streams and no more",
                              PARTITION_PLAN_STREAMS_MAX);
    demand = partition_demand_of(spec, admission->profile);
    if (!admission_io_fits(admission, io, 0, demand.io_ppb))
        return CORE_OK; /* whatever moves */
    status = try_run(&replan, partition_attempt_present);
    if (status == CORE_OK && !proposal->accepted)
        status = try_room(&replan);
    if (status == CORE_OK && !proposal->accepted)
        status = plan_anew(&replan, method, error);
    return status == CORE_NO_MEMORY
               ? core_error_set(error, status, "no memory to make room among %u streams", admission->count)
               : status;
}

core_status admission_move(struct admission *admission, uint32_t stream, uint32_t to, core_ns period_ns,
                           uint32_t *again, struct core_error *error)
{
    struct admission_placement placement;
    struct admission_refusal words;
    bool gpu = admission_is_gpu(admission, to);
    if (to >= admission_units(admission) || admission->record[stream].moved ||
        (gpu && (period_ns <= 0 || period_ns > CORE_LATENCY_NS_MAX)))
        return core_error_set(error, CORE_REFUSED,
                              "unit %u: there is none, or no period of %lld ns, or the "
                              "stream has been moved already",
                              to, (long long)period_ns);
    if (admission->unit[to]->out)
        return core_error_set(error, CORE_REFUSED, "GPU %u is out of service",
                              admission_gpu_of(admission, to));
    if (admission->count == PARTITION_PLAN_STREAMS_MAX)
        return core_error_set(error, CORE_REFUSED, "a plan holds %zu streams and no more",
                              PARTITION_PLAN_STREAMS_MAX);
    if (!partition_migrations_may(admission, stream, to, period_ns, &placement))
        return core_error_set(error, CORE_REFUSED, "unit %u has no room for the stream as things stand", to);
    if (admission_allocate(admission, &placement) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for one stream more");
    const struct admission_record record = admission->record[stream];
    admission_set_periods(admission, &placement);
    *again = admission_insert(admission, &record.join, record.io, record.handle, &placement);
    admission->record[*again].contract = record.contract;
    admission_charge_io(admission, record.io, perfmodel_io_utilisation_ppb(&record.join, admission->profile),
                        0);
    admission->record[stream].moved = true;
    admission->record[stream].target = *again;
    admission->record[*again].source = stream;
    if (admission_plan_units(admission, placement.unit, placement.backup_unit, &words))
        return CORE_OK;
    admission_release(admission, *again);
    return core_error_set(error, CORE_REFUSED, "%s", words.reason);
}
