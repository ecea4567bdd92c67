/* Counters of one I/O thread. Written by that thread alone, read by any: relaxed atomics, each value whole.
 */
#ifndef MILLRACE_SERVER_STATS_H
#define MILLRACE_SERVER_STATS_H

#include "core/histogram.h"
#include "core/protocol.h"
#include "core/stalls.h"
#include "core/status.h"
#include "server/stream/cause.h"
#include "server/stream/tail_latency.h"

#include <stdatomic.h>
#include <stdint.h>

/* Why a connection came to nothing before its HELLO: it was refused, its TLS handshake or PROXY header failed, or (MESSAGES)
 * it sent more TLS messages without data than any honest client does, at any time. */
enum server_turned {
    SERVER_TURNED_CONNECTIONS, /* limits.connections */
    SERVER_TURNED_LISTENER,    /* limits.connections_per_listener */
    SERVER_TURNED_PEER,        /* limits.connections_per_peer */
    SERVER_TURNED_HANDSHAKES,  /* the peer's share of limits.handshakes */
    SERVER_TURNED_RATE,        /* limits.tls_handshakes_per_s */
    SERVER_TURNED_MEMORY,
    SERVER_TURNED_NO_CERTIFICATE,
    SERVER_TURNED_CERTIFICATE, /* one that the client CA did not sign, or that is not valid */
    SERVER_TURNED_VERSION,     /* not TLS 1.3 */
    SERVER_TURNED_NOT_TLS,
    SERVER_TURNED_GONE, /* the peer closed */
    SERVER_TURNED_PROTOCOL,
    SERVER_TURNED_TIMEOUT, /* timeouts.hello_ms */
    SERVER_TURNED_MESSAGES,
    SERVER_TURNED_PROXY, /* no PROXY header that is right, where one is due */
    SERVER_TURNED_COUNT,
    SERVER_TURNED_NOT = SERVER_TURNED_COUNT
};

/* As in metrics: "connections", "no_certificate". */
const char *server_turned_name(enum server_turned reason);

enum server_asked {
    SERVER_ASKED_OPEN,
    SERVER_ASKED_QUERY,
    SERVER_ASKED_MODIFY,
    SERVER_ASKED_REKEY,
    SERVER_ASKED_COUNT
};

/* Codes of enum protocol_refusal, 0 not being one. */
#define SERVER_REFUSALS (PROTOCOL_REFUSED_BUSY + 1)

/* Figures of the packets of one unit: a worker, a GPU, or the fallback worker (server_units). */
struct server_unit_stats {
    _Atomic uint64_t missed, reader_late; /* as below */
    struct core_histogram slack;    /* deadline - hand-over; < 0: missed. Without delays by the reader */
    struct core_histogram lateness; /* of missed packets */
};

struct server_stats {
#define SERVER_COUNT(member, ...) _Atomic uint64_t member; /* what each counts: server/counts.def */
#include "server/counts.def"
#undef SERVER_COUNT
    _Atomic uint64_t
        refused_by[SERVER_ASKED_COUNT][SERVER_REFUSALS]; /* of refused: by what was asked, and why */
    _Atomic uint64_t missed_by[SERVER_CAUSES];           /* of missed, by cause; their sum is missed */
    struct server_unit_stats *units;  /* by the unit that encrypted the packet; set before start */
    uint32_t unit_count;              /* set before start */
    struct server_tail_latency worst; /* the packets with the least slack */
    struct core_histogram turn;       /* turns of the loop: the longest wait of a packet for the turn's end */
    _Atomic core_ns turn_excess_ns;   /* total time of such waits beyond in_ns and the rest */
    _Atomic core_ns turn_lost_ns;     /* total time of such waits beyond in_ns, the rest and out_ns */
    struct core_stalls stalls;        /* turns that were late */
    struct core_histogram latency;    /* eligible time to socket */
    struct core_histogram admission;  /* OPEN, QUERY, MODIFY: frame read to the planner's decision */
    struct core_histogram in_force;   /* OPENED and MODIFIED: frame read to the contract in force */
};

/* Single writer: a plain add, no locked instruction. */
static inline void server_stats_add(_Atomic uint64_t *counter, uint64_t amount)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + amount,
                          memory_order_relaxed);
}

static inline void server_stats_add_ns(_Atomic core_ns *time_ns, core_ns amount_ns)
{
    atomic_store_explicit(time_ns, atomic_load_explicit(time_ns, memory_order_relaxed) + amount_ns,
                          memory_order_relaxed);
}

/* For this many units, before the thread starts. CORE_NO_MEMORY: as it was. */
CORE_CHECKED core_status server_stats_make(struct server_stats *stats, uint32_t unit_count);
void server_stats_free(struct server_stats *stats);

static inline uint64_t server_stats_get(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

#endif
