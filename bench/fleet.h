/* A fleet in virtual time: nodes, each with the server's own admission, and streams that come and go. What a placement
 * by weights that are some seconds old, as HAProxy has them from agent-check, loses against one planner that sees
 * every node as it is. The same seed gives the same figures. One thread.
 *
 * Streams arrive at random times (Poisson), ask for the contract of a stream of the workload, and stay for an
 * exponential time. A node's weight is the share of its capacity that is left, in streams of a typical contract
 * (admission_fill), read at intervals of its own phase; who asks draws among the nodes by weight. One that refuses is
 * left out, and another one is drawn, `attempts` in all. The planner that sees all asks the emptiest node first, then
 * all others. At the end the fullest node is lost, and its streams ask the others.
 *
 * Load is counted in workers' time. A node's capacity is what streams of the workload come to, on average, that an
 * empty one takes until it refuses the first. */
#ifndef MILLRACE_BENCH_FLEET_H
#define MILLRACE_BENCH_FLEET_H

#include "bench/machine.h"
#include "bench/pool.h"

#define BENCH_FLEET_HOLD_NS (30 * CORE_NS_PER_S) /* that a stream stays, on average */

struct bench_fleet_mix {
    struct bench_machine machine;    /* a node, of one worker */
    struct bench_pool pool;          /* of contracts, many times as fast as the workload has them */
    struct core_stream_spec typical; /* the one that weights are counted in */
    uint32_t typical_streams;        /* that an empty node takes */
    double streams, capacity;        /* of the pool, on average, that an empty node takes; their load */
};

struct bench_fleet_run {
    uint32_t nodes;
    double load; /* that is offered, of the capacity of all nodes */
    core_ns weight_every_ns;
    unsigned attempts; /* 0: the planner that sees all */
    uint32_t streams;  /* that come in all */
    uint64_t seed;
};

struct bench_fleet_result {
    /* behind the first three times BENCH_FLEET_HOLD_NS, in which the fleet fills */
    uint64_t asked, refused, attempts;
    double reached; /* load on average, of the capacity */
    double fullest; /* of the fullest node, likewise */
    /* of the loss: streams of the node, those that found none; times from the loss until they were placed */
    uint32_t lost, homeless;
    double half_ms, most_ms, last_ms; /* 50 %, 99 %, all that were placed; NaN: none was */
};

/* Nodes, and streams for them. */
CORE_CHECKED core_status bench_fleet_mix_open(struct bench_fleet_mix *mix, uint64_t seed,
                                              struct core_error *error);
void bench_fleet_mix_free(struct bench_fleet_mix *mix);

CORE_CHECKED core_status bench_fleet_run(const struct bench_fleet_run *run, const struct bench_fleet_mix *mix,
                                         struct bench_fleet_result *result, struct core_error *error);

#endif
