/* The services' file of `millrace ts`: defaults, units, addresses, mistakes by file and line. */
#include "config/ts.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SERVICE                                                                                              \
    "services:\n  - name: one\n    input: udp:239.1.1.1:5000\n    output: udp:239.2.1.1:5000\n"              \
    "    rate_mbit_per_s: 4\n    words: {file: words/one}\n"

static struct config_ts *parsed(const char *text)
{
    struct config_ts *ts = NULL;
    struct core_error error = {""};

    if (config_ts_parse(text, strlen(text), "etc/ts.yaml", &ts, &error) != CORE_OK)
        fail_msg("refused: %s", error.text);
    return ts;
}

static void defaults_are_as_documented(void **state)
{
    struct config_ts *ts = parsed(SERVICE);
    const struct config_ts_service *service = &ts->services[0];

    (void)state;
    assert_int_equal(ts->service_count, 1);
    assert_string_equal(service->name, "one");
    assert_int_equal(service->input.address.ss_family, AF_INET);
    assert_true(service->input.is_group && service->output.is_group && !service->has_source);
    assert_null(service->input.interface);
    assert_int_equal(service->ttl, 1);
    assert_true(service->rate_bits_per_s == 4e6);
    assert_int_equal(service->datagram_bytes, 1316);
    assert_int_equal(service->jitter_ns, 10 * CORE_NS_PER_MS);
    assert_int_equal(service->bound_ns, 5 * CORE_NS_PER_MS);
    assert_false(service->hold || service->guaranteed);
    assert_int_equal(service->clear_pid_count, 0);
    assert_string_equal(service->words_file, "etc/words/one");
    assert_null(service->words_command);
    config_ts_free(ts);
    config_ts_free(NULL);
}

static void all_can_be_said(void **state)
{
    struct config_ts *ts = parsed(
        "services:\n  - name: six\n    input: udp:[ff15::1]:5000\n    input_interface: lo\n"
        "    input_source: fe80::7\n    output: udp:[::1]:5001\n    ttl: 7\n    rate_mbit_per_s: 500kbit/s\n"
        "    datagram_bytes: 376\n    jitter_ms: 2ms\n    bound_ms: 1500us\n    hold: true\n"
        "    guaranteed: true\n    clear_pids: [0x1F0, 18]\n    words: {command: \"cat words\"}\n"
        "  - name: four\n    input: udp:127.0.0.1:6000\n    output: udp:239.2.1.1:5000\n"
        "    output_interface: eth1\n    rate_mbit_per_s: 1\n    words: {file: /w}\n");
    const struct config_ts_service *six = &ts->services[0], *four = &ts->services[1];

    (void)state;
    assert_int_equal(ts->service_count, 2);
    assert_true(six->input.is_group && !six->output.is_group && six->has_source);
    assert_int_equal(ntohs(((const struct sockaddr_in6 *)&six->input.address)->sin6_port), 5000);
    assert_string_equal(six->input.interface, "lo");
    assert_int_equal(six->ttl, 7);
    assert_true(six->rate_bits_per_s == 5e5);
    assert_int_equal(six->datagram_bytes, 376);
    assert_int_equal(six->jitter_ns, 2 * CORE_NS_PER_MS);
    assert_int_equal(six->bound_ns, 1500 * CORE_NS_PER_US);
    assert_true(six->hold && six->guaranteed);
    assert_int_equal(six->clear_pid_count, 2);
    assert_int_equal(six->clear_pids[0], 0x1F0);
    assert_int_equal(six->clear_pids[1], 18);
    assert_string_equal(six->words_command, "cat words");
    assert_string_equal(four->words_file, "/w");
    assert_string_equal(four->output.interface, "eth1");
    config_ts_free(ts);
}

