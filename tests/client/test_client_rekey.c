/* Keys that change, through the library: the call that waits, the one that does not, and what a server may not
 * say. And calls that wait for room behind a full buffer. */
#include "client/millrace.h"
#include "tests/support/fake_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>

#include <cmocka.h>

#define LONG_MS      60000
#define PACKET_BYTES 61440
#define FULL_ENOUGH  1000 /* packets, more than the library has room for */

static const struct millrace_open contract = {
    .size = sizeof contract,
    .packet_bytes = PACKET_BYTES,
    .burst_packets = 4,
    .interval_ns = CORE_NS_PER_MS,
    .latency_ns = 20 * CORE_NS_PER_MS,
    .cipher = MILLRACE_CIPHER_AES_128_CBC,
    .padding = MILLRACE_PADDING_NONE,
    .unit = MILLRACE_UNIT_MESSAGE,
    .key_kind = MILLRACE_KEY_NAMED,
    .key = (const uint8_t *)"some-key",
    .key_bytes = 8,
};

static const struct millrace_rekey to_message_5 = {.size = sizeof to_message_5,
                                                   .stream = 1,
                                                   .key_kind = MILLRACE_KEY_NAMED,
                                                   .key = (const uint8_t *)"another",
                                                   .key_bytes = 7,
                                                   .first = 5};

struct seen {
    unsigned rekeyed, refused;
    uint32_t request;
    struct millrace_rekeyed last;
};

static void on_rekeyed(void *argument, uint32_t request, const struct millrace_rekeyed *rekeyed)
{
    struct seen *seen = argument;
    seen->request = request;
    seen->last = *rekeyed;
    seen->rekeyed++;
}

static void on_refused(void *argument, uint32_t request, const struct millrace_refused *refused)
{
    struct seen *seen = argument;
    assert_string_equal(refused->text, "it has begun");
    seen->request = request;
    seen->refused++;
}

