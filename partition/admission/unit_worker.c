#include "partition/admission/unit_worker.h"

#include "partition/admission/offer.h"
#include "partition/admission/reasons.h"
#include "perfmodel/demand.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS_MAX 1024

struct partition_workers {
    struct config_profile *profile; /* only its numbers are used */
    int64_t io_limit_ppb;
    uint32_t worker_count, io_count;
    struct perfmodel_demand *empty; /* of a worker with no stream */
    struct perfmodel_demand **worker;
    uint32_t losses; /* GPUs that may be lost */
    struct perfmodel_demand *
        *at;              /* at[loss * worker_count + worker]: with the backups; NULL: there are none */
    int64_t *reserve_ppb; /* kept from newcomers, by worker */
    int64_t *io_ppb;      /* promised, by I/O thread */
};

core_status partition_workers_create(struct partition_workers **workers, const struct config_profile *profile,
                                     uint32_t worker_count, uint32_t io_count, struct core_error *error)
{
    if (worker_count == 0 || worker_count > WORKERS_MAX || io_count == 0 || io_count > WORKERS_MAX)
        return core_error_set(error, CORE_INVALID, "%u workers and %u I/O threads: 1 to %d of each can be",
                              worker_count, io_count, WORKERS_MAX);
    struct partition_workers *made = calloc(1, sizeof *made);
    if (made == NULL)
        goto no_memory;
    made->io_limit_ppb = perfmodel_io_limit_ppb(profile);
    made->io_count = io_count;
    made->profile = malloc(sizeof *made->profile);
    made->worker = calloc(worker_count, sizeof(*made->worker));
    made->reserve_ppb = calloc(worker_count, sizeof *made->reserve_ppb);
    made->io_ppb = calloc(io_count, sizeof *made->io_ppb);
    if (made->profile == NULL || made->worker == NULL || made->reserve_ppb == NULL || made->io_ppb == NULL)
        goto no_memory;
    *made->profile = *profile;
    made->profile->name = made->profile->machine = made->profile->measured = made->profile->cpu.engine = NULL;
    if (perfmodel_demand_create(&made->empty, profile) != CORE_OK)
        goto no_memory;
    for (; made->worker_count < worker_count; made->worker_count++)
        if (perfmodel_demand_copy(made->empty, &made->worker[made->worker_count]) != CORE_OK)
            goto no_memory;
    *workers = made;
    return CORE_OK;
no_memory:
    partition_workers_destroy(made);
    return core_error_set(error, CORE_NO_MEMORY, "no memory for the account of %u workers", worker_count);
}

void partition_workers_destroy(struct partition_workers *workers)
{
    if (workers == NULL)
        return;
    for (uint32_t i = 0; i < workers->worker_count; i++)
        perfmodel_demand_destroy(workers->worker[i]);
    for (size_t i = 0; workers->at != NULL && i < (size_t)workers->losses * workers->worker_count; i++)
        perfmodel_demand_destroy(workers->at[i]);
    free(workers->at);
    perfmodel_demand_destroy(workers->empty);
    free(workers->io_ppb);
    free(workers->reserve_ppb);
    free(workers->worker);
    free(workers->profile);
    free(workers);
}

