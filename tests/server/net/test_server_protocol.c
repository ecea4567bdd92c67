/* The codec of the wire protocol: every frame there and back, every byte of every body that must have a
 * certain value given another one, every length but the right one. */
#include "core/protocol.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FRAME_BYTES (PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX)

/* ---- decoders behind one signature, so that tables can hold them ---- */

typedef core_status decode_function(const uint8_t *body, uint32_t bytes, struct core_error *error);

static core_status decode_hello(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    uint16_t version_min, version_max;
    return protocol_hello_read(body, bytes, &version_min, &version_max, error);
}

static core_status decode_welcome(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_welcome welcome;
    return protocol_welcome_read(body, bytes, &welcome, error);
}

static core_status decode_open(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_open open;
    return protocol_open_read(2, body, bytes, &open, error);
}

static core_status decode_opened(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_opened opened;
    return protocol_opened_read(PROTOCOL_VERSION, body, bytes, &opened, error);
}

static core_status decode_refused(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_refused refused;
    return protocol_refused_read(PROTOCOL_VERSION, body, bytes, &refused, error);
}

static core_status decode_opened_1(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_opened opened;
    return protocol_opened_read(1, body, bytes, &opened, error);
}

static core_status decode_open_1(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_open open;
    return protocol_open_read(1, body, bytes, &open, error);
}

static core_status decode_refused_1(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_refused refused;
    return protocol_refused_read(1, body, bytes, &refused, error);
}

static core_status decode_result_1(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_result result;
    return protocol_result_read(1, body, bytes, &result, error);
}

static core_status decode_open_3(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_open open;
    return protocol_open_read(3, body, bytes, &open, error);
}

static core_status decode_result_3(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_result result;
    return protocol_result_read(3, body, bytes, &result, error);
}

static core_status decode_modify(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_modify modify;
    return protocol_modify_read(body, bytes, &modify, error);
}

static core_status decode_modified(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_modified modified;
    return protocol_modified_read(body, bytes, &modified, error);
}

static core_status decode_notice(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_notice notice;
    return protocol_notice_read(body, bytes, &notice, error);
}

static core_status decode_result(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_result result;
    return protocol_result_read(2, body, bytes, &result, error);
}

static core_status decode_closed(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    struct protocol_closed closed;
    return protocol_closed_read(body, bytes, &closed, error);
}

static core_status decode_error(const uint8_t *body, uint32_t bytes, struct core_error *error)
{
    enum protocol_error code;
    bool fatal;
    char text[64];
    return protocol_error_read(body, bytes, &code, &fatal, text, sizeof text, error);
}

/* ---- one good frame of every kind ---- */

static const struct protocol_welcome good_welcome = {
    .version = 1,
    .flags = PROTOCOL_ALLOWS_INLINE_KEY | PROTOCOL_HAS_NAMED_KEYS,
    .packet_bytes_max = 65536,
    .burst_packets_max = 1024,
    .streams_max = 4000,
    .stream_buffer_bytes_max = UINT64_C(0x123456789A),
    .bytes_per_key = UINT64_C(0x8000000000000000),
    .interval_ns_min = CORE_INTERVAL_NS_MIN,
    .latency_ns_min = CORE_LATENCY_NS_MIN,
};

static const uint8_t key_bytes[33] = "0123456789abcdefghijklmnopqrstuv";

static struct protocol_open good_open(enum protocol_key_kind kind, uint32_t bytes, bool has_iv)
{
    return (struct protocol_open){
        .spec = {.packet_bytes = 1400,
                 .burst_packets = 7,
                 .interval_ns = 11 * CORE_NS_PER_MS,
                 .latency_ns = 3600 * CORE_NS_PER_S,
                 .cipher = CORE_CIPHER_AES_256_CBC,
                 .padding = CORE_PADDING_PKCS7},
        .key_kind = kind,
        .has_iv = has_iv,
        .iv = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
        .key = key_bytes,
        .key_bytes = bytes,
    };
}

static const struct protocol_opened good_opened = {
    .stream = 77,
    .unit = PROTOCOL_UNIT_CPU,
    .unit_index = 513,
    .bound_ns = 19 * CORE_NS_PER_MS,
    .decided_ns = 12345,
    .queue_packets = 9,
    .iv = {0xF0, 0xF1, 0xF2},
    .in_force_ns = 23456,
    .backup = {.unit = PROTOCOL_UNIT_GPU,
               .unit_index = 258,
               .reserved_ppb = 1000000,
               .bound_ns = 20 * CORE_NS_PER_MS},
};

static const struct protocol_modify good_modify = {.stream = 0x01020304,
                                                   .burst_packets = 65536,
                                                   .interval_ns = 5 * CORE_NS_PER_MS,
                                                   .latency_ns = 7 * CORE_NS_PER_MS};

static const struct protocol_modified good_modified = {
    .stream = 77,
    .unit = PROTOCOL_UNIT_GPU,
    .unit_index = 1,
    .bound_ns = 6 * CORE_NS_PER_MS,
    .decided_ns = 54321,
    .in_force_ns = 65432,
    .first = 0xFFFFFFFE,
    .queue_packets = 31,
    .backup = {.unit = PROTOCOL_UNIT_CPU,
               .unit_index = 3,
               .reserved_ppb = 99,
               .bound_ns = 7 * CORE_NS_PER_MS},
};

static struct protocol_notice good_notice(void)
{
    struct protocol_notice notice = {.kind = PROTOCOL_NOTICE_MOVED,
                                     .unit = PROTOCOL_UNIT_CPU,
                                     .unit_index = 513,
                                     .bound_ns = 8 * CORE_NS_PER_MS};
    strcpy(notice.text, "moved");
    return notice;
}

static struct protocol_refused good_refused(void)
{
    struct protocol_refused refused = {.code = PROTOCOL_REFUSED_CAPACITY,
                                       .constraint = 3,
                                       .offer_interval_ns = 5 * CORE_NS_PER_MS,
                                       .offer_latency_ns = CORE_NS_PER_S,
                                       .decided_ns = 34567};
    strcpy(refused.text, "no room; ask for 2 Mbit/s");
    return refused;
}

static const struct protocol_result good_result = {
    .status = PROTOCOL_RESULT_OK,
    .flags = PROTOCOL_RESULT_MET | PROTOCOL_RESULT_POLICED,
    .waited_us = 4000000000u,
    .latency_ns = 17 * CORE_NS_PER_MS,
};

static const struct protocol_closed good_closed = {
    .reason = PROTOCOL_CLOSE_DRAINED, .packets = 10, .bytes = UINT64_MAX, .met = 9, .missed = 1};

