/* An adversary of one worker: looks for arrivals by which a packet is late, in virtual time, on the real
 * scheduler (simulator.h).
 *
 * It aims at one stream after the other, the tightest first: a burst of the dearest pieces begins just before
 * the victim's packet comes, and what else there is comes so as to be due just before it or to ride along.
 * From there it climbs: one stream's burst at another time, earlier or later handed over, kept where that
 * brings some packet nearer to its deadline. Whole packets, the longest bursts. */
#ifndef MILLRACE_TESTS_WORKER_ATTACK_H
#define MILLRACE_TESTS_WORKER_ATTACK_H

#include "tests/support/random.h"
#include "tests/support/simulator.h"

#define WORKER_ATTACK_STREAMS 1024

struct worker_attack {
    uint32_t victims; /* aimed at */
    uint32_t climbs;  /* steps for each */
    bool stop_at_miss;
    bool spaced; /* as in simulator.h */
};

struct worker_attack_result {
    uint64_t runs, misses;
    double nearest; /* the largest part of its time that a packet took: above 1 it missed */
    size_t victim;  /* the stream of the first miss */
};

/* profile->cpu.burst_pieces must be the simulator's; at most WORKER_ATTACK_STREAMS streams. */
struct worker_attack_result worker_attack_run(struct simulator *simulator,
                                              const struct config_profile *profile,
                                              const struct simulator_stream *streams, size_t count,
                                              const struct worker_attack *attack, struct test_random *random);

#endif
