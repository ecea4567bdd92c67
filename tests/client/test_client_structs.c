/* Structs of the public interface between programs and libraries that were built with different headers: shorter
 * and longer ones, those whose size nobody has set, and what is in their new members. */
#include "client/connection.h"
#include "client/contract.h"
#include "client/structs.h"
#include "client/translate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

/* A struct in three versions; the library of this test knows the second. */
struct first {
    size_t size;
    uint64_t a;
};

struct second {
    size_t size;
    uint64_t a, b;
};

struct third {
    size_t size;
    uint64_t a, b, c;
};

#define LEAST_BYTES sizeof(struct first)

static core_status read_any(struct second *own, const void *given, struct core_error *error)
{
    memset(own, 0x55, sizeof *own);
    return client_struct_read(own, sizeof *own, LEAST_BYTES, given, "thing", error);
}

static void test_read(void **state)
{
    (void)state;
    const struct first first = {sizeof first, 1};
    const struct second second = {sizeof second, 2, 3};
    struct third third = {sizeof third, 4, 5, 0};
    struct second own;
    struct core_error error;
    assert_int_equal(read_any(&own, &first, NULL), CORE_OK);
    assert_int_equal(own.a, 1);
    assert_int_equal(own.b, 0);
    assert_int_equal(read_any(&own, &second, NULL), CORE_OK);
    assert_int_equal(own.a, 2);
    assert_int_equal(own.b, 3);
    assert_int_equal(read_any(&own, &third, NULL), CORE_OK);
    assert_int_equal(own.a, 4);
    assert_int_equal(own.b, 5);
    third.c = UINT64_C(1) << 63; /* its last byte */
    assert_int_equal(read_any(&own, &third, &error), CORE_UNSUPPORTED);
    assert_non_null(strstr(error.text, "struct thing: byte 31 is set"));
}

static void test_sizes_that_nobody_has_set(void **state)
{
    (void)state;
    static const size_t wrong[] = {0, 1, LEAST_BYTES - 1, CLIENT_STRUCT_BYTES_MAX + 1, SIZE_MAX};
    struct second own;
    struct core_error error;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct third third = {wrong[i], 1, 2, 3};
        assert_int_equal(read_any(&own, &third, &error), CORE_INVALID);
        assert_non_null(strstr(error.text, "must be the struct's sizeof"));
        assert_int_equal(client_struct_check(&third, LEAST_BYTES, "thing", NULL), CORE_INVALID);
    }
    assert_int_equal(client_struct_check(NULL, LEAST_BYTES, "thing", NULL), CORE_OK);
}

static void test_write(void **state)
{
    (void)state;
    const struct second own = {sizeof own, 1, 2};
    struct second first = {sizeof(struct first), 9, 9}; /* b is behind the caller's struct */
    struct second second = {sizeof second, 9, 9};
    struct third third = {sizeof third, 9, 9, 9};
    client_struct_write(&first, &own, sizeof own);
    assert_int_equal(first.size, sizeof(struct first));
    assert_int_equal(first.a, 1);
    assert_int_equal(first.b, 9);
    client_struct_write(&second, &own, sizeof own);
    assert_int_equal(second.b, 2);
    client_struct_write(&third, &own, sizeof own);
    assert_int_equal(third.size, sizeof third);
    assert_int_equal(third.b, 2);
    assert_int_equal(third.c, 0);
    client_struct_write(NULL, &own, sizeof own);
}

/* ---- the real ones ---- */

