/* Arbitrary bytes as what is done to the TLS connections of clients that OpenSSL makes: records that are cut,
 * changed, doubled, dropped, exchanged and invented, floods of key updates, ends in the middle. A whole server
 * is at their other end, on the clock of support/virtual_threads.h.
 *
 * As long as nobody touches the records, every handshake of a right client succeeds and every PING is
 * answered; from the first record on that comes otherwise, nothing is, and a changed one ends the connection.
 * Every connection is established or counted by the reason why not; one read takes a record at most, and a
 * turn has one read of each; and somebody with a connection of its own is served all along. */
#include "core/protocol.h"
#include "server/net/poller.h"
#include "server/net/transport.h"
#include "server/server_internal.h"
#include "tests/support/certificates.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/tape.h"
#include "tests/support/virtual_threads.h"

#include <errno.h>
#include <openssl/err.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS      2
#define KINDS        5
#define HEADER_BYTES 5 /* of a record */
#define RECORD_BYTES (HEADER_BYTES + 16384 + 256)
#define WIRE_BYTES   (1 << 17)
#define PINGS        64
#define PATIENCE     2000 /* turns until everything has been said and heard */
#define HELLO_NS     (2 * CORE_NS_PER_S)

enum kind { SIGNED, ANYBODY, STRANGER, OLD, PLAIN };

/* The listener with a client CA, and the one without. */
static const uint32_t listener_of[KINDS] = {0, 1, 0, 1, 1};

struct client {
    int descriptor; /* -1: none */
    enum kind kind;
    SSL *tls;
    BIO *from, *to; /* of `tls`: what comes and what goes */
    core_ns since_ns;
    bool greeted, welcomed, half_closed, closed; /* closed: by the server */
    bool touched;                                /* what waited was not only sent */
    bool differs;                                /* what went is not what OpenSSL made */
    bool cut;                                    /* what waits may not begin with a record */
    bool unsure;                                 /* it was sent what may, or may not, be without effect */
    bool must_end;                               /* a record that it has whole was changed */
    uint32_t pings, pongs, updates;
    uint64_t ping_at[PINGS];       /* where its record ends, in all the bytes of OpenSSL's */
    uint64_t made, kept;           /* of those: made; gone as they are, ahead of all that differs */
    size_t wire_bytes, sent_bytes; /* waiting; gone */
    size_t hello_bytes;            /* the record of the ClientHello */
    size_t own_bytes, heard_bytes;
    uint8_t wire[WIRE_BYTES], own[WIRE_BYTES]; /* what waits; what OpenSSL made, from `kept` on */
    uint8_t heard[1 << 14];
};

static struct test_server server;
static SSL_CTX *contexts[KINDS];
static struct client clients[CLIENTS + 1];
static struct client *const bystander = &clients[CLIENTS];
static uint64_t dialled;

#define MUST_BE(client, condition) ((condition) ? (void)0 : deviate(client, #condition))

_Noreturn static void deviate(const struct client *client, const char *condition)
{
    fprintf(stderr,
            "client %d of kind %d: not so: %s\n%u PINGs, %u PONGs, %u updates; made %llu, kept %llu, sent "
            "%zu, waiting %zu bytes; greeted %d, welcomed %d, closed %d\n",
            (int)(client - clients), (int)client->kind, condition, client->pings, client->pongs,
            client->updates, (unsigned long long)client->made, (unsigned long long)client->kept,
            client->sent_bytes, client->wire_bytes, client->greeted, client->welcomed, client->closed);
    abort();
}

/* ---- what a turn of the server may do ---- */

static SSL *read_in_turn[CLIENTS + 1];
static size_t reads_in_turn;

size_t __real_server_poller_look(struct server_poller *poller, int timeout_ms);
size_t __wrap_server_poller_look(struct server_poller *poller, int timeout_ms);
int __real_SSL_read_ex(SSL *tls, void *buffer, size_t bytes, size_t *got);
int __wrap_SSL_read_ex(SSL *tls, void *buffer, size_t bytes, size_t *got);

size_t __wrap_server_poller_look(struct server_poller *poller, int timeout_ms)
{
    const size_t named = __real_server_poller_look(poller, timeout_ms);
    reads_in_turn = 0;
    return named;
}

int __wrap_SSL_read_ex(SSL *tls, void *buffer, size_t bytes, size_t *got)
{
    const uint64_t before = BIO_number_read(SSL_get_rbio(tls));
    const int result = __real_SSL_read_ex(tls, buffer, bytes, got);
    if (!SSL_is_server(tls))
        return result;
    TEST_REQUIRE(BIO_number_read(SSL_get_rbio(tls)) - before <= RECORD_BYTES);
    for (size_t at = 0; at < reads_in_turn; at++)
        TEST_REQUIRE(read_in_turn[at] != tls);
    TEST_REQUIRE(reads_in_turn <= CLIENTS);
    read_in_turn[reads_in_turn++] = tls;
    return result;
}

