/* PROXY v2 headers: what is taken and what is not, however they are cut; and a server whose peers are those that
 * the headers name, in its log, its limits and its keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>

#include "server/net/connection_slots.h"
#include "server/net/io.h"
#include "server/net/proxy.h"
#include "server/server_internal.h"
#include "tests/support/certificates.h"
#include "tests/support/http.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#define SIGNATURE "\r\n\r\n\0\r\nQUIT\n"
#define TCP4(last)                                                                                           \
    SIGNATURE "\x21\x11\0\x0c\xc0\0\2" last "\xc0\0\2\1"                                                     \
              "\x12\x67\x1c\xf7"
#define TCP6(host)                                                                                           \
    SIGNATURE "\x21\x21\0\x24\x20\1\x0d\xb8\0\0\0\1\0\0\0\0\0\0\0" host                                      \
              "\x20\1\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\1"                                                       \
              "\x12\x67\x1c\xf7"
#define LOCAL       SIGNATURE "\x20\0\0\0"
#define BYTES(text) text, sizeof(text) - 1

/* ---- the header alone ---- */

/* In pieces of at most so many bytes. */
static core_status take(const char *bytes, size_t count, size_t most, struct server_proxy *proxy,
                        size_t *taken, struct core_error *error)
{
    core_status status = CORE_AGAIN;
    *proxy = (struct server_proxy){.got = 0};
    for (*taken = 0; status == CORE_AGAIN && *taken < count;) {
        size_t room_bytes;
        uint8_t *room = server_proxy_room(proxy, &room_bytes);
        assert_true(room_bytes > 0);
        size_t now = room_bytes < most ? room_bytes : most;
        now = now < count - *taken ? now : count - *taken;
        memcpy(room, bytes + *taken, now);
        *taken += now;
        status = server_proxy_take(proxy, now, error);
    }
    return status;
}

static void every_header_cut_anywhere(void **state)
{
    static char with_extensions[16 + 12 + 4000], unix_names[16 + 216];
    static const struct {
        const char *bytes;
        size_t count;
        const char *peer; /* NULL: that of the socket */
    } rows[] = {
        {BYTES(TCP4("\7")), "tcp:192.0.2.7:4711"},
        {BYTES(TCP6("\7")), "tcp:[2001:db8:0:1::7]:4711"},
        {BYTES(LOCAL), NULL},
        {BYTES(SIGNATURE "\x20\x11\0\x0c\xc0\0\2\7\xc0\0\2\1\x12\x67\x1c\xf7"), NULL}, /* LOCAL has none */
        {BYTES(SIGNATURE "\x21\0\0\0"), NULL},
        {BYTES(SIGNATURE "\x21\0\0\5\3\0\2xy"), NULL},
        {with_extensions, sizeof with_extensions, "tcp:192.0.2.7:4711"},
        {unix_names, sizeof unix_names, "tcp:local"},
    };
    (void)state;
    memcpy(with_extensions, BYTES(TCP4("\7")));
    with_extensions[14] = (12 + 4000) >> 8;
    with_extensions[15] = (char)((12 + 4000) & 255);
    memset(with_extensions + 28, 4, 4000);
    memcpy(unix_names, BYTES(SIGNATURE "\x21\x31\0\xd8"));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t most = 1; most < 60; most++) {
            struct server_proxy proxy;
            struct sockaddr_storage client;
            char peer[96] = "", longer[5000];
            size_t taken;
            memcpy(longer, rows[i].bytes, rows[i].count);
            memset(longer + rows[i].count, 'x', 100); /* is left */
            assert_int_equal(take(longer, rows[i].count + 100, most, &proxy, &taken, NULL), CORE_OK);
            assert_int_equal(taken, rows[i].count);
            assert_int_equal(take(longer, rows[i].count - 1, most, &proxy, &taken, NULL), CORE_AGAIN);
            assert_int_equal(take(longer, rows[i].count, most, &proxy, &taken, NULL), CORE_OK);
            assert_int_equal(server_proxy_client(&proxy, &client), rows[i].peer != NULL);
            if (rows[i].peer != NULL) {
                (void)server_peer_of(&client, "tcp", peer, sizeof peer);
                assert_string_equal(peer, rows[i].peer);
            }
        }
}

