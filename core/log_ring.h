/* Log entries on their way from any thread to the one that writes them: a bounded ring of cells.
 *
 * A producer claims the next cell with one compare-and-swap, fills it and publishes it. It never waits: a
 * full ring has no cell to claim, and a producer that is preempted between claim and publish delays only the
 * consumer. A cell's `turn` says which side owns it: position p may be claimed at turn p and taken at turn p
 * + 1; its release sets the turn of the next round, p + cells. Entries of one thread are taken in its order.
 * Private to core. */
#ifndef MILLRACE_CORE_LOG_RING_H
#define MILLRACE_CORE_LOG_RING_H

#include "core/log_line.h"

#include <stdatomic.h>

#define CORE_LOG_RING_CELLS 128 /* a power of two */

struct core_log_cell {
    struct core_log_entry entry; /* first, so that an entry leads to its cell */
    _Atomic uint64_t turn;       /* atomic: written by the side that owns the cell, read by all */
};

struct core_log_ring {
    struct core_log_cell cells[CORE_LOG_RING_CELLS];
    _Atomic uint64_t tail; /* next position to claim; written and read by producers */
    uint64_t head;         /* next position to take; owned by the consumer */
};

void core_log_ring_init(struct core_log_ring *ring); /* empty; no other thread is near it */

/* Any thread: the next cell, or NULL where the ring is full; to be filled and published soon. */
struct core_log_entry *core_log_ring_claim(struct core_log_ring *ring);
void core_log_ring_publish(struct core_log_entry *entry);

/* Consumer: the oldest entry, NULL where there is none or it is not published yet. It stays until it is
 * released. */
const struct core_log_entry *core_log_ring_peek(struct core_log_ring *ring);
void core_log_ring_release(struct core_log_ring *ring);

#endif
