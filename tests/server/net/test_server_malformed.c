/* Every way to break the protocol that docs/protocol.md names, and the ERROR it calls for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/client.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#define PACKET_BYTES_MAX 4096
#define STREAM           1 /* what the first OPEN of a connection is given; no test relies on another */

static struct test_server server;
static const uint8_t key[32] = {1, 2, 3};

static int set_up(void **state)
{
    (void)state;
    memset(&server, 0, sizeof server);
    test_server_start(&server, "limits: {streams: 4096, packet_bytes: 4096, burst_packets: 128}",
                      &test_profile_generous);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return test_server_stop(&server) == 0 ? 0 : -1;
}

/* A frame with every field given, and a body of zeros. */
struct raw {
    uint32_t body_bytes;
    uint8_t type, flags;
    uint16_t zero;
    uint32_t id, sequence;
};

static size_t write_raw(uint8_t *frame, const struct raw *raw)
{
    struct protocol_header header = {
        .body_bytes = raw->body_bytes, .type = raw->type, .id = raw->id, .sequence = raw->sequence};
    protocol_header_write(frame, &header);
    frame[5] = raw->flags;
    frame[6] = (uint8_t)raw->zero;
    frame[7] = (uint8_t)(raw->zero >> 8);
    size_t body = raw->body_bytes <= 2 * PACKET_BYTES_MAX ? raw->body_bytes : 0;
    memset(frame + PROTOCOL_HEADER_BYTES, 0, body);
    return PROTOCOL_HEADER_BYTES + body;
}

struct breach {
    struct raw raw;
    enum protocol_error code;
    uint32_t id; /* in the ERROR */
};

static void expect_breach(struct test_client *client, const struct breach *breach)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + 2 * PACKET_BYTES_MAX];
    (void)test_client_send(client, frame, write_raw(frame, &breach->raw)); /* may be cut off: that is fine */
    test_client_expect_error(client, breach->code, breach->id, true);
    test_client_close(client);
}

