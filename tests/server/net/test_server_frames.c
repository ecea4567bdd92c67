/* Every frame of a good conversation, cut at every byte, several in one read, one byte in one; every refusal;
 * QUERY. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "tests/support/client.h"
#include "tests/support/random.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#define STREAMS_PER_CONNECTION 20

static struct test_server server;
static const uint8_t key[32] = {9, 8, 7};
static const struct core_stream_spec padded_spec = {.packet_bytes = 64,
                                                    .burst_packets = 8,
                                                    .interval_ns = CORE_NS_PER_MS,
                                                    .latency_ns = 10 * CORE_NS_PER_S,
                                                    .cipher = CORE_CIPHER_AES_256_CBC,
                                                    .padding = CORE_PADDING_PKCS7};

static int set_up(void **state)
{
    (void)state;
    test_server_prepare(&server);
    test_server_write(&server, "keyring",
                      "camera-7 aes-128-cbc 000102030405060708090a0b0c0d0e0f\n"
                      "camera-8 aes-256-cbc "
                      "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f "
                      "listener=unix:socket listener=tcp:127.0.0.1:0\n");
    test_server_start(
        &server,
        "keyring: keyring\n"
        "limits: {streams: 4096, streams_per_connection: 20, packet_bytes: 4096, burst_packets: "
        "128, stream_buffer_kib: 64}",
        &test_profile_generous);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return test_server_stop(&server) == 0 ? 0 : -1;
}

/* ---- one conversation, however it is cut ---- */

/* HELLO, QUERY, PING, OPEN; the answers to all but HELLO come in any order. */
static size_t write_greeting(uint8_t *bytes)
{
    struct protocol_open open = test_open_inline(&padded_spec, key);
    size_t count = protocol_hello_write(bytes, 1, 1);
    count += protocol_open_write(2, bytes + count, PROTOCOL_QUERY, 2, &open);
    count += protocol_ping_write(bytes + count, PROTOCOL_PING, 3, "abc", 3);
    count += protocol_open_write(2, bytes + count, PROTOCOL_OPEN, 4, &open);
    return count;
}

static struct test_stream *read_greeting(struct test_client *client)
{
    struct protocol_opened opened;
    struct test_stream *stream = NULL;
    struct test_frame frame;
    unsigned answered = 0;

