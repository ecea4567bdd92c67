/* A cipher that fails: its stream is closed and says so, and nothing else notices; and one that is late. The
 * linker puts such an engine in the place of the real one (--wrap in CMakeLists.txt). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <string.h>

#include "cpu/engine.h"
#include "tests/support/client.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

const struct cpu_engine_ops *__wrap_cpu_engine_find(const char *name, struct core_error *error);

/* OpenSSL's, which can not do AES-192 when `broken`, and waits while it is `stalled`. */
static struct cpu_engine_ops failing_engine;
static atomic_bool broken, stalled;

static core_status encrypt(struct cpu_engine *engine, enum core_cipher cipher, struct cpu_piece *pieces,
                           uint32_t count)
{
    while (atomic_load(&stalled))
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    if (cipher == CORE_CIPHER_AES_192_CBC && atomic_load(&broken))
        return CORE_SYSTEM;
    return cpu_engine_openssl.encrypt(engine, cipher, pieces, count);
}

const struct cpu_engine_ops *__wrap_cpu_engine_find(const char *name, struct core_error *error)
{
    (void)name;
    (void)error;
    failing_engine = cpu_engine_openssl;
    failing_engine.encrypt = encrypt;
    return &failing_engine;
}

static struct test_server server;

static int set_up(void **state)
{
    (void)state;
    memset(&server, 0, sizeof server);
    test_server_start(&server, "engine: openssl", &test_profile_generous);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return test_server_stop(&server) == 0 ? 0 : -1;
}

/* What came of packets sent to a stream whose cipher failed. */
struct outcome {
    uint32_t failed, skipped; /* RESULTs with status 4, ERRORs 6 */
    struct protocol_closed closed;
};

/* Reads until every packet is accounted for and CLOSED has come. */
static struct outcome read_outcome(struct test_client *client, uint32_t stream, uint32_t packets)
{
    struct outcome outcome = {0};
    struct protocol_result result;
    struct test_frame frame;
    bool ended = false;
    while (!ended || outcome.failed + outcome.skipped < packets) {
        assert_int_equal(test_client_next(client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
        assert_int_equal(frame.header.id, stream);
        if (frame.header.type == PROTOCOL_RESULT) {
            assert_false(ended);
            assert_int_equal(protocol_result_read(1, frame.body, frame.header.body_bytes, &result, NULL),
                             CORE_OK);
            assert_true(result.status == PROTOCOL_RESULT_FAILED && result.flags == 0);
            assert_int_equal(frame.header.body_bytes, PROTOCOL_RESULT_BYTES); /* no byte of it */
            outcome.failed++;
        } else if (frame.header.type == PROTOCOL_ERROR) {
            assert_true(frame.body[0] == PROTOCOL_ERROR_STREAM && frame.body[2] == 0);
            outcome.skipped++;
        } else {
            assert_int_equal(frame.header.type, PROTOCOL_CLOSED);
            assert_int_equal(protocol_closed_read(frame.body, frame.header.body_bytes, &outcome.closed, NULL),
                             CORE_OK);
            ended = true;
        }
    }
    return outcome;
}

static void the_stream_is_closed_and_no_other(void **state)
{
    struct core_stream_spec spec = test_spec;
    struct test_client client;
    (void)state;
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *good = test_stream_open(&client, &spec, 1);
    spec.cipher = CORE_CIPHER_AES_192_CBC;
    for (uint64_t round = 0; round < 20; round++) {
        struct test_stream *bad = test_stream_open(&client, &spec, round);
        assert_true(test_stream_send(bad, 160));
        test_stream_drain(bad);
        atomic_store(&broken, true);
        for (int i = 0; i < 10; i++)
            assert_true(test_stream_send(bad, 1408));
        struct outcome outcome = read_outcome(&client, bad->id, 10);
        atomic_store(&broken, false);
        assert_true(outcome.failed >= 1);
        assert_int_equal(outcome.closed.reason, PROTOCOL_CLOSE_FAILED);
        assert_true(outcome.closed.packets == 1 && outcome.closed.bytes == 160);
        assert_true(test_stream_send(good, 1408));
        test_stream_drain(good);
        test_stream_free(bad);
    }
    (void)test_stream_close(good);
    test_stream_free(good);
    test_client_close(&client);
}

/* DATA waits for room in the stream when the stream fails: the frame is skipped, the connection goes on. */
static void while_data_waits_for_room(void **state)
{
    struct core_stream_spec spec = test_spec;
    struct test_client client;
    (void)state;
    spec.cipher = CORE_CIPHER_AES_192_CBC;
    spec.packet_bytes = 16384;
    spec.burst_packets = 1;
    spec.interval_ns = 20 * CORE_NS_PER_MS;
    test_client_connect(&client, test_server_unix(&server), NULL);
    for (uint64_t round = 0; round < 20; round++) {
        struct test_stream *bad = test_stream_open(&client, &spec, round);
        assert_int_equal(bad->opened.queue_packets, 1);
        atomic_store(&broken, true);
        for (int i = 0; i < 5; i++)
            assert_true(test_stream_send(bad, round % 2 == 0 ? 16384 : 16));
        struct outcome outcome = read_outcome(&client, bad->id, 5);
        atomic_store(&broken, false);
        assert_true(outcome.failed >= 1 && outcome.closed.reason == PROTOCOL_CLOSE_FAILED);
        test_client_ping(&client);
        test_stream_free(bad);
    }
    test_client_close(&client);
}

#define PAUSE_NS (100 * CORE_NS_PER_MS)

/* While the server's own delay keeps it from reading, what comes counts as arrived when the delay began. When
 * the delay is over, so is that: no packet counts as arrived before it was sent, but by what an I/O thread
 * that got no core may have overlooked (server/stream/arrival.h). The delay is further away than that. */
static void a_delay_is_over_when_it_is_over(void **state)
{
    struct core_stream_spec spec = test_spec;
    struct test_client client;
    (void)state;
    spec.burst_packets = 1;
    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &spec, 1);
    for (int round = 0; round < 4; round++) {
        core_ns sent_ns = core_time_now_ns();
        atomic_store(&stalled, true);
        for (uint32_t i = 0; i <= stream->opened.queue_packets; i++) { /* one more than there is room for */
            assert_true(test_stream_send(stream, 1408));
            core_time_sleep_until(core_time_now_ns() + 10 * spec.interval_ns);
        }
        core_time_sleep_until(core_time_now_ns() + 20 * CORE_NS_PER_MS);
        atomic_store(&stalled, false);
        while (stream->received < stream->sent) {
            struct protocol_result result = test_streams_take(&client, &stream);
            core_ns said_ns = result.latency_ns + (core_ns)result.waited_us * CORE_NS_PER_US;
            assert_true(said_ns <= core_time_now_ns() - sent_ns + PAUSE_NS / 2);
        }
        core_time_sleep_until(core_time_now_ns() + PAUSE_NS);
    }
    (void)test_stream_close(stream);
    test_stream_free(stream);
    test_client_close(&client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_stream_is_closed_and_no_other),
        cmocka_unit_test(while_data_waits_for_room),
        cmocka_unit_test(a_delay_is_over_when_it_is_over),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