/* Lines put behind those of SERVICE, or all of the text if they begin with 's'. */
static void mistakes_are_told(void **state)
{
    static const struct {
        const char *text, *told;
    } cases[] = {
        {"services: []\n", "etc/ts.yaml:1"},
        {"services:\n  - name: one\n    output: udp:239.2.1.1:5000\n", "input"},
        {"    bond_ms: 3\n", "etc/ts.yaml:7"},
        {"    bound_ms: 0\n", "bound_ms"},
        {"    datagram_bytes: 200\n", "multiple of 188"},
        {"    datagram_bytes: 9024\n", "datagram_bytes"},
        {"    ttl: 256\n", "ttl"},
        {"    clear_pids: [8192]\n", "clear_pids[0]"},
        {"    input_source: here\n", "input_source"},
        {"    input_source: 239.1.1.1\n", "input_source"},
        {"    input_source: ::1\n", "input_source"},
        {"  - {name: one, input: udp:1.2.3.4:5, output: udp:1.2.3.4:6, rate_mbit_per_s: 1, words: {file: "
         "w}}\n",
         "services[1].name: is the same as that of services[0]"},
        {"  - {name: two, input: udp:1.2.3.4:5, output: udp:239.2.1.1:5000, rate_mbit_per_s: 1, words: "
         "{file: "
         "w}}\n",
         "services[1].output: is the same"},
        {"  - {name: two, input: udp:1.2.3.4:5, output: udp:239.1.1.1:5000, rate_mbit_per_s: 1, words: "
         "{file: "
         "w}}\n",
         "taken in again"},
        {"  - {name: two, input: udp:1.2.3.4:5, output: udp:1.2.3.4:5, rate_mbit_per_s: 1, words: {file: "
         "w}}\n",
         "the same as its input"},
        {"  - {name: two, input: udp:1.2.3.4:5, output: udp:1.2.3.4:6, rate_mbit_per_s: 1, words: {}}\n",
         "either file or command"},
        {"  - {name: two, input: udp:1.2.3.4:5, output: udp:1.2.3.4:6, rate_mbit_per_s: 1, words: {file: w, "
         "command: c}}\n",
         "either file or command"},
        {"  - {name: t o, input: udp:1.2.3.4:5, output: udp:1.2.3.4:6, rate_mbit_per_s: 1, words: {file: "
         "w}}\n",
         "letters"},
        {"  - {name: two, input: udp:1.2.3.4:5, input_interface: lo, output: udp:1.2.3.4:6, rate_mbit_per_s: "
         "1, "
         "words: {file: w}}\n",
         "is for multicast groups"},
    };
    static const char *const addresses[] = {
        "239.1.1.1:5000",  "udp:239.1.1.1", "udp:239.1.1.1:0", "udp:host:5",        "udp:ff15::1:5",
        "udp:[1.2.3.4]:5", "udp::5",        "udp:[]:5",        "udp:1.2.3.4:65536", "udp:1.2.3.4:x"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] + sizeof addresses / sizeof addresses[0]; i++) {
        char text[2048];
        struct config_ts *ts;
        struct core_error error = {""};
        const size_t address = i - sizeof cases / sizeof cases[0];
        const bool is_case = i < sizeof cases / sizeof cases[0];
        const char *told = is_case ? cases[i].told : "is no udp:ADDRESS:PORT";

        if (is_case)
            snprintf(text, sizeof text, "%s%s", cases[i].text[0] == 's' ? "" : SERVICE, cases[i].text);
        else
            snprintf(text, sizeof text,
                     "services:\n  - {name: a, input: \"%s\", output: \"udp:1.2.3.4:6\", rate_mbit_per_s: 1, "
                     "words: {file: w}}\n",
                     addresses[address]);
        if (config_ts_parse(text, strlen(text), "etc/ts.yaml", &ts, &error) != CORE_INVALID ||
            strstr(error.text, told) == NULL)
            fail_msg("%s: %s", text, error.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_as_documented),
        cmocka_unit_test(all_can_be_said),
        cmocka_unit_test(mistakes_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
