/* Configured limits, and what a slow or half-closed connection gets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sched.h>
#include <stdlib.h>

#include "tests/support/client.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

static const uint8_t key[32] = {7, 7, 7};

static void start(struct test_server *server, const char *yaml)
{
    test_server_prepare(server);
    test_server_write(server, "keyring", TEST_KEYRING);
    test_server_start(server, yaml, &test_profile_generous);
}

/* Connects until it is let in: the server learns of a closed connection only some time after. */
static void connect_at_last(struct test_client *client, const struct core_address *address)
{
    uint8_t bytes[TEST_FRAME_BYTES];
    struct test_frame frame;
    for (bool in = false; !in;) {
        test_client_dial(client, address);
        (void)test_client_send(client, bytes, protocol_hello_write(bytes, 1, 1));
        in = test_client_next(client, &frame, TEST_PATIENCE_MS) == TEST_FRAME &&
             frame.header.type == PROTOCOL_WELCOME;
        if (!in)
            test_client_close(client);
    }
}

static void connections(void **state)
{
    struct test_server server;
    struct test_client clients[3], more;
    (void)state;
    start(&server, "limits: {connections: 3}");
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 3; i++)
            connect_at_last(&clients[i], i == 1 ? test_server_tcp(&server) : test_server_unix(&server));
        test_client_dial(&more, test_server_unix(&server));
        test_client_expect_error(&more, PROTOCOL_ERROR_LIMIT, 0, true);
        test_client_close(&more);
        test_client_dial(&more, test_server_tcp(&server));
        test_client_expect_error(&more, PROTOCOL_ERROR_LIMIT, 0, true);
        test_client_close(&more);
        for (int i = 0; i < 3; i++) {
            test_client_ping(&clients[i]);
            test_client_close(&clients[i]);
        }
    }
    assert_int_equal(test_server_stop(&server), 0);
}

static uint32_t open_until_refused(struct test_client *client, const struct core_stream_spec *spec,
                                   uint32_t *ids)
{
    struct protocol_open open = test_open_inline(spec, key);
    struct protocol_refused refused;
    struct protocol_opened opened;
    uint32_t count = 0;
    while (test_client_ask(client, PROTOCOL_OPEN, &open, &opened, &refused))
        ids[count++] = opened.stream;
    assert_int_equal(refused.code, PROTOCOL_REFUSED_LIMIT);
    return count;
}

static void close_all(struct test_client *client, const uint32_t *ids, uint32_t count)
{
    uint8_t bytes[TEST_FRAME_BYTES];
    struct test_frame frame;
    for (uint32_t i = 0; i < count; i++) {
        assert_true(test_client_send(client, bytes, protocol_close_write(bytes, ids[i])));
        test_client_expect(client, PROTOCOL_CLOSED, &frame);
        assert_int_equal(frame.header.id, ids[i]);
    }
}

static void streams_and_their_memory(void **state)
{
    static const struct {
        const char *yaml;
        uint32_t packet_bytes, burst_packets, least, most; /* streams that fit */
    } rows[] = {
        {"limits: {streams: 5}", 64, 1, 5, 5},
        {"limits: {buffer_mib: 4, stream_buffer_kib: 1024}", 1024, 1024, 3, 3}, /* records count too */
        {"limits: {buffer_mib: 1, stream_buffer_kib: 1024}", 65536, 2, 7, 7},
        {"limits: {buffer_mib: 1, stream_buffer_kib: 1024}", 16, 1, 100, 2000},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct core_stream_spec spec = test_spec;
        struct test_server server;
        struct test_client one, other;
        uint32_t ids[2048], others[8];
        spec.packet_bytes = rows[i].packet_bytes;
        spec.burst_packets = rows[i].burst_packets;
        start(&server, rows[i].yaml);
        test_client_connect(&one, test_server_unix(&server), NULL);
        test_client_connect(&other, test_server_unix(&server), NULL);
        uint32_t count = open_until_refused(&one, &spec, ids);
        assert_in_range(count, rows[i].least, rows[i].most);
        for (int round = 0; round < 3; round++) {
            assert_int_equal(open_until_refused(&other, &spec, others), 0); /* the server's, not its own */
            close_all(&one, ids, 2);
            assert_int_equal(open_until_refused(&other, &spec, others), 2);
            close_all(&other, others, 2);
            assert_int_equal(open_until_refused(&one, &spec, ids), 2);
        }
        test_client_close(&one);
        test_client_close(&other);
        assert_int_equal(test_server_stop(&server), 0);
    }
}

