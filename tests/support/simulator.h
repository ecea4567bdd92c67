/* One worker in virtual time: the real burst scheduler and queue, the real policing, and bursts that take as
 * long as the profile allows, or less.
 *
 * Packets follow a pattern of arrivals; each reaches the worker at a time up to in_ns after it became
 * eligible, and must be finished by eligible + latency - out_ns. Time does not pass outside bursts while work
 * is pending.
 *
 * One simulator serves many runs; it is bound to a number of pieces per burst. One at a time in a process. */
#ifndef MILLRACE_TESTS_SIMULATOR_H
#define MILLRACE_TESTS_SIMULATOR_H

#include "config/profile.h"
#include "core/stream.h"
#include "perfmodel/cpu.h"

#include <stdbool.h>
#include <stddef.h>

struct simulator;

struct simulator_stream {
    struct core_stream_spec spec;
    struct perfmodel_cpu_task task;
};

enum simulator_arrivals {
    SIMULATOR_TOGETHER,    /* every stream's burst at one moment, then as fast as policing allows */
    SIMULATOR_AFTER_LONG,  /* the B pieces with the longest deadlines, and 1 ns later all the others */
    SIMULATOR_DUE_AT_ONCE, /* each stream starts so that its first deadlines are those of all others */
    SIMULATOR_AGAIN,       /* AFTER_LONG over and over, with pauses in which bursts are earned back */
    SIMULATOR_RANDOM,      /* random starts, gaps and pauses */
    SIMULATOR_ARRIVALS     /* how many kinds */
};

enum simulator_choice {
    SIMULATOR_MOST,  /* the largest packet, the longest burst, the latest hand-over */
    SIMULATOR_LEAST, /* 16 bytes, a tenth of the time, handed over early */
    SIMULATOR_ANY    /* random in between */
};

struct simulator_pattern {
    enum simulator_arrivals arrivals;
    enum simulator_choice sizes, execution, hand_over;
    core_ns window_ns;   /* packets are sent for this long, and every stream sends one burst at least */
    uint64_t pieces_max; /* or until about this much work was sent, the first bursts apart */
    bool stop_at_miss;
    /* Every other stream closes after its first burst, and as soon as its room may be promised again
     * (partition_workers_release) one with the same contract opens and sends its own first burst. */
    bool succession;
    uint64_t seed;
};

struct simulator_result {
    uint64_t packets, pieces, bursts;
    uint64_t misses;
    uint64_t long_bursts;   /* bursts that took longer than the streams' q: a fault of the model */
    core_ns least_slack_ns; /* of a packet; CORE_NS_NEVER if there was none */
    size_t first_missed;    /* stream of the first miss */
};

struct simulator *simulator_create(uint32_t burst_pieces); /* NULL: no memory */
void simulator_destroy(struct simulator *simulator);

/* profile->cpu.burst_pieces must be the simulator's. */
struct simulator_result simulator_run(struct simulator *simulator, const struct config_profile *profile,
                                      const struct simulator_stream *streams, size_t count,
                                      const struct simulator_pattern *pattern);

#endif
