/* Times, rates, sizes and keys as people write and read them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "core/value.h"

static void test_rates(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double bits_per_s; /* 0: no rate */
    } rows[] = {{"5Mbit/s", 5e6}, {"800k", 8e5}, {"1.5MB/s", 12e6}, {"2 Gbit/s", 2e9}, {"9", 9},
                {".5M", 5e5},     {"1e3", 1000}, {"", 0},           {"fast", 0},       {"-5M", 0},
                {"0", 0},         {"0M", 0},     {"5 Mbit/sec", 0}, {"5M5", 0},        {"inf", 0},
                {"nan", 0},       {"5mbit", 0},  {"1e999", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double value = -1;
        bool is_rate = core_rate_parse(rows[i].text, 1, &value);
        if (is_rate != (rows[i].bits_per_s > 0) || (is_rate && fabs(value - rows[i].bits_per_s) > 1e-6))
            fail_msg("\"%s\" gives %d, %f", rows[i].text, is_rate, value);
    }
}

static void test_durations(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        core_ns value_ns; /* -1: no duration */
    } rows[] = {{"20ms", 20000000},     {"1.5s", 1500000000}, {"500us", 500000}, {"7ns", 7},
                {"2min", 120000000000}, {"0ms", 0},           {"20", -1},        {"ms", -1},
                {"-1ms", -1},           {"1d", -1},           {"9e18s", -1},     {"2h", 7200000000000},
                {"20 ms", 20000000},    {"0x10ms", -1},       {"0X1p4s", -1},    {"0.5s", 500000000}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        core_ns value_ns = -1;
        if (core_duration_parse(rows[i].text, 0, &value_ns) != (rows[i].value_ns >= 0) ||
            (rows[i].value_ns >= 0 && value_ns != rows[i].value_ns))
            fail_msg("\"%s\" gives %lld", rows[i].text, (long long)value_ns);
    }
}

/* A number without a unit is what the reader of it says, or nothing. */
static void test_bare_numbers(void **state)
{
    (void)state;
    core_ns value_ns;
    double bits_per_s;
    uint64_t bytes;
    assert_true(core_duration_parse("1.5", CORE_NS_PER_S, &value_ns) && value_ns == 1500000000);
    assert_true(core_duration_parse("1.5ms", CORE_NS_PER_S, &value_ns) && value_ns == 1500000);
    assert_true(core_duration_parse("20", CORE_NS_PER_MS, &value_ns) && value_ns == 20000000);
    assert_true(core_rate_parse("4", 1e6, &bits_per_s) && bits_per_s == 4e6);
    assert_true(core_rate_parse("4k", 1e6, &bits_per_s) && bits_per_s == 4e3);
    assert_true(core_bytes_parse("4", 1024, 1 << 20, &bytes) && bytes == 4096);
    assert_true(core_bytes_parse("4k", 1048576, 1 << 20, &bytes) && bytes == 4096);
}

static void test_counts_bytes_and_hex(void **state)
{
    (void)state;
    uint64_t value;
    uint8_t bytes[4];
    size_t count;
    assert_true(core_count_parse("18446744073709551615", UINT64_MAX, &value) && value == UINT64_MAX);
    assert_false(core_count_parse("18446744073709551616", UINT64_MAX, &value));
    assert_false(core_count_parse("11", 10, &value));
    assert_false(core_count_parse("-1", 10, &value));
    assert_false(core_count_parse("5x", 10, &value));
    assert_true(core_bytes_parse("64KiB", 1, 1 << 20, &value) && value == 65536);
    assert_true(core_bytes_parse("1MiB", 1, 1 << 20, &value) && value == 1 << 20);
    assert_false(core_bytes_parse("2MiB", 1, 1 << 20, &value));
    assert_false(core_bytes_parse("1.5", 1, 1 << 20, &value));
    assert_false(core_bytes_parse("64KB", 1, 1 << 20, &value));
    assert_false(core_bytes_parse("0x1B", 1, 1 << 20, &value));
    assert_false(core_bytes_parse("9223372036854775808", 1, INT64_MAX, &value));
    assert_true(core_bytes_parse("9223372036854774784", 1, INT64_MAX, &value) && value == INT64_MAX - 1023);
    assert_false(core_bytes_parse("18446744073709551616", 1, UINT64_MAX, &value));
    assert_true(core_hex_parse("00fFa5", 6, bytes, sizeof bytes, &count) && count == 3);
    assert_memory_equal(bytes, "\x00\xff\xa5", 3);
    assert_false(core_hex_parse("00f", 3, bytes, sizeof bytes, &count));
    assert_false(core_hex_parse("0g", 2, bytes, sizeof bytes, &count));
    assert_false(core_hex_parse("0011223344", 10, bytes, sizeof bytes, &count));
}

static void test_formats(void **state)
{
    (void)state;
    char text[CORE_TEXT_BYTES];
    assert_string_equal(core_duration_format(1234567, text), "1.23 ms");
    assert_string_equal(core_duration_format(20 * CORE_NS_PER_MS, text), "20 ms");
    assert_string_equal(core_duration_format(-1500, text), "-1.50 us");
    assert_string_equal(core_duration_format(0, text), "0 ns");
    assert_string_equal(core_duration_format(INT64_MAX, text), "9223372037 s");
    assert_string_equal(core_rate_format(12345678, text), "12.3 Mbit/s");
    assert_string_equal(core_bytes_format(1536, text), "1.50 KiB");
    char hex[9];
    assert_string_equal(core_hex_format((const uint8_t[]){0, 255, 16, 1}, 4, hex), "00ff1001");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates),        cmocka_unit_test(test_durations),
        cmocka_unit_test(test_bare_numbers), cmocka_unit_test(test_counts_bytes_and_hex),
        cmocka_unit_test(test_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