enum kind {
    HELLO,
    WELCOME,
    OPEN_BARE,
    OPEN_IV_KEY,
    OPEN_NAMED,
    OPEN_GUARANTEED,
    OPENED,
    REFUSED,
    RESULT,
    CLOSED,
    ERROR_FRAME,
    MODIFY,
    MODIFIED,
    NOTICE,
    OPEN_3, /* as version 3 has them */
    RESULT_3,
    OPEN_1, /* as version 1 has them */
    OPENED_1,
    REFUSED_1,
    RESULT_1
};
#define KINDS 20

static uint32_t write_good(enum kind kind, uint8_t *frame)
{
    struct protocol_open open;
    struct protocol_refused refused;
    struct protocol_notice notice;
    struct protocol_result result;
    switch (kind) {
    case HELLO:
        return protocol_hello_write(frame, 1, 3);
    case WELCOME:
        return protocol_welcome_write(frame, &good_welcome);
    case OPEN_BARE:
        open = good_open(PROTOCOL_KEY_NONE, 0, false);
        return protocol_open_write(2, frame, PROTOCOL_QUERY, 5, &open);
    case OPEN_GUARANTEED:
        open = good_open(PROTOCOL_KEY_NONE, 0, false);
        open.spec.guaranteed = true;
        return protocol_open_write(2, frame, PROTOCOL_QUERY, 5, &open);
    case MODIFY:
        return protocol_modify_write(frame, 5, &good_modify);
    case MODIFIED:
        return protocol_modified_write(frame, 5, &good_modified);
    case NOTICE:
        notice = good_notice();
        return protocol_notice_write(frame, 77, &notice);
    case OPEN_3:
        open = good_open(PROTOCOL_KEY_INLINE, 32, true);
        open.spec.unit = CORE_UNIT_MESSAGE;
        open.spec.iv = CORE_IV_COUNTER;
        open.spec.first_unit = UINT64_C(0x0102030405060708);
        return protocol_open_write(3, frame, PROTOCOL_OPEN, 5, &open);
    case RESULT_3:
        result = good_result;
        result.flags |= PROTOCOL_RESULT_HAS_IV;
        protocol_result_write(frame, 77, 0xFFFFFFFF, &result, 49);
        memset(frame + PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES, 0xAA, 49);
        return PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + 49;
    case OPEN_1:
        return write_good(OPEN_BARE, frame);
    case OPENED_1:
        return protocol_opened_write(1, frame, 5, &good_opened);
    case REFUSED_1:
        refused = good_refused();
        return protocol_refused_write(1, frame, 5, &refused);
    case RESULT_1:
        return write_good(RESULT, frame);
    case OPEN_IV_KEY:
        open = good_open(PROTOCOL_KEY_INLINE, 32, true);
        return protocol_open_write(2, frame, PROTOCOL_OPEN, 5, &open);
    case OPEN_NAMED:
        open = good_open(PROTOCOL_KEY_NAMED, 20, false);
        return protocol_open_write(2, frame, PROTOCOL_OPEN, 5, &open);
    case OPENED:
        return protocol_opened_write(PROTOCOL_VERSION, frame, 5, &good_opened);
    case REFUSED:
        refused = good_refused();
        return protocol_refused_write(PROTOCOL_VERSION, frame, 5, &refused);
    case RESULT:
        protocol_result_write(frame, 77, 0xFFFFFFFF, &good_result, 48);
        memset(frame + PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES, 0xAA, 48);
        return PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + 48;
    case CLOSED:
        return protocol_closed_write(frame, 77, &good_closed);
    case ERROR_FRAME:
        return protocol_error_write(frame, 77, PROTOCOL_ERROR_STREAM, false, "no such stream");
    }
    return 0;
}

static const struct {
    uint8_t type;
    uint32_t id, sequence;
    decode_function *decode;
    uint32_t shortest; /* of this frame's lengths, the first that is a whole body */
    uint32_t step;     /* and how many bytes lie between it and the next */
} kinds[KINDS] = {
    [HELLO] = {PROTOCOL_HELLO, 0, 0, decode_hello, 8, 0},
    [WELCOME] = {PROTOCOL_WELCOME, 0, 0, decode_welcome, 48, 0},
    [OPEN_BARE] = {PROTOCOL_QUERY, 5, 0, decode_open, 32, 0},
    [OPEN_IV_KEY] = {PROTOCOL_OPEN, 5, 0, decode_open, 80, 0},
    [OPEN_NAMED] = {PROTOCOL_OPEN, 5, 0, decode_open, 52, 0},
    [OPEN_GUARANTEED] = {PROTOCOL_QUERY, 5, 0, decode_open, 32, 0},
    [OPENED] = {PROTOCOL_OPENED, 5, 0, decode_opened, 72, 0},
    [REFUSED] = {PROTOCOL_REFUSED, 5, 0, decode_refused, 32, 1},
    [RESULT] = {PROTOCOL_RESULT, 77, 0xFFFFFFFF, decode_result, 32, 16},
    [CLOSED] = {PROTOCOL_CLOSED, 77, 0, decode_closed, 40, 0},
    [ERROR_FRAME] = {PROTOCOL_ERROR, 77, 0, decode_error, 4, 1},
    [MODIFY] = {PROTOCOL_MODIFY, 5, 0, decode_modify, 24, 0},
    [MODIFIED] = {PROTOCOL_MODIFIED, 5, 0, decode_modified, 56, 0},
    [NOTICE] = {PROTOCOL_NOTICE, 77, 0, decode_notice, 16, 1},
    [OPEN_3] = {PROTOCOL_OPEN, 5, 0, decode_open_3, 96, 0},
    [RESULT_3] = {PROTOCOL_RESULT, 77, 0xFFFFFFFF, decode_result_3, 32, 1},
    [OPEN_1] = {PROTOCOL_QUERY, 5, 0, decode_open_1, 32, 0},
    [OPENED_1] = {PROTOCOL_OPENED, 5, 0, decode_opened_1, 48, 0},
    [REFUSED_1] = {PROTOCOL_REFUSED, 5, 0, decode_refused_1, 24, 1},
    [RESULT_1] = {PROTOCOL_RESULT, 77, 0xFFFFFFFF, decode_result_1, 32, 16},
};

/* ---- headers ---- */

static void test_headers_of_all_frames(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        uint8_t frame[FRAME_BYTES];
        uint32_t bytes = write_good((enum kind)kind, frame);
        struct protocol_header header;
        assert_int_equal(protocol_header_read(PROTOCOL_VERSION, frame, &header), CORE_OK);
        assert_int_equal(header.body_bytes, bytes - PROTOCOL_HEADER_BYTES);
        assert_int_equal(header.type, kinds[kind].type);
        assert_int_equal(header.id, kinds[kind].id);
        assert_int_equal(header.sequence, kinds[kind].sequence);
    }
}

