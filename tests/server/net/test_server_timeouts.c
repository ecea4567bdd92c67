/* Silence, half frames and readers that do not read: what each brings, and to nobody else. Times are short
 * and only awaited; nothing is asserted about how long anything takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sched.h>

#include "server/admin/snapshot.h"
#include "tests/support/client.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#define LONG "3600000" /* the timeouts that a test is not about */

static const uint8_t key[32] = {4, 5, 6};

static void start(struct test_server *server, const char *yaml)
{
    test_server_prepare(server);
    test_server_write(server, "keyring", TEST_KEYRING);
    test_server_start(server, yaml, &test_profile_generous);
}

static void hello_timeout(void **state)
{
    uint8_t bytes[TEST_FRAME_BYTES];
    struct test_server server;
    struct test_client silent, halting, good;
    (void)state;
    start(&server, "keyring: keyring\ntimeouts: {hello_ms: 300, frame_ms: " LONG ", idle_ms: " LONG "}");
    test_client_connect(&good, test_server_unix(&server), NULL);
    test_client_dial(&silent, test_server_unix(&server));
    test_client_dial(&halting, test_server_tcp(&server));
    assert_true(test_client_send(&halting, bytes, protocol_hello_write(bytes, 1, 1) - 1));
    test_client_expect_error(&silent, PROTOCOL_ERROR_TIMEOUT, 0, true);
    test_client_expect_error(&halting, PROTOCOL_ERROR_TIMEOUT, 0, true);
    test_client_ping(&good); /* its HELLO came in time */
    test_client_close(&silent);
    test_client_close(&halting);
    test_client_close(&good);
    assert_int_equal(test_server_stop(&server), 0);
}

/* Every frame that has a body, cut inside its header and inside its body. */
static void frame_timeout(void **state)
{
    enum { CASES = 7 };
    uint8_t bytes[2048];
    struct test_server server;
    struct test_client clients[CASES], good;
    struct test_stream *streams[CASES];
    struct protocol_open open = test_open_inline(&test_spec, key);
    (void)state;
    start(&server, "keyring: keyring\ntimeouts: {hello_ms: " LONG ", frame_ms: 300, idle_ms: " LONG "}");
    test_client_connect(&good, test_server_unix(&server), NULL);
    struct test_stream *silent = test_stream_open(&good, &test_spec, 1);
    for (int i = 0; i < CASES; i++) {
        test_client_connect(&clients[i], i % 2 == 0 ? test_server_unix(&server) : test_server_tcp(&server),
                            NULL);
        streams[i] = test_stream_open(&clients[i], &test_spec, 2);
        size_t frame_bytes = i < 3   ? test_stream_frame(streams[i], 1408, bytes)
                             : i < 6 ? protocol_open_write(2, bytes, PROTOCOL_OPEN, 1, &open)
                                     : protocol_close_write(bytes, streams[i]->id);
        size_t cuts[CASES] = {1, PROTOCOL_HEADER_BYTES, frame_bytes - 1, 15, PROTOCOL_HEADER_BYTES, 40, 15};
        assert_true(test_client_send(&clients[i], bytes, cuts[i]));
    }
    for (int i = 0; i < CASES; i++) {
        test_client_expect_error(&clients[i], PROTOCOL_ERROR_TIMEOUT, 0, true);
        test_stream_free(streams[i]);
        test_client_close(&clients[i]);
    }
    assert_true(test_stream_send(silent, 1408)); /* with a stream, silence between frames is no fault */
    test_stream_drain(silent);
    test_stream_free(silent);
    test_client_close(&good);
    assert_int_equal(test_server_stop(&server), 0);
}