static void before_hello(void **state)
{
    static const struct breach rows[] = {
        /* bytes, type, flags, zero, id, sequence */
        {{0, PROTOCOL_PING, 0, 0, 1, 0}, PROTOCOL_ERROR_STATE, 0},
        {{32, PROTOCOL_OPEN, 0, 0, 1, 0}, PROTOCOL_ERROR_STATE, 0},
        {{32, PROTOCOL_QUERY, 0, 0, 1, 0}, PROTOCOL_ERROR_STATE, 0},
        {{16, PROTOCOL_DATA, 0, 0, 1, 0}, PROTOCOL_ERROR_STATE, 0},
        {{0, PROTOCOL_CLOSE, 0, 0, 1, 0}, PROTOCOL_ERROR_STATE, 0},
        {{8, PROTOCOL_HELLO, 0, 0, 0, 0}, PROTOCOL_ERROR_MALFORMED, 0}, /* no magic */
        {{8, PROTOCOL_HELLO, 1, 0, 0, 0}, PROTOCOL_ERROR_MALFORMED, 0},
        {{8, PROTOCOL_HELLO, 0, 1, 0, 0}, PROTOCOL_ERROR_MALFORMED, 0},
        {{8, PROTOCOL_HELLO, 0, 0, 1, 0}, PROTOCOL_ERROR_MALFORMED, 0},
        {{8, PROTOCOL_HELLO, 0, 0, 0, 1}, PROTOCOL_ERROR_MALFORMED, 0},
        {{0, PROTOCOL_HELLO, 0, 0, 0, 0}, PROTOCOL_ERROR_OVERSIZED, 0},
        {{7, PROTOCOL_HELLO, 0, 0, 0, 0}, PROTOCOL_ERROR_OVERSIZED, 0},
        {{9, PROTOCOL_HELLO, 0, 0, 0, 0}, PROTOCOL_ERROR_OVERSIZED, 0},
        {{0, 0, 0, 0, 0, 0}, PROTOCOL_ERROR_STATE, 0},
        {{24, PROTOCOL_MODIFY, 0, 0, 1, 0}, PROTOCOL_ERROR_STATE, 0},
        {{48, PROTOCOL_WELCOME, 0, 0, 1, 0}, PROTOCOL_ERROR_STATE, 0},
        {{65, PROTOCOL_PING, 1, 1, 1, 1}, PROTOCOL_ERROR_STATE, 0},
        {{3, 255, 1, 0, 0, 0}, PROTOCOL_ERROR_STATE, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct test_client client;
        test_client_dial(&client, test_server_unix(&server));
        expect_breach(&client, &rows[i]);
    }
}

static void versions(void **state)
{
    static const struct {
        uint16_t lowest, highest;
        int code; /* 0: WELCOME */
    } rows[] = {
        {1, 1, 0},
        {0, 1, 0},
        {1, 65535, 0},
        {1, 2, 0},
        {2, 2, 0},
        {2, 3, 0},
        {0, 0, PROTOCOL_ERROR_VERSION},
        {3, 3, 0},
        {PROTOCOL_VERSION, PROTOCOL_VERSION, 0},
        {PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 1, PROTOCOL_ERROR_VERSION},
        {0, 2, 0},
        {65535, 65535, PROTOCOL_ERROR_VERSION},
        {2, 1, PROTOCOL_ERROR_MALFORMED},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t frame[TEST_FRAME_BYTES];
        struct protocol_welcome welcome;
        struct test_client client;
        struct test_frame answer;
        test_client_dial(&client, test_server_unix(&server));
        assert_true(
            test_client_send(&client, frame, protocol_hello_write(frame, rows[i].lowest, rows[i].highest)));
        if (rows[i].code != 0)
            test_client_expect_error(&client, (enum protocol_error)rows[i].code, 0, true);
        else {
            test_client_expect(&client, PROTOCOL_WELCOME, &answer);
            assert_int_equal(protocol_welcome_read(answer.body, answer.header.body_bytes, &welcome, NULL),
                             CORE_OK);
            assert_int_equal(welcome.version, rows[i].highest > PROTOCOL_VERSION ? PROTOCOL_VERSION
                                              : rows[i].highest < 1              ? 1
                                                                                 : rows[i].highest);
        }
        test_client_close(&client);
    }
}

static void unknown_types(void **state)
{
    struct breach breach = {.raw = {.body_bytes = 3, .flags = 1, .id = 1, .sequence = 1},
                            .code = PROTOCOL_ERROR_UNKNOWN_TYPE};
    (void)state;
    for (unsigned type = 0; type < 256; type++) {
        struct test_client client;
        uint32_t minimum, maximum;
        if (protocol_body_range(1, (uint8_t)type, PACKET_BYTES_MAX, &minimum, &maximum))
            continue;
        breach.raw.type = (uint8_t)type;
        test_client_connect(&client, test_server_unix(&server), NULL);
        expect_breach(&client, &breach);
    }
}

static void header_fields(void **state)
{
    static const struct breach rows[] = {
        {{8, PROTOCOL_HELLO, 0, 0, 0, 0}, PROTOCOL_ERROR_STATE, 0}, /* a second one */
        {{32, PROTOCOL_OPEN, 0, 0, 5, 1}, PROTOCOL_ERROR_MALFORMED, 0},
        {{32, PROTOCOL_QUERY, 0, 0, 5, 1}, PROTOCOL_ERROR_MALFORMED, 0},
        {{0, PROTOCOL_CLOSE, 0, 0, STREAM, 1}, PROTOCOL_ERROR_MALFORMED, 0},
        {{0, PROTOCOL_PING, 0, 0, 5, 1}, PROTOCOL_ERROR_MALFORMED, 0},
        {{0, PROTOCOL_OPEN, 0, 0, 5, 0}, PROTOCOL_ERROR_OVERSIZED, 0},
        {{31, PROTOCOL_OPEN, 0, 0, 5, 0}, PROTOCOL_ERROR_OVERSIZED, 0},
        {{112, PROTOCOL_OPEN, 0, 0, 5, 0}, PROTOCOL_ERROR_OVERSIZED, 0},
        {{31, PROTOCOL_QUERY, 0, 0, 5, 0}, PROTOCOL_ERROR_OVERSIZED, 0},
        {{112, PROTOCOL_QUERY, 0, 0, 5, 0}, PROTOCOL_ERROR_OVERSIZED, 0},
        {{UINT32_MAX, PROTOCOL_QUERY, 0, 0, 5, 0}, PROTOCOL_ERROR_OVERSIZED, 0},
        {{65, PROTOCOL_PING, 0, 0, 5, 0}, PROTOCOL_ERROR_OVERSIZED, 0},
        {{1, PROTOCOL_CLOSE, 0, 0, STREAM, 0}, PROTOCOL_ERROR_OVERSIZED, STREAM},
        {{PACKET_BYTES_MAX + 1, PROTOCOL_DATA, 0, 0, STREAM, 0}, PROTOCOL_ERROR_OVERSIZED, STREAM},
        {{UINT32_MAX, PROTOCOL_DATA, 0, 0, STREAM, 0}, PROTOCOL_ERROR_OVERSIZED, STREAM},
        {{16, PROTOCOL_DATA, 0, 0, STREAM, 1}, PROTOCOL_ERROR_SEQUENCE, STREAM}, /* 0 is next */
        {{0, PROTOCOL_DATA, 0, 0, STREAM, UINT32_MAX}, PROTOCOL_ERROR_SEQUENCE, STREAM},
    };
    static const uint8_t types[] = {PROTOCOL_OPEN, PROTOCOL_QUERY, PROTOCOL_DATA, PROTOCOL_CLOSE,
                                    PROTOCOL_PING};
    struct test_client client;
    (void)state;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        test_client_connect(&client, test_server_unix(&server), NULL);
        struct test_stream *stream = test_stream_open(&client, &test_spec, i);
        assert_int_equal(stream->id, STREAM);
        expect_breach(&client, &rows[i]);
        test_stream_free(stream);
    }
    for (size_t i = 0; i < 24 * sizeof types; i++) { /* every bit that must be 0 */
        struct breach breach = {.raw = {.type = types[i / 24], .id = 1}, .code = PROTOCOL_ERROR_MALFORMED};
        if (i % 24 < 8)
            breach.raw.flags = (uint8_t)(1u << i % 24);
        else
            breach.raw.zero = (uint16_t)(1u << (i % 24 - 8));
        test_client_connect(&client, test_server_unix(&server), NULL);
        expect_breach(&client, &breach);
    }
}

