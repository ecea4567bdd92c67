/* Before a stop, and in maintenance: clients of version 4 are told to go elsewhere, others are not; and all are served
 * on. Also how libmillrace tells it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <string.h>

#include "client/millrace.h"
#include "core/protocol.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

static void expect_leaving(struct test_client *client)
{
    struct test_frame frame;
    struct protocol_notice notice;
    test_client_expect(client, PROTOCOL_NOTICE, &frame);
    assert_int_equal(frame.header.id, 0);
    assert_int_equal(protocol_notice_read(frame.body, frame.header.body_bytes, &notice, NULL), CORE_OK);
    assert_int_equal(notice.kind, PROTOCOL_NOTICE_LEAVING);
}

/* It is the next frame, so that nothing else has come. */
static void packet(struct test_stream *stream)
{
    assert_true(test_stream_send(stream, 1408));
    test_stream_drain(stream);
}

static void those_who_know_the_word_are_told(void **state)
{
    static const uint8_t key[16] = {1};
    const struct protocol_open open = test_open_inline(&test_spec, key);
    struct test_server server;
    struct test_client clients[5]; /* by version; the last in HELLO still */
    struct test_stream *streams[5];
    struct protocol_refused refused;
    (void)state;
    test_server_start(&server, "", &test_profile_generous);
    for (uint16_t version = 1; version <= 4; version++) {
        test_client_dial(&clients[version], test_server_unix(&server));
        test_client_hello_version(&clients[version], version, NULL);
        streams[version] = test_stream_open(&clients[version], &test_spec, version);
        packet(streams[version]);
    }
    test_client_dial(&clients[0], test_server_unix(&server));
    for (int round = 0; round < 2; round++) { /* once each time */
        server_maintain(server.server, true);
        expect_leaving(&clients[4]);
        core_time_sleep_until(core_time_now_ns() + 300 * CORE_NS_PER_MS);
        for (uint16_t version = 1; version <= 4; version++)
            packet(streams[version]);
        assert_true(test_client_ask(&clients[4], PROTOCOL_OPEN, &open, NULL,
                                    NULL)); /* in maintenance all is served */
        server_maintain(server.server, false);
        core_time_sleep_until(core_time_now_ns() + 300 * CORE_NS_PER_MS);
    }
    assert_int_equal(server_streams(server.server), 6);
    server_leave(server.server);
    expect_leaving(&clients[4]);
    test_client_hello_version(&clients[0], 4, NULL);
    expect_leaving(&clients[0]); /* who comes now is told, too */
    for (uint16_t version = 1; version <= 4; version++)
        packet(streams[version]);
    for (uint16_t version = 1; version <= 4; version += 3) {
        static const enum protocol_type asked[] = {PROTOCOL_OPEN, PROTOCOL_QUERY};
        for (int i = 0; i < 2; i++) { /* one decision */
            assert_false(test_client_ask(&clients[4], asked[i], &open, NULL, &refused));
            assert_int_equal(refused.code, PROTOCOL_REFUSED_DRAINING);
        }
    }
    for (uint16_t version = 1; version <= 4; version++) {
        test_stream_close(streams[version]);
        test_stream_free(streams[version]);
    }
    for (int i = 0; i < 5; i++)
        test_client_close(&clients[i]);
    assert_int_equal(test_server_stop(&server), 0);
}

static void on_notice(void *argument, uint32_t stream, const struct millrace_notice *notice)
{
    assert_int_equal(stream, 0);
    assert_int_equal(notice->kind, MILLRACE_NOTICE_LEAVING);
    assert_string_equal(millrace_notice_name(notice->kind), "leaving");
    *(int *)argument += 1;
}

static void the_library_tells_it(void **state)
{
    struct test_server server;
    struct millrace *connection;
    char address[300], error[MILLRACE_TEXT_BYTES];
    int told = 0;
    const struct millrace_callbacks callbacks = {
        .size = sizeof callbacks, .on_notice = on_notice, .argument = &told};
    (void)state;
    test_server_start(&server, "", &test_profile_generous);
    core_address_format(test_server_unix(&server), address, sizeof address);
    TEST_REQUIRE(millrace_connect(address, NULL, TEST_PATIENCE_MS, &connection, error) == MILLRACE_OK);
    TEST_REQUIRE(millrace_set_callbacks(connection, &callbacks, error) == MILLRACE_OK);
    server_maintain(server.server, true);
    const core_ns until_ns = core_time_now_ns() + TEST_PATIENCE_MS * CORE_NS_PER_MS;
    while (told == 0 && core_time_now_ns() < until_ns) {
        struct pollfd ready = {.fd = millrace_descriptor(connection), .events = POLLIN};
        (void)poll(&ready, 1, 100);
        assert_int_equal(millrace_process(connection, 0, error), MILLRACE_OK);
    }
    assert_int_equal(told, 1);
    millrace_disconnect(connection);
    assert_int_equal(test_server_stop(&server), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_who_know_the_word_are_told),
        cmocka_unit_test(the_library_tells_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
