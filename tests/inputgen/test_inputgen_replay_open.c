/* More streams on one connection than it may have requests under way, all of them opened and closed: each answer that
 * comes makes room for another request, and nothing else may be left to wake for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "inputgen/replay.h"
#include "tests/support/server.h"

#define STREAMS 2000

static struct inputgen_stream streams[STREAMS];

static void replay_on(const char *scheme, const struct test_server *server)
{
    struct inputgen_class class = {.name = "all"};
    const struct inputgen_streams list = {
        .streams = streams, .count = STREAMS, .classes = &class, .class_count = 1};
    struct inputgen_report *report;
    struct core_error error = {""};
    char address[300], plain[256];
    core_address_format(test_server_unix(server), plain, sizeof plain);
    snprintf(address, sizeof address, "%s:%s", scheme, plain + sizeof "unix:" - 1);
    const struct inputgen_replay_options options = {.address = address,
                                                    .name = "test",
                                                    .connections = 1,
                                                    .ordinary_priority = true,
                                                    .timeout_ms = 120000};
    if (inputgen_replay_run(&options, &list, &report, &error) != CORE_OK)
        fail_msg("%s", error.text);
    assert_int_equal(report->all.opened, STREAMS);
    assert_int_equal(report->accounts_differ, 0);
    inputgen_report_free(report);
}

static void many_streams_of_one_connection_open_and_close(void **state)
{
    (void)state;
    struct test_server server = {0};
    for (uint32_t i = 0; i < STREAMS; i++)
        streams[i] = (struct inputgen_stream){.spec = {.packet_bytes = 64,
                                                       .burst_packets = 1,
                                                       .interval_ns = 10 * CORE_NS_PER_S,
                                                       .latency_ns = 60 * CORE_NS_PER_S,
                                                       .cipher = CORE_CIPHER_AES_128_CBC,
                                                       .padding = CORE_PADDING_PKCS7},
                                              .stop_ns = CORE_NS_PER_MS,
                                              .message_packets = 1};
    test_server_start(&server, "", &test_profile_generous);
    replay_on("unix", &server);
    replay_on("socket", &server);
    assert_int_equal(test_server_stop(&server), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_streams_of_one_connection_open_and_close)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
