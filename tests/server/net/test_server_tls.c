/* The same protocol inside TLS 1.3, with and without client certificates, and what is not TLS 1.3. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>

#include "tests/support/certificates.h"
#include "tests/support/client.h"
#include "tests/support/random.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

enum {
    OPEN_PORT,
    CLOSED_PORT,
    LONG_PORT
}; /* listeners: the second asks for a client certificate, the third
      shows a long chain */

static struct test_server server;
static SSL_CTX *known, *nameless, *stranger;

static int set_up(void **state)
{
    (void)state;
    test_server_prepare(&server);
    test_certificates_write(server.folder);
    test_server_start(&server,
                      "listeners:\n"
                      "  - {address: 'tls:127.0.0.1:0', certificate: server.pem, key: server.key}\n"
                      "  - {address: 'tls:127.0.0.1:0', certificate: server.pem, key: server.key, "
                      "client_ca: ca.pem}\n"
                      "  - {address: 'tls:127.0.0.1:0', certificate: long.pem, key: server.key}\n"
                      "timeouts: {hello_ms: 240000}\n",
                      &test_profile_generous);
    known = test_certificates_client(server.folder, "client");
    nameless = test_certificates_client(server.folder, NULL);
    stranger = test_certificates_client(server.folder, "stranger");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    SSL_CTX_free(known);
    SSL_CTX_free(nameless);
    SSL_CTX_free(stranger);
    return test_server_stop(&server) == 0 ? 0 : -1;
}

static void connect_to(struct test_client *client, uint32_t port, SSL_CTX *context)
{
    struct protocol_welcome welcome;
    test_client_dial(client, server_address(server.server, port));
    assert_true(test_client_secure(client, context));
    test_client_hello(client, &welcome);
    assert_string_equal(SSL_get_version(client->tls), "TLSv1.3");
    assert_int_equal(welcome.flags, PROTOCOL_ALLOWS_INLINE_KEY);
}

/* No WELCOME: with TLS 1.3 a client learns only after its own last word that it was turned away. */
static void expect_turned_away(uint32_t port, SSL_CTX *context)
{
    uint8_t bytes[TEST_FRAME_BYTES];
    struct test_client client;
    test_client_dial(&client, server_address(server.server, port));
    if (test_client_secure(&client, context)) {
        (void)test_client_send(&client, bytes, protocol_hello_write(bytes, 1, 1));
        test_client_expect_end(&client);
    }
    test_client_close(&client);
}

static void random_packets(struct test_client *client, uint64_t seed)
{
    struct test_random random = {.state = seed};
    struct core_stream_spec spec = test_spec;
    struct test_stream *streams[4];
    uint32_t waiting = 0;

    spec.interval_ns = 50 * CORE_NS_PER_US;
    spec.packet_bytes = 20000; /* longer than a TLS record */
    spec.padding = CORE_PADDING_PKCS7;
    for (uint32_t i = 0; i < 4; i++)
        streams[i] = test_stream_open(client, &spec, seed + i);
    for (uint32_t i = 0; i < 2000; i++) {
        struct test_stream *stream = streams[test_random_in(&random, 0, 3)];
        assert_true(test_stream_send(stream, (uint32_t)test_random_log(&random, 1, spec.packet_bytes)));
        for (waiting++; waiting > 100; waiting--)
            (void)test_streams_take(client, streams);
    }
    for (; waiting > 0; waiting--)
        (void)test_streams_take(client, streams);
    for (uint32_t i = 0; i < 4; i++) {
        (void)test_stream_close(streams[i]);
        test_stream_free(streams[i]);
    }
}

static void packets_longer_and_shorter_than_records(void **state)
{
    struct test_client client;
    (void)state;
    connect_to(&client, OPEN_PORT, nameless);
    random_packets(&client, 21);
    test_client_close(&client);
}

static void one_byte_a_record(void **state)
{
    uint8_t frame[TEST_FRAME_BYTES];
    struct test_client client;
    (void)state;
    connect_to(&client, OPEN_PORT, nameless);
    struct test_stream *stream = test_stream_open(&client, &test_spec, 1);
    for (int packet = 0; packet < 4; packet++) {
        size_t bytes = test_stream_frame(stream, 128, frame);
        test_client_send_cut(&client, frame, bytes, 1, 1);
    }
    test_stream_drain(stream);
    test_stream_free(stream);
    test_client_close(&client);
}

/* The server's first words do not fit into its socket at once: it must wait for room, not only for answers.
 */