/* One byte of a good OPEN body set to another value. */
struct flaw {
    size_t offset;
    uint8_t value;
};

static void open_bodies(void **state)
{
    static const struct flaw rows[] = {
        {26, 3},  {26, 255}, {26, 0},            /* key kind: unknown; none, but there is a key */
        {27, 1},  {27, 2},   {27, 255},          /* an IV that is not there; no such mark */
        {28, 15}, {28, 17},  {29, 1},   {28, 0}, /* key_bytes and body disagree */
        {30, 1},  {31, 128},                     /* zero field */
    };
    (void)state;
    for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++) {
        enum protocol_type type = i % 2 == 0 ? PROTOCOL_OPEN : PROTOCOL_QUERY;
        struct protocol_open open = test_open_inline(&test_spec, key);
        struct test_client client;
        uint8_t frame[TEST_FRAME_BYTES];
        uint32_t bytes = protocol_open_write(2, frame, type, 5, &open);
        frame[PROTOCOL_HEADER_BYTES + rows[i / 2].offset] = rows[i / 2].value;
        test_client_connect(&client, test_server_unix(&server), NULL);
        assert_true(test_client_send(&client, frame, bytes));
        test_client_expect_error(&client, PROTOCOL_ERROR_MALFORMED, 0, true);
        test_client_close(&client);
    }
}

/* Key lengths that fit their body and not their kind, and a name with a zero byte. */
static void open_keys(void **state)
{
    static const uint8_t name[64] = "camera\0seven";
    static const struct {
        enum protocol_key_kind kind;
        uint32_t bytes;
    } rows[] = {
        {PROTOCOL_KEY_NONE, 16},   {PROTOCOL_KEY_INLINE, 0}, {PROTOCOL_KEY_INLINE, 15},
        {PROTOCOL_KEY_INLINE, 33}, {PROTOCOL_KEY_NAMED, 0},  {PROTOCOL_KEY_NAMED, 64},
        {PROTOCOL_KEY_NAMED, 12},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct protocol_open open = {.spec = test_spec, .key_kind = rows[i].kind, .key = name};
        struct test_client client;
        uint8_t frame[TEST_FRAME_BYTES];
        uint32_t bytes = protocol_open_write(2, frame, PROTOCOL_OPEN, 5, &open);
        frame[0] = (uint8_t)(frame[0] + rows[i].bytes); /* the codec itself refuses some of these */
        frame[PROTOCOL_HEADER_BYTES + 28] = (uint8_t)rows[i].bytes;
        memcpy(frame + bytes, name, rows[i].bytes);
        test_client_connect(&client, test_server_unix(&server), NULL);
        assert_true(test_client_send(&client, frame, bytes + rows[i].bytes));
        test_client_expect_error(&client, PROTOCOL_ERROR_MALFORMED, 0, true);
        test_client_close(&client);
    }
}

