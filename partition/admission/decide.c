/* Admission: where a stream is placed. */
#include "partition/admission/internal.h"
#include "partition/admission/unit_worker.h"

#define PPB       INT64_C(1000000000)
#define QUIET_PPB (PPB / 4) /* a worker below this is taken first */

/* ---- workers ---- */

/* The next worker after `previous` by load, and by number where loads are equal; worker_count at the end, and
 * to begin with. */
static uint32_t next_by_load(const struct admission *admission, uint32_t previous)
{
    int64_t after_ppb = -1, best_ppb = 0;
    uint32_t count = admission->worker_count, best = count;
    if (previous < count)
        after_ppb = partition_worker_utilisation_ppb(admission->unit[previous], PARTITION_OWN);
    for (uint32_t w = 0; w < count; w++) {
        int64_t ppb = partition_worker_utilisation_ppb(admission->unit[w], PARTITION_OWN);
        bool later = ppb > after_ppb || (ppb == after_ppb && w > previous);
        if (later && (best == count || ppb < best_ppb)) {
            best = w;
            best_ppb = ppb;
        }
    }
    return best;
}

/* How much a refused test asks for, relative to what there is. */
static double excess(const struct perfmodel_edf_result *test)
{
    if (test->binding == PERFMODEL_LIMIT_CPU_UTILISATION)
        return 1e9 + (double)test->utilisation_ppb; /* no window can make up for that */
    return (double)(test->demand_ns + test->blocking_ns) / ((double)test->window_ns + 1);
}

uint32_t admission_choose_worker(const struct admission *admission, const struct partition_demand *demand,
                                 struct partition_answer *answer)
{
    const struct partition_question question = {.more = demand, .scenario = PARTITION_OWN};
    uint32_t worker = next_by_load(admission, admission->worker_count), chosen = worker;
    *answer = partition_unit_ask(admission->unit[worker], &question);
    if (demand->task.pieces == 0)
        return 0; /* no worker comes closer */
    while (!answer->accepted && (worker = next_by_load(admission, worker)) < admission->worker_count) {
        struct partition_answer one = partition_unit_ask(admission->unit[worker], &question);
        if (!one.accepted && excess(&one.test) >= excess(&answer->test))
            continue;
        *answer = one;
        chosen = worker;
    }
    return chosen;
}

/* ---- GPUs ---- */

struct partition_gpu_choice partition_gpu_choice_of(const struct admission *admission,
                                                    const struct partition_demand *demand, uint32_t among)
{
    return (struct partition_gpu_choice){.admission = admission,
                                         .demand = demand,
                                         .among = among,
                                         .gpu = ADMISSION_NONE,
                                         .closest = ADMISSION_NONE,
                                         .lacks = {.headroom_ppb = -PPB - 1}};
}

static bool chosen(const struct partition_gpu_choice *choice)
{
    return choice->gpu != ADMISSION_NONE;
}

static void weigh(struct partition_gpu_choice *choice, uint32_t g, const struct partition_answer *answer)
{
    const struct perfmodel_flow_verdict *verdict = &answer->verdict;
    if (!answer->accepted) {
        if (verdict->headroom_ppb > choice->lacks.headroom_ppb) {
            choice->closest = g;
            choice->lacks = *verdict;
        }
        return;
    }
    bool longer = verdict->period_ns > choice->taken.period_ns;
    bool roomier =
        verdict->period_ns == choice->taken.period_ns && verdict->headroom_ppb > choice->taken.headroom_ppb;
    if (!chosen(choice) || longer || roomier) {
        choice->gpu = g;
        choice->taken = *verdict;
    }
}

static bool may(const struct partition_gpu_choice *choice, uint32_t g)
{
    const struct partition_unit *unit = &choice->admission->gpu[g]->unit;
    return !unit->out && (choice->among & unit->kind);
}

/* One that refuses only because its batches have no room is no candidate (refuse.c tells of it). */
void partition_gpu_choice_ask(struct partition_gpu_choice *choice, uint32_t g, enum partition_period period)
{
    const struct partition_question question = {
        .more = choice->demand, .scenario = PARTITION_OWN, .period = period};
    struct partition_answer answer = partition_unit_ask(&choice->admission->gpu[g]->unit, &question);
    struct admission_refusal words;
    if (!answer.accepted || admission_batches_fit(choice->admission, g, PARTITION_OWN, choice->demand,
                                                  answer.verdict.period_ns, &words))
        weigh(choice, g, &answer);
}

bool partition_gpu_choose_present(struct partition_gpu_choice *choice)
{
    for (uint32_t g = 0; g < choice->admission->gpus; g++)
        if (may(choice, g) && choice->admission->gpu[g]->unit.period_ns > 0)
            partition_gpu_choice_ask(choice, g, PARTITION_PERIOD_PRESENT);
    return chosen(choice);
}