static void test_header_is_little_endian(void **state)
{
    (void)state;
    const struct protocol_header header = {0x01020304, PROTOCOL_DATA, 0, 0x11121314, 0x21222324};
    const uint8_t expected[16] = {4, 3, 2, 1, 7, 0, 0, 0, 0x14, 0x13, 0x12, 0x11, 0x24, 0x23, 0x22, 0x21};
    uint8_t frame[16];
    memset(frame, 0xEE, sizeof frame);
    protocol_header_write(frame, &header);
    assert_memory_equal(frame, expected, sizeof expected);
}

static void test_header_fields_that_must_be_zero(void **state)
{
    (void)state;
    struct protocol_header header;
    for (uint8_t i = 0; i < 40; i++) {
        uint8_t type = i % 20;
        uint16_t version = i < 20 ? 1 : 2;
        bool known = type >= PROTOCOL_HELLO && type <= (version == 1 ? PROTOCOL_PONG : PROTOCOL_NOTICE);
        bool no_id = type == PROTOCOL_HELLO || type == PROTOCOL_WELCOME;
        bool no_sequence = known && type != PROTOCOL_DATA && type != PROTOCOL_RESULT;
        for (unsigned byte = 5; byte < 16; byte++) {
            uint8_t frame[16] = {[4] = type};
            assert_int_equal(protocol_header_read(version, frame, &header), CORE_OK);
            frame[byte] = 0x80;
            bool breach = byte < 8 || (byte < 12 && no_id) || (byte >= 12 && no_sequence);
            assert_int_equal(protocol_header_read(version, frame, &header), breach ? CORE_INVALID : CORE_OK);
            assert_int_equal(header.type, type);
        }
    }
}

static void test_body_ranges(void **state)
{
    (void)state;
    static const struct {
        uint8_t type;
        uint32_t minimum, maximum;
    } rows[] = {{PROTOCOL_HELLO, 8, 8},    {PROTOCOL_OPEN, 32, 111}, {PROTOCOL_QUERY, 32, 111},
                {PROTOCOL_DATA, 0, 777},   {PROTOCOL_CLOSE, 0, 0},   {PROTOCOL_PING, 0, 64},
                {PROTOCOL_MODIFY, 24, 24}, {PROTOCOL_REKEY, 17, 79}, {PROTOCOL_LANE, 4, 4}};
    unsigned allowed = 0, allowed_1 = 0;
    for (unsigned type = 0; type < 256; type++) {
        uint32_t minimum, maximum;
        allowed += protocol_body_range(PROTOCOL_VERSION, (uint8_t)type, 777, &minimum, &maximum);
        allowed_1 += protocol_body_range(1, (uint8_t)type, 777, &minimum, &maximum);
    }
    assert_int_equal(allowed, sizeof rows / sizeof rows[0]);
    assert_int_equal(allowed_1, allowed - 3); /* neither MODIFY nor REKEY nor LANE */
    for (unsigned i = 0; i < allowed; i++) {
        uint32_t minimum, maximum;
        if (protocol_body_range(2, rows[i].type, 777, &minimum, &maximum)) {
            assert_int_equal(minimum, rows[i].minimum);
            assert_int_equal(maximum, rows[i].maximum);
        } else
            assert_true(rows[i].type == PROTOCOL_REKEY || rows[i].type == PROTOCOL_LANE);
        const uint32_t more = rows[i].type == PROTOCOL_OPEN || rows[i].type == PROTOCOL_QUERY ? 16 : 0;
        const uint32_t mac_id = more; /* may be there, after the IV */
        assert_true(protocol_body_range(3, rows[i].type, 777, &minimum, &maximum));
        assert_int_equal(minimum, rows[i].minimum + more);
        assert_int_equal(maximum, rows[i].maximum + more + mac_id);
    }
}

/* ---- round trips ---- */

static void test_hello_round_trip(void **state)
{
    (void)state;
    uint8_t frame[FRAME_BYTES];
    uint16_t low, high;
    assert_int_equal(protocol_hello_write(frame, 1, 0xABCD), 24);
    assert_memory_equal(frame + 16, "MLRC", 4);
    assert_int_equal(protocol_hello_read(frame + 16, 8, &low, &high, NULL), CORE_OK);
    assert_int_equal(low, 1);
    assert_int_equal(high, 0xABCD);
}

static void test_welcome_round_trip(void **state)
{
    (void)state;
    uint8_t frame[FRAME_BYTES];
    struct protocol_welcome got;
    protocol_welcome_write(frame, &good_welcome);
    assert_int_equal(protocol_welcome_read(frame + 16, 48, &got, NULL), CORE_OK);
    assert_int_equal(got.version, good_welcome.version);
    assert_int_equal(got.flags, good_welcome.flags);
    assert_int_equal(got.packet_bytes_max, good_welcome.packet_bytes_max);
    assert_int_equal(got.burst_packets_max, good_welcome.burst_packets_max);
    assert_int_equal(got.streams_max, good_welcome.streams_max);
    assert_true(got.stream_buffer_bytes_max == good_welcome.stream_buffer_bytes_max);
    assert_true(got.bytes_per_key == good_welcome.bytes_per_key);
    assert_int_equal(got.interval_ns_min, good_welcome.interval_ns_min);
    assert_int_equal(got.latency_ns_min, good_welcome.latency_ns_min);
}

static void check_open_round_trip(enum protocol_key_kind kind, uint32_t bytes, bool has_iv)
{
    uint8_t frame[FRAME_BYTES];
    const struct protocol_open sent = good_open(kind, bytes, has_iv);
    struct protocol_open got;
    uint32_t body_bytes = protocol_open_write(2, frame, PROTOCOL_OPEN, 5, &sent) - PROTOCOL_HEADER_BYTES;
    assert_int_equal(body_bytes, 32u + (has_iv ? 16u : 0u) + bytes);
    assert_int_equal(protocol_open_read(2, frame + 16, body_bytes, &got, NULL), CORE_OK);
    assert_int_equal(got.spec.packet_bytes, sent.spec.packet_bytes);
    assert_int_equal(got.spec.burst_packets, sent.spec.burst_packets);
    assert_int_equal(got.spec.interval_ns, sent.spec.interval_ns);
    assert_int_equal(got.spec.latency_ns, sent.spec.latency_ns);
    assert_int_equal(got.spec.cipher, sent.spec.cipher);
    assert_int_equal(got.spec.padding, sent.spec.padding);
    assert_int_equal(got.key_kind, kind);
    assert_int_equal(got.key_bytes, bytes);
    assert_memory_equal(got.key, key_bytes, bytes);
    assert_ptr_equal(got.key, frame + 16 + 32 + (has_iv ? 16 : 0));
    assert_int_equal(got.has_iv, has_iv);
    if (has_iv)
        assert_memory_equal(got.iv, sent.iv, 16);
}