/* The connection outlives these, and so does everything on it. */
static void not_fatal(void **state)
{
    static const uint32_t ids[] = {0, 2, 3, 4096, UINT32_MAX};
    uint8_t frame[PROTOCOL_HEADER_BYTES + PACKET_BYTES_MAX];
    struct test_client client;
    (void)state;

    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *good = test_stream_open(&client, &test_spec, 1);
    struct test_stream *closed = test_stream_open(&client, &test_spec, 2);
    assert_int_equal(closed->id, 2);
    (void)test_stream_close(closed);
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        static const uint32_t sizes[] = {0, 1, 16, PACKET_BYTES_MAX};
        for (size_t j = 0; j < sizeof sizes / sizeof sizes[0]; j++) {
            struct raw data = {sizes[j], PROTOCOL_DATA, 0, 0, ids[i], 7};
            assert_true(test_client_send(&client, frame, write_raw(frame, &data)));
            test_client_expect_error(&client, PROTOCOL_ERROR_STREAM, ids[i], false);
        }
        assert_true(test_client_send(&client, frame, protocol_close_write(frame, ids[i])));
        test_client_expect_error(&client, PROTOCOL_ERROR_STREAM, ids[i], false);
        assert_true(test_stream_send(good, 1408));
        test_stream_drain(good);
    }
    test_client_ping(&client);
    test_stream_free(closed);
    test_stream_free(good);
    test_client_close(&client);
}

static void after_close(void **state)
{
    uint8_t frames[4 * TEST_FRAME_BYTES];
    struct test_client client;
    struct test_frame frame;
    size_t bytes = 0;
    (void)state;

    test_client_connect(&client, test_server_unix(&server), NULL);
    struct test_stream *stream = test_stream_open(&client, &test_spec, 1);
    bytes += test_stream_frame(stream, 160, frames);
    bytes += protocol_close_write(frames + bytes, stream->id);
    bytes += protocol_close_write(frames + bytes, stream->id); /* again */
    bytes += write_raw(frames + bytes, &(struct raw){16, PROTOCOL_DATA, 0, 0, STREAM, 1});
    assert_true(test_client_send(&client, frames, bytes));
    /* Two ERRORs, at once; RESULT, then CLOSED, when the worker is done. */
    for (int errors = 0, results = 0, ends = 0; errors < 2 || results < 1 || ends < 1;) {
        assert_int_equal(test_client_next(&client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
        assert_int_equal(frame.header.id, STREAM);
        if (frame.header.type == PROTOCOL_ERROR) {
            assert_int_equal(frame.body[0], PROTOCOL_ERROR_STREAM);
            errors++;
        } else if (frame.header.type == PROTOCOL_RESULT) {
            assert_int_equal(ends, 0);
            (void)test_stream_check(stream, &frame);
            results++;
        } else {
            assert_int_equal(frame.header.type, PROTOCOL_CLOSED);
            ends++;
        }
    }
    test_client_ping(&client);
    test_stream_free(stream);
    test_client_close(&client);
}

/* More than 1,024 requests without an answer. The planner answers while they come, so this takes many. */
static void too_many_requests(void **state)
{
    enum { REQUESTS = 20000 };
    struct protocol_open open = {.spec = test_spec, .key_kind = PROTOCOL_KEY_NONE};
    uint8_t frame[TEST_FRAME_BYTES];
    uint32_t bytes = protocol_open_write(2, frame, PROTOCOL_QUERY, 5, &open);
    uint8_t *burst = malloc((size_t)REQUESTS * bytes);
    (void)state;

    assert_non_null(burst);
    for (size_t i = 0; i < REQUESTS; i++)
        memcpy(burst + i * bytes, frame, bytes);
    for (bool seen = false; !seen;) {
        struct test_client client;
        struct test_frame answer;
        test_client_connect(&client, test_server_unix(&server), NULL);
        (void)test_client_send(&client, burst, (size_t)REQUESTS * bytes);
        for (int answers = 0; !seen && answers < REQUESTS; answers++) {
            assert_int_equal(test_client_next(&client, &answer, TEST_PATIENCE_MS), TEST_FRAME);
            seen = answer.header.type == PROTOCOL_ERROR;
            assert_true(seen || answer.header.type == PROTOCOL_OPENED);
            assert_int_equal(answer.header.id, seen ? 0 : 5);
        }
        if (seen) {
            assert_true(answer.body[0] == PROTOCOL_ERROR_LIMIT && answer.body[2] == 1);
            test_client_expect_end(&client);
        }
        test_client_close(&client);
    }
    free(burst);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_hello),  cmocka_unit_test(versions),    cmocka_unit_test(unknown_types),
        cmocka_unit_test(header_fields), cmocka_unit_test(open_bodies), cmocka_unit_test(open_keys),
        cmocka_unit_test(not_fatal),     cmocka_unit_test(after_close), cmocka_unit_test(too_many_requests),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