/* Of idle GPUs of a kind one is asked. */
bool partition_gpu_choose_other(struct partition_gpu_choice *choice, bool idle)
{
    const struct partition_gpu *asked = NULL;
    for (uint32_t g = 0; g < choice->admission->gpus; g++) {
        const struct partition_gpu *gpu = choice->admission->gpu[g];
        if (!may(choice, g) || (gpu->unit.period_ns == 0) != idle ||
            (idle && partition_gpu_alike(gpu, asked)))
            continue;
        partition_gpu_choice_ask(choice, g, PARTITION_PERIOD_BEST);
        asked = gpu;
    }
    return chosen(choice);
}

/* ---- the decision ---- */

/* The question at hand, with what the workers say. */
struct decision {
    const struct admission *admission;
    const struct partition_demand *demand;
    uint32_t among;
    uint32_t worker;
    struct partition_answer answer;
    struct admission_placement *placement;
};

static bool on_worker(const struct decision *decision)
{
    struct admission_placement *placement = decision->placement;
    const struct partition_unit *unit = decision->admission->unit[decision->worker];
    if (!decision->answer.accepted)
        return false;
    placement->accepted = true;
    placement->unit = decision->worker;
    placement->task = decision->demand->task;
    placement->bound_ns = partition_unit_bound_ns(unit, decision->demand);
    return true;
}

static bool on_gpu(const struct decision *decision, const struct partition_gpu_choice *choice)
{
    struct admission_placement *placement = decision->placement;
    const struct partition_gpu *gpu = decision->admission->gpu[choice->gpu];
    placement->accepted = true;
    placement->unit = partition_unit_of_gpu(decision->admission->worker_count, choice->gpu);
    placement->period_ns = choice->taken.period_ns;
    placement->new_period = gpu->own.load.streams > 0 && gpu->unit.period_ns != placement->period_ns;
    placement->memory_bytes = choice->taken.memory_bytes;
    placement->bound_ns = partition_unit_bound_ns(&gpu->unit, decision->demand);
    return true;
}

static bool with_backup(const struct decision *decision, bool idle, enum partition_period period)
{
    struct admission_placement one;
    bool found = partition_failover_place(decision->admission, &decision->demand->spec, decision->among, idle,
                                          period, &one);
    if (found)
        *decision->placement = one;
    return found;
}

static uint32_t gpus_in_service(const struct admission *admission)
{
    uint32_t count = 0;
    for (uint32_t g = 0; g < admission->gpus; g++)
        count += !admission->gpu[g]->unit.out;
    return count;
}

/* With several GPUs the scenarios share the reserved capacity, and a GPU saves capacity of workers. With one
 * a backup asks more of a worker than the stream itself would. */
static bool place_guaranteed(const struct decision *decision)
{
    bool several = gpus_in_service(decision->admission) > 1;
    if (!several && on_worker(decision))
        return true;
    return with_backup(decision, false, PARTITION_PERIOD_PRESENT) ||
           with_backup(decision, true, PARTITION_PERIOD_BEST) || on_worker(decision) ||
           with_backup(decision, false, PARTITION_PERIOD_BEST);
}

static bool place_standard(const struct decision *decision)
{
    struct partition_gpu_choice choice =
        partition_gpu_choice_of(decision->admission, decision->demand, decision->among);
    if (decision->demand->load.shortest_ns <= 0)
        return on_worker(decision);
    if (partition_gpu_choose_present(&choice) || partition_gpu_choose_other(&choice, true))
        return on_gpu(decision, &choice);
    return on_worker(decision) || (partition_gpu_choose_other(&choice, false) && on_gpu(decision, &choice));
}

bool admission_place(const struct admission *admission, const struct partition_demand *demand, uint32_t io,
                     uint32_t among, struct admission_placement *placement)
{
    struct decision decision = {
        .admission = admission, .demand = demand, .among = among, .placement = placement};
    *placement = (struct admission_placement){
        .unit = ADMISSION_NONE, .stream = ADMISSION_NONE, .backup_unit = ADMISSION_NONE};
    if (!admission_io_fits(admission, io, 0, demand->io_ppb))
        return false;
    if (among & PARTITION_KIND_WORKER)
        decision.worker = admission_choose_worker(admission, demand, &decision.answer);
    bool quiet = decision.answer.accepted && decision.answer.test.utilisation_ppb < QUIET_PPB;
    if (admission->gpus == 0 || quiet)
        return on_worker(&decision);
    return demand->spec.guaranteed ? place_guaranteed(&decision) : place_standard(&decision);
}
