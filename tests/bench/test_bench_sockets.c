/* The echo echoes with every size and manner of writing, and a server that does not start is told of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/daemon.h"
#include "bench/echo.h"

#include <string.h>
#include <unistd.h>

static void echo_carries_packets_of_any_size(void **state)
{
    static const struct bench_echo_options cases[] = {
        {.connections = 1, .packet_bytes = 1, .outstanding = 1},
        {.connections = 3, .packet_bytes = 1400, .outstanding = 4},
        {.connections = 3, .packet_bytes = 1400, .outstanding = 4, .batch = true},
        {.connections = 2, .packet_bytes = 100000, .outstanding = 7}, /* more than a socket holds */
        {.connections = 1, .packet_bytes = 1 << 20, .outstanding = 2, .batch = true},
    };
    (void)state;
    for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
        struct bench_echo_options options = cases[at];
        struct bench_echo_result result = {0};
        struct core_error error = {""};
        /* A window in which the machine had no time for us proves nothing: a longer one follows. */
        for (options.duration_ns = 50 * CORE_NS_PER_MS;
             result.bytes_per_s == 0 && options.duration_ns < CORE_NS_PER_MS * 10000;
             options.duration_ns *= 4)
            assert_int_equal(bench_echo_run(&options, &result, &error), CORE_OK);
        assert_true(result.bytes_per_s > 0);
    }
}

static void a_server_that_does_not_start_is_told_of(void **state)
{
    static const char *const programs[] = {"/bin/false", "/nowhere/millraced"};
    (void)state;
    for (size_t at = 0; at < sizeof programs / sizeof *programs; at++) {
        struct bench_daemon daemon;
        struct core_error error = {""};
        const struct bench_daemon_options options = {.program = programs[at]};
        assert_int_equal(bench_daemon_start(&daemon, &options, &error), CORE_SYSTEM);
        assert_non_null(strstr(error.text, "did not start"));
        assert_int_equal(access(daemon.folder, F_OK), -1); /* nothing remains */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(echo_carries_packets_of_any_size),
        cmocka_unit_test(a_server_that_does_not_start_is_told_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
