/* One connection of a replay and the streams on it.
 *
 * Opened and closed by the caller's thread (replay_open.h); in between owned by one sending thread
 * (replay_sender.h). */
#ifndef MILLRACE_INPUTGEN_REPLAY_LINK_H
#define MILLRACE_INPUTGEN_REPLAY_LINK_H

#include "client/millrace.h"
#include "core/histogram.h"
#include "core/stream.h"
#include "core/time.h"
#include "inputgen/replay_check.h"
#include "inputgen/replay_map.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum inputgen_live_state {
    INPUTGEN_LIVE_WAITING, /* not asked for, or not answered */
    INPUTGEN_LIVE_OPEN,
    INPUTGEN_LIVE_REFUSED,
    INPUTGEN_LIVE_CLOSED
};

/* A stream being replayed. */
struct inputgen_live {
    struct core_stream_spec spec; /* as declared to the server */
    uint32_t index;               /* among all streams; part of every payload */
    uint32_t class_index;
    uint32_t group;   /* packets due at one time: 1, or the burst */
    core_ns group_ns; /* time from one group to the next */
    core_ns first_ns; /* when the first group is due, from the start of the run */
    uint64_t planned; /* packets */
    uint64_t sent, received, rejected;
    enum inputgen_live_state state;
    uint32_t id; /* the server's number, once open */
    uint8_t key[32];
    struct inputgen_checker checker;
    struct inputgen_link *link;
};

/* When packet n is due, from the start of the run. */
static inline core_ns inputgen_live_due_ns(const struct inputgen_live *live, uint64_t n)
{
    return live->first_ns + (core_ns)(n / live->group) * live->group_ns;
}

/* A packet that is in the output buffer: leaves it when `end` bytes have. */
struct inputgen_unsent {
    uint64_t end;
    core_ns due_ns; /* absolute */
};

struct inputgen_link {
    struct millrace *millrace;
    struct inputgen_live **lives;
    size_t live_count;
    struct inputgen_map by_id;
    void *owner; /* whoever handles the callbacks in this phase */

    /* Packets not yet taken by the socket: a ring, oldest first. */
    struct inputgen_unsent *unsent;
    size_t unsent_head, unsent_count, unsent_capacity; /* capacity: a power of two */
    uint64_t buffered_bytes;                           /* put into the output buffer so far */
    size_t batch_bytes;                                /* of these, since the last flush */

    uint64_t waiting; /* packets put into the output buffer and not yet answered */
    bool failed;
    char failure[512];
};

void inputgen_link_free(struct inputgen_link *link);

/* Remembers the first failure; the link carries nothing from then on. */
void inputgen_link_fail(struct inputgen_link *link, const char *why);

/* Takes room for a packet of `bytes` on the stream and notes when it was due. CORE_FULL: none now. Any other
 * failure has been noted by inputgen_link_fail. */
CORE_CHECKED core_status inputgen_link_reserve(struct inputgen_link *link, uint32_t stream, uint32_t bytes,
                                               core_ns due_ns, uint8_t **packet);

/* Hands the socket what it takes and records how late each packet was handed over. */
void inputgen_link_flush(struct inputgen_link *link, struct core_histogram *lateness);

#endif
