/* The ring of frames that wait to be written, against a plain queue of bytes. */
#include "client/output.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static core_status put(struct client_output *output, size_t bytes, uint8_t value)
{
    uint8_t *room;
    core_status status = client_output_append(output, bytes, &room);
    if (status == CORE_OK)
        memset(room, value, bytes);
    return status;
}

static void test_empty(void **state)
{
    (void)state;
    struct client_output output = {0};
    struct iovec parts[2];
    assert_int_equal(client_output_waiting(&output), 0);
    assert_int_equal(client_output_parts(&output, parts), 0);
    client_output_discard(&output);
    client_output_free(&output);
}

static void test_grows_and_keeps_the_order(void **state)
{
    (void)state;
    struct client_output output = {0};
    struct iovec parts[2];
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(put(&output, 4096, (uint8_t)i), CORE_OK);
    assert_true(output.capacity > CLIENT_OUTPUT_BYTES_MIN);
    assert_int_equal(client_output_parts(&output, parts), 1);
    assert_int_equal(parts[0].iov_len, 200 * 4096);
    const uint8_t *bytes = parts[0].iov_base;
    for (size_t i = 0; i < 200; i++)
        assert_true(bytes[i * 4096] == i && bytes[i * 4096 + 4095] == i);
    client_output_free(&output);
}

static void test_limit(void **state)
{
    (void)state;
    struct client_output output = {0};
    assert_int_equal(put(&output, CLIENT_OUTPUT_BYTES_MAX + 1, 1), CORE_FULL);
    assert_int_equal(put(&output, CLIENT_OUTPUT_BYTES_MAX, 1), CORE_OK);
    assert_int_equal(put(&output, 1, 2), CORE_FULL);
    client_output_consume(&output, 100);
    assert_int_equal(put(&output, 101, 2), CORE_FULL);
    assert_int_equal(put(&output, 100, 2), CORE_OK);
    assert_int_equal(put(&output, 1, 3), CORE_FULL);
    struct iovec parts[2];
    assert_int_equal(client_output_parts(&output, parts), 2);
    assert_int_equal(parts[1].iov_len, 100);
    client_output_consume(&output, CLIENT_OUTPUT_BYTES_MAX - 50); /* into the second region */
    assert_int_equal(client_output_waiting(&output), 50);
    assert_int_equal(client_output_parts(&output, parts), 1);
    assert_int_equal(((const uint8_t *)parts[0].iov_base)[0], 2);
    client_output_consume(&output, 50);
    assert_int_equal(output.begin, 0); /* emptied: from the front again */
    client_output_free(&output);
}

static void test_a_key_leaves_no_trace(void **state)
{
    (void)state;
    struct client_output output = {0};
    assert_int_equal(put(&output, 64, 0x5A), CORE_OK);
    output.secret = true;
    client_output_consume(&output, 32);
    assert_int_equal(output.bytes[0], 0x5A); /* half written: still wanted */
    client_output_consume(&output, 32);
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(output.bytes[i], 0);
    assert_false(output.secret);
    client_output_free(&output);
}

/* Frames of any size in, any number of bytes out: what comes out is what went in. */
static void test_random_traffic(void **state)
{
    (void)state;
    struct client_output output = {0};
    uint32_t random = 12345;
    uint8_t in = 0, out = 0;
    unsigned refused = 0, wrapped = 0;
    for (unsigned step = 0; step < 4000; step++) {
        random = random * 1664525 + 1013904223;
        size_t bytes = (random >> 8) % 200000 + 1;
        uint8_t *room;
        if (random >> 31 || step % 500 < 200) {
            core_status status = client_output_append(&output, bytes, &room);
            refused += status == CORE_FULL;
            for (size_t i = 0; status == CORE_OK && i < bytes; i++)
                room[i] = in++;
        } else {
            struct iovec parts[2];
            int count = client_output_parts(&output, parts);
            wrapped += count == 2;
            size_t take = bytes < client_output_waiting(&output) ? bytes : client_output_waiting(&output);
            for (size_t i = 0; i < take; i++) {
                size_t first = parts[0].iov_len;
                const uint8_t *from = parts[i < first ? 0 : 1].iov_base;
                if (from[i < first ? i : i - first] != out++)
                    fail_msg("step %u: byte %zu is not what was put in", step, i);
            }
            if (take > 0)
                client_output_consume(&output, take);
        }
    }
    assert_true(refused > 0 && wrapped > 0); /* or nothing of interest was tried */
    client_output_free(&output);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),          cmocka_unit_test(test_grows_and_keeps_the_order),
        cmocka_unit_test(test_limit),          cmocka_unit_test(test_a_key_leaves_no_trace),
        cmocka_unit_test(test_random_traffic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
