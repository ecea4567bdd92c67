/* What clients are told when a GPU is lost and comes back, or a stream goes to another unit; and
 * what MODIFY does on a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <string.h>

#include "server/net/io.h"
#include "tests/support/client.h"
#include "tests/support/gpu_server.h"
#include "tests/support/shift.h"
#include "tests/support/stream.h"

static const struct core_stream_spec gpu_spec = {.packet_bytes = 1408,
                                                 .burst_packets = 8,
                                                 .interval_ns = 4 * CORE_NS_PER_MS,
                                                 .latency_ns = 80 * CORE_NS_PER_MS,
                                                 .cipher = CORE_CIPHER_AES_128_CBC,
                                                 .padding = CORE_PADDING_NONE};

static struct test_server server;
static struct config_profile *profile;

/* A client of each version, with a stream on the GPU. */
static struct test_client clients[2];
static struct test_stream *streams[2];

static void start(void)
{
    memset(&server, 0, sizeof server);
    profile = test_gpu_profile(100000); /* nothing is for the workers */
    test_gpu_server_start(&server, "", "", profile);
    for (uint16_t version = 1; version <= 2; version++) {
        struct test_client *client = &clients[version - 1];
        test_client_dial(client, test_server_unix(&server));
        test_client_hello_version(client, version, NULL);
        streams[version - 1] = test_stream_open(client, &gpu_spec, version);
        assert_int_equal(streams[version - 1]->opened.unit, PROTOCOL_UNIT_GPU);
        assert_int_equal(streams[version - 1]->opened.backup.bound_ns, 0); /* a standard stream */
    }
}

static void stop(void)
{
    for (int i = 0; i < 2; i++) {
        test_stream_close(streams[i]);
        test_stream_free(streams[i]);
        test_client_close(&clients[i]);
    }
    assert_int_equal(test_server_stop(&server), 0);
    config_profile_free(profile);
}

/* The next frame of the second client must be this NOTICE; RESULTs may come before. */
static struct protocol_notice take_notice(enum protocol_notice_kind kind)
{
    struct protocol_notice notice;
    struct test_frame frame;
    for (;;) {
        assert_int_equal(test_client_next(&clients[1], &frame, TEST_PATIENCE_MS), TEST_FRAME);
        if (frame.header.type != PROTOCOL_RESULT)
            break;
        test_stream_check(streams[1], &frame);
    }
    assert_int_equal(frame.header.type, PROTOCOL_NOTICE);
    assert_int_equal(frame.header.id, streams[1]->id);
    assert_int_equal(protocol_notice_read(frame.body, frame.header.body_bytes, &notice, NULL), CORE_OK);
    assert_int_equal(notice.kind, kind);
    assert_true(notice.text[0] != '\0');
    return notice;
}

/* One packet there and back: the flags of its result. */
static uint8_t flags_of_one(int which)
{
    struct test_frame frame;
    assert_true(test_stream_send(streams[which], 320));
    test_client_expect(&clients[which], PROTOCOL_RESULT, &frame);
    return test_stream_check(streams[which], &frame).flags;
}

static enum protocol_refusal modify(const struct core_stream_spec *spec, struct protocol_modified *modified)
{
    const struct protocol_modify ask = {streams[1]->id, spec->burst_packets, spec->interval_ns,
                                        spec->latency_ns};
    uint8_t bytes[TEST_FRAME_BYTES];
    struct protocol_refused refused;
    struct test_frame frame;
    assert_true(test_client_send(&clients[1], bytes, protocol_modify_write(bytes, 5, &ask)));
    assert_int_equal(test_client_next(&clients[1], &frame, TEST_PATIENCE_MS), TEST_FRAME);
    assert_int_equal(frame.header.id, 5);
    if (frame.header.type == PROTOCOL_MODIFIED) {
        assert_int_equal(protocol_modified_read(frame.body, frame.header.body_bytes, modified, NULL),
                         CORE_OK);
        return 0;
    }
    assert_int_equal(protocol_refused_read(2, frame.body, frame.header.body_bytes, &refused, NULL), CORE_OK);
    return refused.code;
}

static void notices_of_gpu_failure_and_return(void **state)
{
    struct protocol_modified modified;
    struct core_stream_spec slower = gpu_spec;
    (void)state;
    slower.interval_ns = 10 * CORE_NS_PER_MS;
    start();
    for (int round = 0; round < 3; round++) {
        pid_t child = test_gpu_process(&server, 0);
        for (int i = 0; i < 2; i++)
            assert_int_equal(flags_of_one(i) & PROTOCOL_RESULT_FAULT, 0);
        assert_int_equal(kill(child, SIGKILL), 0);
        struct protocol_notice notice = take_notice(PROTOCOL_NOTICE_DEGRADED);
        assert_int_equal(notice.unit, PROTOCOL_UNIT_CPU);
        assert_int_equal(notice.bound_ns, 0);
        notice = take_notice(PROTOCOL_NOTICE_RESTORED);
        assert_int_equal(notice.unit, PROTOCOL_UNIT_GPU);
        assert_int_equal(notice.unit_index, 0);
        assert_true(notice.bound_ns > 0 && notice.bound_ns <= gpu_spec.latency_ns);
        test_gpu_await_up(&server, 0, child);
        test_client_ping(&clients[0]); /* the first client has been told nothing */
        assert_int_equal(modify(round % 2 == 0 ? &slower : &gpu_spec, &modified), 0);
        assert_int_equal(modified.unit, PROTOCOL_UNIT_GPU);
    }
    stop();
}

