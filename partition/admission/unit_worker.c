#include "partition/admission/unit_worker.h"

#include <assert.h>
#include <stdlib.h>

struct partition_worker {
    struct partition_unit unit;
    const struct config_profile *profile;
    struct perfmodel_demand *own;
    uint32_t gpus;
    struct perfmodel_demand
        *at[]; /* own streams and backups, by GPU that fails; NULL: there are no backups */
};

static struct partition_worker *worker_of(struct partition_unit *unit)
{
    return (struct partition_worker *)unit;
}

static const struct partition_worker *worker_const(const struct partition_unit *unit)
{
    return (const struct partition_worker *)unit;
}

/* A scenario without backups is the worker's own. */
static struct perfmodel_demand *demand_in(const struct partition_worker *worker, uint32_t scenario)
{
    bool own = scenario == PARTITION_OWN || worker->at[scenario] == NULL;
    return own ? worker->own : worker->at[scenario];
}

/* ---- questions ---- */

/* Own streams are in all scenarios. One with backups has all that the worker has and more, so that the worker
 * by itself is asked only where there is none. The first that refuses, else the fullest. */
static struct perfmodel_edf_result test_all(const struct partition_worker *worker,
                                            const struct perfmodel_cpu_task *task, int64_t reserve_ppb)
{
    struct perfmodel_edf_result worst = {.accepted = true, .utilisation_ppb = -1};
    for (uint32_t g = 0; g < worker->gpus && worst.accepted; g++) {
        if (worker->at[g] == NULL)
            continue;
        struct perfmodel_edf_result test = perfmodel_demand_test_within(worker->at[g], task, reserve_ppb);
        if (!test.accepted || test.utilisation_ppb > worst.utilisation_ppb)
            worst = test;
    }
    if (worst.utilisation_ppb < 0)
        worst = perfmodel_demand_test_within(worker->own, task, reserve_ppb);
    return worst;
}

static void add(const struct partition_worker *worker, uint32_t scenario,
                const struct perfmodel_cpu_task *task)
{
    assert(task->pieces > 0);
    if (scenario != PARTITION_OWN) {
        perfmodel_demand_add(worker->at[scenario], task);
        return;
    }
    perfmodel_demand_add(worker->own, task);
    for (uint32_t g = 0; g < worker->gpus; g++)
        if (worker->at[g] != NULL)
            perfmodel_demand_add(worker->at[g], task);
}

static void subtract(const struct partition_worker *worker, uint32_t scenario,
                     const struct perfmodel_cpu_task *task)
{
    assert(task->pieces > 0);
    if (scenario != PARTITION_OWN) {
        perfmodel_demand_remove(worker->at[scenario], task);
        return;
    }
    perfmodel_demand_remove(worker->own, task);
    for (uint32_t g = 0; g < worker->gpus; g++)
        if (worker->at[g] != NULL)
            perfmodel_demand_remove(worker->at[g], task);
}

/* instead_of: off the worker and on again, which leaves no trace. */
static struct partition_answer ask(const struct partition_unit *unit,
                                   const struct partition_question *question)
{
    const struct partition_worker *worker = worker_const(unit);
    const struct perfmodel_cpu_task *task = &question->more->task;
    int64_t reserve_ppb = question->whole ? 0 : unit->reserve_ppb;
    uint32_t scenario = question->scenario;
    struct partition_answer answer = {.test.binding = PERFMODEL_LIMIT_DEADLINE};
    if (task->pieces == 0)
        return answer;
    if (question->instead_of != NULL)
        subtract(worker, scenario, &question->instead_of->task);
    answer.test = scenario == PARTITION_OWN
                      ? test_all(worker, task, reserve_ppb)
                      : perfmodel_demand_test_within(demand_in(worker, scenario), task, reserve_ppb);
    answer.accepted = answer.test.accepted;
    if (question->instead_of != NULL)
        add(worker, scenario, &question->instead_of->task);
    return answer;
}

/* A packet is released at most (k - 1) s after it became eligible, and its last piece is due m delta later.
 * */
static core_ns bound_ns(const struct partition_unit *unit, const struct partition_demand *demand)
{
    const struct config_profile *profile = worker_const(unit)->profile;
    const struct perfmodel_cpu_task *task = &demand->task;
    core_ns margins_ns = profile->margins.in_ns + profile->margins.out_ns +
                         perfmodel_io_rest_ns(demand->spec.latency_ns, profile);
    if (task->pieces == 0)
        return demand->spec.latency_ns;
    return margins_ns + (task->burst_packets - 1) * task->spacing_ns + task->pieces * task->deadline_ns;
}

