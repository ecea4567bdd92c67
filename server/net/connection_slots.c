#include "server/net/connection_slots.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

/* Freed by I/O thread 0 when it comes by and nobody has a place of it any more. */
struct server_peer {
    struct server_peer *next; /* of the same hash; I/O thread 0 */
    struct server_peer_key key;
    _Atomic uint32_t connections, handshakes; /* as in struct server_connection_slots */
    struct server_turns_peer turns;           /* the planner's */
    _Atomic uint32_t turns_held;              /* atomic: raised and lowered by any thread */
};

core_status server_connection_slots_init(struct server_connection_slots *places,
                                         const struct config_server_limits *limits)
{
    *places = (struct server_connection_slots){.limits = limits};
    places->peers = calloc(SERVER_BUCKETS, sizeof(struct server_peer *));
    places->begun = calloc(1, sizeof *places->begun);
    if (getrandom(&places->salt, sizeof places->salt, GRND_NONBLOCK) < 0)
        places->salt = 0; /* a system that has just been switched on */
    places->salt |= 1;
    return places->peers == NULL || places->begun == NULL ? CORE_NO_MEMORY : CORE_OK;
}

void server_connection_slots_free(struct server_connection_slots *places)
{
    for (uint32_t i = 0; places->peers != NULL && i < SERVER_BUCKETS; i++)
        for (struct server_peer *peer = places->peers[i], *next; peer != NULL; peer = next) {
            next = peer->next;
            free(peer);
        }
    free(places->peers);
    free(places->begun);
    places->peers = NULL;
    places->begun = NULL;
}

static struct server_peer_key identify_ip4(const struct sockaddr_in *address, const char *transport,
                                           char *text, size_t size)
{
    char host[INET_ADDRSTRLEN] = "?";
    inet_ntop(AF_INET, &address->sin_addr, host, sizeof host);
    snprintf(text, size, "%s:%s:%u", transport, host, ntohs(address->sin_port));
    return (struct server_peer_key){SERVER_PEER_IP4, address->sin_addr.s_addr};
}

/* An IPv4 address that came by way of an IPv6 socket is what it is. */
static struct server_peer_key identify_ip6(const struct sockaddr_in6 *address, const char *transport,
                                           char *text, size_t size)
{
    struct server_peer_key key = {.kind = SERVER_PEER_IP6};
    char host[INET6_ADDRSTRLEN] = "?";
    uint32_t ip4;

    inet_ntop(AF_INET6, &address->sin6_addr, host, sizeof host);
    snprintf(text, size, "%s:[%s]:%u", transport, host, ntohs(address->sin6_port));
    memcpy(&key.number, &address->sin6_addr, sizeof key.number);
    memcpy(&ip4, (const uint8_t *)&address->sin6_addr + 12, sizeof ip4);
    return IN6_IS_ADDR_V4MAPPED(&address->sin6_addr) ? (struct server_peer_key){SERVER_PEER_IP4, ip4} : key;
}

struct server_peer_key server_peer_of(const struct sockaddr_storage *address, const char *transport,
                                      char *text, size_t size)
{
    if (address->ss_family == AF_INET)
        return identify_ip4((const struct sockaddr_in *)address, transport, text, size);
    if (address->ss_family == AF_INET6)
        return identify_ip6((const struct sockaddr_in6 *)address, transport, text, size);
    snprintf(text, size, "%s:local", transport);
    return (struct server_peer_key){SERVER_PEER_USER, UINT32_MAX};
}

struct server_peer_key server_peer_identify(int descriptor, const char *transport, char *text, size_t size)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    struct ucred credentials = {.uid = UINT32_MAX};

    snprintf(text, size, "%s:?", transport);
    if (getpeername(descriptor, (struct sockaddr *)&address, &length) == 0) {
        if (address.ss_family != AF_UNIX)
            return server_peer_of(&address, transport, text, size);
        length = sizeof credentials;
        if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0)
            snprintf(text, size, "unix:pid=%d,uid=%u", credentials.pid, credentials.uid);
    }
    return (struct server_peer_key){SERVER_PEER_USER, credentials.uid};
}