static void bytes_of_a_key(void **state)
{
    static const uint32_t sizes[] = {1408, 16, 1408, 16, 7, 160, 0, 1408, 16, 16, 16};
    struct protocol_welcome welcome;
    struct test_server server;
    struct test_client client;
    (void)state;
    start(&server, "limits: {bytes_per_key: 3000}");
    test_client_connect(&client, test_server_unix(&server), &welcome);
    assert_int_equal(welcome.bytes_per_key, 3000);
    struct test_stream *stream = test_stream_open(&client, &test_spec, 1);
    struct test_stream *fresh = test_stream_open(&client, &test_spec, 1); /* another stream, the same key */
    stream->bytes_per_key = 3000;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        assert_true(test_stream_send(stream, sizes[i]));
    test_stream_drain(stream);
    assert_int_equal(stream->key_bytes, 1408 + 16 + 1408 + 16 + 16 + 16 + 16);
    assert_true(test_stream_send(fresh, 1408));
    test_stream_drain(fresh);
    struct protocol_closed closed = test_stream_close(stream);
    assert_true(closed.packets == 7 && closed.bytes == stream->key_bytes);
    test_stream_free(stream);
    test_stream_free(fresh);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
}

/* ---- slow readers ---- */

/* Pushes packets of the stream until the connection takes no more, for `idle_rounds` looks in a row between
 * which the neighbour got a packet back. Returns the bytes taken; a frame cut at the end is kept in `rest`.
 */
static size_t push_until_full(struct test_stream *stream, struct test_stream *neighbour, uint8_t *rest,
                              size_t *rest_bytes)
{
    size_t taken = 0, frame_bytes = 0, done = 0;
    static uint8_t frame[PROTOCOL_HEADER_BYTES + 1408];
    for (int idle_rounds = 0; idle_rounds < 500;) {
        if (done == frame_bytes) {
            frame_bytes = test_stream_frame(stream, 1408, frame);
            done = 0;
        }
        size_t pushed = test_client_push(stream->client, frame + done, frame_bytes - done);
        taken += pushed;
        done += pushed;
        if (pushed > 0) {
            idle_rounds = 0;
            continue;
        }
        idle_rounds++;
        TEST_REQUIRE(test_stream_send(neighbour, 1408));
        test_stream_drain(neighbour);
    }
    *rest_bytes = frame_bytes - done;
    for (size_t i = 0; i < *rest_bytes; i++)
        rest[i] = frame[done + i];
    return taken;
}

