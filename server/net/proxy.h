/* The header of the PROXY protocol, version 2, with which a proxy begins each connection: who its client is.
 *
 * Read before anything else on listeners with `proxy: v2`, and on no others. It is taken a piece at a time and never
 * a byte more than it has, so that what follows is left in the socket for TLS or HELLO. LOCAL (the proxy's own
 * checks) and UNKNOWN leave the peer what the socket says; the extensions (TLV) are passed over. Pure. */
#ifndef MILLRACE_SERVER_NET_PROXY_H
#define MILLRACE_SERVER_NET_PROXY_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sockaddr_storage;

#define SERVER_PROXY_BYTES_MAX 4096 /* with its extensions; a longer one is refused */

/* All zero: nothing has come. */
struct server_proxy {
    uint8_t start[16 + 36]; /* fixed part and addresses of TCP */
    uint8_t rest[256];      /* what comes behind, piece by piece; nobody looks at it */
    size_t got, whole;      /* whole: 0 until the fixed part is there */
};

/* Where the next bytes go, and how many at the most: not 0 until it is whole. */
uint8_t *server_proxy_room(struct server_proxy *proxy, size_t *bytes);

/* So many have come there. CORE_OK: the header is whole; CORE_AGAIN; CORE_INVALID, as soon as that is certain, with
 * what is wrong. */
CORE_CHECKED core_status server_proxy_take(struct server_proxy *proxy, size_t bytes,
                                           struct core_error *error);

/* The client's address, of a whole header: AF_INET, AF_INET6, or AF_UNIX without a name. False: that of the socket
 * counts. */
bool server_proxy_client(const struct server_proxy *proxy, struct sockaddr_storage *client);

/* The proxy speaks for itself, of a whole header: not for a client, which UNKNOWN is also for. */
bool server_proxy_is_local(const struct server_proxy *proxy);

#endif
