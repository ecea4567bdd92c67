/* The unanswered OPEN, QUERY, MODIFY, REKEY and PING of a connection, by request id. The low bits of an id are a
 * slot, the others a count, so that a look-up is one comparison and an id comes back only after 2^22 uses of
 * its slot. Not thread-safe; under the connection's lock. */
#ifndef MILLRACE_CLIENT_REQUESTS_H
#define MILLRACE_CLIENT_REQUESTS_H

#include "core/protocol.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLIENT_REQUESTS_MAX 1024 /* the protocol's limit of unanswered requests */

struct client_request {
    uint32_t id;
    enum protocol_type type;                    /* 0: the slot is free */
    uint32_t padded_bytes_max, more_bytes;      /* OPEN: of the stream asked for, */
    bool has_messages, has_whole_ones, has_ivs; /* and of what kind that is */
    uint32_t stream;                            /* MODIFY, REKEY: which is to change */
    bool abandoned;                             /* its call has timed out: drop the answer */
    struct client_ask *ask;                     /* of a pool, at its node's connection */
    uint16_t next_free;
};

struct client_requests {
    struct client_request *slots;
    uint16_t capacity, count;
    uint16_t first_free; /* capacity: none */
};

/* *request is new, with id and type set. CORE_FULL at CLIENT_REQUESTS_MAX, CORE_NO_MEMORY. */
CORE_CHECKED core_status client_requests_add(struct client_requests *requests, enum protocol_type type,
                                             struct client_request **request);

struct client_request *client_requests_find(const struct client_requests *requests, uint32_t id);
void client_requests_remove(struct client_requests *requests, struct client_request *request);
void client_requests_free(struct client_requests *requests);

#endif