/* ---- what a client hears ---- */

static void on_frame(struct client *client, const struct protocol_header *header)
{
    MUST_BE(client, header->type == PROTOCOL_WELCOME || header->type == PROTOCOL_PONG ||
                        header->type == PROTOCOL_ERROR);
    if (header->type == PROTOCOL_WELCOME) {
        MUST_BE(client, client->greeted && !client->welcomed);
        client->welcomed = true;
    } else if (header->type == PROTOCOL_PONG) {
        MUST_BE(client, client->pongs < client->pings && header->id == client->pongs);
        MUST_BE(client, client->ping_at[client->pongs] <= client->kept || client->unsure);
        client->pongs++;
    } else
        MUST_BE(client, header->id == 0);
}

static void read_frames(struct client *client)
{
    struct protocol_header header;
    size_t at = 0;
    while (client->heard_bytes - at >= PROTOCOL_HEADER_BYTES) {
        MUST_BE(client, protocol_header_read(1, client->heard + at, &header) == CORE_OK);
        const size_t bytes = PROTOCOL_HEADER_BYTES + (size_t)header.body_bytes;
        if (client->heard_bytes - at < bytes)
            break;
        on_frame(client, &header);
        at += bytes;
    }
    memmove(client->heard, client->heard + at, client->heard_bytes - at);
    client->heard_bytes -= at;
}

/* What OpenSSL has to say goes behind what waits; what is too much is lost, and touched so. */
static void gather(struct client *client)
{
    uint8_t bytes[4096];
    for (int got; client->tls != NULL && (got = BIO_read(client->to, bytes, sizeof bytes)) > 0;) {
        client->made += (uint64_t)got;
        if (client->own_bytes + (size_t)got <= sizeof client->own) {
            memcpy(client->own + client->own_bytes, bytes, (size_t)got);
            client->own_bytes += (size_t)got;
        }
        if (client->wire_bytes + (size_t)got > sizeof client->wire)
            continue;
        memcpy(client->wire + client->wire_bytes, bytes, (size_t)got);
        client->wire_bytes += (size_t)got;
    }
}

static void turn(struct client *client)
{
    size_t got = 0;
    if (client->tls == NULL)
        return;
    (void)SSL_do_handshake(client->tls);
    while (SSL_read_ex(client->tls, client->heard + client->heard_bytes,
                       sizeof client->heard - client->heard_bytes, &got) == 1) {
        client->heard_bytes += got;
        read_frames(client);
    }
    ERR_clear_error();
    gather(client);
}

/* True: there was something. */
static bool hear(struct client *client)
{
    uint8_t bytes[16384];
    const ssize_t got = recv(client->descriptor, bytes, sizeof bytes, MSG_DONTWAIT);
    if (client->closed || (got < 0 && errno == EAGAIN))
        return false;
    if (got <= 0)
        client->closed = true;
    else if (client->tls != NULL)
        TEST_REQUIRE(BIO_write(client->from, bytes, (int)got) == (int)got);
    turn(client);
    return true;
}

static bool hear_all(void)
{
    bool any = false;
    for (size_t at = 0; at <= CLIENTS; at++)
        any |= clients[at].descriptor >= 0 && hear(&clients[at]);
    return any;
}

static void pass(core_ns time_ns)
{
    test_virtual_run(test_virtual_now_ns() + time_ns);
}

/* ---- what it says ---- */

static void hang_up(struct client *client)
{
    if (client->descriptor >= 0)
        close(client->descriptor);
    SSL_free(client->tls);
    client->tls = NULL;
    client->descriptor = -1;
}

