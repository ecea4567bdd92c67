/* Places: how many connections there may be, in all, of one listener and of one peer, and how many of them in
 * a TLS handshake at once, and how many of these a peer may begin in a second. No peer can take the places of
 * all others.
 *
 * A peer is an IPv4 address, the first 64 bits of an IPv6 address, or, on a Unix socket, a user. I/O thread 0
 * takes places; any thread gives them back, without waiting for another one. */
#ifndef MILLRACE_SERVER_NET_PLACES_H
#define MILLRACE_SERVER_NET_PLACES_H

#include "config/server.h"
#include "core/status.h"
#include "server/net/buckets.h"
#include "server/planner/turns.h"
#include "server/stats.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum server_peer_kind { SERVER_PEER_USER, SERVER_PEER_IP4, SERVER_PEER_IP6 };

struct server_peer_key {
    enum server_peer_kind kind;
    uint64_t number; /* user, address, or the first 64 bits of it */
};

struct server_peer; /* one that has connections */

/* What one connection holds. All zero: a place in all, as of a connection that no listener accepted. */
struct server_place {
    struct server_peer *peer;
    _Atomic uint32_t *listener; /* connections of its listener */
    bool handshake;             /* TLS, not established yet */
};

struct server_places {
    const struct config_server_limits *limits; /* borrowed; set before start */
    struct server_peer **peers;                /* by hash; owned by I/O thread 0 */
    struct server_buckets *begun;              /* TLS handshakes, by hash; owned by I/O thread 0 */
    uint64_t salt;                             /* no peer can choose its hash; set before start */
    _Atomic uint32_t connections;              /* atomic: in all; raised by I/O thread 0, lowered by any */
    _Atomic uint32_t handshakes;               /* atomic: of these in a handshake; the same */
};

/* Before the threads start. CORE_NO_MEMORY. */
CORE_CHECKED core_status server_places_init(struct server_places *places,
                                            const struct config_server_limits *limits);
void server_places_free(struct server_places *places); /* when all have been given back */

/* Who is at the other end of a connected socket: the key, and a text as "unix:pid=17,uid=0" or, behind
 * `transport`, "tcp:127.0.0.1:5151". */
struct server_peer_key server_peer_identify(int descriptor, const char *transport, char *text, size_t size);

/* I/O thread 0. SERVER_TURNED_NOT and the place, or why there is none. `listener` counts its connections;
 * `now_ns` is of the monotonic clock. */
enum server_turned server_places_take(struct server_places *places, const struct server_peer_key *key,
                                      _Atomic uint32_t *listener, bool handshake, core_ns now_ns,
                                      struct server_place *place);
/* Any thread: a place in all, whatever the limits. */
void server_places_take_one(struct server_places *places);

/* I/O thread 0: no further handshake may begin now. */
bool server_places_handshakes_full(const struct server_places *places);

/* Any thread that has the place: the turns of its peer at the planner, which are there until they are given
 * back, too; NULL, for which there is nothing to do: no listener accepted it. */
struct server_turns_peer *server_place_turns(const struct server_place *place);
void server_place_turns_give_back(struct server_turns_peer *turns);

/* Any thread. */
void server_place_established(struct server_places *places, struct server_place *place);
void server_place_give_back(struct server_places *places, struct server_place *place);

#endif
