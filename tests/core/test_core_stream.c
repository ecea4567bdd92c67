#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/stream.h"
#include "core/transport_stream.h"

#include <string.h>

static const struct core_stream_spec good = {
    .packet_bytes = 1400,
    .burst_packets = 4,
    .interval_ns = 10 * CORE_NS_PER_MS,
    .latency_ns = 20 * CORE_NS_PER_MS,
    .cipher = CORE_CIPHER_AES_128_CBC,
    .padding = CORE_PADDING_PKCS7,
};

#define BASE                                                                                                 \
    .packet_bytes = 1600, .burst_packets = 1, .interval_ns = CORE_NS_PER_MS, .latency_ns = CORE_NS_PER_MS,   \
    .cipher = CORE_CIPHER_AES_256_CBC, .padding = CORE_PADDING_NONE
#pragma GCC diagnostic ignored "-Woverride-init" /* each row changes one field of BASE */
#ifdef __clang__
#pragma clang diagnostic ignored "-Winitializer-overrides"
#endif

static void check_knows_every_limit(void **state)
{
    (void)state;
    static const struct {
        struct core_stream_spec spec;
        const char *complaint; /* NULL: valid */
    } cases[] = {
        {{BASE}, NULL},
        {{BASE, .packet_bytes = 16}, NULL},
        {{BASE, .packet_bytes = CORE_PACKET_BYTES_MAX}, NULL},
        {{BASE, .packet_bytes = 1, .padding = CORE_PADDING_PKCS7}, NULL},
        {{BASE, .burst_packets = CORE_BURST_MAX}, NULL},
        {{BASE, .interval_ns = CORE_INTERVAL_NS_MIN}, NULL},
        {{BASE, .interval_ns = CORE_INTERVAL_NS_MAX}, NULL},
        {{BASE, .latency_ns = CORE_LATENCY_NS_MIN}, NULL},
        {{BASE, .latency_ns = CORE_LATENCY_NS_MAX}, NULL},
        {{BASE, .cipher = CORE_CIPHER_AES_192_CBC}, NULL},
        {{BASE, .packet_bytes = 0}, "packet_bytes is 0"},
        {{BASE, .packet_bytes = CORE_PACKET_BYTES_MAX + 16}, "packet_bytes is 1048592"},
        {{BASE, .packet_bytes = 15}, "multiple of 16"},
        {{BASE, .packet_bytes = 1601}, "multiple of 16"},
        {{BASE, .burst_packets = 0}, "burst_packets is 0"},
        {{BASE, .burst_packets = CORE_BURST_MAX + 1}, "burst_packets is 65537"},
        {{BASE, .interval_ns = CORE_INTERVAL_NS_MIN - 1}, "interval_ns is 999"},
        {{BASE, .interval_ns = -1}, "interval_ns is -1"},
        {{BASE, .interval_ns = CORE_INTERVAL_NS_MAX + 1}, "interval_ns is 3600000000001"},
        {{BASE, .latency_ns = CORE_LATENCY_NS_MIN - 1}, "latency_ns is 9999"},
        {{BASE, .latency_ns = CORE_LATENCY_NS_MAX + 1}, "latency_ns is 3600000000001"},
        {{BASE, .cipher = (enum core_cipher)0}, "cipher is 0"},
        {{BASE, .cipher = (enum core_cipher)4}, "cipher is 4"},
        {{BASE, .padding = (enum core_padding)3}, "padding is 3"},
        {{BASE, .unit = CORE_UNIT_MESSAGE, .padding = CORE_PADDING_CLEAR}, NULL},
        {{BASE, .unit = CORE_UNIT_MESSAGE, .iv = CORE_IV_COUNTER, .first_unit = UINT64_MAX}, NULL},
        {{BASE, .unit = CORE_UNIT_MESSAGE, .iv = CORE_IV_EXPLICIT, .packet_bytes = 32}, NULL},
        {{BASE, .unit = CORE_UNIT_MESSAGE, .iv = CORE_IV_EXPLICIT, .packet_bytes = 16}, "more than the 16"},
        {{BASE, .unit = (enum core_unit)2}, "unit is 2"},
        {{BASE, .unit = CORE_UNIT_MESSAGE, .iv = (enum core_iv)5}, "iv is 5"},
        {{BASE, .iv = CORE_IV_RANDOM}, "iv is random"},
        {{BASE, .padding = CORE_PADDING_CLEAR}, "padding is clear"},
        {{BASE, .unit = CORE_UNIT_MESSAGE, .iv = CORE_IV_RANDOM, .first_unit = 1}, "first_unit is 1"},
        {{BASE, .unit = CORE_UNIT_MESSAGE, .message_packets = 1}, NULL},
        {{BASE, .unit = CORE_UNIT_MESSAGE, .message_packets = 2}, "message_packets is 2, must be 0 to 1"},
        {{BASE, .message_packets = 1}, "message_packets is 1, which a stream of unit message"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct core_error error = {""};
        const core_status expected = cases[i].complaint ? CORE_INVALID : CORE_OK;
        assert_int_equal(core_stream_spec_check(&cases[i].spec, &error), expected);
        assert_int_equal(core_stream_spec_check(&cases[i].spec, NULL), expected);
        if (cases[i].complaint)
            assert_non_null(strstr(error.text, cases[i].complaint));
    }
}

static void padding_rounds_up_to_blocks(void **state)
{
    (void)state;
    static const struct {
        uint32_t bytes, none, pkcs7;
    } cases[] = {
        {1, 16, 16},        {15, 16, 16},
        {16, 16, 32},       {17, 32, 32},
        {31, 32, 32},       {32, 32, 48},
        {1400, 1408, 1408}, {CORE_PACKET_BYTES_MAX, CORE_PACKET_BYTES_MAX, CORE_PACKET_BYTES_MAX + 16}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(core_stream_padded_bytes(CORE_PADDING_NONE, cases[i].bytes), cases[i].none);
        assert_int_equal(core_stream_padded_bytes(CORE_PADDING_PKCS7, cases[i].bytes), cases[i].pkcs7);
    }
    assert_int_equal(core_stream_padded_bytes(CORE_PADDING_NONE, 0), 0);
    assert_int_equal(core_stream_padded_bytes(CORE_PADDING_PKCS7, 0), 16);
}

static void rate_is_bits_of_payload_per_second(void **state)
{
    (void)state;
    assert_true(core_stream_rate_bits_per_s(&good) == 1400 * 8 * 100.0);
}

static void ciphers_have_names_and_key_sizes(void **state)
{
    (void)state;
    static const struct {
        enum core_cipher cipher;
        const char *name;
        uint32_t key_bytes;
    } cases[] = {{CORE_CIPHER_AES_128_CBC, "aes-128-cbc", 16},
                 {CORE_CIPHER_AES_192_CBC, "aes-192-cbc", 24},
                 {CORE_CIPHER_AES_256_CBC, "aes-256-cbc", 32}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum core_cipher parsed = (enum core_cipher)0;
        assert_string_equal(core_cipher_name(cases[i].cipher), cases[i].name);
        assert_int_equal(core_cipher_key_bytes(cases[i].cipher), cases[i].key_bytes);
        assert_int_equal(core_cipher_parse(cases[i].name, &parsed), CORE_OK);
        assert_int_equal(parsed, cases[i].cipher);
    }
}

static void unknown_ciphers_are_told(void **state)
{
    (void)state;
    static const int values[] = {0, 4, 255};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        assert_null(core_cipher_name((enum core_cipher)values[i]));
        assert_int_equal(core_cipher_key_bytes((enum core_cipher)values[i]), 0);
    }
    static const char *const names[] = {"", "aes", "aes-128-cbc ", "AES-128-CBC", "aes-128-gcm"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        enum core_cipher parsed = CORE_CIPHER_AES_192_CBC;
        assert_int_equal(core_cipher_parse(names[i], &parsed), CORE_NOT_FOUND);
        assert_int_equal(parsed, CORE_CIPHER_AES_192_CBC);
    }
}