/* The next worker after `previous` by load, and by number where loads are equal; worker_count at the end. */
static uint32_t next_by_load(const struct partition_workers *workers, uint32_t previous)
{
    int64_t after_ppb = -1, best_ppb = 0;
    uint32_t best = workers->worker_count;
    if (previous < workers->worker_count)
        after_ppb = perfmodel_demand_utilisation_ppb(workers->worker[previous]);
    for (uint32_t i = 0; i < workers->worker_count; i++) {
        int64_t ppb = perfmodel_demand_utilisation_ppb(workers->worker[i]);
        bool later = ppb > after_ppb || (ppb == after_ppb && i > previous);
        if (later && (best == workers->worker_count || ppb < best_ppb)) {
            best = i;
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

static struct perfmodel_demand **case_of(const struct partition_workers *workers, uint32_t worker,
                                         uint32_t loss)
{
    return &workers->at[(size_t)loss * workers->worker_count + worker];
}

/* Would a worker take one stream more, whatever is lost? A case has all that the worker has and more, so that
 * where there are cases the worker without losses is none to be asked. The first that refuses, else the
 * fullest. */
static struct perfmodel_edf_result ask_within(const struct partition_workers *workers, uint32_t worker,
                                              const struct perfmodel_cpu_task *task, int64_t reserve_ppb)
{
    struct perfmodel_edf_result worst = {.accepted = true, .utilisation_ppb = -1};
    for (uint32_t loss = 0; loss < workers->losses && worst.accepted; loss++) {
        const struct perfmodel_demand *demand = *case_of(workers, worker, loss);
        if (demand == NULL)
            continue;
        struct perfmodel_edf_result test = perfmodel_demand_test_within(demand, task, reserve_ppb);
        if (!test.accepted || test.utilisation_ppb > worst.utilisation_ppb)
            worst = test;
    }
    if (worst.utilisation_ppb < 0)
        worst = perfmodel_demand_test_within(workers->worker[worker], task, reserve_ppb);
    return worst;
}

static struct perfmodel_edf_result ask_one(const struct partition_workers *workers, uint32_t worker,
                                           const struct perfmodel_cpu_task *task)
{
    return ask_within(workers, worker, task, workers->reserve_ppb[worker]);
}

/* Worst fit. Refused: leaves the worker that came closest, and its figures. */
static void place_on_worker(const struct partition_workers *workers, struct partition_placement *placement)
{
    uint32_t worker = next_by_load(workers, workers->worker_count);
    for (bool first = true; worker < workers->worker_count; first = false) {
        struct perfmodel_edf_result test = ask_one(workers, worker, &placement->task);
        if (first || test.accepted || excess(&test) < excess(&placement->test)) {
            placement->test = test;
            placement->worker = worker;
        }
        if (test.accepted)
            break;
        worker = next_by_load(workers, worker);
    }
    if (placement->test.accepted)
        placement->accepted = true;
    else
        placement->constraint = placement->test.binding;
}

static void add_to_all(struct partition_workers *workers, uint32_t worker,
                       const struct perfmodel_cpu_task *task)
{
    perfmodel_demand_add(workers->worker[worker], task);
    for (uint32_t loss = 0; loss < workers->losses; loss++)
        if (*case_of(workers, worker, loss) != NULL)
            perfmodel_demand_add(*case_of(workers, worker, loss), task);
}

static void remove_from_all(struct partition_workers *workers, uint32_t worker,
                            const struct perfmodel_cpu_task *task)
{
    perfmodel_demand_remove(workers->worker[worker], task);
    for (uint32_t loss = 0; loss < workers->losses; loss++)
        if (*case_of(workers, worker, loss) != NULL)
            perfmodel_demand_remove(*case_of(workers, worker, loss), task);
}

/* The decision, without words. Accepts for every longer interval and every longer latency bound too, all else
 * equal: the charge on the I/O thread falls with the interval, and each worker's test is monotone in both
 * (perfmodel/demand.h), so "some worker accepts" is. */
static bool place(const struct partition_workers *workers, const struct core_stream_spec *spec, uint32_t io,
                  struct partition_placement *placement)
{
    *placement = (struct partition_placement){.constraint = PERFMODEL_LIMIT_NONE};
    placement->io_ppb = perfmodel_io_utilisation_ppb(spec, workers->profile);
    if (perfmodel_cpu_task_from(spec, workers->profile, &placement->task, NULL) != CORE_OK)
        placement->constraint = PERFMODEL_LIMIT_DEADLINE;
    else if (workers->io_ppb[io] + placement->io_ppb > workers->io_limit_ppb)
        placement->constraint = PERFMODEL_LIMIT_IO;
    else
        place_on_worker(workers, placement);
    return placement->accepted;
}

/* A packet is released at most (k - 1) s after it became eligible, and its last piece is due m delta later.
 */
static core_ns bound_ns(const struct partition_workers *workers, const struct core_stream_spec *spec,
                        const struct perfmodel_cpu_task *task)
{
    core_ns margins_ns = workers->profile->margins.in_ns + workers->profile->margins.out_ns +
                         perfmodel_io_rest_ns(spec->latency_ns, workers->profile);
    return margins_ns + (task->burst_packets - 1) * task->spacing_ns + task->pieces * task->deadline_ns;
}

/* Would an empty worker take the stream? With `test` (may be NULL) filled if it came to a test. */
static bool fits_empty(const struct partition_workers *workers, const struct core_stream_spec *spec,
                       struct perfmodel_edf_result *test)
{
    struct perfmodel_cpu_task task;
    if (perfmodel_cpu_task_from(spec, workers->profile, &task, NULL) != CORE_OK)
        return false;
    struct perfmodel_edf_result result = perfmodel_demand_test(workers->empty, &task);
    if (test != NULL)
        *test = result;
    return result.accepted;
}

/* What a search varies, and whom it asks. */
struct search {
    const struct partition_workers *workers;
    uint32_t io;
    bool empty; /* ask an empty worker */
    struct core_stream_spec spec;
    core_ns *value_ns; /* a field of spec */
};

static bool search_ask(void *owner, core_ns value_ns)
{
    struct search *search = owner;
    struct partition_placement placement;
    *search->value_ns = value_ns;
    if (search->empty)
        return fits_empty(search->workers, &search->spec, NULL);
    return place(search->workers, &search->spec, search->io, &placement);
}

static core_ns search_run(struct search *search, core_ns limit_ns)
{
    return partition_search_least(*search->value_ns, limit_ns, search_ask, search);
}

static core_ns shortest_latency_ns(const struct partition_workers *workers,
                                   const struct core_stream_spec *spec, uint32_t io, bool empty)
{
    struct search search = {.workers = workers, .io = io, .empty = empty, .spec = *spec};
    search.value_ns = &search.spec.latency_ns;
    return search_run(&search, CORE_LATENCY_NS_MAX);
}

static core_ns shortest_interval_ns(const struct partition_workers *workers,
                                    const struct core_stream_spec *spec, uint32_t io)
{
    struct search search = {.workers = workers, .io = io, .empty = false, .spec = *spec};
    search.value_ns = &search.spec.interval_ns;
    return search_run(&search, CORE_INTERVAL_NS_MAX);
}

/* Names the binding constraint: what an empty worker refuses is no matter of the streams beside it. */
static void classify(const struct partition_workers *workers, const struct core_stream_spec *spec,
                     uint32_t io, struct partition_placement *placement)
{
    struct partition_refusal refusal = {.spec = spec,
                                        .worker_count = workers->worker_count,
                                        .io = io,
                                        .io_taken_ppb = workers->io_ppb[io] + placement->io_ppb,
                                        .io_limit_ppb = workers->io_limit_ppb};
    struct perfmodel_edf_result test = {.accepted = false};
    refusal.idle = !fits_empty(workers, spec, &test);
    if (refusal.idle) {
        placement->test = test;
        refusal.latency_least_ns = shortest_latency_ns(workers, spec, io, true);
        if (refusal.latency_least_ns > 0)
            placement->constraint = PERFMODEL_LIMIT_DEADLINE;
        else if (test.binding == PERFMODEL_LIMIT_CPU_UTILISATION)
            placement->constraint = PERFMODEL_LIMIT_CPU_UTILISATION;
        else
            placement->constraint = PERFMODEL_LIMIT_CPU_DEMAND;
    } else {
        const struct perfmodel_demand *demand = workers->worker[placement->worker];
        refusal.stream_ppb = perfmodel_demand_test(demand, &placement->task).utilisation_ppb -
                             perfmodel_demand_utilisation_ppb(demand);
    }
    partition_explain(&refusal, placement);
}

bool partition_workers_place(const struct partition_workers *workers, const struct core_stream_spec *spec,
                             uint32_t io, struct partition_placement *placement)
{
    assert(io < workers->io_count);
    if (!place(workers, spec, io, placement))
        return false;
    placement->bound_ns = bound_ns(workers, spec, &placement->task);
    return true;
}

void partition_workers_query(const struct partition_workers *workers, const struct core_stream_spec *spec,
                             uint32_t io, bool with_offer, struct partition_placement *placement)
{
    if (partition_workers_place(workers, spec, io, placement))
        return;
    classify(workers, spec, io, placement);
    if (with_offer) {
        placement->offer.interval_ns = shortest_interval_ns(workers, spec, io);
        placement->offer.latency_ns = shortest_latency_ns(workers, spec, io, false);
    }
}

void partition_workers_admit(struct partition_workers *workers, const struct core_stream_spec *spec,
                             uint32_t io, struct partition_placement *placement)
{
    partition_workers_query(workers, spec, io, true, placement);
    if (!placement->accepted)
        return;
    add_to_all(workers, placement->worker, &placement->task);
    workers->io_ppb[io] += placement->io_ppb;
}

void partition_workers_release(struct partition_workers *workers, const struct partition_placement *placement,
                               uint32_t io)
{
    assert(placement->accepted && workers->io_ppb[io] >= placement->io_ppb);
    remove_from_all(workers, placement->worker, &placement->task);
    workers->io_ppb[io] -= placement->io_ppb;
}

struct partition_worker_load partition_workers_load(const struct partition_workers *workers, uint32_t worker)
{
    const struct perfmodel_demand *demand = workers->worker[worker];
    struct partition_worker_load load = {.streams = perfmodel_demand_streams(demand),
                                         .utilisation_ppb = perfmodel_demand_utilisation_ppb(demand)};
    load.headroom_ppb = perfmodel_demand_headroom_ppb(demand, &load.tightest_window_ns);
    for (uint32_t loss = 0; loss < workers->losses; loss++) {
        const struct perfmodel_demand *at = *case_of(workers, worker, loss);
        int64_t held_ppb = at != NULL ? perfmodel_demand_utilisation_ppb(at) - load.utilisation_ppb : 0;
        if (held_ppb > load.reserved_ppb)
            load.reserved_ppb = held_ppb;
    }
    return load;
}

int64_t partition_workers_io_ppb(const struct partition_workers *workers, uint32_t io)
{
    return workers->io_ppb[io];
}

/* ---- parts ---- */

bool partition_workers_ask(const struct partition_workers *workers, uint32_t worker,
                           const struct core_stream_spec *spec, struct partition_placement *placement)
{
    struct core_error error;
    *placement = (struct partition_placement){.worker = worker, .constraint = PERFMODEL_LIMIT_NONE};
    placement->io_ppb = perfmodel_io_utilisation_ppb(spec, workers->profile);
    if (perfmodel_cpu_task_from(spec, workers->profile, &placement->task, &error) != CORE_OK) {
        placement->constraint = PERFMODEL_LIMIT_DEADLINE;
        snprintf(placement->reason, sizeof placement->reason, "%.*s", (int)sizeof placement->reason - 1,
                 error.text);
        return false;
    }
    placement->test = ask_one(workers, worker, &placement->task);
    placement->accepted = placement->test.accepted;
    if (placement->accepted)
        placement->bound_ns = bound_ns(workers, spec, &placement->task);
    else
        placement->constraint = placement->test.binding;
    return placement->accepted;
}

core_status partition_workers_copy(const struct partition_workers *workers, struct partition_workers **copy)
{
    struct partition_workers *made = NULL;
    core_status status =
        partition_workers_create(&made, workers->profile, workers->worker_count, workers->io_count, NULL);
    if (status != CORE_OK)
        return status;
    memcpy(made->io_ppb, workers->io_ppb, workers->io_count * sizeof *made->io_ppb);
    memcpy(made->reserve_ppb, workers->reserve_ppb, workers->worker_count * sizeof *made->reserve_ppb);
    for (uint32_t i = 0; i < workers->worker_count; i++) {
        perfmodel_demand_destroy(made->worker[i]);
        made->worker[i] = NULL;
        if (perfmodel_demand_copy(workers->worker[i], &made->worker[i]) != CORE_OK)
            goto no_memory;
    }
    if (partition_workers_set_losses(made, workers->losses) != CORE_OK)
        goto no_memory;
    for (size_t i = 0; i < (size_t)workers->losses * workers->worker_count; i++)
        if (workers->at[i] != NULL && perfmodel_demand_copy(workers->at[i], &made->at[i]) != CORE_OK)
            goto no_memory;
    *copy = made;
    return CORE_OK;
no_memory:
    partition_workers_destroy(made);
    return CORE_NO_MEMORY;
}

bool partition_workers_fits(const struct partition_workers *workers, uint32_t worker,
                            const struct core_stream_spec *spec)
{
    struct perfmodel_cpu_task task;
    if (worker >= workers->worker_count)
        return fits_empty(workers, spec, NULL);
    return perfmodel_cpu_task_from(spec, workers->profile, &task, NULL) == CORE_OK &&
           ask_one(workers, worker, &task).accepted;
}

bool partition_workers_fits_all(const struct partition_workers *workers, uint32_t worker,
                                const struct core_stream_spec *spec)
{
    struct perfmodel_cpu_task task;
    return perfmodel_cpu_task_from(spec, workers->profile, &task, NULL) == CORE_OK &&
           ask_within(workers, worker, &task, 0).accepted;
}

void partition_workers_set_reserve(struct partition_workers *workers, uint32_t worker, int64_t share_ppb)
{
    assert(worker < workers->worker_count);
    workers->reserve_ppb[worker] = share_ppb;
}

int64_t partition_workers_reserve_ppb(const struct partition_workers *workers, uint32_t worker)
{
    return workers->reserve_ppb[worker];
}

core_ns partition_workers_bound_ns(const struct partition_workers *workers,
                                   const struct core_stream_spec *spec)
{
    struct perfmodel_cpu_task task;
    if (perfmodel_cpu_task_from(spec, workers->profile, &task, NULL) != CORE_OK)
        return spec->latency_ns;
    return bound_ns(workers, spec, &task);
}

bool partition_workers_put(struct partition_workers *workers, uint32_t worker,
                           const struct core_stream_spec *spec)
{
    struct perfmodel_cpu_task task;
    if (perfmodel_cpu_task_from(spec, workers->profile, &task, NULL) != CORE_OK)
        return false;
    add_to_all(workers, worker, &task);
    return true;
}

void partition_workers_take(struct partition_workers *workers, uint32_t worker,
                            const struct core_stream_spec *spec)
{
    struct perfmodel_cpu_task task;
    if (perfmodel_cpu_task_from(spec, workers->profile, &task, NULL) == CORE_OK)
        remove_from_all(workers, worker, &task);
}

/* ---- losses of GPUs ---- */

core_status partition_workers_set_losses(struct partition_workers *workers, uint32_t gpus)
{
    assert(workers->at == NULL);
    if (gpus == 0)
        return CORE_OK;
    workers->at = calloc((size_t)gpus * workers->worker_count, sizeof(*workers->at));
    if (workers->at == NULL)
        return CORE_NO_MEMORY;
    workers->losses = gpus;
    return CORE_OK;
}

/* A case without backups is the worker itself. */
static const struct perfmodel_demand *demand_at(const struct partition_workers *workers, uint32_t worker,
                                                uint32_t loss)
{
    const struct perfmodel_demand *demand = *case_of(workers, worker, loss);
    return demand != NULL ? demand : workers->worker[worker];
}

static bool tell_backup(const struct partition_workers *workers, const struct core_stream_spec *spec,
                        uint32_t worker, const struct perfmodel_edf_result *test,
                        struct partition_placement *placement)
{
    placement->worker = worker;
    placement->test = *test;
    placement->accepted = test->accepted;
    placement->constraint = test->binding;
    if (test->accepted)
        placement->bound_ns = bound_ns(workers, spec, &placement->task);
    return test->accepted;
}

/* By the load of the case: the least loaded that takes it. */
bool partition_workers_place_backup(const struct partition_workers *workers,
                                    const struct core_stream_spec *spec, uint32_t loss,
                                    struct partition_placement *placement)
{
    int64_t least_ppb = INT64_MAX;
    *placement = (struct partition_placement){.constraint = PERFMODEL_LIMIT_DEADLINE};
    if (perfmodel_cpu_task_from(spec, workers->profile, &placement->task, NULL) != CORE_OK)
        return false;
    for (uint32_t w = 0; w < workers->worker_count; w++) {
        const struct perfmodel_demand *demand = demand_at(workers, w, loss);
        int64_t ppb = perfmodel_demand_utilisation_ppb(demand);
        if (ppb >= least_ppb)
            continue;
        struct perfmodel_edf_result test =
            perfmodel_demand_test_within(demand, &placement->task, workers->reserve_ppb[w]);
        if (!test.accepted)
            continue;
        least_ppb = ppb;
        (void)tell_backup(workers, spec, w, &test, placement);
    }
    return placement->accepted;
}

bool partition_workers_ask_backup(struct partition_workers *workers, uint32_t worker, uint32_t loss,
                                  const struct core_stream_spec *instead_of,
                                  const struct core_stream_spec *spec, struct partition_placement *placement)
{
    struct perfmodel_demand *demand = *case_of(workers, worker, loss);
    struct perfmodel_cpu_task old;
    *placement = (struct partition_placement){.constraint = PERFMODEL_LIMIT_DEADLINE};
    if (perfmodel_cpu_task_from(spec, workers->profile, &placement->task, NULL) != CORE_OK ||
        perfmodel_cpu_task_from(instead_of, workers->profile, &old, NULL) != CORE_OK)
        return false;
    perfmodel_demand_remove(demand, &old);
    struct perfmodel_edf_result test =
        perfmodel_demand_test_within(demand, &placement->task, workers->reserve_ppb[worker]);
    perfmodel_demand_add(demand, &old);
    return tell_backup(workers, spec, worker, &test, placement);
}

core_status partition_workers_reserve_backup(struct partition_workers *workers, uint32_t worker,
                                             uint32_t loss)
{
    struct perfmodel_demand **at = case_of(workers, worker, loss);
    return *at != NULL ? CORE_OK : perfmodel_demand_copy(workers->worker[worker], at);
}

void partition_workers_put_backup(struct partition_workers *workers, uint32_t worker, uint32_t loss,
                                  const struct core_stream_spec *spec)
{
    struct perfmodel_cpu_task task;
    core_status status = perfmodel_cpu_task_from(spec, workers->profile, &task, NULL);
    assert(status == CORE_OK);
    (void)status;
    perfmodel_demand_add(*case_of(workers, worker, loss), &task);
}

void partition_workers_take_backup(struct partition_workers *workers, uint32_t worker, uint32_t loss,
                                   const struct core_stream_spec *spec)
{
    struct perfmodel_demand **at = case_of(workers, worker, loss);
    struct perfmodel_cpu_task task;
    core_status status = perfmodel_cpu_task_from(spec, workers->profile, &task, NULL);
    assert(status == CORE_OK);
    (void)status;
    perfmodel_demand_remove(*at, &task);
    if (perfmodel_demand_streams(*at) == perfmodel_demand_streams(workers->worker[worker])) {
        perfmodel_demand_destroy(*at);
        *at = NULL;
    }
}

void partition_workers_replace_backup(struct partition_workers *workers, uint32_t worker, uint32_t loss,
                                      const struct core_stream_spec *spec, const struct core_stream_spec *by)
{
    struct perfmodel_cpu_task old;
    core_status status = perfmodel_cpu_task_from(spec, workers->profile, &old, NULL);
    assert(status == CORE_OK);
    (void)status;
    perfmodel_demand_remove(*case_of(workers, worker, loss), &old);
    partition_workers_put_backup(workers, worker, loss, by);
}

const struct perfmodel_demand *partition_workers_case(const struct partition_workers *workers,
                                                      uint32_t worker, uint32_t loss)
{
    return *case_of(workers, worker, loss);
}

bool partition_workers_io_fits(const struct partition_workers *workers, const struct core_stream_spec *spec,
                               uint32_t io)
{
    return workers->io_ppb[io] + perfmodel_io_utilisation_ppb(spec, workers->profile) <=
           workers->io_limit_ppb;
}

void partition_workers_io_put(struct partition_workers *workers, const struct core_stream_spec *spec,
                              uint32_t io)
{
    workers->io_ppb[io] += perfmodel_io_utilisation_ppb(spec, workers->profile);
}

void partition_workers_io_take(struct partition_workers *workers, const struct core_stream_spec *spec,
                               uint32_t io)
{
    int64_t ppb = perfmodel_io_utilisation_ppb(spec, workers->profile);
    assert(workers->io_ppb[io] >= ppb);
    workers->io_ppb[io] -= ppb;
}