static int64_t backup_ppb(const struct partition_unit *unit, uint32_t scenario,
                          const struct partition_demand *backup, core_ns period_ns)
{
    (void)unit;
    (void)scenario;
    (void)period_ns;
    return perfmodel_cpu_utilisation_ppb(&backup->task);
}

/* ---- charges ---- */

static core_status reserve(struct partition_unit *unit, uint32_t scenario)
{
    struct partition_worker *worker = worker_of(unit);
    if (scenario == PARTITION_OWN || worker->at[scenario] != NULL)
        return CORE_OK;
    return perfmodel_demand_copy(worker->own, &worker->at[scenario]);
}

/* A scenario ends with its last backup. */
static void charge(struct partition_unit *unit, uint32_t scenario, uint32_t stream,
                   const struct partition_demand *less, const struct partition_demand *more)
{
    struct partition_worker *worker = worker_of(unit);
    (void)stream;
    if (less != NULL)
        subtract(worker, scenario, &less->task);
    if (more != NULL)
        add(worker, scenario, &more->task);
    else if (scenario != PARTITION_OWN &&
             perfmodel_demand_streams(worker->at[scenario]) == perfmodel_demand_streams(worker->own)) {
        perfmodel_demand_destroy(worker->at[scenario]);
        worker->at[scenario] = NULL;
    }
}

static void retarget(struct partition_unit *unit, core_ns period_ns, uint64_t memory_bytes)
{
    (void)unit;
    (void)period_ns;
    (void)memory_bytes;
}

/* ---- life ---- */

static core_status copy(const struct partition_unit *unit, struct partition_unit *to)
{
    const struct partition_worker *worker = worker_const(unit);
    struct partition_worker *made = worker_of(to);
    to->reserve_ppb = unit->reserve_ppb;
    perfmodel_demand_destroy(made->own);
    made->own = NULL;
    core_status status = perfmodel_demand_copy(worker->own, &made->own);
    for (uint32_t g = 0; status == CORE_OK && g < worker->gpus; g++)
        if (worker->at[g] != NULL)
            status = perfmodel_demand_copy(worker->at[g], &made->at[g]);
    return status;
}

static void destroy(struct partition_unit *unit)
{
    struct partition_worker *worker = worker_of(unit);
    for (uint32_t g = 0; g < worker->gpus; g++)
        perfmodel_demand_destroy(worker->at[g]);
    perfmodel_demand_destroy(worker->own);
    free(worker);
}

static const struct partition_unit_ops ops = {.ask = ask,
                                              .bound_ns = bound_ns,
                                              .backup_ppb = backup_ppb,
                                              .reserve = reserve,
                                              .charge = charge,
                                              .retarget = retarget,
                                              .copy = copy,
                                              .destroy = destroy};

core_status partition_worker_create(struct partition_unit **unit, const struct config_profile *profile,
                                    uint32_t gpus)
{
    struct partition_worker *made = calloc(1, sizeof *made + gpus * sizeof(*made->at));
    if (made == NULL)
        return CORE_NO_MEMORY;
    made->unit = (struct partition_unit){.ops = &ops, .kind = PARTITION_KIND_WORKER};
    made->profile = profile;
    made->gpus = gpus;
    core_status status = perfmodel_demand_create(&made->own, profile);
    if (status != CORE_OK)
        destroy(&made->unit);
    else
        *unit = &made->unit;
    return status;
}

/* ---- figures ---- */

int64_t partition_worker_utilisation_ppb(const struct partition_unit *unit, uint32_t scenario)
{
    return perfmodel_demand_utilisation_ppb(demand_in(worker_const(unit), scenario));
}

int64_t partition_worker_added_ppb(const struct partition_unit *unit, const struct partition_demand *demand)
{
    const struct perfmodel_demand *own = worker_const(unit)->own;
    return perfmodel_demand_test(own, &demand->task).utilisation_ppb - perfmodel_demand_utilisation_ppb(own);
}

struct admission_worker partition_worker_load(const struct partition_unit *unit)
{
    const struct partition_worker *worker = worker_const(unit);
    struct admission_worker load = {.streams = perfmodel_demand_streams(worker->own),
                                    .utilisation_ppb = perfmodel_demand_utilisation_ppb(worker->own)};
    load.headroom_ppb = perfmodel_demand_headroom_ppb(worker->own, &load.tightest_window_ns);
    for (uint32_t g = 0; g < worker->gpus; g++) {
        int64_t held_ppb = partition_worker_utilisation_ppb(unit, g) - load.utilisation_ppb;
        if (held_ppb > load.reserved_ppb)
            load.reserved_ppb = held_ppb;
    }
    return load;
}

const struct perfmodel_demand *partition_worker_scenario(const struct partition_unit *unit, uint32_t scenario)
{
    return worker_const(unit)->at[scenario];
}
