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
    SIMULATOR_GIVEN, /* each stream's burst at a time of the caller's, then as fast as policing allows */
    SIMULATOR_ARRIVALS = SIMULATOR_GIVEN /* how many kinds there are but that */
};

enum simulator_choice {
    SIMULATOR_MOST,  /* the largest packet, the longest burst, the latest hand-over */
    SIMULATOR_LEAST, /* 16 bytes, a tenth of the time, handed over early */
    SIMULATOR_ANY    /* random in between */
};

struct simulator_pattern {
    enum simulator_arrivals arrivals;
    enum simulator_choice sizes, execution, hand_over;
    const core_ns *given_ns; /* SIMULATOR_GIVEN: of each stream, 0 and more after the start, */
    const bool *early;       /* and whether it is handed over early, whatever hand_over says; NULL: none is */
    core_ns window_ns;       /* packets are sent for this long, and every stream sends one burst at least */
    uint64_t pieces_max;     /* or until about this much work was sent, the first bursts apart */
    bool stop_at_miss;
    bool
        spaced; /* a packet is due s after its release, as the room for its stream asks; not by its promise */
    /* Streams close after their first burst, and as soon as the room of one may be promised again
     * (partition/admission/unit_worker.h) others are let in that find room on the worker then
     * (partition_unit_takes), and send their own first burst. AFTER_LONG has those that close in the place
     * of the longest. */
    bool succession;
    size_t leavers; /* the first so many close; 0: every other one */
    const struct core_stream_spec
        *request; /* as many of this contract as there is room for; NULL: any contracts */
    uint64_t seed;
};

struct simulator_result {
    uint64_t packets, pieces, bursts;
    uint64_t misses;
    uint64_t long_bursts;   /* bursts that took longer than the streams' q: a fault of the model */
    core_ns least_slack_ns; /* of a packet; CORE_NS_NEVER if there was none */
    uint64_t left, came;    /* streams that closed, and that were let in */
    size_t first_missed;    /* stream of the first miss; beyond the given ones: of those that were let in */
    struct simulator_stream missed; /* it */
};

struct simulator *simulator_create(uint32_t burst_pieces); /* NULL: no memory */
void simulator_destroy(struct simulator *simulator);

/* profile->cpu.burst_pieces must be the simulator's. */
struct simulator_result simulator_run(struct simulator *simulator, const struct config_profile *profile,
                                      const struct simulator_stream *streams, size_t count,
                                      const struct simulator_pattern *pattern);

#endif
