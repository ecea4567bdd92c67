/* A fleet in virtual time: nodes, each with the server's own admission, and streams that come and go. What a placement
 * by weights that are some seconds old, as HAProxy has them from agent-check, loses against one planner that sees
 * every node as it is. The same seed gives the same figures. One thread.
 *
 * Streams arrive at random times (Poisson), ask for the contract of a stream of the workload, and stay for an
 * exponential time. A node's weight is the share of its capacity that is left, in streams of a typical contract
 * (admission_fill), read at intervals of its own phase; who asks draws among the nodes by weight. One that refuses is
 * left out, and another one is drawn, `attempts` in all. The planner that sees all asks the emptiest node first, then
 * all others.
 *
 * Load is counted in workers' time. A node's capacity is what streams of the workload come to, on average, that an
 * empty one takes until it refuses the first. */
#ifndef MILLRACE_BENCH_FLEET_H
#define MILLRACE_BENCH_FLEET_H

#include "bench/machine.h"
#include "bench/pool.h"

struct admission;

#define BENCH_FLEET_IO                                                                                       \
    16 /* I/O threads of a node: so many that its workers bind, whose test is the finer one */

struct bench_fleet_mix {
    struct bench_pool
        pool;              /* with intervals shortened by one factor, so that a node has about node_streams */
    double *costs;         /* of each: share of a worker's time */
    double cost, capacity; /* of one on average; of a node */
    uint32_t typical;      /* of the pool: the one whose cost is the median */
    uint32_t capacity_streams; /* of the typical contract, that an empty node takes */
};

struct bench_fleet_run {
    uint32_t nodes, streams; /* that come in all */
    double load;             /* that is offered, of the capacity of all nodes */
    unsigned attempts;       /* 0: the planner that sees all */
    core_ns weight_every_ns; /* 0: weights are always new */
    core_ns hold_ns;         /* that a stream stays, on average */
    bool loses;              /* at the end the fullest node is lost, and its streams go elsewhere */
    uint64_t seed;
};

struct bench_fleet_result {
    /* behind the first three times hold_ns, in which the fleet fills */
    uint64_t asked, refused, attempts;
    double reached; /* load on average */
    double fullest; /* load of the fullest node on average, of its capacity */
    /* of the loss: streams of the node, those that found none; times from the loss until they were placed */
    uint32_t lost, homeless;
    uint64_t loss_attempts;
    core_ns half_ns, most_ns, last_ns; /* 50 %, 99 %, all that were placed */
};

/* The streams of a workload, for nodes of this machine. */
CORE_CHECKED core_status bench_fleet_mix_open(struct bench_fleet_mix *mix,
                                              const struct bench_machine *machine, const char *workload,
                                              uint32_t node_streams, uint64_t seed, struct core_error *error);
void bench_fleet_mix_free(struct bench_fleet_mix *mix);

/* An empty node, whose refusals give no reasons. */
CORE_CHECKED core_status bench_fleet_node(const struct bench_machine *machine, struct admission **admission,
                                          struct core_error *error);
/* The I/O thread with most room. */
uint32_t bench_fleet_io(const struct admission *admission);

CORE_CHECKED core_status bench_fleet_run(const struct bench_fleet_run *run, const struct bench_fleet_mix *mix,
                                         const struct bench_machine *machine,
                                         struct bench_fleet_result *result, struct core_error *error);

#endif