static void slow_reader_counted_as_reader_late(void **state)
{
    static uint8_t rest[2048];
    struct core_stream_spec spec = test_spec;
    struct test_server server;
    struct test_client slow, quick;
    size_t rest_bytes;
    uint32_t late = 0;
    (void)state;

    spec.latency_ns = 500 * CORE_NS_PER_MS;
    spec.interval_ns = 20 * CORE_NS_PER_US;
    start(&server, "timeouts: {stall_ms: 60000}");
    test_client_connect(&quick, test_server_unix(&server), NULL);
    test_client_connect(&slow, test_server_unix(&server), NULL);
    struct test_stream *neighbour = test_stream_open(&quick, &spec, 1);
    struct test_stream *stream = test_stream_open(&slow, &spec, 2);
    size_t taken = push_until_full(stream, neighbour, rest, &rest_bytes);
    /* Both sockets' buffers, the stream's room, one read: no more, though it would send for ever. */
    assert_in_range(taken, 1, 4 << 20);
    core_time_sleep_until(core_time_now_ns() + spec.latency_ns + 200 * CORE_NS_PER_MS);
    assert_true(test_client_send(&slow, rest, rest_bytes));
    while (stream->received != stream->sent) {
        struct protocol_result result = test_streams_take(&slow, &stream);
        assert_true((result.flags & PROTOCOL_RESULT_MET) != 0);
        late += (result.flags & PROTOCOL_RESULT_READER) != 0 ? 1 : 0;
        if (late == 0) /* was handed over before the reader was waited for */
            assert_true(result.latency_ns <= spec.latency_ns);
    }
    assert_true(late > 0);
    struct protocol_closed closed = test_stream_close(stream);
    assert_true(closed.missed == 0 && closed.met == stream->sent);
    closed = test_stream_close(neighbour);
    assert_true(closed.missed == 0 && closed.met == neighbour->sent);
    test_stream_free(stream);
    test_stream_free(neighbour);
    test_client_close(&slow);
    test_client_close(&quick);
    assert_int_equal(test_server_stop(&server), 0);
}

/* ---- half-closed connections ---- */

