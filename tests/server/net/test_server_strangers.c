/* Whoever can connect costs an I/O thread no more than a turn, and nobody else a place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/admin/prometheus.h"
#include "server/admin/snapshot.h"
#include "server/net/connection.h"
#include "server/net/handshake.h"
#include "server/net/transport.h"
#include "tests/support/certificates.h"
#include "tests/support/client.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

/* ---- what the server's threads do: the functions they call are counted ---- */

static _Atomic uint32_t handshakes_elsewhere; /* calls of SSL_accept by other threads than tls-N */
static _Atomic uint32_t handshakes_made;
static _Atomic uint32_t most_accepts, most_reads, most_inputs, most_questions; /* in one turn of a thread */
static _Atomic uint32_t most_bytes; /* that one read took from a socket */
static _Atomic bool gate_closed;    /* io-0 begins no turn */
static _Atomic bool gate_reached;
static _Atomic bool handshakers_ended;
static __thread uint32_t accepts, reads, inputs, questions;

static void note_most(_Atomic uint32_t *most, uint32_t count)
{
    if (count > atomic_load(most)) /* one thread alone counts each */
        atomic_store(most, count);
}

static bool in_thread(const char *prefix)
{
    char name[16] = "";
    TEST_REQUIRE(pthread_getname_np(pthread_self(), name, sizeof name) == 0);
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

int __real_SSL_accept(SSL *tls);
int __wrap_SSL_accept(SSL *tls);
int __wrap_SSL_accept(SSL *tls)
{
    if (in_thread("tls-"))
        atomic_fetch_add(&handshakes_made, 1);
    else
        atomic_fetch_add(&handshakes_elsewhere, 1);
    return __real_SSL_accept(tls);
}

int __real_SSL_read_ex(SSL *tls, void *buffer, size_t bytes, size_t *got);
int __wrap_SSL_read_ex(SSL *tls, void *buffer, size_t bytes, size_t *got);
int __wrap_SSL_read_ex(SSL *tls, void *buffer, size_t bytes, size_t *got)
{
    uint64_t before = BIO_number_read(SSL_get_rbio(tls));
    int result = __real_SSL_read_ex(tls, buffer, bytes, got);
    if (in_thread("io-")) {
        note_most(&most_reads, ++reads);
        note_most(&most_bytes, (uint32_t)(BIO_number_read(SSL_get_rbio(tls)) - before));
    }
    return result;
}

int __real_accept4(int descriptor, struct sockaddr *address, socklen_t *length, int flags);
int __wrap_accept4(int descriptor, struct sockaddr *address, socklen_t *length, int flags);
int __wrap_accept4(int descriptor, struct sockaddr *address, socklen_t *length, int flags)
{
    int accepted = __real_accept4(descriptor, address, length, flags);
    if (accepted >= 0)
        note_most(&most_accepts, ++accepts);
    return accepted;
}

size_t __real_server_input_read(struct server_connection *connection);
size_t __wrap_server_input_read(struct server_connection *connection);
size_t __wrap_server_input_read(struct server_connection *connection)
{
    note_most(&most_inputs, ++inputs);
    return __real_server_input_read(connection);
}

void __real_server_frame_handle(struct server_connection *connection, const struct protocol_header *header,
                                const uint8_t *body, core_ns now_ns);
void __wrap_server_frame_handle(struct server_connection *connection, const struct protocol_header *header,
                                const uint8_t *body, core_ns now_ns);
void __wrap_server_frame_handle(struct server_connection *connection, const struct protocol_header *header,
                                const uint8_t *body, core_ns now_ns)
{
    note_most(&most_questions, ++questions);
    __real_server_frame_handle(connection, header, body, now_ns);
}

size_t __real_server_poller_look(struct server_poller *poller, int timeout_ms);
size_t __wrap_server_poller_look(struct server_poller *poller, int timeout_ms);
size_t __wrap_server_poller_look(struct server_poller *poller, int timeout_ms)
{
    accepts = reads = inputs = questions = 0;
    while (atomic_load(&gate_closed) && in_thread("io-")) {
        atomic_store(&gate_reached, true);
        sched_yield();
    }
    return __real_server_poller_look(poller, timeout_ms);
}

void __real_server_handshakes_halt(struct server_handshakes *handshakes);
void __wrap_server_handshakes_halt(struct server_handshakes *handshakes);
void __wrap_server_handshakes_halt(struct server_handshakes *handshakes)
{
    __real_server_handshakes_halt(handshakes);
    atomic_store(&handshakers_ended, true);
}

/* ---- servers ---- */

#define TLS_LISTENER "{address: 'tls:127.0.0.1:0', certificate: server.pem, key: server.key"

enum { UNIX, TCP, TLS, TLS_KNOWN }; /* listeners */

static void start(struct test_server *server, const char *yaml)
{
    char text[1024];
    snprintf(text, sizeof text,
             "listeners: [{address: 'unix:socket'}, {address: 'tcp:127.0.0.1:0'}, " TLS_LISTENER
             "}, " TLS_LISTENER ", client_ca: ca.pem}]\n%s",
             yaml);
    test_server_prepare(server);
    test_certificates_write(server->folder);
    test_server_start(server, text, &test_profile_generous);
}

static struct server_snapshot snapshot_of(const struct test_server *server)
{
    struct server_snapshot *taken, copy;
    assert_int_equal(server_snapshot_take(server->server, &taken), CORE_OK);
    copy = *taken;
    server_snapshot_free(taken);
    return copy;
}

static uint64_t turned(const struct test_server *server, enum server_turned reason)
{
    return snapshot_of(server).turned[reason];
}

static void await_turned(const struct test_server *server, enum server_turned reason, uint64_t count)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (turned(server, reason) != count) {
        assert_true(core_time_now_ns() < until_ns);
        sched_yield();
    }
}