static void dial(struct client *client, enum kind kind)
{
    struct core_error error;
    const struct linger at_once = {.l_onoff = 1};
    memset(client, 0, offsetof(struct client, wire));
    client->kind = kind;
    client->since_ns = test_virtual_now_ns();
    TEST_REQUIRE(core_address_connect(server_address(server.server, listener_of[kind]), 1000,
                                      &client->descriptor, &error) == CORE_OK);
    TEST_REQUIRE(setsockopt(client->descriptor, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
    dialled++;
    if (kind == PLAIN)
        return;
    client->tls = SSL_new(contexts[kind]);
    client->from = BIO_new(BIO_s_mem());
    client->to = BIO_new(BIO_s_mem());
    TEST_REQUIRE(client->tls != NULL && client->from != NULL && client->to != NULL);
    SSL_set_bio(client->tls, client->from, client->to);
    SSL_set_connect_state(client->tls);
    turn(client);
    client->hello_bytes = client->wire_bytes;
}

static bool is_right(const struct client *client)
{
    return client->kind == SIGNED || client->kind == ANYBODY;
}

static bool can_speak(const struct client *client)
{
    return client->tls != NULL && SSL_is_init_finished(client->tls) && !client->half_closed;
}

static void say(struct client *client, const void *bytes, size_t count)
{
    size_t written = 0;
    TEST_REQUIRE(SSL_write_ex(client->tls, bytes, count, &written) == 1 || client->closed ||
                 !is_right(client) || client->touched);
    ERR_clear_error();
    gather(client);
}

static void greet(struct client *client)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    if (!can_speak(client) || client->greeted)
        return;
    client->greeted = true;
    say(client, frame, protocol_hello_write(frame, 1, 1));
}

static void ping(struct client *client)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    greet(client);
    if (!client->greeted || !can_speak(client) || client->pings == PINGS)
        return;
    const uint32_t bytes = protocol_ping_write(frame, PROTOCOL_PING, client->pings, "ping", 4);
    say(client, frame, bytes);
    client->ping_at[client->pings++] = client->made;
}

static void update_keys(struct client *client, uint32_t count, bool ask)
{
    for (; can_speak(client) && count > 0; count--) {
        client->updates +=
            SSL_key_update(client->tls, ask ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED) == 1;
        turn(client);
    }
}

static void half_close(struct client *client, bool politely)
{
    if (client->descriptor < 0 || client->half_closed)
        return;
    client->half_closed = true;
    if (politely && client->tls != NULL && SSL_is_init_finished(client->tls))
        (void)SSL_shutdown(client->tls);
    else
        (void)shutdown(client->descriptor, SHUT_WR);
    ERR_clear_error();
    gather(client);
}

/* ---- what is done to it on its way ---- */

/* The bytes of the record at `at` of those that wait; all that is left if it is not there whole. */
static size_t record_bytes(const struct client *client, size_t at)
{
    const size_t left = at < client->wire_bytes ? client->wire_bytes - at : 0;
    if (left < HEADER_BYTES)
        return left;
    const size_t bytes = HEADER_BYTES + ((size_t)client->wire[at + 3] << 8 | client->wire[at + 4]);
    return bytes < left ? bytes : left;
}

/* How far is what goes what OpenSSL made? What is done to what waits may begin behind whole records in it, and
 * a byte that takes another's place may be equal to it. */
static void compare(struct client *client, size_t gone)
{
    size_t same = 0;
    while (!client->differs && same < gone && same < client->own_bytes &&
           client->wire[same] == client->own[same])
        same++;
    client->differs |= same < gone;
    client->kept += same;
    client->own_bytes -= same;
    memmove(client->own, client->own + same, client->own_bytes);
}

