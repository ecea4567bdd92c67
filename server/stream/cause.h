/* Why a packet was late: its time, from when its latency counts to when it went to its socket, held against
 * what the threads on its way and its unit did meanwhile. Every miss gets one cause.
 *
 * Something has *disturbed* a packet for as long as, of its time,
 *   - its I/O thread stalled (core/stalls.h) before it handed the packet over, or after it came back;
 *   - its worker stalled while it had the packet, or before it had handed it back;
 *   - its GPU took beyond period and stages, which no batch may;
 *   - it waited for its turn to be handed over, or to be delivered behind others of its stream, beyond
 *     margins and without a stall.
 * A stall that ended before the packet came, but was not settled, has disturbed it for at most as long as it
 * was: the packet waited behind what had gathered.
 *
 *     sum of disturbances >= lateness  =>  without them it would have met; the largest is the cause.
 *
 * Else, if most of its time was in a worker's queue, it waited there behind others: a worker that has work
 * and does none for longer than bounds and margins allow has stalled (cpu/worker.h), so that this one
 * encrypted. Promises do not let that happen but for what a late I/O thread brings at once.
 *
 * What its reader did is no cause: from when that has kept the connection waiting, time is not ours; and
 * neither is policing, which comes before a packet's latency counts. Pure. */
#ifndef MILLRACE_SERVER_STREAM_CAUSE_H
#define MILLRACE_SERVER_STREAM_CAUSE_H

#include "core/stalls.h"

#include <stdbool.h>
#include <stdint.h>

enum server_cause {
    SERVER_CAUSE_NONE,             /* nothing has disturbed it, and it met */
    SERVER_CAUSE_IO_LATE,          /* a turn of its I/O thread over its bound, with the thread at work */
    SERVER_CAUSE_BURST_OVER_BOUND, /* a burst of its worker, likewise */
    SERVER_CAUSE_STAGE_OVER_BOUND, /* period and stages of its GPU */
    SERVER_CAUSE_OFF_CORE,         /* its I/O thread or worker had no core */
    SERVER_CAUSE_PAGE_FAULT,       /* its I/O thread or worker waited for memory to be read */
    SERVER_CAUSE_QUEUE,            /* behind others in its worker's queue */
    SERVER_CAUSE_HELD, /* waited for its turn: a migration, a batch that was not open, its stream's order */
    SERVER_CAUSE_DIVERTED, /* its GPU had failed, and another unit served it */
    SERVER_CAUSE_UNKNOWN,  /* missed for no known cause: please report */
    SERVER_CAUSES
};

/* As in metrics: "io_late". */
const char *server_cause_name(enum server_cause cause);

enum server_cause_holder { SERVER_CAUSE_OF_NONE, SERVER_CAUSE_OF_IO, SERVER_CAUSE_OF_UNIT };

/* The packet's way. Times in this order, but that a packet may be handed over a little before it counts. */
struct server_cause_way {
    core_ns from_ns;     /* its latency counts */
    core_ns handed_ns;   /* its unit got it */
    core_ns finished_ns; /* its unit returned it */
    core_ns at_ns;       /* it went to the socket, or its reader began to delay it */
    core_ns deadline_ns;
    core_ns io_ns;   /* margin for each hand-over */
    core_ns unit_ns; /* period and stages of a GPU at the most; CORE_NS_NEVER: a worker */
    bool diverted;
};

struct server_cause_stalls {
    uint32_t count;
    struct core_stall list[CORE_STALLS];
};

struct server_cause_verdict {
    enum server_cause cause;
    enum server_cause_holder holder;
    core_ns held_ns; /* for so long */
};

struct server_cause_verdict server_cause_find(const struct server_cause_way *way,
                                              const struct server_cause_stalls *io,
                                              const struct server_cause_stalls *unit);

#endif