static void connect_tls(struct test_client *client, const struct test_server *server, SSL_CTX *context)
{
    test_client_dial(client, server_address(server->server, TLS));
    assert_true(test_client_secure(client, context));
}

/* ---- records without data ---- */

/* Key updates as the client would send them, without sending them; the caller frees. */
static size_t make_key_updates(SSL *tls, uint32_t count, uint8_t **bytes)
{
    BIO *socket = SSL_get_wbio(tls), *memory = BIO_new(BIO_s_mem());
    char *data;
    TEST_REQUIRE(memory != NULL && BIO_up_ref(socket) == 1);
    SSL_set0_wbio(tls, memory);
    for (uint32_t i = 0; i < count; i++)
        TEST_REQUIRE(SSL_key_update(tls, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 && SSL_do_handshake(tls) == 1);
    size_t made = (size_t)BIO_get_mem_data(memory, &data);
    *bytes = malloc(made);
    TEST_REQUIRE(*bytes != NULL);
    memcpy(*bytes, data, made);
    SSL_set0_wbio(tls, socket);
    return made;
}

static void send_key_updates(struct test_client *client, uint32_t count)
{
    uint8_t *bytes;
    size_t made = make_key_updates(client->tls, count, &bytes);
    assert_int_equal(send(client->descriptor, bytes, made, MSG_NOSIGNAL), made);
    free(bytes);
}

struct pair {
    struct server_transport ours;
    SSL *theirs;
    int descriptor; /* theirs */
    SSL_CTX *context, *client;
    struct server_mailbox disposer;
    char folder[64];
};

static void make_pair(struct pair *pair, const struct test_server *server)
{
    const struct config_listener *listener = &server->config->listeners[TLS];
    enum server_turned reason;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(server_transport_context(listener, &pair->context, NULL), CORE_OK);
    pair->client = test_certificates_client(server->folder, NULL);
    server_transport_init(&pair->ours, ends[0], NULL);
    assert_int_equal(server_mailbox_init(&pair->disposer, NULL), CORE_OK);
    assert_int_equal(server_transport_secure(&pair->ours, pair->context, &pair->disposer, NULL), CORE_OK);
    pair->descriptor = ends[1];
    pair->theirs = SSL_new(pair->client);
    assert_true(pair->theirs != NULL && SSL_set_fd(pair->theirs, ends[1]) == 1);
    while (SSL_connect(pair->theirs) != 1)
        (void)!server_transport_handshake(&pair->ours, &reason, NULL);
    assert_int_equal(server_transport_handshake(&pair->ours, &reason, NULL), CORE_OK);
}

static void free_pair(struct pair *pair)
{
    SSL_free(pair->theirs);
    close(pair->descriptor);
    server_transport_close(&pair->ours);
    server_mailbox_run(&pair->disposer, NULL); /* ASan tells if nothing is freed */
    server_mailbox_destroy(&pair->disposer);
    SSL_CTX_free(pair->context);
    SSL_CTX_free(pair->client);
}

static void pair_sends_key_updates(struct pair *pair, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        assert_true(SSL_key_update(pair->theirs, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 &&
                    SSL_do_handshake(pair->theirs) == 1);
}

/* Reads until something else than "nothing now" comes; returns how many reads that took. */
static uint32_t reads_until(struct server_transport *transport, core_status *status)
{
    uint8_t buffer[16384], *read;
    size_t got = 0;
    uint32_t count = 0;
    do {
        *status = server_transport_read(transport, buffer, sizeof buffer, &read, &got);
        count++;
    } while (*status == CORE_AGAIN && count < 1000);
    return count;
}

static void one_read_takes_one_record(void **state)
{
    struct test_server server;
    struct pair pair;
    core_status status;
    size_t written;
    (void)state;
    start(&server, "");
    make_pair(&pair, &server);
    pair_sends_key_updates(&pair, SERVER_TLS_MESSAGES);
    assert_int_equal(SSL_write_ex(pair.theirs, "data", 4, &written), 1);
    assert_int_equal(reads_until(&pair.ours, &status), SERVER_TLS_MESSAGES + 1);
    assert_int_equal(status, CORE_OK);
    free_pair(&pair);
    assert_int_equal(test_server_stop(&server), 0);
}

/* Wherever the transport lies meanwhile. */
static void messages_without_data_are_bounded(void **state)
{
    static uint8_t data[16384];
    struct server_transport moved;
    struct test_server server;
    struct pair pair;
    core_status status;
    size_t written;
    (void)state;
    start(&server, "");
    make_pair(&pair, &server);
    pair_sends_key_updates(&pair, SERVER_TLS_MESSAGES - 1);
    assert_int_equal(SSL_write_ex(pair.theirs, data, 1, &written), 1);
    (void)reads_until(&pair.ours, &status);
    assert_int_equal(status, CORE_OK);
    server_transport_move(&moved, &pair.ours);
    pair.ours = moved;
    server_transport_move(&pair.ours, &moved);
    for (size_t sent = 0; sent < SERVER_TLS_MESSAGE_BYTES; sent += sizeof data) {
        assert_int_equal(SSL_write_ex(pair.theirs, data, sizeof data, &written), 1);
        (void)reads_until(&pair.ours, &status);
        assert_int_equal(status, CORE_OK);
    }
    pair_sends_key_updates(&pair, 2); /* the last of the first ones, and the one for the data */
    assert_int_equal(SSL_write_ex(pair.theirs, data, 1, &written), 1);
    assert_int_equal(reads_until(&pair.ours, &status), 3);
    assert_int_equal(status, CORE_OK);
    pair_sends_key_updates(&pair, 1);
    assert_int_equal(reads_until(&pair.ours, &status), 1);
    assert_int_equal(status, CORE_DENIED);
    free_pair(&pair);
    assert_int_equal(test_server_stop(&server), 0);
}

struct flood {
    struct test_client *client;
    const uint8_t *bytes;
    size_t count;
    _Atomic bool ended;
};

/* Until all is sent or the server has closed. */
static void *run_flood(void *argument)
{
    struct flood *flood = argument;
    size_t done = 0;
    while (done < flood->count) {
        ssize_t sent =
            send(flood->client->descriptor, flood->bytes + done, flood->count - done, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            break;
        done += sent > 0 ? (size_t)sent : 0;
    }
    atomic_store(&flood->ended, true);
    return NULL;
}

/* Packets of a stream and PINGs of another connection go on beside it, and the flood is cut off. */
static void a_flood_of_key_updates(void **state)
{
    enum { FLOOD = 20000 };
    struct test_server server;
    struct test_client flooder, other;
    (void)state;
    start(&server, "timeouts: {hello_ms: 60000, frame_ms: 240000, idle_ms: 480000}\n");
    SSL_CTX *context = test_certificates_client(server.folder, NULL);
    test_client_connect(&other, server_address(server.server, UNIX), NULL);
    struct test_stream *stream = test_stream_open(&other, &test_spec, 1);
    for (uint64_t round = 1; round <= 3; round++) {
        uint8_t *bytes;
        pthread_t thread;
        connect_tls(&flooder, &server, context);
        struct flood flood = {.client = &flooder};
        flood.count = make_key_updates(flooder.tls, FLOOD, &bytes);
        flood.bytes = bytes;
        atomic_store(&most_reads, 0);
        atomic_store(&most_bytes, 0);
        assert_int_equal(pthread_create(&thread, NULL, run_flood, &flood), 0);
        do {
            assert_true(test_stream_send(stream, 1408));
            test_stream_drain(stream);
            test_client_ping(&other);
        } while (!atomic_load(&flood.ended));
        pthread_join(thread, NULL);
        test_client_expect_end(&flooder);
        assert_int_equal(turned(&server, SERVER_TURNED_MESSAGES), round);
        assert_in_range(atomic_load(&most_reads), 1, 1);                   /* of the only TLS connection */
        assert_in_range(atomic_load(&most_bytes), 1, flood.count / FLOOD); /* a record */
        test_client_close(&flooder);
        free(bytes);
    }
    (void)test_stream_close(stream);
    test_stream_free(stream);
    test_client_close(&other);
    SSL_CTX_free(context);
    assert_int_equal(test_server_stop(&server), 0);
}

/* Before HELLO nothing but HELLO prolongs a connection's time. */
static void key_updates_are_no_hello(void **state)
{
    struct test_server server;
    struct test_client client;
    (void)state;
    start(&server, "timeouts: {hello_ms: 1000}\n");
    SSL_CTX *context = test_certificates_client(server.folder, NULL);
    connect_tls(&client, &server, context);
    send_key_updates(&client, SERVER_TLS_MESSAGES);
    test_client_expect_error(&client, PROTOCOL_ERROR_TIMEOUT, 0, true);
    assert_int_equal(turned(&server, SERVER_TURNED_MESSAGES), 0);
    test_client_close(&client);
    SSL_CTX_free(context);
    assert_int_equal(test_server_stop(&server), 0);
}

/* ---- handshakes ---- */

/* A ClientHello, and nothing after it. */
static void start_handshake(struct test_client *client, const struct test_server *server, SSL_CTX *context)
{
    SSL *tls = SSL_new(context);
    BIO *sent = BIO_new(BIO_s_mem()), *received = BIO_new(BIO_s_mem());
    char *bytes;
    assert_true(tls != NULL && sent != NULL && received != NULL);
    SSL_set_bio(tls, received, sent);
    assert_int_equal(SSL_get_error(tls, SSL_connect(tls)), SSL_ERROR_WANT_READ);
    long count = BIO_get_mem_data(sent, &bytes);
    test_client_dial(client, server_address(server->server, TLS));
    assert_true(test_client_send(client, bytes, (size_t)count));
    SSL_free(tls);
}

static void await_handshakes(const struct test_server *server, uint64_t count)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (snapshot_of(server).handshakes != count) {
        assert_true(core_time_now_ns() < until_ns);
        sched_yield();
    }
}

/* No I/O thread makes one, and a connection is an I/O thread's when it is established. */
static void many_hellos_at_once(void **state)
{
    enum { CLIENTS = 64 };
    static struct test_client clients[CLIENTS];
    struct test_server server;
    struct test_client other;
    (void)state;
    start(&server, "");
    SSL_CTX *context = test_certificates_client(server.folder, NULL);
    test_client_connect(&other, server_address(server.server, UNIX), NULL);
    atomic_store(&handshakes_made, 0);
    atomic_store(&handshakes_elsewhere, 0);
    for (int i = 0; i < CLIENTS; i++)
        start_handshake(&clients[i], &server, context);
    await_handshakes(&server, CLIENTS);
    test_client_ping(&other);
    assert_int_equal(snapshot_of(&server).totals.connections, 1);
    for (int i = 0; i < CLIENTS; i++)
        test_client_close(&clients[i]);
    await_turned(&server, SERVER_TURNED_GONE, CLIENTS);
    for (int i = 0; i < CLIENTS; i++) {
        connect_tls(&clients[i], &server, context);
        test_client_hello(&clients[i], NULL);
    }
    struct server_snapshot snapshot = snapshot_of(&server);
    assert_int_equal(snapshot.handshakes_done, CLIENTS);
    assert_int_equal(snapshot.handshakes, 0);
    assert_int_equal(snapshot.totals.connections, CLIENTS + 1);
    assert_true(atomic_load(&handshakes_made) >= 2 * CLIENTS);
    assert_int_equal(atomic_load(&handshakes_elsewhere), 0);
    for (int i = 0; i < CLIENTS; i++)
        test_client_close(&clients[i]);
    test_client_close(&other);
    SSL_CTX_free(context);
    assert_int_equal(test_server_stop(&server), 0);
}

/* A peer has its share under way, and is told to go; others, and what is no TLS, are served. */
static void half_open_handshakes_of_one_peer(void **state)
{
    enum { SHARE = 64 };
    static struct test_client halves[SHARE];
    struct test_server server;
    struct test_client more, other;
    (void)state;
    start(&server, "limits: {handshakes: 256}\n");
    for (int i = 0; i < SHARE; i++)
        test_client_dial(&halves[i], server_address(server.server, TLS));
    await_handshakes(&server, SHARE);
    test_client_dial(&more, server_address(server.server, TLS));
    test_client_expect_end(&more);
    assert_int_equal(turned(&server, SERVER_TURNED_HANDSHAKES), 1);
    test_client_connect(&other, server_address(server.server, TCP), NULL);
    test_client_ping(&other);
    for (int i = 0; i < SHARE; i++)
        test_client_close(&halves[i]);
    await_turned(&server, SERVER_TURNED_GONE, SHARE);
    test_client_close(&more);
    test_client_close(&other);
    assert_int_equal(test_server_stop(&server), 0);
}

/* Where all are under way who comes waits, and has its turn when they are over. */
static void handshakes_wait_for_room(void **state)
{
    struct test_server server;
    struct test_client halves[4], good, other;
    (void)state;
    start(&server, "limits: {handshakes: 4}\ntimeouts: {hello_ms: 2000}\n");
    SSL_CTX *context = test_certificates_client(server.folder, NULL);
    for (int i = 0; i < 4; i++)
        test_client_dial(&halves[i], server_address(server.server, TLS));
    await_handshakes(&server, 4);
    connect_tls(&good, &server, context);
    test_client_hello(&good, NULL);
    assert_true(turned(&server, SERVER_TURNED_TIMEOUT) > 0);
    await_turned(&server, SERVER_TURNED_TIMEOUT, 4);
    assert_int_equal(turned(&server, SERVER_TURNED_HANDSHAKES), 0);
    test_client_connect(&other, server_address(server.server, UNIX), NULL);
    test_client_ping(&other);
    for (int i = 0; i < 4; i++)
        test_client_close(&halves[i]);
    test_client_close(&good);
    test_client_close(&other);
    SSL_CTX_free(context);
    assert_int_equal(test_server_stop(&server), 0);
}

static void fail_handshake(const struct test_server *server, uint32_t listener, SSL_CTX *context)
{
    struct test_client client;
    test_client_dial(&client, server_address(server->server, listener));
    if (test_client_secure(&client, context))
        test_client_expect_end(&client);
    test_client_close(&client);
}

static void expect_metric(const struct test_server *server, uint32_t listener, const char *reason,
                          unsigned count)
{
    char address[300], line[500];
    struct server_snapshot *snapshot;
    size_t bytes;
    snprintf(line, sizeof line, "\nmillrace_connections_turned_total{listener=\"%s\",reason=\"%s\"} %u\n",
             core_address_format(server_address(server->server, listener), address, sizeof address), reason,
             count);
    assert_int_equal(server_snapshot_take(server->server, &snapshot), CORE_OK);
    char *text = server_metrics_text(snapshot, &bytes);
    assert_non_null(text);
    assert_non_null(strstr(text, line));
    free(text);
    server_snapshot_free(snapshot);
}

static void failures_are_counted_by_reason(void **state)
{
    struct test_server server;
    struct test_client client;
    (void)state;
    start(&server, "");
    SSL_CTX *nameless = test_certificates_client(server.folder, NULL);
    SSL_CTX *stranger = test_certificates_client(server.folder, "stranger");
    SSL_CTX *old = test_certificates_client(server.folder, NULL);
    assert_int_equal(SSL_CTX_set_max_proto_version(old, TLS1_2_VERSION), 1);
    fail_handshake(&server, TLS_KNOWN, nameless);
    await_turned(&server, SERVER_TURNED_NO_CERTIFICATE, 1);
    fail_handshake(&server, TLS_KNOWN, stranger);
    await_turned(&server, SERVER_TURNED_CERTIFICATE, 1);
    fail_handshake(&server, TLS, old);
    await_turned(&server, SERVER_TURNED_VERSION, 1);
    test_client_dial(&client, server_address(server.server, TLS));
    assert_true(test_client_send(&client, "GET / HTTP/1.0\r\n\r\n", 18));
    await_turned(&server, SERVER_TURNED_NOT_TLS, 1);
    test_client_close(&client);
    test_client_dial(&client, server_address(server.server, TLS));
    test_client_close(&client);
    await_turned(&server, SERVER_TURNED_GONE, 1);
    await_handshakes(&server, 0);
    expect_metric(&server, TLS_KNOWN, "no_certificate", 1);
    expect_metric(&server, TLS_KNOWN, "certificate", 1);
    expect_metric(&server, TLS_KNOWN, "version", 0);
    expect_metric(&server, TLS, "version", 1);
    expect_metric(&server, TLS, "not_tls", 1);
    expect_metric(&server, TLS, "no_certificate", 0);
    expect_metric(&server, UNIX, "not_tls", 0);
    SSL_CTX_free(nameless);
    SSL_CTX_free(stranger);
    SSL_CTX_free(old);
    assert_int_equal(test_server_stop(&server), 0);
}

/* The server ends while handshakes are under way, and while others wait to begin. */
static void stopping_amid_handshakes(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        struct test_client halves[16];
        struct test_server server;
        start(&server, "");
        SSL_CTX *context = test_certificates_client(server.folder, NULL);
        for (int i = 0; i < 16; i++)
            start_handshake(&halves[i], &server, context);
        assert_int_equal(test_server_stop(&server), 0);
        for (int i = 0; i < 16; i++)
            test_client_close(&halves[i]);
        SSL_CTX_free(context);
    }
}

static void *open_gate(void *argument)
{
    while (!atomic_load(&handshakers_ended))
        sched_yield();
    atomic_store(&gate_closed, false);
    return argument;
}

static void close_gate(void)
{
    atomic_store(&gate_reached, false);
    atomic_store(&gate_closed, true);
    while (!atomic_load(&gate_reached))
        sched_yield();
}

/* Accepted when the threads that make handshakes have ended. */
static void connections_during_stop(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        struct test_client late[4];
        struct test_server server;
        pthread_t opener;
        start(&server, "");
        close_gate();
        atomic_store(&handshakers_ended, false);
        for (int i = 0; i < 4; i++)
            test_client_dial(&late[i], server_address(server.server, TLS));
        assert_int_equal(pthread_create(&opener, NULL, open_gate, NULL), 0);
        assert_int_equal(test_server_stop(&server), 0);
        pthread_join(opener, NULL);
        for (int i = 0; i < 4; i++) {
            test_client_expect_end(&late[i]);
            test_client_close(&late[i]);
        }
    }
}