static void test_open_round_trip(void **state)
{
    (void)state;
    for (int has_iv = 0; has_iv <= 1; has_iv++) {
        check_open_round_trip(PROTOCOL_KEY_NONE, 0, has_iv);
        for (uint32_t bytes = 16; bytes <= 32; bytes += 8)
            check_open_round_trip(PROTOCOL_KEY_INLINE, bytes, has_iv);
        for (uint32_t bytes = 1; bytes <= 32; bytes++)
            check_open_round_trip(PROTOCOL_KEY_NAMED, bytes, has_iv);
    }
}

static void test_messages_round_trip(void **state)
{
    (void)state;
    uint8_t frame[FRAME_BYTES];
    struct protocol_open got;
    const uint32_t bytes = write_good(OPEN_3, frame) - PROTOCOL_HEADER_BYTES;
    assert_int_equal(bytes, 48 + 16 + 32);
    assert_int_equal(protocol_open_read(3, frame + 16, bytes, &got, NULL), CORE_OK);
    assert_int_equal(got.spec.unit, CORE_UNIT_MESSAGE);
    assert_int_equal(got.spec.iv, CORE_IV_COUNTER);
    assert_true(got.spec.first_unit == UINT64_C(0x0102030405060708));
    assert_ptr_equal(got.key, frame + 16 + 48 + 16);
    for (unsigned flags = 0; flags < 256; flags++) {
        struct protocol_header header = {.type = PROTOCOL_DATA, .flags = (uint8_t)flags}, read;
        protocol_header_write(frame, &header);
        assert_int_equal(protocol_header_read(3, frame, &read), flags < 4 ? CORE_OK : CORE_INVALID);
        assert_int_equal(read.flags, flags);
        assert_int_equal(protocol_header_read(2, frame, &read), flags == 0 ? CORE_OK : CORE_INVALID);
        header.type = PROTOCOL_CLOSE;
        protocol_header_write(frame, &header);
        assert_int_equal(protocol_header_read(3, frame, &read), flags == 0 ? CORE_OK : CORE_INVALID);
    }
    struct protocol_result result = good_result, read;
    result.flags = PROTOCOL_RESULT_MET;
    protocol_result_write(frame, 7, 0, &result, 0);
    assert_int_equal(protocol_result_read(3, frame + 16, 16, &read, NULL),
                     CORE_OK); /* nothing of it is left */
    assert_int_equal(protocol_result_read(2, frame + 16, 16, &read, NULL), CORE_INVALID);
    result.flags = PROTOCOL_RESULT_HAS_IV;
    protocol_result_write(frame, 7, 0, &result, 16);
    assert_int_equal(protocol_result_read(3, frame + 16, 32, &read, NULL), CORE_OK);
    assert_int_equal(protocol_result_read(3, frame + 16, 31, &read, NULL), CORE_INVALID);
    result.status = PROTOCOL_RESULT_BROKEN;
    protocol_result_write(frame, 7, 0, &result, 0);
    assert_int_equal(protocol_result_read(3, frame + 16, 16, &read, NULL), CORE_INVALID);
    result.flags = 0;
    protocol_result_write(frame, 7, 0, &result, 0);
    assert_int_equal(protocol_result_read(3, frame + 16, 16, &read, NULL), CORE_OK);
    assert_int_equal(protocol_result_read(2, frame + 16, 16, &read, NULL), CORE_INVALID);
}

static void test_open_times_out_of_range_stay_out_of_range(void **state)
{
    (void)state;
    uint8_t frame[FRAME_BYTES];
    struct protocol_open got;
    write_good(OPEN_BARE, frame);
    memset(frame + 16 + 8, 0xFF, 16);
    assert_int_equal(protocol_open_read(2, frame + 16, 32, &got, NULL), CORE_OK);
    assert_true(got.spec.interval_ns == CORE_NS_NEVER);
    assert_true(got.spec.latency_ns == CORE_NS_NEVER);
}

static void assert_same_backup(const struct protocol_backup *got, const struct protocol_backup *expected)
{
    assert_int_equal(got->unit, expected->unit);
    assert_int_equal(got->unit_index, expected->unit_index);
    assert_int_equal(got->reserved_ppb, expected->reserved_ppb);
    assert_int_equal(got->bound_ns, expected->bound_ns);
}

static void test_guaranteed_round_trip(void **state)
{
    (void)state;
    uint8_t frame[FRAME_BYTES];
    struct protocol_open got;
    for (int guaranteed = 0; guaranteed <= 1; guaranteed++) {
        write_good(guaranteed ? OPEN_GUARANTEED : OPEN_BARE, frame);
        assert_int_equal(protocol_open_read(2, frame + 16, 32, &got, NULL), CORE_OK);
        assert_int_equal(got.spec.guaranteed, guaranteed);
        assert_int_equal(protocol_open_read(1, frame + 16, 32, &got, NULL),
                         guaranteed ? CORE_INVALID : CORE_OK);
    }
}

static void test_modify_round_trip(void **state)
{
    (void)state;
    uint8_t frame[FRAME_BYTES];
    struct protocol_modify got;
    assert_int_equal(write_good(MODIFY, frame), 40);
    assert_int_equal(protocol_modify_read(frame + 16, 24, &got, NULL), CORE_OK);
    assert_int_equal(got.stream, good_modify.stream);
    assert_int_equal(got.burst_packets, good_modify.burst_packets);
    assert_int_equal(got.interval_ns, good_modify.interval_ns);
    assert_int_equal(got.latency_ns, good_modify.latency_ns);
    memset(frame + 16 + 8, 0xFF, 16); /* times beyond the type stay out of range */
    assert_int_equal(protocol_modify_read(frame + 16, 24, &got, NULL), CORE_OK);
    assert_true(got.interval_ns == CORE_NS_NEVER && got.latency_ns == CORE_NS_NEVER);
}

static void test_modified_round_trip(void **state)
{
    (void)state;
    uint8_t frame[FRAME_BYTES];
    struct protocol_modified got;
    assert_int_equal(write_good(MODIFIED, frame), 72);
    assert_int_equal(protocol_modified_read(frame + 16, 56, &got, NULL), CORE_OK);
    assert_int_equal(got.stream, good_modified.stream);
    assert_int_equal(got.unit, good_modified.unit);
    assert_int_equal(got.unit_index, good_modified.unit_index);
    assert_int_equal(got.bound_ns, good_modified.bound_ns);
    assert_int_equal(got.decided_ns, good_modified.decided_ns);
    assert_int_equal(got.in_force_ns, good_modified.in_force_ns);
    assert_int_equal(got.first, good_modified.first);
    assert_int_equal(got.queue_packets, good_modified.queue_packets);
    assert_same_backup(&got.backup, &good_modified.backup);
}