static void what_is_no_header(void **state)
{
    static const struct {
        const char *bytes;
        size_t count, most; /* no more bytes than this are looked at */
        const char *words;
    } rows[] = {
        {BYTES("PROXY TCP4 192.0.2.7 192.0.2.1 4711 7415\r\n"), 16, "version 1"},
        {BYTES("PROXI"), 5, "no PROXY header"},
        {BYTES("\x08\0\0\0\1\0\0\0"), 1, "no PROXY header"}, /* HELLO */
        {BYTES("\x16\3\1\2\0\1\0\1"), 1, "no PROXY header"}, /* TLS */
        {BYTES("\r\n\r\n\0\r\nQUIX"), 11, "no PROXY header"},
        {BYTES(SIGNATURE "\x11\x11\0\x0c"), 16, "unknown version or command"},
        {BYTES(SIGNATURE "\x22\x11\0\x0c"), 16, "unknown version or command"},
        {BYTES(SIGNATURE "\x21\x12\0\x0c"), 16, "another family"}, /* UDP */
        {BYTES(SIGNATURE "\x21\x41\0\x0c"), 16, "another family"},
        {BYTES(SIGNATURE "\x21\x11\0\x0b"), 16, "no room for the addresses"},
        {BYTES(SIGNATURE "\x21\x21\0\x23"), 16, "no room for the addresses"},
        {BYTES(SIGNATURE "\x21\x31\0\xd7"), 16, "no room for the addresses"},
        {BYTES(SIGNATURE "\x21\x11\x0f\xf1"), 16, "of 4097 bytes"},
        {BYTES(SIGNATURE "\x20\0\xff\xff"), 16, "of 65551 bytes"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct server_proxy proxy;
        struct core_error error = {""};
        size_t taken;
        assert_int_equal(take(rows[i].bytes, rows[i].count, SIZE_MAX, &proxy, &taken, &error), CORE_INVALID);
        assert_non_null(strstr(error.text, rows[i].words));
        error = (struct core_error){""};
        assert_int_equal(take(rows[i].bytes, rows[i].count, 1, &proxy, &taken, &error), CORE_INVALID);
        assert_non_null(strstr(error.text, rows[i].words));
        assert_true(taken <= rows[i].most);
    }
}

/* ---- a server behind a proxy ---- */

enum { UNIX, TCP, TLS };

static void start(struct test_server *server, const char *more)
{
    char text[1024];
    snprintf(text, sizeof text,
             "listeners: [{address: 'unix:socket', proxy: v2}, {address: 'tcp:127.0.0.1:0', proxy: v2}, "
             "{address: 'tls:127.0.0.1:0', proxy: v2, certificate: server.pem, key: server.key}]\n"
             "admin: unix:admin\nkeyring: keyring\n%s",
             more);
    test_server_prepare(server);
    test_certificates_write(server->folder);
    test_server_write(server, "keyring",
                      TEST_KEYRING "of-users aes-128-cbc 000102030405060708090a0b0c0d0e0f user=0\n"
                                   "of-known aes-128-cbc 000102030405060708090a0b0c0d0e0f\n");
    test_server_start(server, text, &test_profile_generous);
}

static uint64_t turned(const struct test_server *server, int listener, enum server_turned reason)
{
    return atomic_load(&server->server->listeners[listener].turned[reason]);
}

static void await_turned(const struct test_server *server, int listener, enum server_turned reason,
                         uint64_t count)
{
    const core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (turned(server, listener, reason) < count) {
        TEST_REQUIRE(core_time_now_ns() < until_ns);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}

static void dial(struct test_client *client, const struct test_server *server, uint32_t listener,
                 const char *header, size_t bytes)
{
    test_client_dial(client, server_address(server->server, listener));
    assert_true(test_client_send(client, header, bytes));
}

static void expect_peer(const struct test_server *server, const char *peer)
{
    json_t *status = http_json(server_admin_address(server->server), "/status?streams=1");
    const json_t *stream = json_array_get(json_object_get(status, "streams"), 0);
    assert_string_equal(json_string_value(json_object_get(stream, "peer")), peer);
    json_decref(status);
}

static void traffic(struct test_client *client, uint64_t seed)
{
    struct test_stream *stream = test_stream_open(client, &test_spec, seed);
    for (int i = 0; i < 20; i++)
        assert_true(test_stream_send(stream, 1408));
    test_stream_drain(stream);
    test_stream_free(stream);
}

static void peers_are_the_clients(void **state)
{
    struct test_server server;
    struct test_client client;
    (void)state;
    start(&server, "");
    SSL_CTX *tls = test_certificates_client(server.folder, NULL);
    for (int round = 0; round < 4; round++) {
        static const char *const peers[] = {"tcp:192.0.2.7:4711", "tcp:[2001:db8:0:1::7]:4711",
                                            "tls:192.0.2.7:4711", "tls:192.0.2.7:4711"};
        static const char four[] = TCP4("\7"), six[] = TCP6("\7");
        const uint32_t listener = round < 2 ? TCP : TLS;
        const char *header = round == 1 ? six : four;
        const size_t bytes = round == 1 ? sizeof six - 1 : sizeof four - 1;
        if (round == 3) { /* byte by byte */
            dial(&client, &server, listener, header, 1);
            for (size_t at = 1; at < bytes; at++)
                assert_true(test_client_send(&client, header + at, 1));
        } else {
            dial(&client, &server, listener, header, bytes);
        }
        if (listener == TLS)
            assert_true(test_client_secure(&client, tls));
        test_client_hello(&client, NULL);
        traffic(&client, 1);
        expect_peer(&server, peers[round]);
        test_client_close(&client);
    }
    SSL_CTX_free(tls);
    assert_int_equal(test_server_stop(&server), 0);
}

/* What a proxy says itself, and HELLO in the same segment as the header. */
static void local_and_all_at_once(void **state)
{
    struct test_server server;
    struct test_client client;
    struct test_frame frame;
    uint8_t bytes[64];
    (void)state;
    start(&server, "");
    memcpy(bytes, BYTES(LOCAL));
    const size_t count = 16 + protocol_hello_write(bytes + 16, 1, 3);
    dial(&client, &server, TCP, (const char *)bytes, count);
    test_client_expect(&client, PROTOCOL_WELCOME, &frame);
    client.welcome_flags = 0;
    client.version = 3;
    json_t *status = http_json(server_admin_address(server.server), "/status");
    json_decref(status);
    test_client_close(&client);
    for (int i = 0; i < 3; i++) { /* as HAProxy looks whether there is a server */
        dial(&client, &server, TCP, BYTES(LOCAL));
        test_client_close(&client);
        test_client_dial(&client, server_address(server.server, TCP));
        test_client_close(&client);
    }
    await_turned(&server, TCP, SERVER_TURNED_GONE, 3);
    assert_int_equal(turned(&server, TCP, SERVER_TURNED_PROXY), 0);
    assert_int_equal(test_server_stop(&server), 0);
}

static void limits_are_the_clients(void **state)
{
    struct test_server server;
    struct test_client clients[5], late;
    (void)state;
    start(&server, "limits: {connections_per_peer: 2}");
    for (int i = 0; i < 5; i++) { /* two of one, two of another, one of a third; in one /64 */
        if (i < 2)
            dial(&clients[i], &server, TCP, BYTES(TCP4("\7")));
        else if (i < 4)
            dial(&clients[i], &server, TCP, BYTES(TCP6("\7")));
        else
            dial(&clients[i], &server, TCP, BYTES(TCP4("\x9")));
        test_client_hello(&clients[i], NULL);
    }
    dial(&late, &server, TCP, BYTES(TCP4("\7")));
    test_client_expect_error(&late, PROTOCOL_ERROR_LIMIT, 0, true);
    test_client_close(&late);
    dial(&late, &server, TCP, BYTES(TCP6("\x9")));
    test_client_expect_error(&late, PROTOCOL_ERROR_LIMIT, 0, true);
    test_client_close(&late);
    assert_int_equal(turned(&server, TCP, SERVER_TURNED_PEER), 2);
    for (int i = 0; i < 5; i++)
        test_client_close(&clients[i]);
    assert_int_equal(test_server_stop(&server), 0);
}

/* A key of a user's, or of everybody who is known, is not for whom a proxy brings. */
static void keys_are_not_the_proxys(void **state)
{
    static const char *const names[] = {"of-users", "of-known"};
    struct test_server server;
    struct test_client client;
    struct protocol_refused refused;
    (void)state;
    start(&server, "");
    for (size_t i = 0; i < 2; i++) {
        const struct protocol_open open = {.spec = test_spec,
                                           .key_kind = PROTOCOL_KEY_NAMED,
                                           .key = (const uint8_t *)names[i],
                                           .key_bytes = (uint16_t)strlen(names[i])};
        dial(&client, &server, UNIX, BYTES(TCP4("\7")));
        test_client_hello(&client, NULL);
        assert_false(test_client_ask(&client, PROTOCOL_OPEN, &open, NULL, &refused));
        assert_int_equal(refused.code, PROTOCOL_REFUSED_KEY);
        test_client_close(&client);
        dial(&client, &server, UNIX, BYTES(LOCAL)); /* the proxy itself is who it is */
        test_client_hello(&client, NULL);
        if (i > 0) /* every user's */
            assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, NULL, &refused));
        test_client_close(&client);
    }
    assert_int_equal(test_server_stop(&server), 0);
}