static void send_bytes(struct client *client, size_t most)
{
    const size_t count = most < client->wire_bytes ? most : client->wire_bytes;
    if (client->descriptor < 0 || count == 0)
        return;
    const ssize_t sent = send(client->descriptor, client->wire, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    const size_t gone = sent > 0 ? (size_t)sent : errno == EAGAIN ? 0 : count;
    size_t records = 0;
    while (records < gone)
        records += record_bytes(client, records);
    client->cut |= records > gone;
    compare(client, gone);
    memmove(client->wire, client->wire + gone, client->wire_bytes - gone);
    client->wire_bytes -= gone;
    client->sent_bytes += gone;
}

/* At once, so that nothing that comes later undoes it. */
static void send_touched(struct client *client, size_t count)
{
    const size_t before = client->wire_bytes;
    send_bytes(client, count);
    client->unsure |= before - client->wire_bytes < count;
}

static void put_in(struct client *client, size_t at, const uint8_t *bytes, size_t count)
{
    if (client->descriptor < 0 || count == 0 || client->wire_bytes + count > sizeof client->wire)
        return;
    client->touched = true;
    memmove(client->wire + at + count, client->wire + at, client->wire_bytes - at);
    memcpy(client->wire + at, bytes, count);
    client->wire_bytes += count;
    send_touched(client, at + count);
}

static void drop_record(struct client *client)
{
    const size_t bytes = record_bytes(client, 0);
    if (bytes == 0)
        return;
    client->touched = true;
    memmove(client->wire, client->wire + bytes, client->wire_bytes - bytes);
    client->wire_bytes -= bytes;
}

static void double_record(struct client *client)
{
    uint8_t record[RECORD_BYTES];
    const size_t bytes = record_bytes(client, 0);
    if (bytes <= sizeof record) {
        memcpy(record, client->wire, bytes);
        put_in(client, bytes, record, bytes);
    }
}

static void exchange_records(struct client *client)
{
    uint8_t record[RECORD_BYTES];
    const size_t first = record_bytes(client, 0), second = record_bytes(client, first);
    if (first > sizeof record || second == 0)
        return;
    client->touched = true;
    memcpy(record, client->wire, first);
    memmove(client->wire, client->wire + first, second);
    memcpy(client->wire + second, record, first);
    send_touched(client, first + second);
}

/* One that is protected is refused then: no key knows it. */
static void change_record(struct client *client, uint32_t at, uint32_t bits)
{
    const size_t bytes = record_bytes(client, 0);
    if (bytes <= HEADER_BYTES || client->descriptor < 0 || (bits & 0xff) == 0)
        return;
    const bool first = !client->touched, is_protected = client->greeted && client->welcomed;
    client->touched = true;
    client->wire[HEADER_BYTES + at % (bytes - HEADER_BYTES)] ^= (uint8_t)bits;
    if (first && is_protected && !client->cut)
        client->must_end = true;
    send_touched(client, bytes);
}

/* May a server pass over this record, ahead of what waits? A change_cipher_spec it drops until the client's
 * Finished (RFC 8446, 5). OpenSSL, while nothing is protected, also does so with a handshake record without
 * bytes ahead of the ClientHello, and with a "user_canceled" right behind it. */
static bool is_passed_over(const struct client *client, const uint8_t *record)
{
    const size_t bytes = (size_t)record[3] << 8 | record[4];
    if (record[0] == SSL3_RT_ALERT)
        return client->sent_bytes == client->hello_bytes && bytes == 2 &&
               record[HEADER_BYTES + 1] == SSL_AD_USER_CANCELLED;
    return record[0] == SSL3_RT_CHANGE_CIPHER_SPEC ||
           (record[0] == SSL3_RT_HANDSHAKE && client->sent_bytes == 0 && bytes == 0);
}

/* A record of any kind and length, with so many bytes of its body from the tape. */
static void invent_record(struct client *client, struct tape *tape)
{
    uint8_t record[HEADER_BYTES + 255] = {(uint8_t)(20 + take(tape) % 6), 3, (uint8_t)take(tape)};
    record[3] = (uint8_t)take(tape);
    record[4] = (uint8_t)take(tape);
    size_t count;
    const size_t most = take(tape);
    const uint8_t *body = take_bytes(tape, most, &count);
    if (count > 0)
        memcpy(record + HEADER_BYTES, body, count);
    client->unsure |= is_passed_over(client, record);
    put_in(client, 0, record, HEADER_BYTES + count);
}

static void flood(struct client *client, uint32_t count, uint32_t byte)
{
    uint8_t bytes[64 * 255];
    memset(bytes, (int)byte, sizeof bytes);
    put_in(client, 0, bytes, (size_t)64 * count);
}

/* ---- sequences ---- */

static void disturb(struct client *client, struct tape *tape)
{
    switch (take(tape) % 8) {
    case 0:
        hang_up(client);
        break;
    case 1:
    case 2:
        half_close(client, take(tape) % 2 == 0);
        break;
    case 3:
        flood(client, take(tape), take(tape));
        break;
    default:
        pass((core_ns)take(tape) << take(tape) % 23);
    }
}

static void touch_wire(struct client *client, uint32_t how, struct tape *tape)
{
    if (how == 0)
        drop_record(client);
    else if (how == 1)
        double_record(client);
    else if (how == 2)
        exchange_records(client);
    else if (how == 3)
        invent_record(client, tape);
    else
        change_record(client, take(tape), take(tape));
}

static void step(struct tape *tape)
{
    const uint32_t first = take(tape), then = first >> 5;
    struct client *client = &clients[first % CLIENTS];
    const uint32_t what = first / CLIENTS % 16;

    if (client->descriptor < 0)
        dial(client, take(tape) % KINDS);
    if (what < 4)
        ping(client);
    else if (what < 6)
        update_keys(client, take(tape) % 70 + 1, what == 4);
    else if (what < 9)
        send_bytes(client, take(tape));
    else if (what < 14)
        touch_wire(client, what - 9, tape);
    else if (what == 14)
        send_bytes(client, record_bytes(client, 0));
    else
        disturb(client, tape);
    if (then < 5)
        send_bytes(client, client->wire_bytes);
    if (then != 6)
        pass(0);
}

/* ---- the end ---- */

/* Has the server had the time for a handshake? A half of it never begins again. */
static bool is_late(const struct client *client)
{
    return test_virtual_now_ns() - client->since_ns >= HELLO_NS;
}

static bool is_settled(const struct client *client)
{
    if (client->descriptor < 0 || client->closed ||
        (client->wire_bytes == 0 && client->touched && !client->must_end))
        return true;
    return client->wire_bytes == 0 && is_right(client) && can_speak(client) &&
           client->pongs == client->pings && client->greeted && client->welcomed && !client->must_end &&
           client->updates <= SERVER_TLS_MESSAGES;
}

/* All that waits is sent, and everybody who may is answered. */
static void settle(void)
{
    for (uint32_t patience = 0; patience < PATIENCE; patience++) {
        bool settled = true;
        for (size_t at = 0; at <= CLIENTS; at++) {
            send_bytes(&clients[at], clients[at].wire_bytes);
            if (is_right(&clients[at]) && !clients[at].touched)
                greet(&clients[at]);
            settled &= is_settled(&clients[at]) || clients[at].half_closed || clients[at].kind == PLAIN;
        }
        if (settled)
            return;
        pass(patience == 0 ? 0 : CORE_NS_PER_US);
        (void)sched_yield(); /* what is in the kernel arrives in true time */
    }
}

/* A key update with a request, the last thing that came, stays in OpenSSL until more comes: it does not count
 * yet. */
static void judge(const struct client *client)
{
    if (client->descriptor < 0 || client->half_closed || client->unsure)
        return;
    if (client->must_end || (!client->touched && !is_right(client) && client->kind != PLAIN))
        MUST_BE(client, client->closed);
    if (client->touched || !is_right(client) || (!client->welcomed && is_late(client)))
        return;
    if (client->closed)
        MUST_BE(client, client->updates > SERVER_TLS_MESSAGES);
    else
        MUST_BE(client, client->updates <= SERVER_TLS_MESSAGES + 1 && client->welcomed &&
                            client->pongs == client->pings);
}

static uint64_t count_ended(void)
{
    uint64_t count = atomic_load(&server.server->handshakes_done);
    for (uint32_t at = 0; at < server.server->listener_count; at++)
        for (uint32_t reason = 0; reason < SERVER_TURNED_COUNT; reason++)
            if (reason != SERVER_TURNED_MESSAGES)
                count += atomic_load(&server.server->listeners[at].turned[reason]);
    return count;
}

static void finish(void)
{
    bystander->pings = bystander->pongs = 0;
    ping(bystander);
    settle();
    for (size_t at = 0; at <= CLIENTS; at++)
        judge(&clients[at]);
    for (size_t at = 0; at < CLIENTS; at++)
        hang_up(&clients[at]);
    for (uint32_t patience = 0; patience < PATIENCE && count_ended() < dialled; patience++) {
        pass(CORE_NS_PER_US);
        (void)sched_yield();
    }
    MUST_BE(bystander, count_ended() == dialled);
}

/* ---- the server ---- */

static void start(void)
{
    test_server_prepare(&server);
    test_certificates_write(server.folder);
    test_server_start(
        &server,
        "listeners:\n"
        "  - {address: 'tls:127.0.0.1:0', certificate: server.pem, key: server.key, client_ca: ca.pem}\n"
        "  - {address: 'tls:127.0.0.1:0', certificate: server.pem, key: server.key}\n"
        "threads: {cores: 8, io: 1, tls: 1, workers: 1, realtime: off, pin: false}\n"
        "limits: {tls_handshakes_per_s: 0}\n"
        "timeouts: {hello_ms: 2000, frame_ms: 3600000, idle_ms: 3600000}\n",
        &test_profile_real);
    for (uint32_t kind = 0; kind < PLAIN; kind++) {
        contexts[kind] = test_certificates_client(server.folder, kind == SIGNED     ? "client"
                                                                 : kind == STRANGER ? "stranger"
                                                                                    : NULL);
        SSL_CTX_clear_options(contexts[kind], SSL_OP_ENABLE_MIDDLEBOX_COMPAT); /* its record may be lost */
        if (kind == OLD)
            TEST_REQUIRE(SSL_CTX_set_max_proto_version(contexts[kind], TLS1_2_VERSION) == 1);
    }
    for (size_t at = 0; at < CLIENTS; at++)
        clients[at].descriptor = -1;
    dial(bystander, SIGNED);
    test_virtual_rest(hear_all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool started;
    struct tape tape = {data, size};
    if (!started)
        start();
    started = true;
    while (tape.left > 0)
        step(&tape);
    finish();
    return 0;
}