static void test_notice_round_trip(void **state)
{
    (void)state;
    for (int kind = PROTOCOL_NOTICE_DEGRADED; kind <= PROTOCOL_NOTICE_MOVED; kind++) {
        uint8_t frame[FRAME_BYTES];
        struct protocol_notice sent = good_notice(), got;
        sent.kind = (enum protocol_notice_kind)kind;
        uint32_t bytes = protocol_notice_write(frame, 77, &sent) - PROTOCOL_HEADER_BYTES;
        assert_int_equal(bytes, 16 + strlen(sent.text));
        assert_int_equal(protocol_notice_read(frame + 16, bytes, &got, NULL), CORE_OK);
        assert_int_equal(got.kind, sent.kind);
        assert_int_equal(got.unit, sent.unit);
        assert_int_equal(got.unit_index, sent.unit_index);
        assert_int_equal(got.bound_ns, sent.bound_ns);
        assert_string_equal(got.text, sent.text);
    }
}

/* Of the connection: no unit, and no bound. */
static void test_notice_of_leaving(void **state)
{
    const struct protocol_notice sent = {.kind = PROTOCOL_NOTICE_LEAVING, .text = "going"};
    struct protocol_notice got;
    uint8_t frame[FRAME_BYTES];
    (void)state;
    uint32_t bytes = protocol_notice_write(frame, 0, &sent) - PROTOCOL_HEADER_BYTES;
    assert_int_equal(protocol_notice_read(frame + 16, bytes, &got, NULL), CORE_OK);
    assert_int_equal(got.kind, PROTOCOL_NOTICE_LEAVING);
    assert_string_equal(got.text, "going");
    for (uint32_t at = 2; at < 16; at++) {
        frame[16 + at] = 1;
        assert_int_equal(protocol_notice_read(frame + 16, bytes, &got, NULL), CORE_INVALID);
        frame[16 + at] = 0;
    }
}

static void test_opened_round_trip(void **state)
{
    (void)state;
    uint8_t frame[FRAME_BYTES];
    struct protocol_opened got;
    protocol_opened_write(PROTOCOL_VERSION, frame, 5, &good_opened);
    assert_int_equal(protocol_opened_read(PROTOCOL_VERSION, frame + 16, 72, &got, NULL), CORE_OK);
    assert_same_backup(&got.backup, &good_opened.backup);
    uint8_t frame_1[FRAME_BYTES];
    struct protocol_opened got_1;
    assert_int_equal(protocol_opened_write(1, frame_1, 5, &good_opened), 64);
    assert_memory_equal(frame + 16, frame_1 + 16, 48); /* what version 2 adds is behind */
    assert_int_equal(protocol_opened_read(1, frame_1 + 16, 48, &got_1, NULL), CORE_OK);
    assert_same_backup(&got_1.backup, &(struct protocol_backup){0});
    assert_int_equal(got_1.in_force_ns, 0);
    assert_int_equal(got.in_force_ns, good_opened.in_force_ns);
    assert_int_equal(got.stream, good_opened.stream);
    assert_int_equal(got.unit, good_opened.unit);
    assert_int_equal(got.unit_index, good_opened.unit_index);
    assert_int_equal(got.bound_ns, good_opened.bound_ns);
    assert_int_equal(got.decided_ns, good_opened.decided_ns);
    assert_int_equal(got.queue_packets, good_opened.queue_packets);
    assert_memory_equal(got.iv, good_opened.iv, 16);
}

static void check_refused_round_trip(uint16_t version, uint32_t fixed_bytes)
{
    uint8_t frame[FRAME_BYTES];
    struct protocol_refused got;
    const struct protocol_refused sent = good_refused();
    uint32_t bytes = protocol_refused_write(version, frame, 5, &sent) - PROTOCOL_HEADER_BYTES;
    assert_int_equal(bytes, fixed_bytes + strlen(sent.text));
    assert_int_equal(protocol_refused_read(version, frame + 16, bytes, &got, NULL), CORE_OK);
    assert_int_equal(got.decided_ns, version == 1 ? 0 : sent.decided_ns);
    assert_int_equal(got.code, sent.code);
    assert_int_equal(got.constraint, sent.constraint);
    assert_int_equal(got.offer_interval_ns, sent.offer_interval_ns);
    assert_int_equal(got.offer_latency_ns, sent.offer_latency_ns);
    assert_string_equal(got.text, sent.text);
}

static void test_refused_round_trip(void **state)
{
    (void)state;
    check_refused_round_trip(1, 24);
    check_refused_round_trip(PROTOCOL_VERSION, 32);
}

static void test_result_round_trip(void **state)
{
    (void)state;
    for (int code = 0; code <= PROTOCOL_RESULT_FAILED; code++) {
        uint8_t frame[FRAME_BYTES];
        struct protocol_result sent = good_result, got;
        sent.status = (enum protocol_result_status)code;
        uint32_t cipher_bytes = code == 0 ? 16 : 0;
        protocol_result_write(frame, 77, 3, &sent, cipher_bytes);
        assert_int_equal(protocol_result_read(2, frame + 16, 16 + cipher_bytes, &got, NULL), CORE_OK);
        assert_int_equal(got.status, sent.status);
        assert_int_equal(got.flags, sent.flags);
        assert_int_equal(got.waited_us, sent.waited_us);
        assert_int_equal(got.latency_ns, sent.latency_ns);
    }
}

static void test_negative_times_are_sent_as_zero(void **state)
{
    (void)state;
    uint8_t frame[FRAME_BYTES];
    struct protocol_result sent = good_result, got;
    sent.latency_ns = -5;
    protocol_result_write(frame, 77, 3, &sent, 16);
    assert_int_equal(protocol_result_read(2, frame + 16, 32, &got, NULL), CORE_OK);
    assert_int_equal(got.latency_ns, 0);
}

static void test_closed_round_trip(void **state)
{
    (void)state;
    uint8_t frame[FRAME_BYTES];
    struct protocol_closed got;
    protocol_closed_write(frame, 77, &good_closed);
    assert_int_equal(protocol_closed_read(frame + 16, 40, &got, NULL), CORE_OK);
    assert_int_equal(got.reason, good_closed.reason);
    assert_true(got.packets == good_closed.packets && got.bytes == good_closed.bytes);
    assert_true(got.met == good_closed.met && got.missed == good_closed.missed);
}

static void test_error_round_trip(void **state)
{
    (void)state;
    for (int code = PROTOCOL_ERROR_MALFORMED; code <= PROTOCOL_ERROR_SHUTDOWN; code++) {
        uint8_t frame[FRAME_BYTES];
        char text[32];
        enum protocol_error got;
        bool fatal, fatal_sent = code % 2 == 0;
        uint32_t bytes = protocol_error_write(frame, 9, (enum protocol_error)code, fatal_sent, "why") - 16;
        assert_int_equal(protocol_error_read(frame + 16, bytes, &got, &fatal, text, sizeof text, NULL),
                         CORE_OK);
        assert_int_equal(got, code);
        assert_int_equal(fatal, fatal_sent);
        assert_string_equal(text, "why");
    }
}

