/* One connection of a replay and the streams on it.
 *
 * Opened and closed by the caller's thread (replay_open.h); in between owned by one sending thread
 * (replay_sender.h). */
#ifndef MILLRACE_INPUTGEN_REPLAY_LINK_H
#define MILLRACE_INPUTGEN_REPLAY_LINK_H

#include "client/millrace.h"
#include "core/histogram.h"
#include "core/time.h"
#include "inputgen/replay_live.h"
#include "inputgen/replay_map.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A packet that is in the output buffer: leaves it when `end` bytes have. */
struct inputgen_unsent {
    uint64_t end;
    core_ns due_ns; /* absolute */
    struct inputgen_live *live;
};

struct inputgen_link {
    struct millrace *millrace;
    struct inputgen_live **lives;
    size_t live_count;
    struct inputgen_map by_id;
    void *owner;                    /* handler of the callbacks in this phase */
    struct inputgen_map by_request; /* request id -> stream whose OPEN or MODIFY is unanswered */

    /* Packets not yet taken by the socket: a ring, oldest first. */
    struct inputgen_unsent *unsent;
    size_t unsent_head, unsent_count, unsent_capacity; /* capacity: a power of two */
    uint64_t buffered_bytes;                           /* put into the output buffer so far */
    size_t batch_bytes;                                /* of these, since the last flush */

    uint64_t look;    /* of its sender: the last one that found something here */
    core_ns empty_ns; /* what has come since the look before came after this */

    uint64_t waiting; /* packets put into the output buffer and not yet answered */
    bool failed;
    char failure[512];
};

void inputgen_link_free(struct inputgen_link *link);

/* Remembers the first failure; the link carries nothing from then on. */
void inputgen_link_fail(struct inputgen_link *link, const char *why);

/* Puts a packet of the stream into the output buffer and notes when it was due. CORE_FULL: there is no room now.
 * Any other failure has been noted by inputgen_link_fail. */
CORE_CHECKED core_status inputgen_link_send(struct inputgen_link *link, struct inputgen_live *live,
                                            const struct inputgen_part *part, const uint8_t *packet,
                                            core_ns due_ns);

/* To be called after a frame other than DATA was put into the output buffer, which held `before` bytes before
 * that (millrace_unsent_bytes): so that it is known when the packets behind it have left. */
void inputgen_link_control(struct inputgen_link *link, size_t before);

/* Hands the socket what it takes and records how late each packet was handed over, its stream's worst as well
 * (inputgen_live.sent_late_ns). */
void inputgen_link_flush(struct inputgen_link *link, struct core_histogram *lateness);

#endif