/* The words of each kind are those values in this order, there and back, and no others. */
#define EXPECT_WORDS(noun, ...)                                                                              \
    do {                                                                                                     \
        static const char *const words[] = {__VA_ARGS__};                                                    \
        const int count = (int)(sizeof words / sizeof words[0]);                                             \
        enum core_##noun parsed = (enum core_##noun)0;                                                       \
        for (int value = 0; value < count; value++) {                                                        \
            assert_string_equal(core_##noun##_name((enum core_##noun)value), words[value]);                  \
            assert_int_equal(core_##noun##_parse(words[value], &parsed), CORE_OK);                           \
            assert_int_equal(parsed, value);                                                                 \
        }                                                                                                    \
        assert_null(core_##noun##_name((enum core_##noun)count));                                            \
        assert_null(core_##noun##_name((enum core_##noun) - 1));                                             \
        assert_int_equal(core_##noun##_parse("other", &parsed), CORE_NOT_FOUND);                             \
        assert_int_equal(core_##noun##_parse("", &parsed), CORE_NOT_FOUND);                                  \
        assert_int_equal(parsed, count - 1);                                                                 \
    } while (0)

static void what_streams_are_made_of_has_names(void **state)
{
    (void)state;
    EXPECT_WORDS(padding, "none", "pkcs7", "clear");
    EXPECT_WORDS(unit, "stream", "message");
    EXPECT_WORDS(iv, "chain", "constant", "counter", "explicit", "random");
    EXPECT_WORDS(direction, "encrypt", "decrypt");
    EXPECT_WORDS(records, "none", "ts");
}

static void patterns_have_texts(void **state)
{
    static const struct {
        const char *text;
        uint8_t crypt_blocks, skip_blocks;
    } right[] = {{"none", 0, 0}, {"1:9", 1, 9}, {"15:15", 15, 15}, {"10:1", 10, 1}};
    static const char *const wrong[] = {"",    "1",    "1:",   ":9",   "1:9:",  "0:9",
                                        "1:0", "01:9", "1:09", "1/9",  "16:1",  "1:16",
                                        "1:x", " 1:9", "1:9 ", "-1:9", "1:100", "None"};
    struct core_stream_spec spec = {.crypt_blocks = 7, .skip_blocks = 7};
    char text[CORE_PATTERN_TEXT_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        assert_int_equal(core_pattern_parse(right[i].text, &spec), CORE_OK);
        assert_int_equal(spec.crypt_blocks, right[i].crypt_blocks);
        assert_int_equal(spec.skip_blocks, right[i].skip_blocks);
        assert_string_equal(core_pattern_format(&spec, text), right[i].text);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (core_pattern_parse(wrong[i], &spec) != CORE_INVALID || spec.crypt_blocks != 10)
            fail_msg("'%s' is taken for a pattern", wrong[i]);
}

/* What a unit of the server has of the longest packet: the IV is ahead of it, unless its sender brings it. */
static void packets_take_their_iv_along(void **state)
{
    struct core_stream_spec spec = {BASE, .packet_bytes = 100, .padding = CORE_PADDING_PKCS7};
    static const uint32_t bytes[] = {112, 128, 128, 112, 128};
    (void)state;
    assert_int_equal(core_stream_packet_bytes(&spec), 112);
    spec.unit = CORE_UNIT_MESSAGE;
    for (int iv = 0; iv < 5; iv++) {
        spec.iv = (enum core_iv)iv;
        assert_int_equal(core_stream_packet_bytes(&spec), bytes[iv]);
    }
}

/* Counted block by block, and as many as that wherever a packet begins. */
static void patterns_encrypt_some_blocks(void **state)
{
    struct core_stream_spec spec = {.padding = CORE_PADDING_CLEAR, .unit = CORE_UNIT_MESSAGE};
    (void)state;
    for (uint32_t bytes = 0; bytes < 40; bytes++)
        assert_int_equal(core_stream_encrypted_bytes(&spec, 7, bytes), bytes / 16 * 16);
    for (spec.crypt_blocks = 1; spec.crypt_blocks <= CORE_PATTERN_BLOCKS_MAX; spec.crypt_blocks++)
        for (spec.skip_blocks = 1; spec.skip_blocks <= CORE_PATTERN_BLOCKS_MAX; spec.skip_blocks++)
            for (uint32_t blocks = 1; blocks < 70; blocks += spec.skip_blocks) {
                const uint32_t cycle = spec.crypt_blocks + spec.skip_blocks;
                uint32_t most = 0;
                for (uint32_t from = 0; from < cycle; from++) {
                    uint32_t count = 0;
                    for (uint32_t block = from; block < from + blocks; block++)
                        count += block % cycle < spec.crypt_blocks;
                    assert_int_equal(core_stream_encrypted_bytes(&spec, from, blocks * 16 + from % 16),
                                     count * 16);
                    most = count > most ? count : most;
                }
                spec.packet_bytes = blocks * 16;
                assert_int_equal(core_stream_packet_bytes(&spec), most * 16);
            }
}

static void check_refused(const struct core_stream_spec *spec, const char *text)
{
    struct core_error error = {.text = ""};
    assert_int_equal(core_stream_spec_check(spec, &error), CORE_INVALID);
    if (strstr(error.text, text) == NULL)
        fail_msg("%s", error.text);
}

static void records_and_directions_have_rules(void **state)
{
    const struct core_stream_spec sound = {.packet_bytes = 7 * 188,
                                           .burst_packets = 1,
                                           .interval_ns = CORE_NS_PER_MS,
                                           .latency_ns = CORE_NS_PER_MS,
                                           .cipher = CORE_CIPHER_AES_128_CBC,
                                           .padding = CORE_PADDING_CLEAR,
                                           .unit = CORE_UNIT_MESSAGE,
                                           .iv = CORE_IV_CONSTANT,
                                           .records = CORE_RECORDS_TS};
    struct core_stream_spec spec = sound;
    uint32_t chain_bytes;
    (void)state;
    assert_int_equal(core_stream_spec_check(&sound, NULL), CORE_OK);
    assert_true(core_stream_needs_worker(&sound));
    assert_int_equal(core_stream_packet_bytes(&sound), 7 * 176);
    assert_int_equal(core_stream_packet_chains(&sound, &chain_bytes), 7);
    assert_int_equal(chain_bytes, 176);
    spec.packet_bytes = 188 + 187;
    check_refused(&spec, "packet_bytes is 375, must be a multiple of 188");
    spec = sound, spec.iv = CORE_IV_COUNTER;
    check_refused(&spec, "records are ts, which go with");
    spec = sound, spec.padding = CORE_PADDING_PKCS7;
    check_refused(&spec, "records are ts, which go with");
    spec = sound, spec.crypt_blocks = spec.skip_blocks = 1;
    check_refused(&spec, "records are ts, which go with");
    spec = sound, spec.records = (enum core_records)2;
    check_refused(&spec, "records is 2, must be 0 to 1");
    spec = sound, spec.records = CORE_RECORDS_NONE;
    assert_int_equal(core_stream_spec_check(&spec, NULL), CORE_OK);
    assert_false(core_stream_needs_worker(&spec));
    assert_int_equal(core_stream_packet_chains(&spec, &chain_bytes), 1);
    assert_int_equal(chain_bytes, core_stream_packet_bytes(&spec));
    spec.direction = CORE_DIRECTION_DECRYPT;
    assert_int_equal(core_stream_spec_check(&spec, NULL), CORE_OK);
    assert_true(core_stream_needs_worker(&spec));
    spec.iv = CORE_IV_RANDOM;
    check_refused(&spec, "iv is random, which is for encryption only");
    spec.iv = CORE_IV_EXPLICIT, spec.padding = CORE_PADDING_PKCS7;
    check_refused(&spec, "padding is pkcs7, which is for encryption only");
    spec.direction = (enum core_direction)2;
    check_refused(&spec, "direction is 2, must be 0 to 1");
}

static void macs_have_rules(void **state)
{
    const struct core_stream_spec sound = {.packet_bytes = 1024,
                                           .burst_packets = 1,
                                           .interval_ns = CORE_NS_PER_MS,
                                           .latency_ns = CORE_NS_PER_MS,
                                           .cipher = CORE_CIPHER_AES_128_CBC,
                                           .padding = CORE_PADDING_CLEAR,
                                           .unit = CORE_UNIT_MESSAGE,
                                           .iv = CORE_IV_EXPLICIT,
                                           .first_unit = 9,
                                           .mac = CORE_MAC_HMAC_SHA_256_128};
    struct core_stream_spec spec = sound;
    (void)state;
    assert_int_equal(core_stream_spec_check(&sound, NULL), CORE_OK);
    assert_int_equal(core_stream_tag_bytes(&sound), 16);
    assert_int_equal(core_stream_held_bytes(&sound), 1024 + 16);
    assert_int_equal(core_stream_packet_bytes(&sound), 1024);
    spec.mac = CORE_MAC_NONE;
    check_refused(&spec, "first_unit is 9, must be 0 with iv explicit and no mac");
    spec = sound, spec.iv = CORE_IV_CHAIN;
    check_refused(&spec, "there is a mac, which goes with unit message, an iv other than chain");
    spec = sound, spec.unit = CORE_UNIT_STREAM, spec.iv = CORE_IV_CHAIN, spec.padding = CORE_PADDING_NONE;
    check_refused(&spec, "there is a mac, which goes with unit message");
    spec = sound, spec.iv = CORE_IV_CONSTANT, spec.records = CORE_RECORDS_TS, spec.packet_bytes = 188;
    check_refused(&spec, "there is a mac, which goes with unit message");
    spec = sound, spec.mac = (enum core_mac)2;
    check_refused(&spec, "mac is 2, must be 0 to 1");
    spec = sound, spec.direction = CORE_DIRECTION_DECRYPT;
    assert_int_equal(core_stream_spec_check(&spec, NULL), CORE_OK);
    assert_int_equal(core_stream_tag_bytes(&spec), 0);
    assert_int_equal(core_stream_held_bytes(&spec), 1024);
    spec.packet_bytes = 32;
    check_refused(&spec, "packet_bytes is 32, must be more than the 32 of a mac, and of an explicit IV");
    spec.iv = CORE_IV_COUNTER;
    assert_int_equal(core_stream_spec_check(&spec, NULL), CORE_OK);
    spec.packet_bytes = 16;
    check_refused(&spec, "packet_bytes is 16, must be more than the 16 of a mac");
    spec = sound, spec.packet_bytes = 65536;
    assert_int_equal(core_stream_spec_check(&spec, NULL), CORE_OK);
    spec.packet_bytes = 65552;
    check_refused(&spec, "packet_bytes is 65552, must be at most 65536 with a mac");
    spec.mac = CORE_MAC_NONE, spec.first_unit = 0;
    assert_int_equal(core_stream_spec_check(&spec, NULL), CORE_OK);
    spec.crypt_blocks = 1, spec.skip_blocks = 9;
    check_refused(&spec, "packet_bytes is 65552, must be at most 65536 with a pattern");
}

static void packets_that_stand_alone(void **state)
{
    struct core_stream_spec spec = {.unit = CORE_UNIT_MESSAGE, .message_packets = 1};
    (void)state;
    for (int iv = CORE_IV_CHAIN; iv <= CORE_IV_RANDOM; iv++) {
        spec.iv = (enum core_iv)iv;
        assert_int_equal(core_stream_packets_alone(&spec), iv != CORE_IV_CHAIN);
    }
    spec.message_packets = 0;
    assert_false(core_stream_packets_alone(&spec));
    spec = (struct core_stream_spec){.unit = CORE_UNIT_STREAM};
    assert_false(core_stream_packets_alone(&spec));
}

static void messages_of_one_packet(void **state)
{
    const struct core_stream_spec spec = {.unit = CORE_UNIT_MESSAGE};
    struct core_stream_spec whole[] = {spec, spec, spec}, parts[] = {spec, spec, spec, spec};
    (void)state;
    whole[0].message_packets = 1;
    whole[1].records = CORE_RECORDS_TS;
    whole[2].mac = CORE_MAC_HMAC_SHA_256_128, whole[2].direction = CORE_DIRECTION_DECRYPT;
    parts[1].mac = CORE_MAC_HMAC_SHA_256_128; /* computed, not checked */
    parts[2].direction = CORE_DIRECTION_DECRYPT;
    parts[3].unit = CORE_UNIT_STREAM, parts[3].message_packets = 1;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        assert_true(core_stream_has_whole_messages(&whole[i]));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_false(core_stream_has_whole_messages(&parts[i]));
}

/* Every length of the adaptation field, under every mark (ISO/IEC 13818-1, 2.4.3.2). */
static void payloads_of_transport_stream_packets(void **state)
{
    uint8_t packet[CORE_TS_BYTES] = {0x47};
    (void)state;
    assert_true(core_ts_is_packet(packet));
    for (uint32_t control = 0; control < 256; control++)
        for (uint32_t length = 0; length < 256; length++) {
            const bool marked = control >> 6 >= 2, adapts = control & 0x20, carries = control & 0x10;
            const uint32_t begins = adapts ? 5 + length : 4;
            uint32_t offset;
            packet[3] = (uint8_t)control;
            packet[4] = (uint8_t)length;
            const uint32_t bytes = core_ts_scrambled_bytes(packet, &offset);
            if (!marked || !carries || begins + 16 > 188) {
                assert_int_equal(bytes, 0);
                continue;
            }
            assert_int_equal(offset, begins);
            assert_true(bytes % 16 == 0 && begins + bytes <= 188 && begins + bytes + 16 > 188);
            assert_true(bytes <= CORE_TS_SCRAMBLED_BYTES);
        }
    packet[0] = 0x46;
    assert_false(core_ts_is_packet(packet));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_knows_every_limit),
        cmocka_unit_test(padding_rounds_up_to_blocks),
        cmocka_unit_test(rate_is_bits_of_payload_per_second),
        cmocka_unit_test(ciphers_have_names_and_key_sizes),
        cmocka_unit_test(unknown_ciphers_are_told),
        cmocka_unit_test(records_and_directions_have_rules),
        cmocka_unit_test(packets_that_stand_alone),
        cmocka_unit_test(messages_of_one_packet),
        cmocka_unit_test(macs_have_rules),
        cmocka_unit_test(payloads_of_transport_stream_packets),
        cmocka_unit_test(patterns_encrypt_some_blocks),
        cmocka_unit_test(what_streams_are_made_of_has_names),
        cmocka_unit_test(patterns_have_texts),
        cmocka_unit_test(packets_take_their_iv_along),
    };
    return cmocka_run_group_tests_name("core/stream", tests, NULL, NULL);
}
