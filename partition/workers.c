#include "partition/workers.h"

#include "partition/explain.h"
#include "perfmodel/demand.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS_MAX 1024

struct partition_workers {
    struct config_profile *profile; /* only its numbers are used */
    int64_t io_limit_ppb;
    uint32_t worker_count, io_count;
    struct perfmodel_demand *empty; /* of a worker with no stream */
    struct perfmodel_demand **worker;
    int64_t *io_ppb; /* promised, by I/O thread */
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
    made->io_ppb = calloc(io_count, sizeof *made->io_ppb);
    if (made->profile == NULL || made->worker == NULL || made->io_ppb == NULL)
        goto no_memory;
    *made->profile = *profile;
    made->profile->name = made->profile->machine = made->profile->measured = made->profile->cpu.engine = NULL;
    if (perfmodel_demand_create(&made->empty, profile) != CORE_OK)
        goto no_memory;
    for (; made->worker_count < worker_count; made->worker_count++) {
        if (perfmodel_demand_copy(made->empty, &made->worker[made->worker_count]) != CORE_OK)
            goto no_memory;
    }
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
    perfmodel_demand_destroy(workers->empty);
    free(workers->io_ppb);
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
    if (test->binding == PERFMODEL_EDF_UTILISATION)
        return 1e9 + (double)test->utilisation_ppb; /* no window can make up for that */
    return (double)(test->demand_ns + test->blocking_ns) / ((double)test->window_ns + 1);
}

/* Worst fit. Refused: leaves the worker that came closest, and its figures. */
static void place_on_worker(const struct partition_workers *workers, struct partition_placement *placement)
{
    uint32_t worker = next_by_load(workers, workers->worker_count);
    for (bool first = true; worker < workers->worker_count; first = false) {
        struct perfmodel_edf_result test = perfmodel_demand_test(workers->worker[worker], &placement->task);
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
        placement->constraint = placement->test.binding == PERFMODEL_EDF_UTILISATION
                                    ? PARTITION_CPU_UTILISATION
                                    : PARTITION_CPU_DEMAND;
}

/* The decision, without words. Accepts for every longer interval and every longer latency bound too, all else
 * equal: the charge on the I/O thread falls with the interval, and each worker's test is monotone in both
 * (perfmodel/demand.h), so "some worker accepts" is. */
static bool place(const struct partition_workers *workers, const struct core_stream_spec *spec, uint32_t io,
                  struct partition_placement *placement)
{
    *placement = (struct partition_placement){.constraint = PARTITION_FITS};
    placement->io_ppb = perfmodel_io_utilisation_ppb(spec, workers->profile);
    if (perfmodel_cpu_task_from(spec, workers->profile, &placement->task, NULL) != CORE_OK)
        placement->constraint = PARTITION_DEADLINE;
    else if (workers->io_ppb[io] + placement->io_ppb > workers->io_limit_ppb)
        placement->constraint = PARTITION_IO;
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

static bool search_ask(struct search *search, core_ns value_ns)
{
    struct partition_placement placement;
    *search->value_ns = value_ns;
    if (search->empty)
        return fits_empty(search->workers, &search->spec, NULL);
    return place(search->workers, &search->spec, search->io, &placement);
}

/* Smallest accepted value in (*value_ns, limit_ns], where *value_ns is refused; 0 if none. To the nanosecond,
 * since acceptance is monotone. */
static core_ns search_run(struct search *search, core_ns limit_ns)
{
    core_ns refused_ns = *search->value_ns, accepted_ns = refused_ns;
    do {
        if (accepted_ns == limit_ns)
            return 0;
        refused_ns = accepted_ns;
        accepted_ns = refused_ns < limit_ns / 2 ? refused_ns * 2 : limit_ns;
    } while (!search_ask(search, accepted_ns));
    while (accepted_ns - refused_ns > 1) {
        core_ns middle_ns = refused_ns + (accepted_ns - refused_ns) / 2;
        if (search_ask(search, middle_ns))
            accepted_ns = middle_ns;
        else
            refused_ns = middle_ns;
    }
    return accepted_ns;
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
            placement->constraint = PARTITION_DEADLINE;
        else if (test.binding == PERFMODEL_EDF_UTILISATION)
            placement->constraint = PARTITION_CPU_UTILISATION;
        else
            placement->constraint = PARTITION_CPU_DEMAND;
    } else {
        refusal.stream_ppb = placement->test.utilisation_ppb -
                             perfmodel_demand_utilisation_ppb(workers->worker[placement->worker]);
    }
    partition_explain(&refusal, placement);
}

void partition_workers_query(const struct partition_workers *workers, const struct core_stream_spec *spec,
                             uint32_t io, bool with_offer, struct partition_placement *placement)
{
    assert(io < workers->io_count);
    if (place(workers, spec, io, placement)) {
        placement->bound_ns = bound_ns(workers, spec, &placement->task);
        return;
    }
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
    perfmodel_demand_add(workers->worker[placement->worker], &placement->task);
    workers->io_ppb[io] += placement->io_ppb;
}

void partition_workers_release(struct partition_workers *workers, const struct partition_placement *placement,
                               uint32_t io)
{
    assert(placement->accepted && workers->io_ppb[io] >= placement->io_ppb);
    perfmodel_demand_remove(workers->worker[placement->worker], &placement->task);
    workers->io_ppb[io] -= placement->io_ppb;
}

struct partition_worker_load partition_workers_load(const struct partition_workers *workers, uint32_t worker)
{
    const struct perfmodel_demand *demand = workers->worker[worker];
    struct partition_worker_load load = {.streams = perfmodel_demand_streams(demand),
                                         .utilisation_ppb = perfmodel_demand_utilisation_ppb(demand)};
    load.headroom_ppb = perfmodel_demand_headroom_ppb(demand, &load.tightest_window_ns);
    return load;
}

int64_t partition_workers_io_ppb(const struct partition_workers *workers, uint32_t io)
{
    return workers->io_ppb[io];
}