static void assert_same(const struct core_stream_spec *a, const struct core_stream_spec *b)
{
    assert_int_equal(a->packet_bytes, b->packet_bytes);
    assert_int_equal(a->burst_packets, b->burst_packets);
    assert_int_equal(a->interval_ns, b->interval_ns);
    assert_int_equal(a->latency_ns, b->latency_ns);
    assert_int_equal(a->cipher, b->cipher);
    assert_int_equal(a->padding, b->padding);
    assert_int_equal(a->guaranteed, b->guaranteed);
    assert_int_equal(a->unit, b->unit);
    assert_int_equal(a->iv, b->iv);
    assert_int_equal(a->first_unit, b->first_unit);
    assert_int_equal(a->crypt_blocks, b->crypt_blocks);
    assert_int_equal(a->skip_blocks, b->skip_blocks);
    assert_int_equal(a->direction, b->direction);
    assert_int_equal(a->records, b->records);
    assert_int_equal(a->mac, b->mac);
    assert_int_equal(a->message_packets, b->message_packets);
}

static void test_contracts_there_and_back(void **state)
{
    (void)state;
    const struct core_stream_spec spec = {.packet_bytes = 1,
                                          .burst_packets = 2,
                                          .interval_ns = 3,
                                          .latency_ns = 4,
                                          .cipher = CORE_CIPHER_AES_256_CBC,
                                          .padding = CORE_PADDING_CLEAR,
                                          .guaranteed = true,
                                          .unit = CORE_UNIT_MESSAGE,
                                          .iv = CORE_IV_COUNTER,
                                          .first_unit = 5,
                                          .crypt_blocks = 6,
                                          .skip_blocks = 7,
                                          .direction = CORE_DIRECTION_DECRYPT,
                                          .records = CORE_RECORDS_TS,
                                          .mac = CORE_MAC_HMAC_SHA_256_128,
                                          .message_packets = 8};
    struct millrace_open given = client_contract_open(&spec);
    const struct core_stream_spec back = client_contract_spec(&given);
    struct protocol_open open;
    assert_same(&back, &spec);
    memset(given.mac_id, 0xA5, sizeof given.mac_id);
    assert_int_equal(client_read_open(&given, &open, NULL), CORE_OK);
    assert_same(&open.spec, &spec);
    assert_memory_equal(open.mac_id, given.mac_id, sizeof open.mac_id);
}

/* The wire has a byte for each of these, in which 257 would be 1. */
static void test_values_that_a_byte_can_not_hold(void **state)
{
    (void)state;
    const struct core_stream_spec spec = {.packet_bytes = 16};
    const struct millrace_open sound = client_contract_open(&spec);
    struct millrace_open cipher = sound, padding = sound, unit = sound, source = sound, key = sound,
                         direction = sound, records = sound, mac = sound;
    struct protocol_open open;
    cipher.cipher = (enum millrace_cipher)257;
    padding.padding = (enum millrace_padding)256;
    unit.unit = (enum millrace_unit)257;
    source.iv_source = (enum millrace_iv_source)259;
    direction.direction = (enum millrace_direction)256;
    records.records = (enum millrace_records)257;
    mac.mac = (enum millrace_mac)257;
    key.key_bytes = ((size_t)1 << 32) + 16;
    assert_int_equal(client_read_open(&sound, &open, NULL), CORE_OK);
    assert_int_equal(client_read_open(&cipher, &open, NULL), CORE_INVALID);
    assert_int_equal(client_read_open(&padding, &open, NULL), CORE_INVALID);
    assert_int_equal(client_read_open(&unit, &open, NULL), CORE_INVALID);
    assert_int_equal(client_read_open(&source, &open, NULL), CORE_INVALID);
    assert_int_equal(client_read_open(&direction, &open, NULL), CORE_INVALID);
    assert_int_equal(client_read_open(&records, &open, NULL), CORE_INVALID);
    assert_int_equal(client_read_open(&mac, &open, NULL), CORE_INVALID);
    assert_int_equal(client_read_open(&key, &open, NULL), CORE_OK);
    assert_int_equal(open.key_bytes, UINT32_MAX); /* which is no key's length */
}

