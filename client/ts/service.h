/* A service of `millrace ts`: its sockets, and the datagrams that are between them, in the order in which they came.
 *
 * A datagram leaves encrypted, or not at all: what comes while there is no server, no control word or no PAT, what is no
 * transport stream, and what the server did not encrypt, is dropped, and counted. One thread. */
#ifndef MILLRACE_CLIENT_TS_SERVICE_H
#define MILLRACE_CLIENT_TS_SERVICE_H

#include "client/ts/link.h"
#include "client/ts/tables.h"

#include "core/histogram.h"

struct ts_counts {
    uint64_t datagrams, packets, bytes; /* sent; bytes of transport stream */
    uint64_t late;                      /* of them, more than the bound after their arrival */
    /* dropped: */
    uint64_t invalid;  /* no transport stream, scrambled already, or too long */
    uint64_t early;    /* before the first PAT */
    uint64_t away;     /* without a server, a stream, or a control word */
    uint64_t excess;   /* above the rate, beyond what is kept for it */
    uint64_t refused;  /* not encrypted by the server */
    uint64_t unsent;   /* not taken by the network */
    uint64_t overflow; /* by the system, since this process did not read */
};

enum ts_slot_state { TS_SLOT_DROPPED, TS_SLOT_WAITING, TS_SLOT_SENT, TS_SLOT_READY };

struct ts_slot { /* a datagram */
    enum ts_slot_state state;
    bool has_pcr;
    uint32_t bytes, offset, packet_bytes; /* whole; the packets in it */
    core_ns in_ns;
};

struct ts_service {
    const struct config_ts_service *config;
    int input, output;
    struct ts_stream stream;
    struct ts_tables tables;
    struct ts_counts counts;
    struct core_histogram delay, pcr_delay; /* from its arrival until it was sent; of those with a PCR */
    /* A ring. These count up for ever: free <- head <= answered <= sent <= tail -> free */
    struct ts_slot *slots;
    uint8_t *rooms; /* of the slots, room_bytes each */
    size_t room_bytes;
    uint32_t slot_count; /* a power of two */
    uint32_t head, answered, sent, tail;
    bool told_invalid;
};

/* Opens its sockets; it is the link's from then on. To be closed in any case. */
CORE_CHECKED core_status ts_service_open(struct ts_service *service, const struct config_ts_service *config,
                                         struct ts_link *link, struct core_error *error);

/* Receives all that is there, and gives it to the link. */
void ts_service_receive(struct ts_service *service, core_ns offset_ns);

/* Gives the link what waits for it. */
void ts_service_push(struct ts_service *service);

/* Sends what is encrypted and due. Returns when to be called again; CORE_NS_NEVER: when there are results. */
core_ns ts_service_release(struct ts_service *service, core_ns now_ns);

/* The link's (ts_link.done, ts_link.lost). */
void ts_service_done(void *owner, const uint8_t *packets, size_t bytes);
void ts_service_lost(void *owner);

void ts_service_close(struct ts_service *service); /* after the link */

#endif