static void idle_timeout(void **state)
{
    struct test_server server;
    struct test_client idle, holding, closing;
    (void)state;
    start(&server, "keyring: keyring\ntimeouts: {hello_ms: " LONG ", frame_ms: " LONG ", idle_ms: 300}");
    test_client_connect(&holding, test_server_tcp(&server), NULL);
    test_client_close(&holding);
    test_client_connect(&holding, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&holding, &test_spec, 1);
    test_client_connect(&closing, test_server_unix(&server), NULL);
    struct test_stream *closed = test_stream_open(&closing, &test_spec, 1);
    test_client_connect(&idle, test_server_tcp(&server), NULL);
    test_client_expect_error(&idle, PROTOCOL_ERROR_TIMEOUT, 0, true);
    test_client_ping(&holding);
    (void)test_stream_close(closed); /* was silent for longer than that, but had a stream */
    test_client_expect_error(&closing, PROTOCOL_ERROR_TIMEOUT, 0, true); /* and now it has none */
    test_client_ping(&holding);
    test_stream_free(closed);
    test_stream_free(stream);
    test_client_close(&idle);
    test_client_close(&holding);
    test_client_close(&closing);
    assert_int_equal(test_server_stop(&server), 0);
}

/* A stream that sends nothing is closed, and its room is free; one that sends is not, nor one whose next
 * packet is not due. Its id is not given again, so that what still comes for it reaches no other. */
static void a_stream_that_sends_nothing(void **state)
{
    struct core_stream_spec slow = test_spec;
    uint8_t bytes[TEST_FRAME_BYTES];
    struct test_server server;
    struct test_client client, old;
    struct protocol_closed closed;
    struct test_frame frame;
    struct core_error error;
    (void)state;
    slow.interval_ns = 1000 * CORE_NS_PER_S;
    start(&server, "keyring: keyring\ntimeouts: {stream_idle_ms: 5000}");
    test_client_dial(&client, test_server_unix(&server));
    test_client_hello_version(&client, 2, NULL);
    struct test_stream *sending = test_stream_open(&client, &slow, 1);
    assert_true(test_stream_send(sending, 16));
    test_stream_drain(sending);
    struct test_stream *silent = test_stream_open(&client, &test_spec, 2);
    struct test_stream *stopped = test_stream_open(&client, &test_spec, 3);
    assert_true(test_stream_send(stopped, 16));
    test_client_connect(&old, test_server_unix(&server), NULL);
    struct test_stream *first = test_stream_open(&old, &test_spec, 4);
    test_client_expect(&old, PROTOCOL_CLOSED, &frame);
    assert_int_equal(protocol_closed_read(frame.body, frame.header.body_bytes, &closed, &error), CORE_OK);
    assert_int_equal(closed.reason, PROTOCOL_CLOSE_DRAINED);
    for (int i = 0; i < 2; i++) {
        do
            assert_true(test_client_next(&client, &frame, TEST_PATIENCE_MS) == TEST_FRAME);
        while (frame.header.type == PROTOCOL_RESULT);
        assert_int_equal(frame.header.type, PROTOCOL_CLOSED);
        assert_int_equal(protocol_closed_read(frame.body, frame.header.body_bytes, &closed, &error), CORE_OK);
        assert_int_equal(closed.reason, PROTOCOL_CLOSE_IDLE);
        assert_true(frame.header.id == silent->id || frame.header.id == stopped->id);
        assert_int_equal(closed.packets, frame.header.id == silent->id ? 0 : 1);
    }
    assert_true(test_client_send(&client, bytes, test_stream_frame(silent, 16, bytes)));
    test_client_expect_error(&client, PROTOCOL_ERROR_STREAM, silent->id, false);
    struct test_stream *again = test_stream_open(&client, &slow, 5);
    assert_true(again->id != silent->id && again->id != stopped->id);
    test_stream_free(again);
    test_stream_free(first);
    test_stream_free(stopped);
    test_stream_free(silent);
    (void)test_stream_close(sending); /* its next packet is not due yet */
    test_stream_free(sending);
    test_client_close(&old);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
}

/* The stream ends long after its CLOSE, because its packets have to wait: the idle time counts from its end.
 */
