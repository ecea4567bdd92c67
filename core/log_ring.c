#include "core/log_ring.h"

static struct core_log_cell *cell_at(struct core_log_ring *ring, uint64_t position)
{
    return &ring->cells[position % CORE_LOG_RING_CELLS];
}

void core_log_ring_init(struct core_log_ring *ring)
{
    for (uint64_t i = 0; i < CORE_LOG_RING_CELLS; i++)
        atomic_init(&ring->cells[i].turn, i);
    atomic_init(&ring->tail, 0);
    ring->head = 0;
}

struct core_log_entry *core_log_ring_claim(struct core_log_ring *ring)
{
    uint64_t position = atomic_load_explicit(&ring->tail, memory_order_relaxed); /* the turn orders */
    for (;;) {
        struct core_log_cell *cell = cell_at(ring, position);
        /* Acquire: the consumer has read the cell's last entry before it is written again. */
        const uint64_t turn = atomic_load_explicit(&cell->turn, memory_order_acquire);
        if (turn < position)
            return NULL;     /* not released since the last round */
        if (turn > position) /* another producer was faster */
            position = atomic_load_explicit(&ring->tail, memory_order_relaxed);
        else if (atomic_compare_exchange_weak_explicit(&ring->tail, &position, position + 1,
                                                       memory_order_relaxed, memory_order_relaxed))
            return &cell->entry;
    }
}

void core_log_ring_publish(struct core_log_entry *entry)
{
    struct core_log_cell *cell = (struct core_log_cell *)entry;
    const uint64_t turn = atomic_load_explicit(&cell->turn, memory_order_relaxed); /* ours since the claim */
    /* Release: the entry is written before the consumer sees it. */
    atomic_store_explicit(&cell->turn, turn + 1, memory_order_release);
}

const struct core_log_entry *core_log_ring_peek(struct core_log_ring *ring)
{
    const struct core_log_cell *cell = cell_at(ring, ring->head);
    /* Acquire: with the turn comes what the producer wrote. */
    const bool there = atomic_load_explicit(&cell->turn, memory_order_acquire) == ring->head + 1;
    return there ? &cell->entry : NULL;
}

void core_log_ring_release(struct core_log_ring *ring)
{
    struct core_log_cell *cell = cell_at(ring, ring->head);
    /* Release: what was read of the entry is read before a producer writes the next one. */
    atomic_store_explicit(&cell->turn, ring->head + CORE_LOG_RING_CELLS, memory_order_release);
    ring->head++;
}
