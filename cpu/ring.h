/* A ring of packet pointers from one producer thread to one consumer thread, in batches: one atomic store
 * publishes a whole batch, and each side rereads the other's index only when its last view is used up.
 *
 * Indices run freely and wrap with their type; a slot is index & mask. Both indices are stored sequentially
 * consistently, because the flags of sleep and notification are read right after (store index, then load
 * flag, against store flag, then load index: at least one of the two must see the other's store). C11 atomics
 * throughout, so that ThreadSanitizer can follow. Private to this folder.
 */
#ifndef MILLRACE_CPU_RING_H
#define MILLRACE_CPU_RING_H

#include "cpu/scheduler.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

struct ring {
    alignas(64) _Atomic uint32_t tail; /* written by the producer, read by both */
    uint32_t head_seen;                /* owned by the producer */
    alignas(64) _Atomic uint32_t head; /* written by the consumer, read by both */
    uint32_t tail_seen;                /* owned by the consumer */
    alignas(64) uint32_t capacity;     /* set before start: a power of two */
    struct cpu_packet **slots;
};

CORE_CHECKED static inline core_status ring_init(struct ring *ring, uint32_t capacity)
{
    ring->capacity = capacity;
    ring->slots = calloc(capacity, sizeof(struct cpu_packet *));
    return ring->slots != NULL ? CORE_OK : CORE_NO_MEMORY;
}

static inline void ring_free(struct ring *ring)
{
    free(ring->slots);
}

/* Producer: appends as many of the packets as fit, from the front; returns how many. */
static inline uint32_t ring_put(struct ring *ring, struct cpu_packet *const *packets, uint32_t count)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed); /* its own index */
    if (ring->capacity - (tail - ring->head_seen) < count)
        ring->head_seen = atomic_load(&ring->head);
    uint32_t room = ring->capacity - (tail - ring->head_seen);
    count = count < room ? count : room;
    for (uint32_t i = 0; i < count; i++)
        ring->slots[(tail + i) & (ring->capacity - 1)] = packets[i];
    if (count > 0)
        atomic_store(&ring->tail, tail + count);
    return count;
}

/* Consumer: takes up to `count` packets; returns how many. Fewer than `count`: the ring was empty. */
static inline uint32_t ring_take(struct ring *ring, struct cpu_packet **packets, uint32_t count)
{
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed); /* its own index */
    if (ring->tail_seen - head < count)
        ring->tail_seen = atomic_load(&ring->tail);
    uint32_t there = ring->tail_seen - head;
    count = count < there ? count : there;
    for (uint32_t i = 0; i < count; i++)
        packets[i] = ring->slots[(head + i) & (ring->capacity - 1)];
    if (count > 0)
        atomic_store(&ring->head, head + count);
    return count;
}

/* Any thread: was there nothing to take? */
static inline bool ring_empty(const struct ring *ring)
{
    return atomic_load(&ring->tail) == atomic_load(&ring->head);
}

/* Any thread: was there no room? */
static inline bool ring_full(const struct ring *ring)
{
    return atomic_load(&ring->tail) - atomic_load(&ring->head) == ring->capacity;
}

#endif