static void a_handshake_in_many_pieces(void **state)
{
    const struct core_address *address = server_address(server.server, LONG_PORT);
    struct sockaddr_in target = {
        .sin_family = AF_INET, .sin_port = htons(address->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct test_client client = {.descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    int segment_bytes = 536, window_bytes = 4096;
    (void)state;
    assert_true(client.descriptor >= 0);
    assert_int_equal(
        setsockopt(client.descriptor, IPPROTO_TCP, TCP_MAXSEG, &segment_bytes, sizeof segment_bytes), 0);
    assert_int_equal(setsockopt(client.descriptor, SOL_SOCKET, SO_RCVBUF, &window_bytes, sizeof window_bytes),
                     0);
    assert_int_equal(connect(client.descriptor, (struct sockaddr *)&target, sizeof target), 0);
    assert_int_equal(fcntl(client.descriptor, F_SETFL, O_NONBLOCK), 0);
    assert_true(test_client_secure(&client, nameless));
    test_client_hello(&client, NULL);
    random_packets(&client, 23);
    test_client_close(&client);
}

static void client_certificates(void **state)
{
    struct test_client client;
    (void)state;
    connect_to(&client, CLOSED_PORT, known);
    random_packets(&client, 22);
    test_client_close(&client);
    expect_turned_away(CLOSED_PORT, nameless);
    expect_turned_away(CLOSED_PORT, stranger);
    connect_to(&client, OPEN_PORT, known); /* shows one where none is asked for */
    test_client_ping(&client);
    test_client_close(&client);
}

/* A client library may offer to resume the session of its last connection. */
static void a_second_connection_with_the_first_one_s_session(void **state)
{
    struct test_client client;
    (void)state;
    for (uint32_t port = OPEN_PORT; port <= CLOSED_PORT; port++) {
        connect_to(&client, port, known);
        test_client_ping(&client); /* tickets, if any, have come */
        SSL_SESSION *session = SSL_get1_session(client.tls);
        (void)SSL_shutdown(client.tls); /* else OpenSSL would not use it again */
        test_client_close(&client);

        test_client_dial(&client, server_address(server.server, port));
        SSL *tls = SSL_new(known);
        assert_non_null(tls);
        assert_int_equal(SSL_set_session(tls, session), 1);
        SSL_SESSION_free(session);
        assert_int_equal(SSL_set_fd(tls, client.descriptor), 1);
        SSL_set_connect_state(tls);
        client.tls = tls;
        test_client_hello(&client, NULL); /* writing makes the handshake */
        test_client_ping(&client);
        test_client_close(&client);
    }
}

static void older_tls(void **state)
{
    SSL_CTX *old = test_certificates_client(server.folder, NULL);
    (void)state;
    assert_int_equal(SSL_CTX_set_max_proto_version(old, TLS1_2_VERSION), 1);
    expect_turned_away(OPEN_PORT, old);
    SSL_CTX_free(old);
}

static void no_tls_at_all(void **state)
{
    uint8_t bytes[TEST_FRAME_BYTES];
    struct test_client client;
    (void)state;
    test_client_dial(&client, server_address(server.server, OPEN_PORT));
    assert_true(test_client_send(&client, bytes, protocol_hello_write(bytes, 1, 1)));
    while (test_client_fill(&client, SIZE_MAX)) /* at most an alert, then the end */
        sched_yield();
    test_client_close(&client);
}

/* Neither silence nor half a handshake holds a place for longer than the hello time. */
static void a_handshake_that_does_not_go_on(void **state)
{
    static const uint8_t half[] = {22, 3, 1, 2, 0, 1, 0};
    struct test_server hasty; /* the others are given all the time they need */
    struct test_client silent, halting;
    (void)state;
    test_server_prepare(&hasty);
    test_certificates_write(hasty.folder);
    test_server_start(&hasty,
                      "listeners: [{address: 'tls:127.0.0.1:0', certificate: server.pem, key: server.key}]\n"
                      "timeouts: {hello_ms: 500}\n",
                      &test_profile_generous);
    test_client_dial(&silent, server_address(hasty.server, OPEN_PORT));
    test_client_dial(&halting, server_address(hasty.server, OPEN_PORT));
    assert_true(test_client_send(&halting, half, sizeof half));
    test_client_expect_end(&silent);
    test_client_expect_end(&halting);
    test_client_close(&silent);
    test_client_close(&halting);
    assert_int_equal(test_server_stop(&hasty), 0);
}

static void a_half_closed_connection_gets_everything(void **state)
{
    struct protocol_closed closed;
    struct test_client client;
    struct test_frame frame;
    (void)state;
    connect_to(&client, OPEN_PORT, nameless);
    struct test_stream *stream = test_stream_open(&client, &test_spec, 3);
    for (int i = 0; i < 60; i++)
        assert_true(test_stream_send(stream, 1408));
    assert_true(SSL_shutdown(client.tls) >= 0); /* close_notify only: ours still to come */
    test_stream_drain(stream);
    test_client_expect(&client, PROTOCOL_CLOSED, &frame);
    assert_int_equal(protocol_closed_read(frame.body, frame.header.body_bytes, &closed, NULL), CORE_OK);
    assert_true(closed.reason == PROTOCOL_CLOSE_ASKED && closed.packets == 60);
    test_client_expect_end(&client);
    assert_true((SSL_get_shutdown(client.tls) & SSL_RECEIVED_SHUTDOWN) != 0); /* told, not cut off */
    test_stream_free(stream);
    test_client_close(&client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packets_longer_and_shorter_than_records),
        cmocka_unit_test(one_byte_a_record),
        cmocka_unit_test(a_handshake_in_many_pieces),
        cmocka_unit_test(client_certificates),
        cmocka_unit_test(a_second_connection_with_the_first_one_s_session),
        cmocka_unit_test(older_tls),
        cmocka_unit_test(no_tls_at_all),
        cmocka_unit_test(a_handshake_that_does_not_go_on),
        cmocka_unit_test(a_half_closed_connection_gets_everything),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