/* Results that took the way round say so, to those who know what that is. */
static void results_flag_failover(void **state)
{
    uint8_t told = 0;
    (void)state;
    start();
    for (int i = 0; i < 2; i++)
        for (int packet = 0; packet < 8; packet++)
            assert_true(test_stream_send(streams[i], 640));
    pid_t child = test_gpu_process(&server, 0);
    assert_int_equal(kill(child, SIGKILL), 0);
    for (int packet = 0; packet < 8; packet++) {
        struct test_frame frame;
        test_client_expect(&clients[0], PROTOCOL_RESULT,
                           &frame); /* version 1 has no such flag: checked there */
        test_stream_check(streams[0], &frame);
    }
    for (int packet = 0; packet < 8;) {
        struct test_frame frame;
        assert_int_equal(test_client_next(&clients[1], &frame, TEST_PATIENCE_MS), TEST_FRAME);
        if (frame.header.type == PROTOCOL_NOTICE)
            continue;
        told |= test_stream_check(streams[1], &frame).flags & PROTOCOL_RESULT_FAULT;
        packet++;
    }
    uint64_t diverted = server_stats_get(&server.server->ios[0]->stats.diverted);
    if (diverted == 0)
        assert_int_equal(told, 0); /* all were back before the card died */
    test_gpu_await_up(&server, 0, child);
    test_client_close(&clients[0]);
    test_client_close(&clients[1]);
    test_stream_free(streams[0]);
    test_stream_free(streams[1]);
    (void)test_server_stop(&server);
    config_profile_free(profile);
}

static void modify_on_a_card(void **state)
{
    struct protocol_modified modified;
    struct core_stream_spec spec = gpu_spec;
    (void)state;
    start();
    for (int round = 0; round < 10; round++) {
        spec.burst_packets = 4 + 3 * (uint32_t)(round % 4);
        spec.interval_ns = (3 + round % 5) * CORE_NS_PER_MS;
        spec.latency_ns = (70 + 10 * (round % 3)) * CORE_NS_PER_MS;
        enum protocol_refusal refusal = modify(&spec, &modified);
        assert_true(refusal == 0 || refusal == PROTOCOL_REFUSED_CAPACITY);
        if (refusal == 0) {
            assert_int_equal(modified.unit, PROTOCOL_UNIT_GPU);
            assert_true(modified.bound_ns > 0 && modified.bound_ns <= spec.latency_ns);
        }
        for (uint32_t packet = 0; packet < 4; packet++)
            assert_true(test_stream_send(streams[1], 16 + 16 * packet));
        test_stream_drain(streams[1]);
    }
    spec.latency_ns = CORE_LATENCY_NS_MIN;
    assert_int_equal(modify(&spec, &modified), PROTOCOL_REFUSED_CAPACITY);
    stop();
}

/* ---- moves ---- */

static void migration_notice(void **state)
{
    (void)state;
    memset(&server, 0, sizeof server);
    test_server_start(&server, "threads: {cores: 8, io: 1, workers: 2, realtime: off, pin: false}",
                      &test_profile_generous);
    for (uint16_t version = 1; version <= 2; version++) {
        struct test_client *client = &clients[version - 1];
        test_client_dial(client, test_server_unix(&server));
        test_client_hello_version(client, version, NULL);
        streams[version - 1] = test_stream_open(client, &gpu_spec, version);
    }
    for (int round = 0; round < 4; round++) {
        uint32_t to = (streams[1]->opened.unit_index + 1u + (uint32_t)round) % 2;
        struct test_shift shift;
        test_shift_begin(&shift, server.server->planner, 1 - to, to, 2,
                         TEST_PATIENCE_MS * CORE_NS_PER_MS / 4);
        test_shift_await(&shift);
        struct protocol_notice notice = take_notice(PROTOCOL_NOTICE_MOVED);
        assert_int_equal(notice.unit, PROTOCOL_UNIT_CPU);
        assert_int_equal(notice.unit_index, to);
        assert_int_equal(notice.bound_ns, gpu_spec.latency_ns);
        for (int i = 0; i < 2; i++)
            assert_int_equal(flags_of_one(i) & PROTOCOL_RESULT_FAULT, 0);
    }
    profile = NULL;
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(notices_of_gpu_failure_and_return),
        cmocka_unit_test(results_flag_failover),
        cmocka_unit_test(modify_on_a_card),
        cmocka_unit_test(migration_notice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
