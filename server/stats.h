/* Counters of one I/O thread. Written by that thread alone, read by any: relaxed atomics, each value whole.
 */
#ifndef MILLRACE_SERVER_STATS_H
#define MILLRACE_SERVER_STATS_H

#include "core/histogram.h"

#include <stdatomic.h>
#include <stdint.h>

struct server_stats {
    _Atomic uint64_t connections;     /* open now */
    _Atomic uint64_t streams;         /* open now */
    _Atomic uint64_t opened, refused; /* answers to OPEN */
    _Atomic uint64_t packets, bytes;  /* delivered: encrypted packets, bytes of ciphertext */
    _Atomic uint64_t met, missed;     /* of packets; their sum is packets */
    _Atomic uint64_t reader_late;     /* of met: ready in time, handed over late because of the reader */
    _Atomic uint64_t policed;         /* packets that came faster than their contract and waited */
    _Atomic uint64_t rejected;        /* packets answered with a status other than OK */
    _Atomic uint64_t lost;   /* packets received whole and not delivered: peer gone, or drain time over */
    _Atomic uint64_t errors; /* ERROR frames sent */
    struct core_histogram latency;   /* eligible time to socket */
    struct core_histogram slack;     /* deadline - hand-over, 0 where missed */
    struct core_histogram admission; /* OPEN and QUERY: frame read to answer queued */
};

/* Single writer: a plain add, no locked instruction. */
static inline void server_stats_add(_Atomic uint64_t *counter, uint64_t amount)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + amount,
                          memory_order_relaxed);
}

static inline uint64_t server_stats_get(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

#endif
