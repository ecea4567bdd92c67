#include "bench/fleet.h"

#include "inputgen/random.h"
#include "partition/admission/admission.h"

#include <stdlib.h>

#define POOL_STREAMS 4000
#define FILLS        64
#define FILL_MAX     100000

static bool at_once(void *owner)
{
    (void)owner;
    return true;
}

core_status bench_fleet_node(const struct bench_machine *machine, struct admission **admission,
                             struct core_error *error)
{
    const core_status status =
        admission_create(admission, &machine->profile, machine->workers, BENCH_FLEET_IO, error);
    if (status == CORE_OK)
        admission_set_cancel(*admission, at_once, NULL); /* nobody asks why */
    return status;
}

uint32_t bench_fleet_io(const struct admission *admission)
{
    uint32_t best = 0;
    for (uint32_t io = 1; io < BENCH_FLEET_IO; io++)
        if (admission_io_ppb(admission, io) < admission_io_ppb(admission, best))
            best = io;
    return best;
}

static double load_of(const struct admission *admission, const struct bench_machine *machine)
{
    double load = 0;
    for (uint32_t worker = 0; worker < machine->workers; worker++)
        load += (double)admission_worker_at(admission, worker).utilisation_ppb / 1e9;
    return load;
}

static core_status find_costs(struct bench_fleet_mix *mix, const struct bench_machine *machine,
                              struct core_error *error)
{
    struct admission *admission;
    core_status status = bench_fleet_node(machine, &admission, error);
    if (status)
        return status;
    mix->cost = 0;
    for (size_t i = 0; i < mix->pool.count && status == CORE_OK; i++) {
        struct admission_placement placement;
        status = admission_admit(admission, &mix->pool.specs[i], 0, 0, &placement, error);
        if (status == CORE_OK && !placement.accepted)
            status = core_error_set(error, CORE_INVALID, "stream %zu of the workload fits no node: %s", i,
                                    placement.reason);
        if (status)
            break;
        mix->costs[i] = load_of(admission, machine);
        mix->cost += mix->costs[i] / (double)mix->pool.count;
        admission_release(admission, placement.stream);
    }
    admission_destroy(admission);
    return status;
}

/* The one that as many cost less than as cost more. */
static void find_typical(struct bench_fleet_mix *mix)
{
    for (uint32_t i = 0; i < mix->pool.count; i++) {
        size_t below = 0;
        for (uint32_t n = 0; n < mix->pool.count; n++)
            below += mix->costs[n] < mix->costs[i] || (mix->costs[n] == mix->costs[i] && n < i);
        if (below == mix->pool.count / 2)
            mix->typical = i;
    }
}

static core_status find_capacity(struct bench_fleet_mix *mix, const struct bench_machine *machine,
                                 uint64_t seed, struct core_error *error)
{
    struct inputgen_random random;
    core_status status = CORE_OK;
    inputgen_random_seed(&random, seed);
    mix->capacity = 0;
    for (int fill = 0; fill < FILLS && status == CORE_OK; fill++) {
        struct admission *admission;
        if ((status = bench_fleet_node(machine, &admission, error)))
            break;
        struct admission_placement placement = {.accepted = true};
        while (placement.accepted && status == CORE_OK) {
            const size_t at = (size_t)(inputgen_random_uniform(&random) * (double)mix->pool.count);
            status = admission_admit(admission, &mix->pool.specs[at], bench_fleet_io(admission), 0,
                                     &placement, error);
        }
        mix->capacity += load_of(admission, machine) / FILLS;
        admission_destroy(admission);
    }
    return status;
}

core_status bench_fleet_mix_open(struct bench_fleet_mix *mix, const struct bench_machine *machine,
                                 const char *workload, uint32_t node_streams, uint64_t seed,
                                 struct core_error *error)
{
    const struct bench_pool_request request = {.workload = workload, .count = POOL_STREAMS, .seed = seed};
    core_status status = bench_pool_open(&mix->pool, &request, error);
    if (status)
        return status;
    mix->costs = calloc(mix->pool.count, sizeof *mix->costs);
    if (mix->costs == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    if ((status = find_costs(mix, machine, error)))
        return status;
    const double faster = machine->workers / (mix->cost * node_streams);
    for (size_t i = 0; i < mix->pool.count; i++)
        mix->pool.specs[i].interval_ns =
            core_time_max(CORE_INTERVAL_NS_MIN, (core_ns)((double)mix->pool.specs[i].interval_ns / faster));
    struct admission *empty;
    if ((status = find_costs(mix, machine, error)) || (status = find_capacity(mix, machine, seed, error)) ||
        (status = bench_fleet_node(machine, &empty, error)))
        return status;
    find_typical(mix);
    mix->capacity_streams = admission_fill(empty, &mix->pool.specs[mix->typical], FILL_MAX);
    admission_destroy(empty);
    return CORE_OK;
}

void bench_fleet_mix_free(struct bench_fleet_mix *mix)
{
    bench_pool_free(&mix->pool);
    free(mix->costs);
}
