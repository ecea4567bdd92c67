/* Every sequence of arrivals that some contracts allow, on one worker in virtual time: the real scheduler and
 * queue, and an engine that takes as long as whoever means ill lets it.
 *
 * It knows what was promised, and no formula of how that is kept. Time goes by in ticks. At each of them
 * every stream may send, or not; whatever it sends is eligible then, as long as no closed window of length D
 * holds more than k + floor(D / t) of its packets; and it is
 *   - as long as was declared, or a block of 16 bytes,
 *   - in the worker's queue at once, or in_ns later (in_ns is not a whole number of ticks, so that this may
 *     be just after a burst has begun), or up to early_ns before it is eligible,
 *   - due at its eligible time + latency - out_ns - rest.
 * Streams that send at one moment reach the queue in their order or in the reverse. A burst takes what the
 * profile promises at most, or ends at the next tick. A stream that leaves sends so many packets; its room is
 * given to the new streams as soon as counters.pauses of the scheduler exceeds `pauses` of its last packet.
 *
 * The states that can be reached are searched from the shortest ways on, each once: two are the same if
 * whatever may follow is, up to the numbers of streams with the same contract. Without a limit on packets and
 * states it has seen all endless sequences. */
#ifndef MILLRACE_TESTS_EXHAUSTIVE_H
#define MILLRACE_TESTS_EXHAUSTIVE_H

#include "config/profile.h"
#include "core/stream.h"
#include "perfmodel/cpu.h"

#include <stdbool.h>
#include <stddef.h>

#define EXHAUSTIVE_STREAMS 12

enum exhaustive_role { EXHAUSTIVE_STANDS, EXHAUSTIVE_LEAVES, EXHAUSTIVE_COMES };

struct exhaustive_stream {
    struct core_stream_spec spec;
    struct perfmodel_cpu_task task;
    enum exhaustive_role role;
    uint32_t packets; /* that it sends at most; 0: no end, not for one that leaves */
};

struct exhaustive_case {
    const struct config_profile *profile;
    const struct exhaustive_stream *streams; /* the same contracts and roles side by side */
    size_t count;
    core_ns tick_ns, phase_ns; /* the queue's buckets begin so long before a tick */
    core_ns early_ns;          /* whole ticks */
    uint32_t states_max;
    bool short_packets, short_bursts; /* else only the longest */
    bool at_once;                     /* a leaver's room is given away with no pause: no promise then */
};

struct exhaustive_result {
    uint64_t states, steps; /* steps: from a state to the next, by all choices at one tick */
    uint32_t ticks;         /* of the longest way to a state */
    bool complete;          /* all states were seen */
    bool missed;            /* some packet was late, by */
    core_ns late_ns;        /* so much; the search ends there */
    char how[2048];         /* what came when */
};

struct exhaustive;

struct exhaustive *exhaustive_create(uint32_t burst_pieces, uint32_t states_max); /* NULL: no memory */
void exhaustive_destroy(struct exhaustive *exhaustive);

/* profile->cpu.burst_pieces must be what it was created for, and states_max no more. One at a time in a
 * process. */
struct exhaustive_result exhaustive_run(struct exhaustive *exhaustive, const struct exhaustive_case *run);

#endif