static uint32_t count(const _Atomic uint32_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void raise_count(_Atomic uint32_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

static void lower_count(_Atomic uint32_t *counter)
{
    atomic_fetch_sub_explicit(counter, 1, memory_order_relaxed);
}

static uint32_t bucket_of(const struct server_connection_slots *places, const struct server_peer_key *key)
{
    uint64_t hash = (key->number + (uint64_t)key->kind + 1) * places->salt;
    hash = (hash ^ (hash >> 32)) * places->salt;
    return (uint32_t)(hash >> (64 - SERVER_BUCKETS_BITS));
}

/* On the way those that have left are freed. NULL without memory. */
static struct server_peer *find_peer(struct server_connection_slots *places,
                                     const struct server_peer_key *key)
{
    struct server_peer **link = &places->peers[bucket_of(places, key)], *found = NULL;

    while (*link != NULL) {
        struct server_peer *peer = *link;
        if (peer->key.kind == key->kind && peer->key.number == key->number)
            found = peer;
        /* acquire: whoever gave the last place, or the turns, back is done with it */
        else if (atomic_load_explicit(&peer->connections, memory_order_acquire) == 0 &&
                 atomic_load_explicit(&peer->turns_held, memory_order_acquire) == 0) {
            *link = peer->next;
            free(peer);
            continue;
        }
        link = &peer->next;
    }
    if (found == NULL && (found = calloc(1, sizeof *found)) != NULL) {
        found->key = *key;
        *link = found;
    }
    return found;
}

static uint32_t handshakes_per_peer(const struct config_server_limits *limits)
{
    return config_server_share(limits->handshakes, 1);
}

enum server_turned server_connection_slots_acquire(struct server_connection_slots *places,
                                                   const struct server_peer_key *key,
                                                   _Atomic uint32_t *listener, bool handshake, core_ns now_ns,
                                                   struct server_connection_slot *place)
{
    const struct config_server_limits *limits = places->limits;
    struct server_peer *peer = find_peer(places, key);

    if (peer == NULL)
        return SERVER_TURNED_MEMORY;
    if (count(&peer->connections) >= limits->connections_per_peer)
        return SERVER_TURNED_PEER;
    if (handshake && count(&peer->handshakes) >= handshakes_per_peer(limits))
        return SERVER_TURNED_HANDSHAKES;
    if (count(listener) >= limits->connections_per_listener)
        return SERVER_TURNED_LISTENER;
    if (count(&places->connections) >= limits->connections)
        return SERVER_TURNED_CONNECTIONS;
    if (handshake &&
        !server_buckets_consume(places->begun, bucket_of(places, key), limits->tls_handshakes_per_s, now_ns))
        return SERVER_TURNED_RATE;
    *place = (struct server_connection_slot){.peer = peer, .listener = listener, .handshake = handshake};
    raise_count(&places->connections);
    raise_count(&peer->connections);
    raise_count(listener);
    if (handshake) {
        raise_count(&places->handshakes);
        raise_count(&peer->handshakes);
    }
    return SERVER_TURNED_NOT;
}

enum server_turned server_connection_slots_acquire_unknown(struct server_connection_slots *places,
                                                           _Atomic uint32_t *listener,
                                                           struct server_connection_slot *place)
{
    if (count(listener) >= places->limits->connections_per_listener)
        return SERVER_TURNED_LISTENER;
    if (count(&places->connections) >= places->limits->connections)
        return SERVER_TURNED_CONNECTIONS;
    *place = (struct server_connection_slot){.listener = listener, .handshake = true};
    raise_count(&places->connections);
    raise_count(listener);
    raise_count(&places->handshakes);
    return SERVER_TURNED_NOT;
}

void server_connection_slots_acquire_one(struct server_connection_slots *places)
{
    raise_count(&places->connections);
}

bool server_connection_slots_handshakes_full(const struct server_connection_slots *places)
{
    return count(&places->handshakes) >= places->limits->handshakes;
}

struct server_turns_peer *server_connection_slot_turns(const struct server_connection_slot *place)
{
    if (place->peer == NULL)
        return NULL;
    raise_count(&place->peer->turns_held);
    return &place->peer->turns;
}

void server_connection_slot_turns_release(struct server_turns_peer *turns)
{
    if (turns == NULL)
        return;
    struct server_peer *peer = (void *)((uint8_t *)turns - offsetof(struct server_peer, turns));
    /* release: as in server_connection_slot_release */
    atomic_fetch_sub_explicit(&peer->turns_held, 1, memory_order_release);
}

void server_connection_slot_established(struct server_connection_slots *places,
                                        struct server_connection_slot *place)
{
    if (!place->handshake)
        return;
    place->handshake = false;
    lower_count(&places->handshakes);
    if (place->peer != NULL)
        lower_count(&place->peer->handshakes);
}

void server_connection_slot_release(struct server_connection_slots *places,
                                    struct server_connection_slot *place)
{
    server_connection_slot_established(places, place);
    lower_count(&places->connections);
    if (place->listener != NULL)
        lower_count(place->listener);
    if (place->peer != NULL) /* release: the peer is not touched after this; see find_peer */
        atomic_fetch_sub_explicit(&place->peer->connections, 1, memory_order_release);
    *place = (struct server_connection_slot){0};
}
