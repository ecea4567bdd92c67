/* The honest load beside an attack: streams replayed (inputgen/replay.h) by a thread of their own, every byte
 * checked, every packet's time bounded from outside; and a client that opens and closes a stream again and
 * again. */
#ifndef MILLRACE_BENCH_SIEGE_HONEST_H
#define MILLRACE_BENCH_SIEGE_HONEST_H

#include "bench/siege/siege.h"

/* Sums over the rounds of a row. */
struct siege_figures {
    uint64_t packets, missed, late, untrue;
    core_ns untrue_ns; /* by so much at the most */
    uint64_t spoilt;   /* lost, wrong, out of order, rejected */
    uint64_t refused;  /* streams, where that is allowed */
    uint64_t gpu;      /* streams that began on cards */
    core_ns worst_ns;  /* due to received */
    core_ns own_ns;    /* of that, the generator's own at most: due to handed over */
    uint64_t opens;    /* of the probe, that were answered */
    uint64_t opens_failed;
    core_ns open_ns;      /* the slowest */
    char open_error[160]; /* the first that failed */
};

struct siege_honest;

/* Opens the streams and returns when packets run. */
CORE_CHECKED core_status siege_honest_start(const struct siege_attack *attack, const char *address,
                                            struct siege_honest **honest, struct core_error *error);

/* Stops, waits for what is under way, adds to the figures and frees. */
CORE_CHECKED core_status siege_honest_stop(struct siege_honest *honest, struct siege_figures *figures,
                                           struct core_error *error);

/* How many packets of the honest streams can arrive within one bound: by so much may the server's count of
 * missed ones be above what was late, since what arrives while it is stopped counts from the stop's begin. */
uint64_t siege_honest_within_bound(const struct siege_attack *attack);

#endif
