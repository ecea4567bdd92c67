/* Connecting: to servers that answer HELLO as they should, otherwise, in pieces, or not at all. */
#include "client/millrace.h"
#include "core/address.h"
#include "tests/support/fake_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define LONG_MS  20000
#define SHORT_MS 50

struct answer {
    uint8_t bytes[512];
    uint32_t count;
    uint32_t piece; /* bytes a write; 0: all at once */
    bool stays;     /* does not close until the client does */
};

static void answer_script(int descriptor, void *argument)
{
    const struct answer *answer = argument;
    uint8_t hello[PROTOCOL_HEADER_BYTES + PROTOCOL_HELLO_BYTES];
    if (!fake_read(descriptor, hello, sizeof hello))
        return;
    uint32_t piece = answer->piece > 0 ? answer->piece : answer->count;
    for (uint32_t sent = 0; sent < answer->count; sent += piece) {
        uint32_t left = answer->count - sent;
        if (!fake_write(descriptor, answer->bytes + sent, left < piece ? left : piece))
            return;
        if (answer->piece > 0)
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL); /* so that pieces come alone */
    }
    if (answer->stays)
        fake_read(descriptor, hello, 1);
}

static const struct protocol_welcome good = {
    .version = 1, .packet_bytes_max = 1400, .burst_packets_max = 3, .streams_max = 5, .bytes_per_key = 7};

static struct answer welcome_answer(const struct protocol_welcome *welcome)
{
    struct answer answer = {0};
    answer.count = protocol_welcome_write(answer.bytes, welcome);
    return answer;
}

static millrace_status try_connect(struct answer *answer, int timeout_ms, struct millrace **connection,
                                   struct core_error *error)
{
    struct fake_server server;
    fake_server_start(&server, answer_script, answer);
    millrace_status status = millrace_connect(server.address, NULL, timeout_ms, connection, error->text);
    if (status == MILLRACE_OK && answer->stays)
        millrace_disconnect(*connection);
    fake_server_join(&server);
    return status;
}

static void expect(struct answer answer, millrace_status expected, const char *words)
{
    struct millrace *connection = NULL;
    struct core_error error = {.text = ""};
    millrace_status status = try_connect(&answer, LONG_MS, &connection, &error);
    if (status != expected || strstr(error.text, words) == NULL)
        fail_msg("status %s, text \"%s\"; expected %s, \"%s\"", millrace_status_text(status), error.text,
                 millrace_status_text(expected), words);
    assert_null(connection);
}

static void test_welcome_whole_and_in_pieces(void **state)
{
    (void)state;
    for (uint32_t piece = 0; piece < 64; piece += piece < 3 ? 1 : 17) {
        struct answer answer = welcome_answer(&good);
        struct millrace *connection;
        struct core_error error;
        answer.piece = piece;
        if (try_connect(&answer, LONG_MS, &connection, &error) != MILLRACE_OK)
            fail_msg("pieces of %u: %s", piece, error.text);
        assert_int_equal(millrace_welcome_of(connection)->packet_bytes_max, 1400);
        assert_int_equal(millrace_welcome_of(connection)->streams_max, 5);
        assert_true(millrace_descriptor(connection) >= 0);
        millrace_disconnect(connection);
    }
}

static void test_cut_at_every_byte(void **state)
{
    (void)state;
    for (uint32_t count = 0; count < PROTOCOL_HEADER_BYTES + PROTOCOL_WELCOME_BYTES; count++) {
        struct answer answer = welcome_answer(&good);
        answer.count = count;
        expect(answer, MILLRACE_CLOSED, count == 0 ? "closed the connection" : "in the middle of a frame");
    }
}

static void test_versions(void **state)
{
    (void)state;
    struct protocol_welcome later = good;
    later.version = PROTOCOL_VERSION + 1;
    expect(welcome_answer(&later), MILLRACE_INVALID, "version 5");
    struct answer answer = {0};
    answer.count = protocol_error_write(answer.bytes, 0, PROTOCOL_ERROR_VERSION, true, "only 7 to 9");
    expect(answer, MILLRACE_UNSUPPORTED, "only 7 to 9");
}

static void test_server_is_full(void **state)
{
    (void)state;
    struct answer answer = {0};
    answer.count = protocol_error_write(answer.bytes, 0, PROTOCOL_ERROR_LIMIT, true, "4096 connections");
    expect(answer, MILLRACE_CLOSED, "(limit): 4096 connections");
}