/* ---- places ---- */

/* As test_client_dial, from another address of this machine. */
static void dial_from(struct test_client *client, const char *from, const struct core_address *to)
{
    struct sockaddr_in here = {.sin_family = AF_INET};
    struct sockaddr_in there = {
        .sin_family = AF_INET, .sin_port = htons(to->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    *client = (struct test_client){.descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_int_equal(inet_pton(AF_INET, from, &here.sin_addr), 1);
    assert_int_equal(bind(client->descriptor, (struct sockaddr *)&here, sizeof here), 0);
    assert_int_equal(connect(client->descriptor, (struct sockaddr *)&there, sizeof there), 0);
    assert_int_equal(fcntl(client->descriptor, F_SETFL, O_NONBLOCK), 0);
}

static void expect_refused(const struct core_address *address, const char *from)
{
    struct test_client client;
    if (from == NULL)
        test_client_dial(&client, address);
    else
        dial_from(&client, from, address);
    test_client_expect_error(&client, PROTOCOL_ERROR_LIMIT, 0, true);
    test_client_close(&client);
}

static void await_connections(const struct test_server *server, uint64_t count)
{
    core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (snapshot_of(server).totals.connections != count) {
        assert_true(core_time_now_ns() < until_ns);
        sched_yield();
    }
}

/* By TCP and TLS together; others of the same listener and those of Unix sockets are served. */
static void peer_connection_limit(void **state)
{
    struct test_server server;
    (void)state;
    start(&server, "limits: {connections: 20, connections_per_peer: 3}\n");
    const struct core_address *tcp = server_address(server.server, TCP);
    const struct core_address *local = server_address(server.server, UNIX);
    SSL_CTX *context = test_certificates_client(server.folder, NULL);
    for (uint64_t round = 1; round <= 3; round++) {
        struct test_client silent[3], neighbour, users[3];
        test_client_dial(&silent[0], tcp);
        test_client_dial(&silent[1], tcp);
        connect_tls(&silent[2], &server, context);
        await_connections(&server, 3);
        expect_refused(tcp, NULL);
        assert_int_equal(turned(&server, SERVER_TURNED_PEER), 2 * round - 1);
        dial_from(&neighbour, "127.0.0.2", tcp);
        test_client_hello(&neighbour, NULL);
        for (int i = 0; i < 3; i++)
            test_client_connect(&users[i], local, NULL);
        expect_refused(local, NULL);
        assert_int_equal(turned(&server, SERVER_TURNED_PEER), 2 * round);
        for (int i = 0; i < 3; i++) {
            test_client_ping(&users[i]);
            test_client_close(&users[i]);
            test_client_close(&silent[i]);
        }
        test_client_close(&neighbour);
        await_connections(&server, 0);
    }
    SSL_CTX_free(context);
    assert_int_equal(test_server_stop(&server), 0);
}

/* One peer begins handshakes and hangs up, again and again: it is told to go, and another one is served. */
static void handshakes_of_one_peer_in_a_second(void **state)
{
    /* several: one in 4,096 shares the bucket of 127.0.0.1 */
    static const char *const others[] = {"127.0.0.2", "127.0.0.3", "127.0.0.4"};
    struct test_server server;
    struct test_client client, other;
    (void)state;
    start(&server, "limits: {tls_handshakes_per_s: 1}\n");
    const struct core_address *tls = server_address(server.server, TLS);
    SSL_CTX *context = test_certificates_client(server.folder, NULL);
    const core_ns until_ns = core_time_now_ns() + 60 * CORE_NS_PER_S;
    uint64_t dialled = 0;
    for (; turned(&server, SERVER_TURNED_RATE) == 0; dialled++) {
        assert_true(core_time_now_ns() < until_ns);
        test_client_dial(&client, tls);
        test_client_close(&client);
    }
    while (turned(&server, SERVER_TURNED_RATE) + turned(&server, SERVER_TURNED_GONE) < dialled) {
        assert_true(core_time_now_ns() < until_ns); /* some may still be in the listen queue */
        sched_yield();
    }
    expect_metric(&server, TLS, "handshake_rate", (unsigned)turned(&server, SERVER_TURNED_RATE));
    bool served = false;
    for (size_t i = 0; !served && i < sizeof others / sizeof others[0]; i++) {
        dial_from(&other, others[i], tls);
        served = test_client_secure(&other, context);
        if (served)
            test_client_hello(&other, NULL);
        test_client_close(&other);
    }
    assert_true(served);
    SSL_CTX_free(context);
    assert_int_equal(test_server_stop(&server), 0);
}

static void listener_connection_limit(void **state)
{
    static const char *const peers[] = {"127.0.0.1", "127.0.0.2", "127.0.0.3"};
    struct test_server server;
    struct test_client silent[3], user;
    (void)state;
    start(&server, "limits: {connections: 20, connections_per_listener: 3}\n");
    const struct core_address *tcp = server_address(server.server, TCP);
    for (int i = 0; i < 3; i++)
        dial_from(&silent[i], peers[i], tcp);
    await_connections(&server, 3);
    expect_refused(tcp, "127.0.0.4");
    assert_int_equal(turned(&server, SERVER_TURNED_LISTENER), 1);
    test_client_connect(&user, server_address(server.server, UNIX), NULL);
    test_client_ping(&user);
    test_client_close(&user);
    for (int i = 0; i < 3; i++)
        test_client_close(&silent[i]);
    await_connections(&server, 0);
    dial_from(&user, "127.0.0.4", tcp);
    test_client_hello(&user, NULL);
    test_client_close(&user);
    assert_int_equal(test_server_stop(&server), 0);
}

/* ---- accept ---- */

/* Two hundred wait to be let in before a turn begins. */
static void a_turn_accepts_a_few(void **state)
{
    enum { CLIENTS = 200 };
    static struct test_client clients[CLIENTS];
    struct test_server server;
    (void)state;
    start(&server, "limits: {connections_per_peer: 1000}\n");
    close_gate();
    atomic_store(&most_accepts, 0);
    for (int i = 0; i < CLIENTS; i++)
        test_client_dial(&clients[i], server_address(server.server, i % 2 == 0 ? UNIX : TCP));
    atomic_store(&gate_closed, false);
    await_connections(&server, CLIENTS);
    assert_in_range(atomic_load(&most_accepts), 1, 8);
    for (int i = 0; i < CLIENTS; i++) {
        test_client_hello(&clients[i], NULL);
        test_client_close(&clients[i]);
    }
    assert_int_equal(test_server_stop(&server), 0);
}

/* Connections without streams that speak, or go, at one time, do not keep the others waiting for all of them;
 * and each has its answer. */
static void a_turn_reads_a_few_strangers(void **state)
{
    enum { CLIENTS = 300 };
    static struct test_client clients[CLIENTS];
    struct test_server server;
    uint8_t hello[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const uint32_t bytes = protocol_hello_write(hello, 1, 1);
    (void)state;
    start(&server, "limits: {connections_per_peer: 1000}\n");
    for (int i = 0; i < CLIENTS; i++)
        test_client_dial(&clients[i], server_address(server.server, UNIX));
    await_connections(&server, CLIENTS);
    atomic_store(&most_inputs, 0);
    close_gate();
    for (int i = 0; i < CLIENTS; i++)
        assert_true(test_client_send(&clients[i], hello, bytes));
    atomic_store(&gate_closed, false);
    for (int i = 0; i < CLIENTS; i++) {
        struct test_frame frame;
        test_client_expect(&clients[i], PROTOCOL_WELCOME, &frame);
    }
    close_gate();
    for (int i = 0; i < CLIENTS; i++)
        test_client_close(&clients[i]);
    atomic_store(&gate_closed, false);
    await_connections(&server, 0);
    assert_in_range(atomic_load(&most_inputs), 1, 16);
    assert_int_equal(test_server_stop(&server), 0);
}

/* However much connections ask at one time, with streams or without: and each has its answers, in order. */
static void a_turn_answers_a_few_questions(void **state)
{
    enum { CLIENTS = 8, PINGS = 2000 };
    static struct test_client clients[CLIENTS];
    static uint8_t pings[PINGS * PROTOCOL_HEADER_BYTES];
    static const uint8_t key[16];
    const struct core_stream_spec spec = {.packet_bytes = 64,
                                          .burst_packets = 1,
                                          .interval_ns = CORE_NS_PER_S,
                                          .latency_ns = CORE_NS_PER_S,
                                          .cipher = CORE_CIPHER_AES_128_CBC};
    const struct protocol_open open = test_open_inline(&spec, key);
    struct protocol_opened opened;
    struct protocol_refused refused;
    struct test_server server;
    struct test_frame frame;
    (void)state;
    start(&server, "");
    for (uint32_t i = 0; i < PINGS; i++)
        (void)protocol_ping_write(pings + i * PROTOCOL_HEADER_BYTES, PROTOCOL_PING, i, NULL, 0);
    for (int i = 0; i < CLIENTS; i++) {
        test_client_dial(&clients[i], server_address(server.server, UNIX));
        test_client_hello(&clients[i], NULL);
        if (i % 2 == 0)
            assert_true(test_client_ask(&clients[i], PROTOCOL_OPEN, &open, &opened, &refused));
    }
    close_gate();
    atomic_store(&most_questions, 0);
    for (int i = 0; i < CLIENTS; i++)
        assert_true(test_client_send(&clients[i], pings, sizeof pings));
    atomic_store(&gate_closed, false);
    for (uint32_t ping = 0; ping < PINGS; ping++)
        for (int i = 0; i < CLIENTS; i++) {
            test_client_expect(&clients[i], PROTOCOL_PONG, &frame);
            assert_int_equal(frame.header.id, ping);
        }
    assert_in_range(atomic_load(&most_questions), 256, 256 + 4 * CLIENTS);
    for (int i = 0; i < CLIENTS; i++)
        test_client_close(&clients[i]);
    assert_int_equal(test_server_stop(&server), 0);
}

static uint32_t descriptor_table(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    uint32_t size = 0;
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL)
        (void)sscanf(line, "FDSize: %u", &size);
    fclose(file);
    return size;
}

/* The kernel has no cause to enlarge it while streams are served. */
static void room_for_descriptors_from_the_start(void **state)
{
    struct test_server server;
    (void)state;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < 3000 || descriptor_table() >= 3000)
        skip(); /* this machine does not permit it, or has more from the start */
    start(&server, "limits: {connections: 3000}\n");
    assert_true(descriptor_table() >= 3000);
    assert_int_equal(test_server_stop(&server), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(room_for_descriptors_from_the_start), /* first: the table never shrinks */
        cmocka_unit_test(one_read_takes_one_record),
        cmocka_unit_test(messages_without_data_are_bounded),
        cmocka_unit_test(a_flood_of_key_updates),
        cmocka_unit_test(key_updates_are_no_hello),
        cmocka_unit_test(many_hellos_at_once),
        cmocka_unit_test(half_open_handshakes_of_one_peer),
        cmocka_unit_test(handshakes_wait_for_room),
        cmocka_unit_test(failures_are_counted_by_reason),
        cmocka_unit_test(stopping_amid_handshakes),
        cmocka_unit_test(connections_during_stop),
        cmocka_unit_test(peer_connection_limit),
        cmocka_unit_test(listener_connection_limit),
        cmocka_unit_test(handshakes_of_one_peer_in_a_second),
        cmocka_unit_test(a_turn_accepts_a_few),
        cmocka_unit_test(a_turn_reads_a_few_strangers),
        cmocka_unit_test(a_turn_answers_a_few_questions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