static void idle_counts_from_the_last_stream_s_end(void **state)
{
    struct core_stream_spec spec = test_spec;
    uint8_t bytes[2 * TEST_FRAME_BYTES];
    struct test_server server;
    struct test_client client;
    struct test_frame frame;
    (void)state;
    spec.burst_packets = 1;
    spec.interval_ns = 2 * CORE_NS_PER_S;
    start(&server, "keyring: keyring\ntimeouts: {idle_ms: 1000}");
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 1);
    size_t count = test_stream_frame(stream, 16, bytes);
    count += test_stream_frame(stream, 16, bytes + count); /* eligible in 2 s */
    count += protocol_close_write(bytes + count, stream->id);
    assert_true(test_client_send(&client, bytes, count));
    test_stream_drain(stream);
    test_client_expect(&client, PROTOCOL_CLOSED, &frame);
    /* The next tick comes within 0.1 s and must not find the connection idle. */
    assert_int_equal(test_client_next(&client, &frame, 300), TEST_SILENCE);
    test_client_ping(&client);
    test_stream_free(stream);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
}

/* The server does not read while a stream's room is used up. That it had begun a frame before is not the
 * client's fault: the frame's time counts from when the server goes on reading. */
static void a_frame_that_back_pressure_cut(void **state)
{
    static uint8_t bytes[3 * (PROTOCOL_HEADER_BYTES + 65536)];
    struct core_stream_spec spec = test_spec;
    struct test_server server;
    struct test_client client;
    struct test_frame frame;
    (void)state;
    spec.packet_bytes = 65536;
    spec.burst_packets = 1;
    spec.interval_ns = CORE_NS_PER_S;
    start(&server, "timeouts: {frame_ms: 700}");
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 1);
    assert_int_equal(stream->opened.queue_packets, 1);
    size_t count = test_stream_frame(stream, 65536, bytes);
    count += test_stream_frame(stream, 65536, bytes + count); /* eligible in 1 s */
    size_t cut = count + 100;                                 /* so long this one finds no room */
    count += test_stream_frame(stream, 65536, bytes + count);
    assert_true(test_client_send(&client, bytes, cut));
    (void)test_streams_take(&client, &stream);
    (void)test_streams_take(&client, &stream);
    assert_int_equal(test_client_next(&client, &frame, 250), TEST_SILENCE);
    assert_true(test_client_send(&client, bytes + cut, count - cut));
    test_stream_drain(stream);
    test_stream_free(stream);
    test_client_close(&client);
    assert_int_equal(test_server_stop(&server), 0);
}

/* A reader that takes nothing is cut off; its streams' capacity comes back; its neighbour feels nothing. */
static void a_reader_that_takes_nothing(void **state)
{

    struct core_stream_spec spec = test_spec;
    struct protocol_refused refused;
    struct protocol_open open;
    struct test_server server;
    struct test_client reader, neighbour;
    uint8_t frame[2048];
    (void)state;
    spec.interval_ns = 10 * CORE_NS_PER_US;
    open = test_open_inline(&spec, key);
    start(&server, "keyring: keyring\ntimeouts: {stall_ms: 500, drain_ms: 60000}\nlimits: {streams: 2}");
    test_client_connect(&neighbour, test_server_unix(&server), NULL);
    struct test_stream *good = test_stream_open(&neighbour, &spec, 1);
    test_client_connect(&reader, test_server_unix(&server), NULL);
    struct test_stream *stalled = test_stream_open(&reader, &spec, 2);
    assert_false(test_client_ask(&neighbour, PROTOCOL_QUERY, &open, NULL, &refused));
    assert_int_equal(refused.code, PROTOCOL_REFUSED_LIMIT);

    bool gone = false;
    for (uint32_t i = 0; !gone; i++) {
        if (stalled->sent < TEST_WINDOW) {
            size_t bytes = test_stream_frame(stalled, 1408, frame);
            if (test_client_push(&reader, frame, bytes) < bytes)
                stalled->sent = TEST_WINDOW; /* full: nothing more will go in */
        }
        assert_true(test_stream_send(good, 1408));
        test_stream_drain(good);
        gone = test_client_ask(&neighbour, PROTOCOL_QUERY, &open, NULL, &refused);
    }
    while (test_client_fill(&reader, SIZE_MAX)) /* what was in the socket, then the end */
        sched_yield();
    struct protocol_closed closed = test_stream_close(good);
    assert_int_equal(closed.packets, good->sent);
    test_stream_free(good);
    test_stream_free(stalled);
    test_client_close(&reader);
    test_client_close(&neighbour);
    assert_int_equal(test_server_stop(&server), 0);
}