static void test_close_and_ping(void **state)
{
    (void)state;
    uint8_t frame[FRAME_BYTES], payload[PROTOCOL_PING_BYTES_MAX];
    struct protocol_header header;
    assert_int_equal(protocol_close_write(frame, 12), 16);
    assert_int_equal(protocol_header_read(PROTOCOL_VERSION, frame, &header), CORE_OK);
    assert_true(header.type == PROTOCOL_CLOSE && header.id == 12 && header.body_bytes == 0);
    memset(payload, 0x5A, sizeof payload);
    assert_int_equal(protocol_ping_write(frame, PROTOCOL_PONG, 13, payload, sizeof payload), 80);
    assert_int_equal(protocol_header_read(PROTOCOL_VERSION, frame, &header), CORE_OK);
    assert_true(header.type == PROTOCOL_PONG && header.id == 13 && header.body_bytes == 64);
    assert_memory_equal(frame + 16, payload, sizeof payload);
    assert_int_equal(protocol_ping_write(frame, PROTOCOL_PING, 14, NULL, 0), 16);
}

/* ---- texts ---- */

static void test_long_texts_are_cut(void **state)
{
    (void)state;
    uint8_t frame[FRAME_BYTES];
    char text[600], got[PROTOCOL_CONTROL_BYTES_MAX];
    enum protocol_error code;
    bool fatal;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    assert_int_equal(protocol_error_write(frame, 0, PROTOCOL_ERROR_LIMIT, true, text), FRAME_BYTES);
    assert_int_equal(protocol_error_read(frame + 16, 512, &code, &fatal, got, sizeof got, NULL), CORE_OK);
    assert_int_equal(strlen(got), 508);
    char small[8];
    assert_int_equal(protocol_error_read(frame + 16, 512, &code, &fatal, small, sizeof small, NULL), CORE_OK);
    assert_string_equal(small, "xxxxxxx");
    assert_int_equal(protocol_error_read(frame + 16, 512, &code, &fatal, NULL, 0, NULL), CORE_OK);

    struct protocol_refused refused = good_refused();
    memset(refused.text, 'y', sizeof refused.text); /* not even terminated */
    assert_int_equal(protocol_refused_write(1, frame, 5, &refused), FRAME_BYTES);
    assert_int_equal(protocol_refused_read(1, frame + 16, 512, &refused, NULL), CORE_OK);
    assert_int_equal(strlen(refused.text), 488);
    memset(refused.text, 'y', sizeof refused.text);
    assert_int_equal(protocol_refused_write(PROTOCOL_VERSION, frame, 5, &refused), FRAME_BYTES);
    assert_int_equal(protocol_refused_read(PROTOCOL_VERSION, frame + 16, 512, &refused, NULL), CORE_OK);
    assert_int_equal(strlen(refused.text), 480);

    struct protocol_notice notice = good_notice();
    memset(notice.text, 'z', sizeof notice.text);
    assert_int_equal(protocol_notice_write(frame, 77, &notice), FRAME_BYTES);
    assert_int_equal(protocol_notice_read(frame + 16, 512, &notice, NULL), CORE_OK);
    assert_int_equal(strlen(notice.text), 496);
}

static void test_texts_are_not_cut_inside_a_character(void **state)
{
    (void)state;
    char text[600];
    for (size_t lead = 0; lead < 4; lead++) {
        uint8_t frame[FRAME_BYTES];
        memset(text, 'x', sizeof text);
        memcpy(text + 508 - lead, "\xF0\x9F\x98\x80", 4); /* a character of four bytes */
        text[sizeof text - 1] = '\0';
        uint32_t bytes = protocol_error_write(frame, 0, PROTOCOL_ERROR_LIMIT, true, text);
        assert_int_equal(bytes, FRAME_BYTES - lead);
    }
}

static void test_control_characters_do_not_reach_a_terminal(void **state)
{
    (void)state;
    uint8_t frame[FRAME_BYTES];
    char text[32];
    enum protocol_error code;
    bool fatal;
    uint32_t bytes = protocol_error_write(frame, 0, PROTOCOL_ERROR_LIMIT, true, "a\033[2J\nb\x7F") - 16;
    assert_int_equal(protocol_error_read(frame + 16, bytes, &code, &fatal, text, sizeof text, NULL), CORE_OK);
    assert_string_equal(text, "a?[2J?b?");
}

/* ---- malformations ---- */

/* The body is copied into a block of exactly its size, so that ASan sees a read beyond it. */
static core_status decode_exact(decode_function *decode, const uint8_t *body, uint32_t bytes,
                                struct core_error *error)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, body, bytes);
    core_status status = decode(copy, bytes, error);
    free(copy);
    return status;
}

static void test_cut_at_every_byte_and_too_long(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        uint8_t frame[FRAME_BYTES + 64] = {0};
        uint32_t whole = write_good((enum kind)kind, frame) - PROTOCOL_HEADER_BYTES;
        for (uint32_t bytes = 0; bytes <= whole; bytes++) {
            uint32_t shortest = kinds[kind].shortest, step = kinds[kind].step;
            bool good =
                bytes == shortest || (step != 0 && bytes > shortest && (bytes - shortest) % step == 0);
            struct core_error error = {.text = ""};
            core_status status = decode_exact(kinds[kind].decode, frame + 16, bytes, &error);
            assert_int_equal(status, good ? CORE_OK : CORE_INVALID);
            assert_int_equal(error.text[0] != '\0', !good);
        }
        if (kinds[kind].step == 0)
            assert_int_equal(kinds[kind].decode(frame + 16, whole + 1, NULL), CORE_INVALID);
        else if (kinds[kind].step == 1 && kind != RESULT_3) /* texts */
            assert_int_equal(kinds[kind].decode(frame + 16, 513, NULL), CORE_INVALID);
    }
    assert_int_equal(decode_result((const uint8_t[48]){0}, 16 + (1 << 20) + 32, NULL), CORE_INVALID);
}

