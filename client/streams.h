/* The open streams of a connection by id: a hash table with open addressing whose hash is the id itself.
 * Servers number streams densely, so a look-up is one probe; other numbers are merely slower.
 * Not thread-safe; under the connection's lock. */
#ifndef MILLRACE_CLIENT_STREAMS_H
#define MILLRACE_CLIENT_STREAMS_H

#include "core/status.h"
#include "core/stream.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A cache line. */
struct client_stream {
    alignas(64) uint32_t id;         /* 0: no stream in this slot */
    uint32_t next;                   /* sequence of the next DATA */
    uint32_t answered;               /* sequence of the next RESULT */
    uint32_t padded_bytes_max;       /* longest ciphertext of a packet, with an IV ahead of it */
    uint32_t more_bytes;             /* that a result may have than its packet */
    bool has_messages, has_ivs;      /* it has messages; the server draws an IV for each */
    bool has_whole_ones;             /* each of them is one packet */
    bool begun;                      /* the packet sent last did not end its message */
    bool closing;                    /* CLOSE was sent */
    bool unwanted;                   /* its open call has timed out: report no event of it */
    bool to_be_closed;               /* and there was no room for CLOSE */
    void *owner;                     /* in a pool's connection to a node: what the pool has of it */
    uint8_t chain[CORE_BLOCK_BYTES]; /* last block of ciphertext that came back, or the IV */
};

struct client_streams {
    struct client_stream *slots;
    size_t capacity; /* 0 or a power of two, more than twice the count */
    size_t count;
};

/* Makes room for `count` streams in all. CORE_OK or CORE_NO_MEMORY. Moves what client_streams_find gave. */
CORE_CHECKED core_status client_streams_reserve(struct client_streams *streams, size_t count);

/* Asks memory for what client_streams_find of this id will touch. */
void client_streams_prefetch(const struct client_streams *streams, uint32_t id);

struct client_stream *client_streams_find(const struct client_streams *streams, uint32_t id);

/* The new stream, zero but for its id; NULL if the id is 0 or taken. Room must have been reserved. */
struct client_stream *client_streams_insert(struct client_streams *streams, uint32_t id);

void client_streams_remove(struct client_streams *streams, struct client_stream *stream);
void client_streams_free(struct client_streams *streams);

#endif
