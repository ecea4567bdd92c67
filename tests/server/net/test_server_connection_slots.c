/* Who a peer is, and how many places it, its listener and all together have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/net/connection_slots.h"

/* What a server that listens on `listen_at` makes of a client of `host`; empty text: not possible here. */
static struct server_peer_key identify(int family, const char *host, char *text, size_t size)
{
    struct server_peer_key key = {0};
    struct sockaddr_in6 here = {.sin6_family = AF_INET6};
    struct sockaddr_in there4 = {.sin_family = AF_INET};
    socklen_t length = sizeof here;
    int off = 0, listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int client = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    text[0] = '\0';
    (void)setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) == 0 && listen(listener, 1) == 0) {
        assert_int_equal(getsockname(listener, (struct sockaddr *)&here, &length), 0);
        there4.sin_port = here.sin6_port;
        assert_int_equal(
            inet_pton(family, host, family == AF_INET ? (void *)&there4.sin_addr : (void *)&here.sin6_addr),
            1);
        const struct sockaddr *there =
            family == AF_INET ? (struct sockaddr *)&there4 : (struct sockaddr *)&here;
        if (connect(client, there, family == AF_INET ? sizeof there4 : sizeof here) == 0) {
            int accepted = accept(listener, NULL, NULL);
            key = server_peer_identify(accepted, "tls", text, size);
            close(accepted);
        }
    }
    close(client);
    close(listener);
    return key;
}

static void who_a_peer_is(void **state)
{
    char text[96], expected[96];
    struct server_peer_key key;
    int ends[2];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    key = server_peer_identify(ends[0], "tcp", text, sizeof text);
    snprintf(expected, sizeof expected, "unix:pid=%d,uid=%u", getpid(), getuid());
    assert_string_equal(text, expected);
    assert_true(key.kind == SERVER_PEER_USER && key.number == getuid());
    close(ends[0]);
    close(ends[1]);
    key = identify(AF_INET, "127.0.0.1", text, sizeof text);
    if (text[0] == '\0')
        skip(); /* no IPv6 here */
    assert_true(key.kind == SERVER_PEER_IP4 && key.number == htonl(INADDR_LOOPBACK));
    key = identify(AF_INET6, "::1", text, sizeof text);
    assert_memory_equal(text, "tls:[::1]:", 10);
    assert_true(key.kind == SERVER_PEER_IP6 && key.number == 0); /* not the last 64 bits */
}

static const struct config_server_limits limits = {
    .connections = 10, .connections_per_peer = 4, .connections_per_listener = 8, .handshakes = 100};

static enum server_turned take(struct server_connection_slots *places, enum server_peer_kind kind,
                               uint64_t number, _Atomic uint32_t *listener,
                               struct server_connection_slot *place)
{
    const struct server_peer_key key = {kind, number};
    return server_connection_slots_acquire(places, &key, listener, false, 0, place);
}

/* Who has left may still have requests at the planner: its turns stay, however many others come by. */
static void turns_outlast_the_place(void **state)
{
    _Atomic uint32_t listener = 0;
    struct server_connection_slots places;
    struct server_connection_slot place, other;
    struct server_turns_peer mark;
    (void)state;
    assert_int_equal(server_connection_slots_init(&places, &limits), CORE_OK);
    assert_int_equal(take(&places, SERVER_PEER_IP4, 1, &listener, &place), SERVER_TURNED_NOT);
    struct server_turns_peer *turns = server_connection_slot_turns(&place);
    turns->next[0] = &mark;
    server_connection_slot_release(&places, &place);
    for (uint64_t number = 2; number < 100000; number++) {
        assert_int_equal(take(&places, SERVER_PEER_IP4, number, &listener, &other), SERVER_TURNED_NOT);
        server_connection_slot_release(&places, &other);
    }
    assert_int_equal(take(&places, SERVER_PEER_IP4, 1, &listener, &place), SERVER_TURNED_NOT);
    assert_ptr_equal(server_connection_slot_turns(&place), turns);
    assert_ptr_equal(turns->next[0], &mark);
    server_connection_slot_turns_release(turns);
    server_connection_slot_turns_release(turns);
    server_connection_slot_release(&places, &place);
    server_connection_slot_turns_release(NULL);
    assert_null(server_connection_slot_turns(&place));
    server_connection_slots_free(&places);
}

static void each_limit_by_its_name(void **state)
{
    struct server_connection_slots places;
    struct server_connection_slot held[10], more;
    _Atomic uint32_t tcp = 0, local = 0;
    (void)state;
    assert_int_equal(server_connection_slots_init(&places, &limits), CORE_OK);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++)
            assert_int_equal(take(&places, SERVER_PEER_IP4, 1, &tcp, &held[i]), SERVER_TURNED_NOT);
        assert_int_equal(take(&places, SERVER_PEER_IP4, 1, &tcp, &more), SERVER_TURNED_PEER);
        assert_int_equal(take(&places, SERVER_PEER_IP4, 1, &local, &more), SERVER_TURNED_PEER);
        for (int i = 4; i < 8; i++)
            assert_int_equal(take(&places, SERVER_PEER_IP6, 1, &tcp, &held[i]), SERVER_TURNED_NOT);
        assert_int_equal(take(&places, SERVER_PEER_IP4, 2, &tcp, &more), SERVER_TURNED_LISTENER);
        for (int i = 8; i < 10; i++)
            assert_int_equal(take(&places, SERVER_PEER_USER, 1, &local, &held[i]), SERVER_TURNED_NOT);
        assert_int_equal(take(&places, SERVER_PEER_USER, 1, &local, &more), SERVER_TURNED_CONNECTIONS);
        for (int i = 0; i < 10; i++)
            server_connection_slot_release(&places, &held[i]);
        assert_true(tcp == 0 && local == 0 && places.connections == 0);
    }
    server_connection_slots_free(&places);
}