/* A client may have come to the proxy by a plain network; TLS that ends here is its own. */
static void inline_keys_come_by_no_proxy(void **state)
{
    static const uint8_t key[16] = {1};
    static const char of_known[] = "of-known";
    static const struct {
        uint32_t listener;
        const char *header;
        size_t bytes;
        bool granted, is_user;
    } rows[] = {
        {UNIX, BYTES(TCP4("\7")), false, false},
        {UNIX, BYTES(TCP6("\7")), false, false},
        {UNIX, BYTES(SIGNATURE "\x21\0\0\0"), false, false}, /* UNKNOWN */
        {UNIX, BYTES(LOCAL), true, true},
        {TCP, BYTES(LOCAL), false, false},
        {TLS, BYTES(TCP4("\7")), true, false},
        {TLS, BYTES(SIGNATURE "\x21\0\0\0"), true, false},
    };
    struct test_server server;
    (void)state;
    start(&server, "");
    SSL_CTX *tls = test_certificates_client(server.folder, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct protocol_open by_key = test_open_inline(&test_spec, key);
        const struct protocol_open by_name = {.spec = test_spec,
                                              .key_kind = PROTOCOL_KEY_NAMED,
                                              .key = (const uint8_t *)of_known,
                                              .key_bytes = (uint16_t)strlen(of_known)};
        struct test_client client;
        struct protocol_refused refused;
        dial(&client, &server, rows[i].listener, rows[i].header, rows[i].bytes);
        if (rows[i].listener == TLS)
            assert_true(test_client_secure(&client, tls));
        test_client_hello(&client, NULL);
        assert_int_equal((client.welcome_flags & PROTOCOL_ALLOWS_INLINE_KEY) != 0, rows[i].granted);
        assert_int_equal(test_client_ask(&client, PROTOCOL_OPEN, &by_key, NULL, &refused), rows[i].granted);
        if (rows[i].listener == UNIX)
            assert_int_equal(test_client_ask(&client, PROTOCOL_OPEN, &by_name, NULL, &refused),
                             rows[i].is_user);
        test_client_close(&client);
    }
    SSL_CTX_free(tls);
    assert_int_equal(test_server_stop(&server), 0);
}