static struct millrace *connect_to(struct fake_server *server, fake_script *script, void *argument)
{
    struct millrace *connection;
    struct core_error error;
    fake_server_start(server, script, argument);
    if (millrace_connect(server->address, NULL, LONG_MS, &connection, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    return connection;
}

static void open_stream(struct millrace *connection, const struct millrace_open *open)
{
    struct millrace_opened opened = {.size = sizeof opened};
    struct core_error error;
    if (millrace_open_stream(connection, open, LONG_MS, &opened, NULL, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    assert_int_equal(opened.stream, 1);
}

static void finish(struct millrace *connection, struct fake_server *server)
{
    millrace_disconnect(connection);
    fake_server_join(server);
}

/* ---- REKEY ---- */

static void test_rekey_and_wait(void **state)
{
    struct fake_server server;
    struct millrace_rekey rekey = to_message_5;
    struct millrace_rekeyed rekeyed = {.size = sizeof rekeyed};
    struct millrace_refused refused = {.size = sizeof refused};
    struct core_error error;
    (void)state;
    struct millrace *connection = connect_to(&server, fake_serve, NULL);
    assert_int_equal(millrace_rekey_stream(connection, &rekey, LONG_MS, &rekeyed, NULL, error.text),
                     MILLRACE_NOT_FOUND);
    open_stream(connection, &contract);
    assert_int_equal(millrace_rekey_stream(connection, &rekey, LONG_MS, &rekeyed, NULL, NULL), MILLRACE_OK);
    assert_int_equal(rekeyed.stream, 1);
    assert_int_equal(rekeyed.first, 5);
    assert_int_equal(rekeyed.in_force_ns, CORE_NS_PER_MS);
    assert_int_equal(millrace_rekey_stream(connection, &rekey, LONG_MS, NULL, NULL, NULL), MILLRACE_OK);
    rekey.first = FAKE_MESSAGE_REFUSED;
    assert_int_equal(millrace_rekey_stream(connection, &rekey, LONG_MS, NULL, &refused, error.text),
                     MILLRACE_REFUSED);
    assert_int_equal(refused.code, MILLRACE_REFUSED_BUSY);
    assert_non_null(strstr(error.text, "it has begun"));
    assert_int_equal(millrace_rekey_stream(connection, &rekey, LONG_MS, NULL, NULL, NULL), MILLRACE_REFUSED);
    rekey.key_kind = MILLRACE_KEY_NONE;
    assert_int_equal(millrace_rekey_stream(connection, &rekey, LONG_MS, NULL, NULL, error.text),
                     MILLRACE_INVALID);
    assert_non_null(strstr(error.text, "without a key"));
    rekey.key_kind = MILLRACE_KEY_INLINE;
    assert_int_equal(millrace_rekey_stream(connection, &rekey, LONG_MS, NULL, NULL, error.text),
                     MILLRACE_INVALID);
    assert_non_null(strstr(error.text, "16, 24 or 32"));
    assert_int_equal(millrace_send_close(connection, 1, NULL), MILLRACE_OK);
    assert_int_equal(millrace_send_rekey(connection, &to_message_5, NULL, NULL), MILLRACE_NOT_FOUND);
    finish(connection, &server);
}

static void test_rekey_with_callbacks(void **state)
{
    struct fake_server server;
    struct seen seen = {0};
    struct millrace_rekey rekey = to_message_5;
    const struct millrace_callbacks callbacks = {
        .size = sizeof callbacks, .on_rekeyed = on_rekeyed, .on_refused = on_refused, .argument = &seen};
    core_ns round_trip_ns;
    uint32_t request;
    (void)state;
    struct millrace *connection = connect_to(&server, fake_serve, NULL);
    open_stream(connection, &contract);
    assert_int_equal(millrace_send_rekey(connection, &rekey, &request, NULL), MILLRACE_OK); /* for nobody */
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_int_equal(millrace_set_callbacks(connection, &callbacks, NULL), MILLRACE_OK);
    assert_int_equal(millrace_send_rekey(connection, &rekey, &request, NULL), MILLRACE_OK);
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_int_equal(seen.rekeyed, 1);
    assert_int_equal(seen.request, request);
    assert_int_equal(seen.last.first, 5);
    rekey.first = FAKE_MESSAGE_REFUSED;
    assert_int_equal(millrace_send_rekey(connection, &rekey, &request, NULL), MILLRACE_OK);
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_int_equal(seen.refused, 1);
    assert_int_equal(seen.request, request);
    assert_int_equal(seen.rekeyed, 1);
    finish(connection, &server);
}

/* ---- a server's own words: what it answers to a REKEY of stream 1 ---- */

struct words {
    uint16_t version;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    uint32_t bytes;
};

static void words_script(int descriptor, void *argument)
{
    static uint8_t body[FAKE_PACKET_BYTES_MAX];
    struct words *words = argument;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_header header;
    const struct protocol_opened opened = {.stream = 1, .unit = PROTOCOL_UNIT_CPU};
    if (!fake_welcome_version(descriptor, words->version) || !fake_read_frame(descriptor, &header, body) ||
        !fake_write(descriptor, frame, protocol_opened_write(words->version, frame, header.id, &opened)) ||
        !fake_read_frame(descriptor, &header, body))
        return;
    memcpy(words->frame + 8, &header.id, 4);
    if (fake_write(descriptor, words->frame, words->bytes))
        while (fake_read_frame(descriptor, &header, body))
            continue;
}

static void expect_breach(struct words *words, const char *text)
{
    struct fake_server server;
    struct core_error error = {.text = ""};
    struct millrace *connection = connect_to(&server, words_script, words);
    open_stream(connection, &contract);
    millrace_status status =
        millrace_rekey_stream(connection, &to_message_5, LONG_MS, NULL, NULL, error.text);
    assert_true(status != MILLRACE_OK && status != MILLRACE_REFUSED);
    if (strstr(error.text, "broke the protocol") == NULL || strstr(error.text, text) == NULL)
        fail_msg("\"%s\" does not tell of \"%s\"", error.text, text);
    finish(connection, &server);
}

static void test_breaches(void **state)
{
    struct words words = {.version = 3};
    struct protocol_rekeyed rekeyed = {.stream = 2, .first = 5};
    const struct protocol_modified modified = {.stream = 1, .unit = PROTOCOL_UNIT_CPU};
    (void)state;
    words.bytes = protocol_rekeyed_write(words.frame, 0, &rekeyed);
    expect_breach(&words, "REKEYED for stream 2, where stream 1 was meant");
    words.bytes = protocol_modified_write(words.frame, 0, &modified);
    expect_breach(&words, "which was not made"); /* MODIFIED to a REKEY */
    rekeyed.stream = 1;
    words.bytes = protocol_rekeyed_write(words.frame, 0, &rekeyed);
    words.bytes--; /* a frame cut short within its own length */
    words.frame[0]--;
    expect_breach(&words, "REKEYED");
}

static void test_version_2_server(void **state)
{
    struct fake_server server;
    struct words words = {.version = 2};
    struct millrace_open chain = contract;
    struct millrace_opened opened = {.size = sizeof opened};
    struct core_error error;
    (void)state;
    chain.unit = MILLRACE_UNIT_STREAM;
    struct millrace *connection = connect_to(&server, words_script, &words);
    assert_int_equal(millrace_open_stream(connection, &contract, LONG_MS, &opened, NULL, error.text),
                     MILLRACE_UNSUPPORTED);
    assert_non_null(strstr(error.text, "version 2"));
    open_stream(connection, &chain);
    assert_int_equal(millrace_rekey_stream(connection, &to_message_5, LONG_MS, NULL, NULL, error.text),
                     MILLRACE_UNSUPPORTED);
    assert_non_null(strstr(error.text, "version 2"));
    finish(connection, &server);
}

/* ---- behind a full buffer ---- */

static void fill(struct millrace *connection)
{
    static const uint8_t packet[PACKET_BYTES];
    millrace_status status;
    unsigned packets = 0;
    while ((status = millrace_data(connection, 1, packet, sizeof packet, NULL, NULL)) == MILLRACE_OK)
        assert_true(++packets < FULL_ENOUGH);
    assert_int_equal(status, MILLRACE_FULL);
    while ((status = millrace_send_ping(connection, NULL, 0, NULL, NULL)) == MILLRACE_OK)
        continue; /* to the last byte */
    assert_int_equal(status, MILLRACE_FULL);
}

#define PINGS 1024 /* unanswered requests, at most */

/* Answers so many pings with one write, and the next as it comes. */
static void pongs_at_once(int descriptor, void *argument)
{
    static uint8_t body[FAKE_PACKET_BYTES_MAX], frames[PINGS * PROTOCOL_HEADER_BYTES];
    struct protocol_header header;
    uint32_t bytes = 0;
    (void)argument;
    if (!fake_welcome(descriptor))
        return;
    for (int i = 0; i < PINGS && fake_read_frame(descriptor, &header, body); i++)
        bytes += protocol_ping_write(frames + bytes, PROTOCOL_PONG, header.id, NULL, 0);
    if (!fake_write(descriptor, frames, bytes))
        return;
    while (fake_read_frame(descriptor, &header, body))
        if (!fake_write(descriptor, frames, protocol_ping_write(frames, PROTOCOL_PONG, header.id, NULL, 0)))
            return;
}

/* A call that finds too many requests unanswered, and all their answers there, waits for no more. */
static void test_answers_make_room(void **state)
{
    struct fake_server server;
    core_ns round_trip_ns;
    (void)state;
    struct millrace *connection = connect_to(&server, pongs_at_once, NULL);
    for (int i = 0; i < PINGS; i++)
        assert_int_equal(millrace_send_ping(connection, NULL, 0, NULL, NULL), MILLRACE_OK);
    assert_int_equal(millrace_send_ping(connection, NULL, 0, NULL, NULL), MILLRACE_FULL);
    for (int there = 0; there < PINGS * PROTOCOL_HEADER_BYTES;) {
        assert_int_equal(millrace_flush(connection, NULL), MILLRACE_OK);
        assert_int_equal(ioctl(millrace_descriptor(connection), FIONREAD, &there), 0);
    }
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    finish(connection, &server);
}

/* Every call that waits for an answer waits for room as well; with no time for that it says so. */
static void test_calls_wait_for_room(void **state)
{
    static uint8_t ciphertext[PACKET_BYTES + 16];
    const struct millrace_modify modify = {sizeof modify, 1, 8, 2 * CORE_NS_PER_MS, 30 * CORE_NS_PER_MS};
    struct fake_server server;
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_modified modified = {.size = sizeof modified};
    struct millrace_result result = {.size = sizeof result};
    struct millrace_closed closed = {.size = sizeof closed};
    uint32_t bytes;
    core_ns round_trip_ns;
    (void)state;
    struct millrace *connection = connect_to(&server, fake_serve, NULL);
    open_stream(connection, &contract);
    fill(connection);
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    fill(connection);
    assert_int_equal(millrace_rekey_stream(connection, &to_message_5, LONG_MS, NULL, NULL, NULL),
                     MILLRACE_OK);
    fill(connection);
    assert_int_equal(millrace_modify_stream(connection, &modify, LONG_MS, &modified, NULL, NULL),
                     MILLRACE_OK);
    fill(connection);
    assert_int_equal(millrace_query(connection, &contract, LONG_MS, &opened, NULL, NULL), MILLRACE_OK);
    fill(connection);
    assert_int_equal(
        millrace_encrypt(connection, 1, ciphertext, 16, LONG_MS, ciphertext, &bytes, &result, NULL),
        MILLRACE_OK);
    fill(connection);
    assert_int_equal(millrace_close_stream(connection, 1, LONG_MS, &closed, NULL), MILLRACE_OK);
    finish(connection, &server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rekey_and_wait),    cmocka_unit_test(test_rekey_with_callbacks),
        cmocka_unit_test(test_breaches),          cmocka_unit_test(test_version_2_server),
        cmocka_unit_test(test_answers_make_room), cmocka_unit_test(test_calls_wait_for_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