    test_client_expect(client, PROTOCOL_WELCOME, &frame);
    while (answered != (1u << 2 | 1u << 3 | 1u << 4)) {
        assert_int_equal(test_client_next(client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
        assert_true(frame.header.id >= 2 && frame.header.id <= 4);
        answered ^= 1u << frame.header.id;
        if (frame.header.id == 3) {
            assert_int_equal(frame.header.type, PROTOCOL_PONG);
            assert_int_equal(frame.header.body_bytes, 3);
            assert_memory_equal(frame.body, "abc", 3);
            continue;
        }
        assert_int_equal(frame.header.type, PROTOCOL_OPENED);
        assert_int_equal(protocol_opened_read(1, frame.body, frame.header.body_bytes, &opened, NULL),
                         CORE_OK);
        assert_int_equal(opened.stream != 0, frame.header.id == 4);
        if (frame.header.id == 4)
            stream = test_stream_adopt(client, &padded_spec, 5, key, &opened);
    }
    return stream;
}

static size_t write_packets(struct test_stream *stream, uint8_t *bytes)
{
    size_t count = test_stream_frame(stream, 48, bytes);
    count += test_stream_frame(stream, 0, bytes + count);
    count += protocol_ping_write(bytes + count, PROTOCOL_PING, 6, "", 0);
    count += test_stream_frame(stream, 33, bytes + count);
    count += test_stream_frame(stream, 64, bytes + count);
    count += protocol_close_write(bytes + count, stream->id);
    return count;
}

static void read_packets(struct test_stream *stream)
{
    struct protocol_closed closed;
    bool pong = false, ended = false;
    struct test_frame frame;

    while (!pong || !ended) {
        assert_int_equal(test_client_next(stream->client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
        if (frame.header.type == PROTOCOL_PONG) {
            assert_true(!pong && frame.header.id == 6 && frame.header.body_bytes == 0);
            pong = true;
        } else if (frame.header.type == PROTOCOL_RESULT)
            (void)test_stream_check(stream, &frame);
        else {
            assert_int_equal(frame.header.type, PROTOCOL_CLOSED);
            assert_int_equal(protocol_closed_read(frame.body, frame.header.body_bytes, &closed, NULL),
                             CORE_OK);
            ended = true;
        }
    }
    assert_int_equal(stream->received, 4);
    assert_int_equal(closed.reason, PROTOCOL_CLOSE_ASKED);
    assert_int_equal(closed.packets, 4);
    assert_int_equal(closed.bytes, 64 + 16 + 48 + 80);
    assert_int_equal(closed.met + closed.missed, 4);
}

/* Both halves of the conversation in pieces; returns the length of the longer half. */
static size_t converse(const struct core_address *address, size_t first, size_t then)
{
    uint8_t bytes[1024];
    struct test_client client;
    test_client_dial(&client, address);
    size_t greeting = write_greeting(bytes);
    test_client_send_cut(&client, bytes, greeting, first, then);
    struct test_stream *stream = read_greeting(&client);
    size_t packets = write_packets(stream, bytes);
    test_client_send_cut(&client, bytes, packets, first, then);
    read_packets(stream);
    test_client_ping(&client);
    test_stream_free(stream);
    test_client_close(&client);
    return greeting > packets ? greeting : packets;
}

static void cut_at_every_byte(void **state)
{
    size_t bytes = converse(test_server_unix(&server), SIZE_MAX, SIZE_MAX);
    (void)state;
    for (size_t cut = 1; cut < bytes; cut++)
        (void)converse(test_server_unix(&server), cut, SIZE_MAX);
}

static void in_pieces_of_every_size(void **state)
{
    (void)state;
    for (size_t piece = 1; piece <= 80; piece++)
        (void)converse(test_server_unix(&server), piece, piece);
}

/* ---- refusals ---- */

struct refusal {
    const char *what;
    struct core_stream_spec spec; /* where 0, as padded_spec */
    enum protocol_key_kind key_kind;
    const char *name;
    uint32_t key_bytes;
    bool has_iv, query_too;
    enum protocol_refusal code; /* 0: granted */
};

static const struct refusal refusals[] = {
    {.what = "fine", .key_kind = PROTOCOL_KEY_INLINE, .key_bytes = 32},
    {.what = "named", .key_kind = PROTOCOL_KEY_NAMED, .name = "camera-8", .query_too = true},
    {.what = "cipher 4", .spec.cipher = 4, .code = PROTOCOL_REFUSED_SPEC, .query_too = true},
    {.what = "cipher 255", .spec.cipher = 255, .code = PROTOCOL_REFUSED_SPEC, .query_too = true},
    {.what = "padding 2", .spec.padding = 2, .code = PROTOCOL_REFUSED_SPEC, .query_too = true},
    {.what = "interval", .spec.interval_ns = 999, .code = PROTOCOL_REFUSED_SPEC, .query_too = true},
    {.what = "interval", .spec.interval_ns = INT64_MAX, .code = PROTOCOL_REFUSED_SPEC, .query_too = true},
    {.what = "latency", .spec.latency_ns = 9999, .code = PROTOCOL_REFUSED_SPEC, .query_too = true},
    {.what = "latency",
     .spec.latency_ns = CORE_LATENCY_NS_MAX + 1,
     .code = PROTOCOL_REFUSED_SPEC,
     .query_too = true},
    {.what = "packet", .spec.packet_bytes = (1u << 20) + 1, .code = PROTOCOL_REFUSED_SPEC, .query_too = true},
    {.what = "packet", .spec.packet_bytes = UINT32_MAX, .code = PROTOCOL_REFUSED_SPEC, .query_too = true},
    {.what = "burst", .spec.burst_packets = 65537, .code = PROTOCOL_REFUSED_SPEC, .query_too = true},
    {.what = "burst", .spec.burst_packets = UINT32_MAX, .code = PROTOCOL_REFUSED_SPEC, .query_too = true},
    {.what = "packet limit", .spec.packet_bytes = 4112, .code = PROTOCOL_REFUSED_LIMIT, .query_too = true},
    {.what = "burst limit", .spec.burst_packets = 129, .code = PROTOCOL_REFUSED_LIMIT, .query_too = true},
    {.what = "memory limit",
     .spec = {.packet_bytes = 4096, .burst_packets = 16},
     .code = PROTOCOL_REFUSED_LIMIT,
     .query_too = true},
    {.what = "no key", .key_kind = PROTOCOL_KEY_NONE, .code = PROTOCOL_REFUSED_KEY},
    {.what = "short key",
     .key_kind = PROTOCOL_KEY_INLINE,
     .key_bytes = 16,
     .code = PROTOCOL_REFUSED_KEY,
     .query_too = true},
    {.what = "no such key",
     .key_kind = PROTOCOL_KEY_NAMED,
     .name = "camera-9",
     .code = PROTOCOL_REFUSED_KEY,
     .query_too = true},
    {.what = "a prefix of a name",
     .key_kind = PROTOCOL_KEY_NAMED,
     .name = "camera",
     .code = PROTOCOL_REFUSED_KEY,
     .query_too = true},
    {.what = "another cipher's key",
     .key_kind = PROTOCOL_KEY_NAMED,
     .name = "camera-7",
     .code = PROTOCOL_REFUSED_KEY,
     .query_too = true},
    {.what = "IV",
     .key_kind = PROTOCOL_KEY_INLINE,
     .key_bytes = 32,
     .has_iv = true,
     .code = PROTOCOL_REFUSED_IV,
     .query_too = true},
};

static struct protocol_open make_open(const struct refusal *row)
{
    struct protocol_open open = test_open_inline(&padded_spec, key);
    open.has_iv = row->has_iv;
    if (row->key_kind != PROTOCOL_KEY_NONE || row->code == PROTOCOL_REFUSED_KEY) {
        open.key_kind = row->key_kind;
        open.key = row->name != NULL ? (const uint8_t *)row->name : key;
        open.key_bytes = row->name != NULL ? (uint32_t)strlen(row->name) : row->key_bytes;
    }
    if (row->spec.packet_bytes != 0)
        open.spec.packet_bytes = row->spec.packet_bytes;
    if (row->spec.burst_packets != 0)
        open.spec.burst_packets = row->spec.burst_packets;
    if (row->spec.interval_ns != 0)
        open.spec.interval_ns = row->spec.interval_ns;
    if (row->spec.latency_ns != 0)
        open.spec.latency_ns = row->spec.latency_ns;
    if (row->spec.cipher != 0)
        open.spec.cipher = row->spec.cipher;
    if (row->spec.padding != 0)
        open.spec.padding = row->spec.padding;
    return open;
}

static void every_refusal(void **state)
{
    struct protocol_refused refused;
    struct test_client client;
    (void)state;

    test_client_connect(&client, test_server_unix(&server), NULL);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *row = &refusals[i];
        struct protocol_open open = make_open(row);
        for (int query = 0; query <= (row->query_too ? 1 : 0); query++) {
            enum protocol_type type = query != 0 ? PROTOCOL_QUERY : PROTOCOL_OPEN;
            bool accepted = test_client_ask(&client, type, &open, NULL, &refused);
            if (accepted != (row->code == 0) || (!accepted && refused.code != row->code))
                fail_msg("%s: accepted %d, code %d: %s", row->what, accepted, (int)refused.code,
                         refused.text);
            if (!accepted)
                assert_true(refused.constraint == 0 && refused.offer_interval_ns == 0 &&
                            refused.offer_latency_ns == 0);
        }
    }
    test_client_ping(&client);
    test_client_close(&client);
}

static void inline_keys_over_tcp(void **state)
{
    struct protocol_open open = test_open_inline(&padded_spec, key);
    struct protocol_refused refused;
    struct protocol_welcome welcome;
    struct test_client client;
    (void)state;

    test_client_connect(&client, test_server_unix(&server), &welcome);
    assert_int_equal(welcome.flags, PROTOCOL_ALLOWS_INLINE_KEY | PROTOCOL_HAS_NAMED_KEYS);
    assert_int_equal(welcome.packet_bytes_max, 4096);
    assert_int_equal(welcome.burst_packets_max, 128);
    assert_int_equal(welcome.streams_max, STREAMS_PER_CONNECTION);
    assert_int_equal(welcome.stream_buffer_bytes_max, 65536);
    test_client_close(&client);
    test_client_connect(&client, test_server_tcp(&server), &welcome);
    assert_int_equal(welcome.flags, PROTOCOL_HAS_NAMED_KEYS);
    assert_false(test_client_ask(&client, PROTOCOL_OPEN, &open, NULL, &refused));
    assert_int_equal(refused.code, PROTOCOL_REFUSED_KEY);
    assert_false(test_client_ask(&client, PROTOCOL_QUERY, &open, NULL, &refused));
    assert_int_equal(refused.code, PROTOCOL_REFUSED_KEY);
    open = make_open(&refusals[1]);
    assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, NULL, NULL));
    test_client_close(&client);
}

/* ---- QUERY and ids ---- */

static void query_commits_nothing(void **state)
{
    struct protocol_open open = test_open_inline(&padded_spec, key);
    struct protocol_opened opened;
    struct protocol_refused refused;
    struct test_client client;
    (void)state;

    test_client_connect(&client, test_server_unix(&server), NULL);
    for (int i = 0; i < 3 * STREAMS_PER_CONNECTION; i++) {
        assert_true(test_client_ask(&client, PROTOCOL_QUERY, &open, &opened, NULL));
        assert_true(opened.unit == PROTOCOL_UNIT_CPU && opened.bound_ns <= padded_spec.latency_ns);
        for (int byte = 0; byte < CORE_BLOCK_BYTES; byte++)
            assert_int_equal(opened.iv[byte], 0);
    }
    for (uint32_t i = 1; i <= STREAMS_PER_CONNECTION; i++) {
        assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, NULL));
        assert_int_equal(opened.stream, i);
    }
    /* QUERY asks whether OPEN would be granted now: it is refused where OPEN is. */
    assert_false(test_client_ask(&client, PROTOCOL_OPEN, &open, NULL, &refused));
    assert_int_equal(refused.code, PROTOCOL_REFUSED_LIMIT);
    assert_false(test_client_ask(&client, PROTOCOL_QUERY, &open, NULL, &refused));
    assert_int_equal(refused.code, PROTOCOL_REFUSED_LIMIT);
    test_client_close(&client);
}

