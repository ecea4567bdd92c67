/* Stopping: what was taken in is delivered, what can not be is counted, and nothing is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/client.h"
#include "tests/support/random.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#define HOUR "3600000"

struct stopping {
    pthread_t thread;
    struct test_server *server;
    uint64_t lost;
};

static void *run_stop(void *argument)
{
    struct stopping *stopping = argument;
    stopping->lost = test_server_stop(stopping->server);
    return NULL;
}

static void begin_stop(struct stopping *stopping, struct test_server *server)
{
    stopping->server = server;
    assert_int_equal(pthread_create(&stopping->thread, NULL, run_stop, stopping), 0);
}

static uint64_t end_stop(struct stopping *stopping)
{
    assert_int_equal(pthread_join(stopping->thread, NULL), 0);
    return stopping->lost;
}

static void start(struct test_server *server, const char *yaml)
{
    memset(server, 0, sizeof *server);
    test_server_start(server, yaml, &test_profile_generous);
}

/* Reads to the end of a connection that the server drains: every RESULT right, then CLOSED with reason 1 for
 * each stream, then ERROR 10. */
static void read_to_the_end(struct test_client *client, struct test_stream *const *streams, uint32_t count)
{
    struct protocol_closed closed;
    struct test_frame frame;
    for (uint32_t ends = 0; ends < count;) {
        TEST_REQUIRE(test_client_next(client, &frame, TEST_PATIENCE_MS) == TEST_FRAME);
        TEST_REQUIRE(frame.header.id >= 1 && frame.header.id <= count);
        struct test_stream *stream = streams[frame.header.id - 1];
        if (frame.header.type == PROTOCOL_RESULT) {
            (void)test_stream_check(stream, &frame);
            continue;
        }
        TEST_REQUIRE(frame.header.type == PROTOCOL_CLOSED);
        TEST_REQUIRE(protocol_closed_read(frame.body, frame.header.body_bytes, &closed, NULL) == CORE_OK);
        TEST_REQUIRE(closed.reason == PROTOCOL_CLOSE_DRAINED && closed.packets == stream->received);
        ends++;
    }
    test_client_expect_error(client, PROTOCOL_ERROR_SHUTDOWN, 0, true);
}

/* ---- under load ---- */

#define SENDERS 4
#define STREAMS 5

struct sender {
    pthread_t thread;
    const struct core_address *address;
    uint64_t seed;
    _Atomic uint32_t sent;
};

/* Sends for ever; the server's stop ends it. */
static void *send_for_ever(void *argument)
{
    struct sender *sender = argument;
    struct core_stream_spec spec = test_spec;
    struct test_random random = {.state = sender->seed};
    struct test_stream *streams[STREAMS];
    struct test_client client;
    struct test_frame frame;

    spec.interval_ns = 100 * CORE_NS_PER_US;
    test_client_connect(&client, sender->address, NULL);
    for (uint64_t i = 0; i < STREAMS; i++)
        streams[i] = test_stream_open(&client, &spec, sender->seed + i);
    for (bool going = true; going;) {
        struct test_stream *stream = streams[test_random_in(&random, 0, STREAMS - 1)];
        if (stream->sent - stream->received < 200) /* well over what the contract allows at once */
            going = test_stream_send(stream, (uint32_t)test_random_in(&random, 1, 88) * 16);
        atomic_fetch_add(&sender->sent, 1);
        enum test_outcome outcome = TEST_SILENCE;
        while (going && (outcome = test_client_next(&client, &frame, 0)) == TEST_FRAME) {
            going = frame.header.type == PROTOCOL_RESULT;
            if (going)
                (void)test_stream_check(streams[frame.header.id - 1], &frame);
            else /* the first CLOSED: put it back, and read on from there */
                client.input_start -= PROTOCOL_HEADER_BYTES + (size_t)frame.header.body_bytes;
        }
        going = going && outcome != TEST_END; /* an end without a word is found below */
    }
    read_to_the_end(&client, streams, STREAMS);
    for (int i = 0; i < STREAMS; i++)
        test_stream_free(streams[i]);
    test_client_close(&client);
    return NULL;
}