/* One byte of a good body set to another value: what does the decoder say? Every byte with a rule is here. */
static const struct {
    enum kind kind;
    uint32_t offset;
    uint8_t value;
    core_status expected;
} mutations[] = {
    {HELLO, 0, 'm', CORE_INVALID},
    {HELLO, 1, 0, CORE_INVALID},
    {HELLO, 2, 0, CORE_INVALID},
    {HELLO, 3, 0, CORE_INVALID},
    {HELLO, 4, 4, CORE_INVALID}, /* 4 to 3 */
    {HELLO, 4, 3, CORE_OK},
    {HELLO, 7, 9, CORE_OK},
    {WELCOME, 0, 0, CORE_INVALID},    /* version 0 */
    {WELCOME, 2, 0xFF, CORE_OK},      /* flags of later versions */
    {WELCOME, 6, 0, CORE_INVALID},    /* packet_bytes_max 0 */
    {WELCOME, 6, 0x11, CORE_INVALID}, /* and above 2^20 */
    {WELCOME, 9, 0, CORE_INVALID},    /* burst_packets_max 0 */
    {WELCOME, 11, 1, CORE_INVALID},   /* and above 2^16 */
    {WELCOME, 39, 0x80, CORE_INVALID},
    {WELCOME, 47, 0x80, CORE_INVALID},
    {OPEN_BARE, 24, 0, CORE_OK}, /* contract and cipher are judged by core_stream_spec_check */
    {OPEN_BARE, 24, 9, CORE_OK},
    {OPEN_BARE, 25, 9, CORE_OK},
    {OPEN_BARE, 26, 1, CORE_INVALID},
    {OPEN_BARE, 26, 2, CORE_INVALID},
    {OPEN_BARE, 26, 3, CORE_INVALID},
    {OPEN_BARE, 26, 255, CORE_INVALID},
    {OPEN_BARE, 27, 1, CORE_INVALID}, /* an IV that is not there */
    {OPEN_BARE, 27, 2, CORE_INVALID},
    {OPEN_BARE, 28, 1, CORE_INVALID},
    {OPEN_BARE, 29, 1, CORE_INVALID},
    {OPEN_BARE, 30, 1, CORE_OK}, /* a guaranteed stream */
    {OPEN_BARE, 30, 2, CORE_INVALID},
    {OPEN_BARE, 30, 3, CORE_INVALID},
    {OPEN_BARE, 31, 1, CORE_INVALID},
    {OPEN_3, 32, 7, CORE_OK}, /* unit, IV and pattern are judged by core_stream_spec_check */
    {OPEN_3, 33, 7, CORE_OK},
    {OPEN_3, 34, 1, CORE_OK},
    {OPEN_3, 35, 1, CORE_OK},
    {OPEN_3, 36, 1, CORE_INVALID},
    {OPEN_3, 37, 7, CORE_OK}, /* so are direction, records and the packets of a message */
    {OPEN_3, 38, 7, CORE_OK},
    {OPEN_3, 39, 7, CORE_OK},
    {OPEN_3, 40, 9, CORE_OK},
    {OPEN_3, 27, 0, CORE_INVALID},
    {RESULT_3, 0, 1, CORE_INVALID}, /* not encrypted, yet ciphertext */
    {RESULT_3, 0, 6, CORE_INVALID},
    {RESULT_3, 1, 15, CORE_OK}, /* no IV */
    {RESULT_3, 1, 32, CORE_INVALID},
    {OPEN_IV_KEY, 26, 0, CORE_INVALID}, /* a key of no kind */
    {OPEN_IV_KEY, 26, 2, CORE_OK},      /* the same bytes as a name */
    {OPEN_IV_KEY, 27, 0, CORE_INVALID},
    {OPEN_IV_KEY, 28, 31, CORE_INVALID},
    {OPEN_IV_KEY, 28, 33, CORE_INVALID},
    {OPEN_IV_KEY, 28, 16, CORE_INVALID},
    {OPEN_NAMED, 26, 1, CORE_INVALID}, /* 20 bytes are no key */
    {OPEN_NAMED, 32, 0, CORE_INVALID}, /* zero byte in a name */
    {OPEN_NAMED, 51, 0, CORE_INVALID},
    {OPEN_NAMED, 51, '\n', CORE_OK},
    {OPEN_1, 30, 1, CORE_INVALID},
    {OPEN_1, 31, 1, CORE_INVALID},
    {OPENED_1, 28, 1, CORE_INVALID},
    {OPENED, 55, 0x80, CORE_INVALID},
    {OPENED, 56, 0, CORE_INVALID}, /* a share of no unit */
    {OPENED, 56, 1, CORE_OK},
    {OPENED, 56, 3, CORE_INVALID},
    {OPENED, 57, 1, CORE_INVALID},
    {OPENED, 63, 0xFF, CORE_OK},
    {OPENED, 71, 0x80, CORE_INVALID},
    {OPENED, 4, 0, CORE_INVALID},
    {OPENED, 4, 2, CORE_OK},
    {OPENED, 4, 3, CORE_INVALID},
    {OPENED, 5, 1, CORE_INVALID},
    {OPENED, 15, 0x80, CORE_INVALID},
    {OPENED, 23, 0x80, CORE_INVALID},
    {OPENED, 28, 1, CORE_INVALID},
    {OPENED, 31, 1, CORE_INVALID},
    {REFUSED, 0, 0, CORE_INVALID},
    {REFUSED, 0, 7, CORE_OK},
    {REFUSED, 0, 9, CORE_OK},
    {REFUSED, 0, 10, CORE_INVALID},
    {REFUSED_1, 0, 7, CORE_OK},
    {REFUSED_1, 0, 8, CORE_INVALID},
    {REFUSED, 1, 1, CORE_INVALID},
    {REFUSED, 3, 0xFF, CORE_OK}, /* constraints of later versions */
    {REFUSED, 4, 1, CORE_INVALID},
    {REFUSED, 7, 1, CORE_INVALID},
    {REFUSED, 15, 0x80, CORE_INVALID},
    {REFUSED, 23, 0x80, CORE_INVALID},
    {REFUSED, 31, 0x80, CORE_INVALID},
    {REFUSED_1, 31, 0x80, CORE_OK}, /* of the text */
    {RESULT, 0, 1, CORE_INVALID},   /* not encrypted, yet ciphertext */
    {RESULT, 0, 5, CORE_INVALID},
    {RESULT, 1, 15, CORE_OK},
    {RESULT, 1, 16, CORE_INVALID},
    {RESULT_1, 1, 7, CORE_OK},
    {RESULT_1, 1, 8, CORE_INVALID},
    {RESULT, 2, 1, CORE_INVALID},
    {RESULT, 3, 1, CORE_INVALID},
    {RESULT, 15, 0x80, CORE_INVALID},
    {CLOSED, 0, 4, CORE_INVALID},
    {CLOSED, 1, 1, CORE_INVALID},
    {CLOSED, 4, 1, CORE_INVALID},
    {CLOSED, 7, 1, CORE_INVALID},
    {CLOSED, 15, 0x80, CORE_OK},
    {MODIFY, 0, 0, CORE_OK}, /* stream and contract are judged where they are known */
    {MODIFY, 4, 0, CORE_OK},
    {MODIFY, 15, 0x80, CORE_OK},
    {MODIFY, 23, 0x80, CORE_OK},
    {MODIFIED, 4, 0, CORE_INVALID},
    {MODIFIED, 4, 3, CORE_INVALID},
    {MODIFIED, 5, 1, CORE_INVALID},
    {MODIFIED, 15, 0x80, CORE_INVALID},
    {MODIFIED, 23, 0x80, CORE_INVALID},
    {MODIFIED, 31, 0x80, CORE_INVALID},
    {MODIFIED, 32, 0, CORE_OK},
    {MODIFIED, 40, 0, CORE_INVALID},
    {MODIFIED, 40, 3, CORE_INVALID},
    {MODIFIED, 41, 1, CORE_INVALID},
    {MODIFIED, 55, 0x80, CORE_INVALID},
    {NOTICE, 0, 0, CORE_INVALID},
    {NOTICE, 0, 5, CORE_INVALID},
    {NOTICE, 1, 1, CORE_INVALID},
    {NOTICE, 2, 0, CORE_INVALID},
    {NOTICE, 2, 2, CORE_OK},
    {NOTICE, 2, 3, CORE_INVALID},
    {NOTICE, 3, 1, CORE_INVALID},
    {NOTICE, 6, 1, CORE_INVALID},
    {NOTICE, 7, 1, CORE_INVALID},
    {NOTICE, 15, 0x80, CORE_INVALID},
    {NOTICE, 16, 0x80, CORE_OK},
    {ERROR_FRAME, 0, 0, CORE_INVALID},
    {ERROR_FRAME, 0, 11, CORE_INVALID},
    {ERROR_FRAME, 1, 1, CORE_INVALID},
    {ERROR_FRAME, 2, 1, CORE_OK},
    {ERROR_FRAME, 2, 2, CORE_INVALID},
    {ERROR_FRAME, 3, 1, CORE_INVALID},
};

