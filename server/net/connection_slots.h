/* Limits on connections: in all, for each listener and for each peer; on concurrent TLS handshakes; and on
 * the handshakes that a peer may begin in a second. So no single peer can exhaust the server's connections. A
 * *place* is the permission for one connection.
 *
 * A peer is an IPv4 address, the first 64 bits of an IPv6 address, or, on a Unix socket, a user. I/O thread 0
 * acquires places; any thread releases them, without waiting for another thread. */
#ifndef MILLRACE_SERVER_NET_CONNECTION_SLOTS_H
#define MILLRACE_SERVER_NET_CONNECTION_SLOTS_H

#include "config/server.h"
#include "core/status.h"
#include "server/net/buckets.h"
#include "server/planner/turns.h"
#include "server/stats.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sockaddr_storage;

enum server_peer_kind { SERVER_PEER_USER, SERVER_PEER_IP4, SERVER_PEER_IP6 };

struct server_peer_key {
    enum server_peer_kind kind;
    uint64_t number; /* user, address, or the first 64 bits of it */
};

struct server_peer; /* one that has connections */

/* The place of one connection. All zero: counted in all only, since no listener accepted the connection. */
struct server_connection_slot {
    struct server_peer *peer;
    _Atomic uint32_t *listener; /* connections of its listener */
    bool handshake;             /* TLS, not established yet; or the PROXY header is still to come */
};

struct server_connection_slots {
    const struct config_server_limits *limits; /* borrowed; set before start */
    struct server_peer **peers;                /* by hash; owned by I/O thread 0 */
    struct server_buckets *begun;              /* TLS handshakes, by hash; owned by I/O thread 0 */
    uint64_t salt;                             /* no peer can choose its hash; set before start */
    _Atomic uint32_t connections;              /* atomic: in all; raised by I/O thread 0, lowered by any */
    _Atomic uint32_t handshakes;               /* atomic: of these in a handshake; raised and lowered alike */
};

/* Before the threads start. CORE_NO_MEMORY. */
CORE_CHECKED core_status server_connection_slots_init(struct server_connection_slots *places,
                                                      const struct config_server_limits *limits);
void server_connection_slots_free(struct server_connection_slots *places); /* when all have been given back */

/* By an address; one that is not IP is a user whom nobody knows. */
struct server_peer_key server_peer_of(const struct sockaddr_storage *address, const char *transport,
                                      char *text, size_t size);

/* Identifies the peer of a connected socket: its key, and a text as "unix:pid=17,uid=0" or, with `transport`
 * in front, "tcp:127.0.0.1:5151". */
struct server_peer_key server_peer_identify(int descriptor, const char *transport, char *text, size_t size);

/* I/O thread 0. SERVER_TURNED_NOT and the place, or why there is none. `listener` counts its connections;
 * `now_ns` is of the monotonic clock. */
enum server_turned server_connection_slots_acquire(struct server_connection_slots *places,
                                                   const struct server_peer_key *key,
                                                   _Atomic uint32_t *listener, bool handshake, core_ns now_ns,
                                                   struct server_connection_slot *place);
/* I/O thread 0: the same for a peer that its PROXY header will tell: until then it has a place of its listener, and
 * counts as a handshake. */
enum server_turned server_connection_slots_acquire_unknown(struct server_connection_slots *places,
                                                           _Atomic uint32_t *listener,
                                                           struct server_connection_slot *place);
/* Any thread: acquires a place that counts in all only, beyond any limit. */
void server_connection_slots_acquire_one(struct server_connection_slots *places);

/* I/O thread 0: no further handshake may begin now. */
bool server_connection_slots_handshakes_full(const struct server_connection_slots *places);

/* Any thread that owns the place: the turns of its peer at the planner, valid until released as well. NULL if
 * no listener accepted the connection; nothing is to be released then. */
struct server_turns_peer *server_connection_slot_turns(const struct server_connection_slot *place);
void server_connection_slot_turns_release(struct server_turns_peer *turns);

/* Any thread. */
void server_connection_slot_established(struct server_connection_slots *places,
                                        struct server_connection_slot *place);
void server_connection_slot_release(struct server_connection_slots *places,
                                    struct server_connection_slot *place);

#endif