static void half_closed(void **state)
{
    struct core_stream_spec spec = test_spec;
    struct protocol_closed closed;
    struct test_server server;
    (void)state;
    spec.burst_packets = 30;
    spec.interval_ns = 10 * CORE_NS_PER_MS; /* 30 packets at once, 20 that wait */
    start(&server, "keyring: keyring");
    for (int tcp = 0; tcp < 2; tcp++) {
        struct test_stream *streams[3];
        struct test_client client;
        struct test_frame frame;
        test_client_connect(&client, tcp != 0 ? test_server_tcp(&server) : test_server_unix(&server), NULL);
        for (uint64_t i = 0; i < 3; i++)
            streams[i] = test_stream_open(&client, &spec, i);
        for (int packet = 0; packet < 50; packet++)
            for (int i = 0; i < 2; i++) /* the third has nothing to send */
                assert_true(test_stream_send(streams[i], 1408));
        test_client_half_close(&client);
        for (int ends = 0; ends < 3;) {
            assert_int_equal(test_client_next(&client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
            struct test_stream *stream = streams[frame.header.id - 1];
            if (frame.header.type == PROTOCOL_RESULT) {
                (void)test_stream_check(stream, &frame);
                continue;
            }
            assert_int_equal(frame.header.type, PROTOCOL_CLOSED);
            assert_int_equal(protocol_closed_read(frame.body, frame.header.body_bytes, &closed, NULL),
                             CORE_OK);
            assert_int_equal(closed.packets, stream->sent);
            assert_true(closed.reason == PROTOCOL_CLOSE_ASKED && stream->received == stream->sent);
            ends++;
        }
        test_client_expect_end(&client);
        for (int i = 0; i < 3; i++)
            test_stream_free(streams[i]);
        test_client_close(&client);
    }
    assert_int_equal(test_server_stop(&server), 0);
}

/* One shot: all questions, no more to say. Each gets its answer, and a stream that was opened is closed. */
static void half_closed_with_questions_unanswered(void **state)
{
    enum { QUERIES = 300 };
    static uint8_t bytes[(QUERIES + 2) * TEST_FRAME_BYTES];
    struct protocol_open open = test_open_inline(&test_spec, key);
    struct test_server server;
    struct test_client client;
    struct test_frame frame;
    (void)state;
    start(&server, "");
    for (int round = 0; round < 20; round++) {
        size_t count = protocol_hello_write(bytes, 1, 1);
        for (uint32_t i = 1; i <= QUERIES; i++)
            count += protocol_open_write(2, bytes + count, PROTOCOL_QUERY, i, &open);
        count += protocol_open_write(2, bytes + count, PROTOCOL_OPEN, QUERIES + 1, &open);
        test_client_dial(&client, test_server_unix(&server));
        assert_true(test_client_send(&client, bytes, count));
        test_client_half_close(&client);
        test_client_expect(&client, PROTOCOL_WELCOME, &frame);
        for (uint32_t i = 1; i <= QUERIES + 1; i++) {
            test_client_expect(&client, PROTOCOL_OPENED, &frame);
            assert_int_equal(frame.header.id, i);
        }
        test_client_expect(&client, PROTOCOL_CLOSED, &frame);
        test_client_expect_end(&client);
        test_client_close(&client);
    }
    assert_int_equal(test_server_stop(&server), 0);
}

/* What is wrong is said even to a client that has finished sending. */
static void half_closed_after_an_error(void **state)
{
    uint8_t bytes[2 * TEST_FRAME_BYTES] = {0};
    struct test_server server;
    (void)state;
    start(&server, "");
    for (int tcp = 0; tcp < 2; tcp++) {
        struct test_client client;
        test_client_connect(&client, tcp != 0 ? test_server_tcp(&server) : test_server_unix(&server), NULL);
        assert_true(test_client_send(&client, bytes, PROTOCOL_HEADER_BYTES));
        test_client_half_close(&client);
        test_client_expect_error(&client, PROTOCOL_ERROR_UNKNOWN_TYPE, 0, true);
        test_client_close(&client);
        test_client_dial(&client, tcp != 0 ? test_server_tcp(&server) : test_server_unix(&server));
        test_client_half_close(&client); /* nothing said at all */
        test_client_expect_end(&client);
        test_client_close(&client);
    }
    assert_int_equal(test_server_stop(&server), 0);
}

static void push_whole(struct test_client *client, const uint8_t *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        done += test_client_push(client, bytes + done, count - done);
        if (done < count)
            sched_yield();
    }
}

/* Also where results that nobody read yet lie before the ERROR, more of them than the socket holds. */
static void half_closed_after_an_error_behind_results(void **state)
{
    static uint8_t frame_bytes[PROTOCOL_HEADER_BYTES + 1408];
    const uint8_t wrong[PROTOCOL_HEADER_BYTES] = {0};
    struct core_stream_spec spec = test_spec;
    struct test_server server;
    struct test_client slow, quick;
    (void)state;
    spec.burst_packets = 1024;
    start(&server, "timeouts: {stall_ms: 60000}");
    test_client_connect(&quick, test_server_unix(&server), NULL);
    test_client_connect(&slow, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&slow, &spec, 2);
    for (int i = 0; i < 1000; i++)
        push_whole(&slow, frame_bytes, test_stream_frame(stream, 1408, frame_bytes));
    push_whole(&slow, wrong, sizeof wrong);
    test_client_half_close(&slow);
    for (int i = 0; i < 100; i++) /* meanwhile the server reads all that */
        test_client_ping(&quick);
    for (;;) {
        struct test_frame frame;
        assert_int_equal(test_client_next(&slow, &frame, TEST_PATIENCE_MS), TEST_FRAME);
        if (frame.header.type != PROTOCOL_RESULT) { /* put it back */
            slow.input_start -= PROTOCOL_HEADER_BYTES + (size_t)frame.header.body_bytes;
            break;
        }
        (void)test_stream_check(stream, &frame);
    }
    test_client_expect_error(&slow, PROTOCOL_ERROR_UNKNOWN_TYPE, 0, true);
    test_stream_free(stream);
    test_client_close(&slow);
    test_client_close(&quick);
    assert_int_equal(test_server_stop(&server), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections),
        cmocka_unit_test(streams_and_their_memory),
        cmocka_unit_test(bytes_of_a_key),
        cmocka_unit_test(slow_reader_counted_as_reader_late),
        cmocka_unit_test(half_closed),
        cmocka_unit_test(half_closed_with_questions_unanswered),
        cmocka_unit_test(half_closed_after_an_error),
        cmocka_unit_test(half_closed_after_an_error_behind_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