/* Many QUERYs on their way take no stream's place. */
static void queries_on_their_way_leave_room(void **state)
{
    enum { QUERIES = 500 };
    static uint8_t bytes[(QUERIES + 1) * TEST_FRAME_BYTES];
    struct protocol_open open = test_open_inline(&padded_spec, key);
    struct test_client client;
    struct test_frame frame;
    size_t count = 0;
    (void)state;

    for (uint32_t i = 0; i < QUERIES; i++)
        count += protocol_open_write(2, bytes + count, PROTOCOL_QUERY, i, &open);
    count += protocol_open_write(2, bytes + count, PROTOCOL_OPEN, QUERIES, &open);
    test_client_connect(&client, test_server_unix(&server), NULL);
    assert_true(test_client_send(&client, bytes, count));
    for (uint32_t i = 0; i <= QUERIES; i++)
        test_client_expect(&client, PROTOCOL_OPENED, &frame);
    test_client_close(&client);
}

static void ids_are_used_again_after_closed(void **state)
{
    struct test_stream *streams[STREAMS_PER_CONNECTION];
    struct test_client client;
    struct test_random random = {.state = 11};
    (void)state;

    test_client_connect(&client, test_server_unix(&server), NULL);
    for (uint32_t i = 0; i < STREAMS_PER_CONNECTION; i++)
        streams[i] = test_stream_open(&client, &padded_spec, i);
    for (int round = 0; round < 200; round++) {
        size_t i = (size_t)test_random_in(&random, 0, STREAMS_PER_CONNECTION - 1);
        assert_true(test_stream_send(streams[i], 7));
        (void)test_stream_close(streams[i]);
        uint32_t id = streams[i]->id;
        test_stream_free(streams[i]);
        streams[i] = test_stream_open(&client, &padded_spec, (uint64_t)round);
        assert_int_equal(streams[i]->id, id); /* the only one free */
        assert_true(test_stream_send(streams[i], 8));
        test_stream_drain(streams[i]);
    }
    for (size_t i = 0; i < STREAMS_PER_CONNECTION; i++)
        test_stream_free(streams[i]);
    test_client_close(&client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_at_every_byte),
        cmocka_unit_test(in_pieces_of_every_size),
        cmocka_unit_test(every_refusal),
        cmocka_unit_test(inline_keys_over_tcp),
        cmocka_unit_test(query_commits_nothing),
        cmocka_unit_test(queries_on_their_way_leave_room),
        cmocka_unit_test(ids_are_used_again_after_closed),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