/* Who sends no header, half of one, or another is closed, and keeps nobody out. */
static void strangers(void **state)
{
    struct test_server server;
    struct test_client stranger, stalled[8], client;
    (void)state;
    start(&server, "limits: {handshakes: 8}\ntimeouts: {hello_ms: 300}");
    dial(&stranger, &server, TCP, BYTES("PROXY TCP4 192.0.2.7 192.0.2.1 4711 7415\r\n"));
    test_client_expect_end(&stranger);
    test_client_close(&stranger);
    dial(&stranger, &server, TLS, BYTES("\x16\3\1\2\0\1\0\1"));
    test_client_expect_end(&stranger);
    test_client_close(&stranger);
    assert_int_equal(turned(&server, TCP, SERVER_TURNED_PROXY) + turned(&server, TLS, SERVER_TURNED_PROXY),
                     2);
    for (int i = 0; i < 8; i++)
        dial(&stalled[i], &server, i % 2 == 0 ? TCP : UNIX, BYTES(SIGNATURE));
    dial(&client, &server, TCP, BYTES(TCP4("\7")));
    test_client_hello(&client, NULL); /* once their time is over */
    for (int i = 0; i < 8; i++) {
        test_client_expect_end(&stalled[i]);
        test_client_close(&stalled[i]);
    }
    assert_int_equal(turned(&server, TCP, SERVER_TURNED_TIMEOUT), 4);
    assert_int_equal(turned(&server, UNIX, SERVER_TURNED_TIMEOUT), 4);
    const core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (atomic_load(&server.server->places.handshakes) != 0) /* given back behind the close that we saw */
        TEST_REQUIRE(core_time_now_ns() < until_ns);
    traffic(&client, 2);
    dial(&stalled[0], &server, TCP, BYTES(SIGNATURE));
    test_client_ping(&client);
    assert_int_equal(test_server_stop(&server), 0); /* with one on its way */
    test_client_close(&stalled[0]);
    test_client_close(&client);
}