/* Nothing is asked of the server whose answer could not be given to the caller, or that it did not mean. */
static void test_calls_check_first(void **state)
{
    (void)state;
    struct millrace nobody = {.dead = true}; /* and would say CLOSED */
    const struct core_stream_spec spec = {.packet_bytes = 16};
    struct millrace_open open = client_contract_open(&spec);
    struct millrace_opened opened = {0};
    struct millrace_refused refused = {0};
    struct millrace_modified modified = {0};
    struct millrace_rekeyed rekeyed = {0};
    struct millrace_result result = {0};
    struct millrace_closed closed = {0};
    struct millrace_position position = {0};
    const struct millrace_modify modify = {.size = sizeof modify}, no_modify = {0};
    const struct millrace_rekey rekey = {.size = sizeof rekey}, no_rekey = {0};
    const struct millrace_callbacks callbacks = {0};
    const struct millrace_tls tls = {0};
    struct millrace *none;
    uint8_t ciphertext[32];
    uint32_t bytes;
    char error[MILLRACE_TEXT_BYTES];
#define INVALID(call, name)                                                                                  \
    do {                                                                                                     \
        assert_int_equal(call, MILLRACE_INVALID);                                                            \
        assert_non_null(strstr(error, "struct " name ": size is 0"));                                        \
    } while (0)
    INVALID(millrace_open_stream(&nobody, &open, 0, &opened, NULL, error), "millrace_opened");
    INVALID(millrace_query(&nobody, &open, 0, NULL, &refused, error), "millrace_refused");
    INVALID(millrace_modify_stream(&nobody, &modify, 0, &modified, NULL, error), "millrace_modified");
    INVALID(millrace_modify_stream(&nobody, &modify, 0, NULL, &refused, error), "millrace_refused");
    INVALID(millrace_rekey_stream(&nobody, &rekey, 0, &rekeyed, NULL, error), "millrace_rekeyed");
    INVALID(millrace_rekey_stream(&nobody, &rekey, 0, NULL, &refused, error), "millrace_refused");
    INVALID(millrace_encrypt(&nobody, 1, "", 0, 0, ciphertext, &bytes, &result, error), "millrace_result");
    INVALID(millrace_close_stream(&nobody, 1, 0, &closed, error), "millrace_closed");
    INVALID(millrace_position_of(&nobody, 1, &position, error), "millrace_position");
    INVALID(millrace_set_callbacks(&nobody, &callbacks, error), "millrace_callbacks");
    INVALID(millrace_connect("unix:/nowhere", &tls, 0, &none, error), "millrace_tls");
    open.size = 0;
    INVALID(millrace_send_open(&nobody, &open, NULL, error), "millrace_open");
    INVALID(millrace_send_query(&nobody, &open, NULL, error), "millrace_open");
    INVALID(millrace_send_modify(&nobody, &no_modify, NULL, error), "millrace_modify");
    INVALID(millrace_send_rekey(&nobody, &no_rekey, NULL, error), "millrace_rekey");
}

static void test_version(void **state)
{
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", MILLRACE_VERSION_NUMBER / 1000000,
             MILLRACE_VERSION_NUMBER / 1000 % 1000, MILLRACE_VERSION_NUMBER % 1000);
    assert_string_equal(text, MILLRACE_VERSION);
    assert_string_equal(millrace_version(), MILLRACE_VERSION);
    assert_string_equal(millrace_status_text(MILLRACE_REFUSED), "refused");
    assert_string_equal(millrace_status_text((millrace_status)99), core_status_text((core_status)99));
    assert_string_equal(millrace_refusal_name(MILLRACE_REFUSED_CAPACITY), "capacity");
    assert_string_equal(millrace_limit_name(MILLRACE_LIMIT_NONE), "none");
    assert_string_equal(millrace_error_name(MILLRACE_ERROR_SEQUENCE), "sequence");
    assert_string_equal(millrace_result_name((enum millrace_result_status)99), "unknown");
    assert_string_equal(millrace_notice_name((enum millrace_notice_kind)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_sizes_that_nobody_has_set),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_contracts_there_and_back),
        cmocka_unit_test(test_values_that_a_byte_can_not_hold),
        cmocka_unit_test(test_calls_check_first),
        cmocka_unit_test(test_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