static void test_every_field_malformed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mutations / sizeof mutations[0]; i++) {
        enum kind kind = mutations[i].kind;
        uint8_t frame[FRAME_BYTES];
        uint32_t bytes = write_good(kind, frame) - PROTOCOL_HEADER_BYTES;
        frame[16 + mutations[i].offset] = mutations[i].value;
        struct core_error error = {.text = ""};
        core_status status = decode_exact(kinds[kind].decode, frame + 16, bytes, &error);
        if (status != mutations[i].expected)
            fail_msg("row %zu: kind %d, byte %u = %u gives %d (%s)", i, (int)kind, mutations[i].offset,
                     mutations[i].value, (int)status, error.text);
        assert_int_equal(error.text[0] != '\0', status != CORE_OK);
    }
}

static void test_key_lengths(void **state)
{
    (void)state;
    for (uint32_t bytes = 0; bytes <= 63; bytes++) {
        for (int kind = PROTOCOL_KEY_NONE; kind <= PROTOCOL_KEY_NAMED; kind++) {
            uint8_t frame[FRAME_BYTES], key[64];
            memset(key, 'k', sizeof key);
            struct protocol_open open = good_open((enum protocol_key_kind)kind, bytes, false);
            open.key = key;
            uint32_t body_bytes = protocol_open_write(2, frame, PROTOCOL_OPEN, 1, &open) - 16;
            bool good = kind == PROTOCOL_KEY_NONE     ? bytes == 0
                        : kind == PROTOCOL_KEY_INLINE ? bytes == 16 || bytes == 24 || bytes == 32
                                                      : bytes >= 1;
            assert_int_equal(decode_open(frame + 16, body_bytes, NULL), good ? CORE_OK : CORE_INVALID);
        }
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(protocol_error_name(PROTOCOL_ERROR_SEQUENCE), "sequence");
    assert_string_equal(protocol_refusal_name(PROTOCOL_REFUSED_CAPACITY), "capacity");
    assert_string_equal(protocol_result_name(PROTOCOL_RESULT_KEY_SPENT), "key spent");
    for (int code = 1; code <= PROTOCOL_ERROR_SHUTDOWN; code++)
        assert_string_not_equal(protocol_error_name((enum protocol_error)code), "unknown");
    for (int code = 1; code <= PROTOCOL_REFUSED_BUSY; code++)
        assert_string_not_equal(protocol_refusal_name((enum protocol_refusal)code), "unknown");
    for (int code = 0; code <= PROTOCOL_RESULT_FAILED; code++)
        assert_string_not_equal(protocol_result_name((enum protocol_result_status)code), "unknown");
    assert_string_equal(protocol_notice_name(PROTOCOL_NOTICE_DEGRADED), "degraded");
    for (int kind = PROTOCOL_NOTICE_DEGRADED; kind <= PROTOCOL_NOTICE_LEAVING; kind++)
        assert_string_not_equal(protocol_notice_name((enum protocol_notice_kind)kind), "unknown");
    assert_string_equal(protocol_notice_name((enum protocol_notice_kind)0), "unknown");
    assert_string_equal(protocol_error_name((enum protocol_error)0), "unknown");
    assert_string_equal(protocol_refusal_name((enum protocol_refusal)99), "unknown");
    assert_string_equal(protocol_result_name((enum protocol_result_status)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers_of_all_frames),
        cmocka_unit_test(test_header_is_little_endian),
        cmocka_unit_test(test_header_fields_that_must_be_zero),
        cmocka_unit_test(test_body_ranges),
        cmocka_unit_test(test_hello_round_trip),
        cmocka_unit_test(test_welcome_round_trip),
        cmocka_unit_test(test_open_round_trip),
        cmocka_unit_test(test_messages_round_trip),
        cmocka_unit_test(test_open_times_out_of_range_stay_out_of_range),
        cmocka_unit_test(test_opened_round_trip),
        cmocka_unit_test(test_guaranteed_round_trip),
        cmocka_unit_test(test_modify_round_trip),
        cmocka_unit_test(test_modified_round_trip),
        cmocka_unit_test(test_notice_round_trip),
        cmocka_unit_test(test_notice_of_leaving),
        cmocka_unit_test(test_refused_round_trip),
        cmocka_unit_test(test_result_round_trip),
        cmocka_unit_test(test_negative_times_are_sent_as_zero),
        cmocka_unit_test(test_closed_round_trip),
        cmocka_unit_test(test_error_round_trip),
        cmocka_unit_test(test_close_and_ping),
        cmocka_unit_test(test_long_texts_are_cut),
        cmocka_unit_test(test_texts_are_not_cut_inside_a_character),
        cmocka_unit_test(test_control_characters_do_not_reach_a_terminal),
        cmocka_unit_test(test_cut_at_every_byte_and_too_long),
        cmocka_unit_test(test_every_field_malformed),
        cmocka_unit_test(test_key_lengths),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