static void handshakes_count_as_connections(void **state)
{
    static struct server_connection_slot held[64];
    static const struct config_server_limits wide = {.connections = 1000,
                                                     .connections_per_peer = 1000,
                                                     .connections_per_listener = 1000,
                                                     .handshakes = 128};
    const struct server_peer_key one = {SERVER_PEER_IP4, 1}, other = {SERVER_PEER_IP4, 2};
    struct server_connection_slots places;
    struct server_connection_slot more, others[64];
    _Atomic uint32_t tls = 0;
    (void)state;
    assert_int_equal(server_connection_slots_init(&places, &wide), CORE_OK);
    for (int i = 0; i < 64; i++)
        assert_int_equal(server_connection_slots_acquire(&places, &one, &tls, true, 0, &held[i]),
                         SERVER_TURNED_NOT);
    assert_int_equal(server_connection_slots_acquire(&places, &one, &tls, true, 0, &more),
                     SERVER_TURNED_HANDSHAKES);
    assert_false(server_connection_slots_handshakes_full(&places));
    for (int i = 0; i < 64; i++)
        assert_int_equal(server_connection_slots_acquire(&places, &other, &tls, true, 0, &others[i]),
                         SERVER_TURNED_NOT);
    assert_true(server_connection_slots_handshakes_full(&places));
    server_connection_slot_established(&places, &held[0]);
    server_connection_slot_release(&places, &held[0]);
    server_connection_slot_release(&places, &held[1]);
    assert_int_equal(places.handshakes, 126);
    for (int i = 0; i < 2; i++)
        assert_int_equal(server_connection_slots_acquire(&places, &one, &tls, true, 0, &held[i]),
                         SERVER_TURNED_NOT);
    for (int i = 0; i < 64; i++) {
        server_connection_slot_release(&places, &held[i]);
        server_connection_slot_release(&places, &others[i]);
    }
    assert_true(tls == 0 && places.connections == 0 && places.handshakes == 0);
    server_connection_slots_free(&places);
}

/* Who leaves and comes again has no more of them; another peer has its own, and what is no TLS none. */
static void handshakes_of_a_peer_in_a_second(void **state)
{
    static const struct config_server_limits wide = {.connections = 1000,
                                                     .connections_per_peer = 1000,
                                                     .connections_per_listener = 1000,
                                                     .handshakes = 1000,
                                                     .tls_handshakes_per_s = 10};
    const struct server_peer_key one = {SERVER_PEER_IP4, 1}, other = {SERVER_PEER_IP6, 2};
    struct server_connection_slots places;
    struct server_connection_slot place;
    _Atomic uint32_t tls = 0;
    (void)state;
    assert_int_equal(server_connection_slots_init(&places, &wide), CORE_OK);
    places.salt = 0x9e3779b97f4a7c15; /* the two have buckets of their own */
    for (int i = 0; i < 20; i++) {
        assert_int_equal(server_connection_slots_acquire(&places, &one, &tls, true, 0, &place),
                         SERVER_TURNED_NOT);
        server_connection_slot_release(&places, &place);
    }
    assert_int_equal(server_connection_slots_acquire(&places, &one, &tls, true, 0, &place),
                     SERVER_TURNED_RATE);
    assert_true(tls == 0 && places.connections == 0 && places.handshakes == 0);
    assert_int_equal(server_connection_slots_acquire(&places, &one, &tls, false, 0, &place),
                     SERVER_TURNED_NOT);
    server_connection_slot_release(&places, &place);
    assert_int_equal(server_connection_slots_acquire(&places, &other, &tls, true, 0, &place),
                     SERVER_TURNED_NOT);
    server_connection_slot_release(&places, &place);
    assert_int_equal(server_connection_slots_acquire(&places, &one, &tls, true, CORE_NS_PER_S / 10, &place),
                     SERVER_TURNED_NOT);
    server_connection_slot_release(&places, &place);
    server_connection_slots_free(&places);
}

/* Of many that came and went none is confused with another, and (the sanitizer says) none stays in memory. */
static void a_million_peers(void **state)
{
    struct server_connection_slots places;
    struct server_connection_slot place, kept;
    _Atomic uint32_t listener = 0;
    (void)state;
    assert_int_equal(server_connection_slots_init(&places, &limits), CORE_OK);
    assert_int_equal(take(&places, SERVER_PEER_IP4, 7, &listener, &kept), SERVER_TURNED_NOT);
    for (uint64_t i = 0; i < 1000000; i++) {
        assert_int_equal(take(&places, (enum server_peer_kind)(i % 3), i << (i % 40), &listener, &place),
                         SERVER_TURNED_NOT);
        server_connection_slot_release(&places, &place);
    }
    server_connection_slot_release(&places, &kept);
    assert_int_equal(listener, 0);
    server_connection_slots_free(&places);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_a_peer_is),          cmocka_unit_test(turns_outlast_the_place),
        cmocka_unit_test(each_limit_by_its_name), cmocka_unit_test(handshakes_count_as_connections),
        cmocka_unit_test(a_million_peers),        cmocka_unit_test(handshakes_of_a_peer_in_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