static void under_load(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        struct sender senders[SENDERS];
        struct test_server server;
        start(
            &server,
            "threads: {cores: 8, io: 2, workers: 2, realtime: off, pin: false}\ntimeouts: {drain_ms: 60000}");
        for (uint64_t i = 0; i < SENDERS; i++) {
            senders[i] = (struct sender){.address = test_server_unix(&server), .seed = 10 * i};
            assert_int_equal(pthread_create(&senders[i].thread, NULL, send_for_ever, &senders[i]), 0);
        }
        for (int i = 0; i < SENDERS; i++)
            while (atomic_load(&senders[i].sent) < 20 + 500 * (uint32_t)round)
                sched_yield();
        assert_int_equal(test_server_stop(&server), 0);
        for (int i = 0; i < SENDERS; i++)
            assert_int_equal(pthread_join(senders[i].thread, NULL), 0);
    }
}

/* ---- packets that wait ---- */

/* Behind a burst of as many, which has come back. All of them are taken in: the server has answered what came behind
 * them. */
static struct test_stream *stream_with_waiting_packets(struct test_client *client, core_ns interval_ns,
                                                       uint32_t waiting)
{
    struct core_stream_spec spec = test_spec;
    struct test_frame frame;
    uint8_t bytes[TEST_FRAME_BYTES];
    spec.packet_bytes = 16;
    spec.burst_packets = waiting;
    spec.interval_ns = interval_ns;
    struct test_stream *stream = test_stream_open(client, &spec, waiting);
    for (uint32_t i = 0; i < waiting; i++)
        assert_true(test_stream_send(stream, 16));
    while (stream->received < waiting) {
        test_client_expect(client, PROTOCOL_RESULT, &frame);
        (void)test_stream_check(stream, &frame);
    }
    for (uint32_t i = 0; i < waiting; i++)
        assert_true(test_stream_send(stream, 16));
    assert_true(test_client_send(client, bytes, protocol_ping_write(bytes, PROTOCOL_PING, 1, "", 0)));
    do {
        assert_int_equal(test_client_next(client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
        if (frame.header.type == PROTOCOL_RESULT)
            (void)test_stream_check(stream, &frame);
    } while (frame.header.type != PROTOCOL_PONG);
    return stream;
}

static void waiting_packets_are_waited_for(void **state)
{
    uint8_t half[PROTOCOL_HEADER_BYTES + 16];
    struct stopping stopping;
    struct test_server server;
    struct test_client client;
    (void)state;
    start(&server, "timeouts: {drain_ms: " HOUR "}");
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = stream_with_waiting_packets(&client, 100 * CORE_NS_PER_MS, 7);
    test_data_header(half, stream->id, stream->sent, 16);
    assert_true(test_client_send(&client, half, sizeof half - 1)); /* never whole: never taken in */
    begin_stop(&stopping, &server);
    read_to_the_end(&client, &stream, 1);
    assert_int_equal(stream->received, 2 * 7);
    assert_int_equal(end_stop(&stopping), 0);
    test_stream_free(stream);
    test_client_close(&client);
}

static void waiting_packets_are_lost_when_the_time_is_over(void **state)
{
    struct test_server server;
    struct test_client one, other, gone;
    (void)state;
    start(&server,
          "threads: {cores: 8, io: 2, workers: 1, realtime: off, pin: false}\ntimeouts: {drain_ms: 200}");
    test_client_connect(&one, test_server_unix(&server), NULL);
    test_client_connect(&other, test_server_unix(&server), NULL);
    test_client_connect(&gone, test_server_unix(&server), NULL);
    struct test_stream *streams[] = {
        stream_with_waiting_packets(&one, 3600 * CORE_NS_PER_S, 7),
        stream_with_waiting_packets(&one, 3600 * CORE_NS_PER_S, 1),
        stream_with_waiting_packets(&other, 3600 * CORE_NS_PER_S, 4),
        stream_with_waiting_packets(&gone, 3600 * CORE_NS_PER_S, 6),
    };
    test_client_close(&gone); /* what nobody waits for is not the server's loss */
    assert_int_equal(test_server_stop(&server), 7 + 1 + 4);
    test_client_expect_end(&one);
    test_client_expect_end(&other);
    for (int i = 0; i < 4; i++)
        test_stream_free(streams[i]);
    test_client_close(&one);
    test_client_close(&other);
}

/* Results that the reader does not take can not be delivered either. */
static void a_reader_that_takes_nothing_does_not_hold_up_the_stop(void **state)
{
    static uint8_t frame[PROTOCOL_HEADER_BYTES + 1408];
    struct core_stream_spec spec = test_spec;
    struct test_server server;
    struct test_client client;
    size_t done = 0, bytes = 0;
    (void)state;
    spec.interval_ns = 10 * CORE_NS_PER_US;
    start(&server, "timeouts: {drain_ms: 300, stall_ms: " HOUR "}");
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 1);
    for (int idle_rounds = 0; idle_rounds < 200; idle_rounds += done < bytes ? 1 : 0) {
        if (done == bytes) {
            bytes = test_stream_frame(stream, 1408, frame);
            done = 0;
        }
        done += test_client_push(&client, frame + done, bytes - done);
        if (done < bytes)
            core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
    assert_in_range(test_server_stop(&server), 1, stream->opened.queue_packets);
    test_stream_free(stream);
    test_client_close(&client);
}

/* ---- connections in every state ---- */

static void connections_in_every_state(void **state)
{
    uint8_t bytes[TEST_FRAME_BYTES];
    struct stopping stopping;
    struct test_server server;
    struct test_client silent, halting, idle, half_closed;
    (void)state;
    start(&server, "");
    test_client_dial(&silent, test_server_unix(&server));
    test_client_dial(&halting, test_server_tcp(&server));
    assert_true(test_client_send(&halting, bytes, protocol_hello_write(bytes, 1, 1) - 1));
    test_client_connect(&half_closed, test_server_unix(&server), NULL);
    struct test_stream *stream = stream_with_waiting_packets(&half_closed, 50 * CORE_NS_PER_MS, 7);
    test_client_half_close(&half_closed);
    test_client_connect(&idle, test_server_unix(&server), NULL); /* all before it have been accepted */
    test_client_ping(&idle);
    begin_stop(&stopping, &server);
    test_client_expect_error(&silent, PROTOCOL_ERROR_SHUTDOWN, 0, true);
    test_client_expect_error(&idle, PROTOCOL_ERROR_SHUTDOWN, 0, true);
    test_client_expect_error(&halting, PROTOCOL_ERROR_SHUTDOWN, 0, true);
    test_stream_drain(stream);
    assert_int_equal(end_stop(&stopping), 0);
    test_stream_free(stream);
    test_client_close(&silent);
    test_client_close(&halting);
    test_client_close(&idle);
    test_client_close(&half_closed);
}

static uint32_t open_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    uint32_t count = 0;
    TEST_REQUIRE(directory != NULL);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

struct caller {
    pthread_t thread;
    struct core_address address;
    _Atomic uint32_t calls;
};

/* Connects and drops the connection, until nobody listens any more. */
static void *call_for_ever(void *argument)
{
    struct caller *caller = argument;
    int descriptor;
    while (core_address_connect(&caller->address, 200, &descriptor, NULL) == CORE_OK) {
        atomic_fetch_add(&caller->calls, 1);
        close(descriptor);
    }
    return NULL;
}

/* Connections that are handed from one I/O thread to another while both stop. */
static void connections_that_come_while_it_stops(void **state)
{
    uint32_t before = open_descriptors();
    (void)state;
    for (int round = 0; round < 15; round++) {
        struct caller callers[2];
        struct test_server server;
        start(&server, "threads: {cores: 8, io: 3, workers: 1, realtime: off, pin: false}");
        for (int i = 0; i < 2; i++) {
            callers[i] =
                (struct caller){.address = i == 0 ? *test_server_unix(&server) : *test_server_tcp(&server)};
            assert_int_equal(pthread_create(&callers[i].thread, NULL, call_for_ever, &callers[i]), 0);
        }
        for (int i = 0; i < 2; i++)
            while (atomic_load(&callers[i].calls) < 50)
                sched_yield();
        assert_int_equal(test_server_stop(&server), 0);
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
        assert_int_equal(open_descriptors(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(under_load),
        cmocka_unit_test(waiting_packets_are_waited_for),
        cmocka_unit_test(waiting_packets_are_lost_when_the_time_is_over),
        cmocka_unit_test(a_reader_that_takes_nothing_does_not_hold_up_the_stop),
        cmocka_unit_test(connections_in_every_state),
        cmocka_unit_test(connections_that_come_while_it_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