/* One that takes 16 KiB every half second, so twice as much in the stall time as it must, is not cut off. */
static void a_reader_that_takes_little(void **state)
{
    static uint8_t bytes[PROTOCOL_HEADER_BYTES + 16384];
    struct core_stream_spec spec = test_spec;
    struct test_server server;
    struct test_client reader;
    size_t count, pushed;
    (void)state;
    spec.packet_bytes = 16384;
    spec.burst_packets = 64;
    spec.interval_ns = 100 * CORE_NS_PER_US;
    start(&server, "timeouts: {stall_ms: 4000}");
    test_client_connect(&reader, test_server_unix(&server), NULL);
    struct test_stream *slow = test_stream_open(&reader, &spec, 1);
    do {
        count = test_stream_frame(slow, 16384, bytes);
        pushed = test_client_push(&reader, bytes, count);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    } while (pushed == count);
    core_ns began_ns = core_time_now_ns();
    for (int i = 0; i < 24; i++) { /* three stall times */
        core_time_sleep_until(began_ns + i * 500 * CORE_NS_PER_MS);
        assert_true(test_client_fill(&reader, 16384));
    }
    assert_true(test_client_send(&reader, bytes + pushed, count - pushed));
    test_stream_drain(slow);
    assert_int_equal(test_stream_close(slow).packets, slow->sent);
    test_stream_free(slow);
    test_client_close(&reader);
    assert_int_equal(test_server_stop(&server), 0);
}

/* Packets came that wait for hours, and more, which are not read: who sent them is gone all the same. */
static void who_goes_while_nothing_is_read(void **state)
{
    struct core_stream_spec spec = test_spec;
    struct test_server server;
    struct test_client client, good;
    uint64_t connections = 2;
    (void)state;
    spec.burst_packets = 1;
    spec.interval_ns = CORE_INTERVAL_NS_MAX;
    start(&server, "keyring: keyring");
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 1);
    for (int packet = 0; packet < 20; packet++)
        assert_true(test_stream_send(stream, 1408));
    test_client_connect(&good, test_server_unix(&server), NULL);
    for (int turn = 0; turn < 20; turn++)
        test_client_ping(&good); /* they have been read by then, as far as they are */
    test_client_close(&client);
    const core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (connections > 1) {
        struct server_snapshot *snapshot;
        assert_true(core_time_now_ns() < until_ns);
        assert_int_equal(server_snapshot_take(server.server, &snapshot), CORE_OK);
        connections = snapshot->totals.connections;
        server_snapshot_free(snapshot);
        sched_yield();
    }
    test_stream_free(stream);
    test_client_close(&good);
    assert_int_equal(test_server_stop(&server), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_timeout),
        cmocka_unit_test(frame_timeout),
        cmocka_unit_test(idle_timeout),
        cmocka_unit_test(a_stream_that_sends_nothing),
        cmocka_unit_test(idle_counts_from_the_last_stream_s_end),
        cmocka_unit_test(a_frame_that_back_pressure_cut),
        cmocka_unit_test(a_reader_that_takes_nothing),
        cmocka_unit_test(a_reader_that_takes_little),
        cmocka_unit_test(who_goes_while_nothing_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
