/* The ten packets of one I/O thread that came closest to their deadlines, or missed them by most, since the
 * start: which packets they were, and where their time went.
 *
 * The I/O thread alone enters packets; any thread reads at the same time (core/sequence.h). Once the table is
 * full a packet costs one comparison, unless it is among the worst.
 *
 * A packet's time from when it was eligible to when it was handed to its socket is parted without gaps:
 *
 *     sum of stage_ns = at_ns - eligible time = latency bound - slack_ns */
#ifndef MILLRACE_SERVER_STREAM_TAIL_LATENCY_H
#define MILLRACE_SERVER_STREAM_TAIL_LATENCY_H

#include "core/time.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SERVER_TAIL_LATENCY_PACKETS 10

enum server_tail_latency_stage {
    SERVER_TAIL_LATENCY_HAND_OVER, /* until it was given to its worker, or put into an open batch */
    SERVER_TAIL_LATENCY_QUEUE,     /* in the worker's queue; in the batch until that was closed */
    SERVER_TAIL_LATENCY_COPY_UP,   /* GPU: until its batch had been copied up, with what it waited for that */
    SERVER_TAIL_LATENCY_ENCRYPT,   /* the burst that finished it; until its batch's kernel had ended */
    SERVER_TAIL_LATENCY_COPY_DOWN, /* GPU: until its batch had been copied back */
    SERVER_TAIL_LATENCY_DELIVERY,  /* until its first byte was taken by the socket */
    SERVER_TAIL_LATENCY_STAGES
};

struct server_tail_latency_packet {
    core_ns slack_ns;  /* deadline - hand-over to the socket; negative: missed */
    core_ns at_ns;     /* of that hand-over, CLOCK_MONOTONIC */
    core_ns bound_ns;  /* the stream's latency bound */
    core_ns waited_ns; /* held back by policing before it was eligible; no part of the stages */
    core_ns stage_ns[SERVER_TAIL_LATENCY_STAGES];
    uint64_t connection; /* its number */
    uint32_t stream, sequence;
    uint32_t unit;     /* unit that encrypted it (struct server_unit_stats) */
    uint32_t diverted; /* 1: served by another unit because of a failed GPU */
    core_ns held_ns;   /* how long `cause` delayed it */
    uint32_t cause;    /* enum server_cause */
    uint32_t holder;   /* unit or thread of the cause: as `unit`, or SERVER_TAIL_LATENCY_IO + its number */
};

#define SERVER_TAIL_LATENCY_NONE UINT32_MAX
#define SERVER_TAIL_LATENCY_IO   0x10000 /* no unit has such a number */

#define SERVER_TAIL_LATENCY_WORDS (sizeof(struct server_tail_latency_packet) / sizeof(uint64_t))

struct server_tail_latency_entry {
    _Atomic uint32_t changes;                          /* atomic: written by the owner; odd while it writes */
    _Atomic uint64_t words[SERVER_TAIL_LATENCY_WORDS]; /* atomic: written by the owner, read by any */
};

struct server_tail_latency {
    core_ns limit_ns; /* the owner's: a packet with less slack is to be entered */
    uint32_t loosest; /* the owner's: the place to be given up next */
    core_ns slack_ns[SERVER_TAIL_LATENCY_PACKETS]; /* the owner's: of the places; CORE_NS_NEVER: empty */
    struct server_tail_latency_entry places[SERVER_TAIL_LATENCY_PACKETS];
};

/* Before the thread starts. */
void server_tail_latency_init(struct server_tail_latency *worst);

/* The owner: is a packet with this slack to be entered? */
static inline bool server_tail_latency_wants(const struct server_tail_latency *worst, core_ns slack_ns)
{
    return slack_ns < worst->limit_ns;
}

/* The owner: enters a packet that is wanted, in the place of the one with most slack. */
void server_tail_latency_enter(struct server_tail_latency *worst,
                               const struct server_tail_latency_packet *packet);

/* Any thread: joins the packets of one table into `list`, which holds `count` of them with the least slack
 * first, and at most SERVER_TAIL_LATENCY_PACKETS. Returns the new count. A place that is being written every
 * time it is looked at is left out. */
uint32_t server_tail_latency_join(const struct server_tail_latency *worst,
                                  struct server_tail_latency_packet *list, uint32_t count);

#endif
