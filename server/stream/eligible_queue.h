/* Streams whose next packet is not eligible yet: a binary heap by eligible time, one entry a stream.
 *
 * Room is reserved when a stream opens, so that nothing is allocated later. One owner (an I/O thread). */
#ifndef MILLRACE_SERVER_STREAM_ELIGIBLE_QUEUE_H
#define MILLRACE_SERVER_STREAM_ELIGIBLE_QUEUE_H

#include "core/status.h"
#include "core/time.h"

#include <stddef.h>
#include <stdint.h>

struct server_waiter {   /* embedded in the stream */
    core_ns eligible_ns; /* key */
    size_t position;     /* 1-based place in the heap, 0: not waiting */
};

struct server_eligible_queue {
    struct server_waiter **heap; /* heap[1..count] */
    size_t count, capacity;
};

/* Makes room for `waiters` entries in all. CORE_NO_MEMORY leaves it as it was. */
CORE_CHECKED core_status server_eligible_queue_reserve(struct server_eligible_queue *waiting, size_t waiters);
void server_eligible_queue_free(struct server_eligible_queue *waiting);

void server_eligible_queue_add(struct server_eligible_queue *waiting, struct server_waiter *waiter,
                               core_ns eligible_ns);
void server_eligible_queue_remove(struct server_eligible_queue *waiting,
                                  struct server_waiter *waiter); /* fine if not in it */

/* The earliest, NULL if empty. */
struct server_waiter *server_eligible_queue_first(const struct server_eligible_queue *waiting);

#endif
