/* The rings and OpenSSL bring back what they are given, with few streams and many, and the command measures a server
 * of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/lane_limits.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static void limits_carry_packets(void **state)
{
    static const struct bench_lane_limits_options cases[] = {
        {.streams = 1, .packet_bytes = 16, .duration_ns = 50 * CORE_NS_PER_MS},
        {.streams = 3, .packet_bytes = 1408, .duration_ns = 50 * CORE_NS_PER_MS},
        {.streams = 1000, .packet_bytes = 1408, .duration_ns = 50 * CORE_NS_PER_MS},
        {.streams = 200, .packet_bytes = 65504, .duration_ns = 50 * CORE_NS_PER_MS},
    };
    (void)state;
    for (size_t at = 0; at < sizeof cases / sizeof *cases; at++)
        for (int way = 0; way < 3; way++) {
            struct bench_lane_limits_options options = cases[at];
            struct bench_lane_limits_result result = {0};
            struct core_error error = {""};
            core_status status = CORE_SYSTEM;
            /* A window in which the machine had no time for us proves nothing: a longer one follows. */
            for (; status != CORE_OK && options.duration_ns < CORE_NS_PER_MS * 10000;
                 options.duration_ns *= 4)
                status = way < 2 ? bench_lane_ring(&options, way == 1, &result, &error)
                                 : bench_lane_openssl(&options, &result, &error);
            assert_int_equal(status, CORE_OK);
            assert_true(result.packets_per_s > 0 && result.client_ns > 0);
            assert_true((result.server_ns > 0) == (way < 2));
        }
}

static void every_packet_comes_back(void **state)
{
    static const char *const ways[] = {"sockets_16", "lanes_16", "lane", "producer_socket", "producer_lane"};
    json_error_t error;
    (void)state;
    FILE *output = popen(MILLRACE_BINARY_DIR "/bench/millrace-bench lanes -n 50 --rate 5 -r 1 -s 0.5 --json "
                                             "--profile cpu-only",
                         "r");
    assert_non_null(output);
    json_t *report = json_loadf(output, 0, &error);
    assert_int_equal(pclose(output), 0);
    assert_non_null(report);
    for (size_t at = 0; at < sizeof ways / sizeof *ways; at++) {
        const json_t *way = json_object_get(report, ways[at]);
        assert_int_equal(json_integer_value(json_object_get(way, "lost")), 0);
        assert_true(json_real_value(json_object_get(json_object_get(way, "client_us"), "median")) > 0);
    }
    json_decref(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_carry_packets),
        cmocka_unit_test(every_packet_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