static void test_other_answers(void **state)
{
    (void)state;
    struct answer garbage = {.count = 100};
    memset(garbage.bytes, 0xEE, sizeof garbage.bytes);
    expect(garbage, MILLRACE_INVALID, "is this a Millrace server");
    struct answer early = {0};
    early.count = protocol_closed_write(early.bytes, 1, &(struct protocol_closed){0});
    expect(early, MILLRACE_INVALID, "before WELCOME");
    struct answer malformed = welcome_answer(&good);
    memset(malformed.bytes + PROTOCOL_HEADER_BYTES + 4, 0, 4);
    expect(malformed, MILLRACE_INVALID, "packet_bytes_max");
    struct answer too_long = welcome_answer(&good);
    too_long.bytes[0]++;
    too_long.count++;
    expect(too_long, MILLRACE_INVALID, "WELCOME has a body of 49 bytes");
}

static void test_silence(void **state)
{
    (void)state;
    struct millrace *connection = NULL;
    struct core_error error;
    struct answer silent = {.stays = true}, half = welcome_answer(&good);
    half.count = 30;
    half.stays = true;
    assert_int_equal(try_connect(&silent, SHORT_MS, &connection, &error), MILLRACE_TIMEOUT);
    assert_non_null(strstr(error.text, "unix:@millrace-test"));
    assert_int_equal(try_connect(&half, SHORT_MS, &connection, &error), MILLRACE_TIMEOUT);
    assert_null(connection);
}

static void test_no_server(void **state)
{
    (void)state;
    struct millrace *connection = NULL;
    struct core_error error;
    assert_int_equal(millrace_connect("unix:/nowhere/at/all", NULL, SHORT_MS, &connection, error.text),
                     MILLRACE_SYSTEM);
    assert_int_equal(millrace_connect("unix:", NULL, SHORT_MS, &connection, error.text), MILLRACE_INVALID);
    assert_int_equal(millrace_connect("http://host", NULL, SHORT_MS, &connection, NULL), MILLRACE_INVALID);
    assert_null(connection);
    millrace_disconnect(NULL);
}

static void test_waits_for_ever_when_asked(void **state)
{
    (void)state;
    struct fake_server server;
    struct answer answer = welcome_answer(&good);
    struct millrace *connection;
    answer.piece = 13;
    fake_server_start(&server, answer_script, &answer);
    assert_int_equal(millrace_connect(server.address, NULL, -1, &connection, NULL), MILLRACE_OK);
    fake_server_join(&server);
    core_ns round_trip_ns;
    assert_int_equal(millrace_ping(connection, -1, &round_trip_ns, NULL), MILLRACE_CLOSED); /* it has gone */
    millrace_disconnect(connection);
}

/* A lane, and behind LANED in the same write bytes that only wake. */
static void lane_script(int descriptor, void *argument)
{
    static uint8_t body[FAKE_PACKET_BYTES_MAX];
    const struct protocol_welcome welcome = {.version = PROTOCOL_VERSION,
                                             .flags = PROTOCOL_HAS_LANES,
                                             .packet_bytes_max = 1400,
                                             .burst_packets_max = 3,
                                             .streams_max = 5,
                                             .bytes_per_key = 7};
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX] = {0};
    struct protocol_header header;
    uint32_t ring_bytes;
    core_address_take_files(descriptor);
    if (!fake_await_frame(descriptor, PROTOCOL_HELLO, &header, body) ||
        !fake_write(descriptor, frame, protocol_welcome_write(frame, &welcome)) ||
        !fake_await_frame(descriptor, PROTOCOL_LANE, &header, body) ||
        protocol_lane_read(body, header.body_bytes, &ring_bytes, NULL) != CORE_OK)
        return;
    const uint32_t bytes = protocol_laned_write(frame, ring_bytes, "");
    *(bool *)argument = fake_write(descriptor, frame, bytes + 2 * PROTOCOL_HEADER_BYTES);
    (void)!fake_read(descriptor, body, 1); /* until the client goes */
}

static void test_wake_ups_behind_laned(void **state)
{
    struct core_error error = {""};
    struct fake_server server;
    struct millrace *connection;
    bool shared = false;
    (void)state;
    fake_server_start(&server, lane_script, &shared);
    const millrace_status status = millrace_connect(server.address, NULL, LONG_MS, &connection, error.text);
    if (status != MILLRACE_OK)
        fail_msg("%s", error.text);
    millrace_disconnect(connection);
    fake_server_join(&server);
    assert_true(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_welcome_whole_and_in_pieces),
        cmocka_unit_test(test_cut_at_every_byte),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_server_is_full),
        cmocka_unit_test(test_other_answers),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_no_server),
        cmocka_unit_test(test_waits_for_ever_when_asked),
        cmocka_unit_test(test_wake_ups_behind_laned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