/* Keeps I/O thread 0 until it has mail of so many clients, and then until it is to drain. */
#define COMERS 8
static _Atomic bool holds, all_came;

static void hold(void *owner, struct server_message *message)
{
    struct server_io *io = owner;
    bool drains = false;
    (void)message;
    atomic_store(&holds, true);
    while (!drains) {
        const struct server_message *mail = atomic_load(&io->mailbox.head);
        uint32_t count = 0;
        for (; mail != NULL; mail = mail->next, count++)
            drains |= mail == &io->drain_message;
        atomic_store(&all_came, count >= COMERS);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
}

/* Whose header is whole while the server stops is closed as all others are, and nothing of it is left. */
static void who_comes_while_the_server_stops(void **state)
{
    static const char header[] = TCP4("\7");
    struct server_message holder = {.run = hold};
    struct test_client clients[COMERS];
    struct test_server server;
    struct test_frame frame;
    (void)state;
    start(&server, "");
    for (int i = 0; i < COMERS; i++)
        dial(&clients[i], &server, TCP, header, sizeof header - 2);
    while (atomic_load(&server.server->places.handshakes) < COMERS)
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    server_mailbox_post(server_io_mailbox(server.server->ios[0]), &holder);
    while (!atomic_load(&holds)) /* what comes from here on is in the mailbox */
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    for (int i = 0; i < COMERS; i++)
        assert_int_equal(test_client_push(&clients[i], header + sizeof header - 2, 1), 1);
    while (!atomic_load(&all_came))
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    assert_int_equal(test_server_stop(&server), 0);
    for (int i = 0; i < COMERS; i++) {
        enum test_outcome outcome = TEST_FRAME;
        while (outcome == TEST_FRAME)
            outcome = test_client_next(&clients[i], &frame, 20000); /* it came, or never will */
        assert_int_equal(outcome, TEST_END);
        test_client_close(&clients[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_header_cut_anywhere),
        cmocka_unit_test(what_is_no_header),
        cmocka_unit_test(peers_are_the_clients),
        cmocka_unit_test(local_and_all_at_once),
        cmocka_unit_test(limits_are_the_clients),
        cmocka_unit_test(keys_are_not_the_proxys),
        cmocka_unit_test(inline_keys_come_by_no_proxy),
        cmocka_unit_test(strangers),
        cmocka_unit_test(who_comes_while_the_server_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
