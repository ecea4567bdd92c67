/* A stream being replayed: its contract, its timetable, and how far it has come.
 *
 * Opened by the caller's thread (replay_open.h); while packets run it belongs to one sending thread. */
#ifndef MILLRACE_INPUTGEN_REPLAY_LIVE_H
#define MILLRACE_INPUTGEN_REPLAY_LIVE_H

#include "core/status.h"
#include "core/stream.h"
#include "core/time.h"
#include "inputgen/replay.h"
#include "inputgen/replay_check.h"
#include "inputgen/streams.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct inputgen_link;

enum inputgen_live_state {
    INPUTGEN_LIVE_WAITING, /* not asked for, or not answered */
    INPUTGEN_LIVE_OPEN,
    INPUTGEN_LIVE_REFUSED,
    INPUTGEN_LIVE_CLOSING, /* CLOSE is sent: no more packets, results still come */
    INPUTGEN_LIVE_CLOSED
};

#define INPUTGEN_LIVE_ENDLESS UINT64_MAX /* planned packets of a stream that sends until it is closed */

/* When packets are due, from packet `first` on. */
struct inputgen_timetable {
    uint64_t first;
    core_ns first_ns; /* when that is due, from the start of the run */
    core_ns group_ns; /* time from one group to the next */
    uint32_t group;   /* packets due at one time: 1, or the burst */
};

/* One stream of the generator: its contract, its timetable and all that is counted of it, side by side since
 * the sender goes through millions of packets. */
struct inputgen_live {
    struct inputgen_source source; /* as declared to the server, and its number among all streams */
    uint32_t class_index;
    struct inputgen_timetable now;    /* of the packets to come */
    struct inputgen_timetable before; /* of those below now.first; a MODIFY made it `now` */
    uint64_t planned;                 /* packets */
    uint64_t sent, received, rejected;
    enum inputgen_live_state state;
    bool scheduled; /* is in its sender's schedule */
    uint32_t id;    /* the server's number, once open */
    uint8_t key[32];
    uint8_t iv[CORE_BLOCK_BYTES]; /* of every message, with iv constant; random, too */
    struct inputgen_checker checker;
    struct inputgen_link *link;

    core_ns sent_late_ns; /* no packet that is out was handed over later than so much after it was due */
    core_ns stop_ns;      /* nothing is due from then on; CORE_NS_NEVER: until it is closed */
    /* Packets below `changed` had another bound; a MODIFY changed it. */
    uint64_t changed;
    core_ns latency_before_ns;

    /* for whoever opens, changes and closes it during the run */
    core_ns asked_ns; /* when the request under way was due, from the start of the run */
    size_t place;     /* in a list of its owner */
    bool changing;    /* a MODIFY is unanswered */
    bool offer;       /* `wanted` is what the server offered instead of the last one */
    struct core_stream_spec origin, wanted; /* the contract it began with, and the one it asks for */
};

/* When packet n is due, from the start of the run. */
static inline core_ns inputgen_live_due_ns(const struct inputgen_live *live, uint64_t n)
{
    const struct inputgen_timetable *table = n < live->now.first ? &live->before : &live->now;
    return table->first_ns + (core_ns)((n - table->first) / table->group) * table->group_ns;
}

/* The latency bound of packet n. */
static inline core_ns inputgen_live_latency_ns(const struct inputgen_live *live, uint64_t n)
{
    return n < live->changed ? live->latency_before_ns : live->source.spec.latency_ns;
}

/* Stream `index` of the list, scaled and timed as the options say, with its key: the named one or a random
 * one. Nothing is due from duration_ns on. */
CORE_CHECKED core_status inputgen_live_init(struct inputgen_live *live,
                                            const struct inputgen_replay_options *options,
                                            const struct inputgen_streams *list, size_t index,
                                            core_ns duration_ns, struct core_error *error);

/* The same for any stream, with `index` as its part in payloads, which begins at begin_ns (from the start of
 * the run) and sends until it is closed, whatever its own times are. */
CORE_CHECKED core_status inputgen_live_begin(struct inputgen_live *live,
                                             const struct inputgen_replay_options *options,
                                             const struct inputgen_stream *stream, uint32_t index,
                                             core_ns begin_ns, struct core_error *error);

/* May the stream's contract change now? Not while a change is under way, nor while packets are unanswered
 * that were due by the contract before the present one, and not when its last packet is sent. */
bool inputgen_live_may_change(const struct inputgen_live *live);

/* The stream has the contract `spec` from packet `first` on; what is to come is due by it, behind the packet
 * that is due next. */
void inputgen_live_change(struct inputgen_live *live, const struct inputgen_replay_options *options,
                          const struct core_stream_spec *spec, uint64_t first);
void inputgen_live_free(struct inputgen_live *live); /* wipes the key */

#endif
