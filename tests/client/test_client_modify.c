/* What version 2 brings to the library: contracts that change, notices, guaranteed streams; and how far a
 * stream has come back, with which it goes on elsewhere. */
#include "client/millrace.h"
#include "tests/support/fake_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define LONG_MS 20000

static const struct millrace_open contract = {
    .size = sizeof contract,
    .packet_bytes = 64,
    .burst_packets = 4,
    .interval_ns = CORE_NS_PER_MS,
    .latency_ns = 20 * CORE_NS_PER_MS,
    .cipher = MILLRACE_CIPHER_AES_128_CBC,
    .padding = MILLRACE_PADDING_NONE,
    .key_kind = MILLRACE_KEY_NAMED,
    .key = (const uint8_t *)"some-key",
    .key_bytes = 8,
    .has_iv = true,
    .iv = {0xA0, 0xA1, 0xA2},
};

static struct millrace *connect_to(const struct fake_server *server)
{
    struct millrace *connection;
    struct core_error error;
    if (millrace_connect(server->address, NULL, LONG_MS, &connection, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    return connection;
}

static uint32_t open_stream(struct millrace *connection)
{
    struct millrace_opened opened = {.size = sizeof opened};
    struct core_error error;
    if (millrace_open_stream(connection, &contract, LONG_MS, &opened, NULL, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    return opened.stream;
}

static void finish(struct millrace *connection, struct fake_server *server)
{
    millrace_disconnect(connection);
    fake_server_join(server);
}

/* ---- MODIFY ---- */

static void test_modify_blocking(void **state)
{
    struct fake_server server;
    struct millrace_modified modified = {.size = sizeof modified};
    struct millrace_refused refused = {.size = sizeof refused};
    struct core_error error;
    uint8_t ciphertext[80];
    uint32_t bytes;
    struct millrace_result result = {.size = sizeof result};
    (void)state;
    fake_server_start(&server, fake_serve, NULL);
    struct millrace *connection = connect_to(&server);
    struct millrace_modify modify = {sizeof modify, open_stream(connection), 8, 2 * CORE_NS_PER_MS,
                                     30 * CORE_NS_PER_MS};
    uint8_t packet[64] = {1};
    assert_int_equal(millrace_encrypt(connection, modify.stream, packet, sizeof packet, LONG_MS, ciphertext,
                                      &bytes, &result, NULL),
                     MILLRACE_OK);
    assert_int_equal(millrace_modify_stream(connection, &modify, LONG_MS, &modified, &refused, error.text),
                     MILLRACE_OK);
    assert_int_equal(modified.stream, modify.stream);
    assert_int_equal(modified.first, 1);
    assert_int_equal(modified.bound_ns, modify.latency_ns);
    modify.burst_packets = FAKE_BURST_REFUSED;
    assert_int_equal(millrace_modify_stream(connection, &modify, LONG_MS, &modified, &refused, error.text),
                     MILLRACE_REFUSED);
    assert_int_equal(refused.offer_latency_ns, CORE_NS_PER_S);
    assert_non_null(strstr(error.text, "no room for that"));
    assert_int_equal(millrace_modify_stream(connection, &modify, LONG_MS, &modified, NULL, NULL),
                     MILLRACE_REFUSED);
    modify.stream++;
    assert_int_equal(millrace_modify_stream(connection, &modify, LONG_MS, &modified, &refused, error.text),
                     MILLRACE_NOT_FOUND);
    modify.stream--;
    assert_int_equal(millrace_send_close(connection, modify.stream, NULL), MILLRACE_OK);
    assert_int_equal(millrace_send_modify(connection, &modify, NULL, error.text), MILLRACE_NOT_FOUND);
    finish(connection, &server);
}

struct seen {
    unsigned modified, refused, notices;
    uint32_t request;
    struct millrace_notice notice;
};

static void on_modified(void *argument, uint32_t request, const struct millrace_modified *modified)
{
    struct seen *seen = argument;
    assert_int_equal(modified->bound_ns, 30 * CORE_NS_PER_MS);
    seen->request = request;
    seen->modified++;
}

static void on_refused(void *argument, uint32_t request, const struct millrace_refused *refused)
{
    struct seen *seen = argument;
    assert_string_equal(refused->text, "no room for that");
    seen->request = request;
    seen->refused++;
}

static void on_notice(void *argument, uint32_t stream, const struct millrace_notice *notice)
{
    struct seen *seen = argument;
    assert_int_equal(stream, 9);
    seen->notice = *notice;
    seen->notices++;
}

static void test_modify_with_callbacks(void **state)
{
    struct fake_server server;
    struct seen seen = {0};
    const struct millrace_callbacks callbacks = {
        .size = sizeof callbacks, .on_modified = on_modified, .on_refused = on_refused, .argument = &seen};
    core_ns round_trip_ns;
    uint32_t granted, refused;
    (void)state;
    fake_server_start(&server, fake_serve, NULL);
    struct millrace *connection = connect_to(&server);
    assert_int_equal(millrace_set_callbacks(connection, &callbacks, NULL), MILLRACE_OK);
    struct millrace_modify modify = {sizeof modify, open_stream(connection), 8, 2 * CORE_NS_PER_MS,
                                     30 * CORE_NS_PER_MS};
    assert_int_equal(millrace_send_modify(connection, &modify, &granted, NULL), MILLRACE_OK);
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_int_equal(seen.modified, 1);
    assert_int_equal(seen.request, granted);
    modify.burst_packets = FAKE_BURST_REFUSED;
    assert_int_equal(millrace_send_modify(connection, &modify, &refused, NULL), MILLRACE_OK);
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_int_equal(seen.refused, 1);
    assert_int_equal(seen.request, refused);
    assert_int_not_equal(granted, refused);
    finish(connection, &server);
}

/* ---- a server's own words: what it sends after one OPEN, granted as stream 9, and one frame more ---- */

struct words {
    uint16_t version;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    uint32_t bytes;
    bool answers; /* the frame's id is set to that of the frame before */
};

static void words_script(int descriptor, void *argument)
{
    static uint8_t body[FAKE_PACKET_BYTES_MAX];
    struct words *words = argument;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_header header;
    struct protocol_opened opened = {.stream = 9, .unit = PROTOCOL_UNIT_CPU, .iv = {0xA0, 0xA1, 0xA2}};
    if (!fake_welcome_version(descriptor, words->version) || !fake_read_frame(descriptor, &header, body) ||
        !fake_write(descriptor, frame, protocol_opened_write(words->version, frame, header.id, &opened)) ||
        !fake_read_frame(descriptor, &header, body))
        return;
    if (words->answers)
        memcpy(words->frame + 8, &header.id, 4);
    if (fake_write(descriptor, words->frame, words->bytes))
        while (fake_read_frame(descriptor, &header, body))
            if (header.type == PROTOCOL_PING)
                fake_write(descriptor, frame,
                           protocol_ping_write(frame, PROTOCOL_PONG, header.id, body, header.body_bytes));
}

/* A call that gives up at once; the answer comes later, and goes to the callback: the contract has changed.
 */
static void test_modified_too_late(void **state)
{
    struct fake_server server;
    struct seen seen = {0};
    struct words words = {.version = 2, .answers = true};
    const struct millrace_callbacks callbacks = {
        .size = sizeof callbacks, .on_modified = on_modified, .argument = &seen};
    const struct protocol_modified late = {
        .stream = 9, .unit = PROTOCOL_UNIT_CPU, .bound_ns = 30 * CORE_NS_PER_MS};
    const struct millrace_modify modify = {sizeof modify, 9, 8, 2 * CORE_NS_PER_MS, 30 * CORE_NS_PER_MS};
    struct millrace_modified modified = {.size = sizeof modified};
    core_ns round_trip_ns;
    (void)state;
    words.bytes = protocol_modified_write(words.frame, 0, &late);
    fake_server_start(&server, words_script, &words);
    struct millrace *connection = connect_to(&server);
    assert_int_equal(millrace_set_callbacks(connection, &callbacks, NULL), MILLRACE_OK);
    assert_int_equal(open_stream(connection), 9);
    millrace_status status = millrace_modify_stream(connection, &modify, 0, &modified, NULL, NULL);
    assert_true(status == MILLRACE_TIMEOUT || status == MILLRACE_OK);
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_int_equal(seen.modified, status == MILLRACE_TIMEOUT);
    finish(connection, &server);
}

static void test_notice(void **state)
{
    struct fake_server server;
    struct seen seen = {0};
    struct words words = {.version = 2};
    const struct millrace_callbacks callbacks = {
        .size = sizeof callbacks, .on_notice = on_notice, .argument = &seen};
    const struct protocol_notice sent = {.kind = PROTOCOL_NOTICE_DEGRADED,
                                         .unit = PROTOCOL_UNIT_CPU,
                                         .unit_index = 3,
                                         .text = "GPU 0 is lost"};
    core_ns round_trip_ns;
    (void)state;
    words.bytes = protocol_notice_write(words.frame, 9, &sent);
    fake_server_start(&server, words_script, &words);
    struct millrace *connection = connect_to(&server);
    assert_int_equal(millrace_set_callbacks(connection, &callbacks, NULL), MILLRACE_OK);
    assert_int_equal(open_stream(connection), 9);
    assert_int_equal(millrace_data(connection, 9, &sent, 16, NULL, NULL), MILLRACE_OK);
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_int_equal(seen.notices, 1);
    assert_int_equal(seen.notice.kind, sent.kind);
    assert_int_equal(seen.notice.unit_index, 3);
    assert_string_equal(seen.notice.text, sent.text);
    finish(connection, &server);
}

/* ---- breaches ---- */

static void expect_breach(struct words *words, bool modifies, const char *text)
{
    const struct millrace_modify modify = {sizeof modify, 9, 8, 2 * CORE_NS_PER_MS, 30 * CORE_NS_PER_MS};
    struct fake_server server;
    struct millrace_modified modified = {.size = sizeof modified};
    struct core_error error = {.text = ""};
    core_ns round_trip_ns;
    fake_server_start(&server, words_script, words);
    struct millrace *connection = connect_to(&server);
    assert_int_equal(open_stream(connection), 9);
    millrace_status status =
        modifies ? millrace_modify_stream(connection, &modify, LONG_MS, &modified, NULL, error.text)
                 : millrace_ping(connection, LONG_MS, &round_trip_ns, error.text);
    assert_true(status != MILLRACE_OK && status != MILLRACE_REFUSED);
    if (strstr(error.text, "broke the protocol") == NULL || strstr(error.text, text) == NULL)
        fail_msg("\"%s\" does not tell of \"%s\"", error.text, text);
    finish(connection, &server);
}

static void test_breaches(void **state)
{
    struct words words = {.version = 2, .answers = true};
    struct protocol_modified modified = {.stream = 8, .unit = PROTOCOL_UNIT_CPU};
    const struct protocol_notice notice = {.kind = PROTOCOL_NOTICE_MOVED, .unit = PROTOCOL_UNIT_GPU};
    const struct protocol_opened opened = {.stream = 10, .unit = PROTOCOL_UNIT_CPU};
    (void)state;
    words.bytes = protocol_modified_write(words.frame, 0, &modified);
    expect_breach(&words, true, "MODIFIED for stream 8, where stream 9 was meant");
    words.bytes = protocol_opened_write(2, words.frame, 0, &opened);
    expect_breach(&words, true, "which was not made"); /* OPENED to a MODIFY */
    modified.stream = 9;
    words.bytes = protocol_modified_write(words.frame, 0, &modified);
    expect_breach(&words, false, "which was not made"); /* MODIFIED to a PING */
    words.frame[PROTOCOL_HEADER_BYTES + 4] = 0;
    expect_breach(&words, true, "MODIFIED unit");
    words.answers = false;
    words.bytes = protocol_notice_write(words.frame, 8, &notice);
    expect_breach(&words, false, "NOTICE of stream 8, which is not open");
    words.bytes = protocol_notice_write(words.frame, 9, &notice);
    words.frame[PROTOCOL_HEADER_BYTES] = 5; /* one more than there are */
    expect_breach(&words, false, "NOTICE kind");
    words.version = 1; /* in which there are no such frames */
    words.bytes = protocol_notice_write(words.frame, 9, &notice);
    expect_breach(&words, false, "no frame begins with");
}

static void test_version_1_server(void **state)
{
    struct fake_server server;
    struct words words = {.version = 1};
    const struct millrace_modify modify = {sizeof modify, 9, 8, 2 * CORE_NS_PER_MS, 30 * CORE_NS_PER_MS};
    struct millrace_open guaranteed = contract, coded = contract;
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_modified modified = {.size = sizeof modified};
    struct core_error error;
    core_ns round_trip_ns;
    (void)state;
    words.bytes = protocol_ping_write(words.frame, PROTOCOL_PONG, 0, NULL, 0);
    words.answers = true;
    guaranteed.guaranteed = true;
    coded.mac = MILLRACE_MAC_HMAC_SHA_256_128; /* not a plain stream instead */
    fake_server_start(&server, words_script, &words);
    struct millrace *connection = connect_to(&server);
    assert_int_equal(millrace_welcome_of(connection)->version, 1);
    assert_int_equal(millrace_open_stream(connection, &coded, LONG_MS, &opened, NULL, error.text),
                     MILLRACE_UNSUPPORTED);
    assert_int_equal(open_stream(connection), 9);
    assert_int_equal(millrace_open_stream(connection, &guaranteed, LONG_MS, &opened, NULL, error.text),
                     MILLRACE_UNSUPPORTED);
    assert_non_null(strstr(error.text, "version 1"));
    assert_int_equal(millrace_modify_stream(connection, &modify, LONG_MS, &modified, NULL, error.text),
                     MILLRACE_UNSUPPORTED);
    assert_non_null(strstr(error.text, "version 1"));
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK); /* it lives */
    finish(connection, &server);
}

/* ---- how far a stream has come back ---- */

struct closing {
    struct millrace *connection;
    struct millrace_position position;
    unsigned closed;
};

static void on_closed(void *argument, uint32_t stream, const struct millrace_closed *closed)
{
    struct closing *closing = argument;
    (void)closed;
    assert_int_equal(millrace_position_of(closing->connection, stream, &closing->position, NULL),
                     MILLRACE_OK);
    assert_int_equal(millrace_data(closing->connection, stream, "", 0, NULL, NULL), MILLRACE_NOT_FOUND);
    closing->closed++;
}

static void test_position(void **state)
{
    struct fake_server server;
    struct millrace_position position = {.size = sizeof position};
    uint8_t packet[64], ciphertext[80];
    uint32_t bytes;
    struct millrace_result result = {.size = sizeof result};
    core_ns round_trip_ns;
    (void)state;
    for (size_t i = 0; i < sizeof packet; i++)
        packet[i] = (uint8_t)(i * 3);
    fake_server_start(&server, fake_serve, NULL);
    struct millrace *connection = connect_to(&server);
    struct closing closing = {.connection = connection, .position.size = sizeof closing.position};
    const struct millrace_callbacks callbacks = {
        .size = sizeof callbacks, .on_closed = on_closed, .argument = &closing};
    assert_int_equal(millrace_set_callbacks(connection, &callbacks, NULL), MILLRACE_OK);
    uint32_t stream = open_stream(connection);
    assert_int_equal(millrace_position_of(connection, stream, &position, NULL), MILLRACE_OK);
    assert_int_equal(position.answered, 0);
    assert_memory_equal(position.chain, contract.iv, 16);
    for (uint32_t count = 16; count <= 64; count += 16) {
        assert_int_equal(
            millrace_encrypt(connection, stream, packet, count, LONG_MS, ciphertext, &bytes, &result, NULL),
            MILLRACE_OK);
        assert_int_equal(millrace_position_of(connection, stream, &position, NULL), MILLRACE_OK);
        assert_int_equal(position.answered, count / 16);
        assert_memory_equal(position.chain, ciphertext + count - 16, 16);
    }
    /* one that is not encrypted counts, and leaves the chain alone */
    assert_int_equal(
        millrace_encrypt(connection, stream, packet, 15, LONG_MS, ciphertext, &bytes, &result, NULL),
        MILLRACE_INVALID);
    struct millrace_position after = {.size = sizeof after};
    assert_int_equal(millrace_position_of(connection, stream, &after, NULL), MILLRACE_OK);
    assert_int_equal(after.answered, 5);
    assert_memory_equal(after.chain, position.chain, 16);
    assert_int_equal(millrace_send_close(connection, stream, NULL), MILLRACE_OK);
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_int_equal(closing.closed, 1);
    assert_int_equal(closing.position.answered, 5);
    assert_memory_equal(closing.position.chain, position.chain, 16);
    assert_int_equal(millrace_position_of(connection, stream, &position, NULL), MILLRACE_NOT_FOUND);
    finish(connection, &server);
}

/* The server dies under two packets, of which one has come back. */
static void dying_script(int descriptor, void *argument)
{
    static uint8_t body[FAKE_PACKET_BYTES_MAX];
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_header header;
    const struct protocol_opened opened = {.stream = 9, .unit = PROTOCOL_UNIT_CPU};
    const struct protocol_result result = {.flags = PROTOCOL_RESULT_MET};
    (void)argument;
    if (!fake_welcome(descriptor) || !fake_read_frame(descriptor, &header, body) ||
        !fake_write(descriptor, frame, protocol_opened_write(PROTOCOL_VERSION, frame, header.id, &opened)) ||
        !fake_read_frame(descriptor, &header, body) || !fake_read_frame(descriptor, &header, body))
        return;
    protocol_result_write(frame, 9, 0, &result, 32);
    memset(frame + PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES, 0x11, 16);
    memset(frame + PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + 16, 0x22, 16);
    fake_write(descriptor, frame, PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + 32);
}

static void test_position_after_the_servers_death(void **state)
{
    struct fake_server server;
    struct millrace_position position = {.size = sizeof position};
    const uint8_t packet[32] = {0};
    uint8_t block[16];
    core_ns round_trip_ns;
    (void)state;
    fake_server_start(&server, dying_script, NULL);
    struct millrace *connection = connect_to(&server);
    assert_int_equal(open_stream(connection), 9);
    assert_int_equal(millrace_data(connection, 9, packet, sizeof packet, NULL, NULL), MILLRACE_OK);
    assert_int_equal(millrace_data(connection, 9, packet, sizeof packet, NULL, NULL), MILLRACE_OK);
    assert_int_not_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_int_equal(millrace_position_of(connection, 9, &position, NULL), MILLRACE_OK);
    assert_int_equal(position.answered, 1);
    memset(block, 0x22, sizeof block);
    assert_memory_equal(position.chain, block, sizeof block);
    finish(connection, &server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modify_blocking),   cmocka_unit_test(test_modify_with_callbacks),
        cmocka_unit_test(test_modified_too_late), cmocka_unit_test(test_notice),
        cmocka_unit_test(test_breaches),          cmocka_unit_test(test_version_1_server),
        cmocka_unit_test(test_position),          cmocka_unit_test(test_position_after_the_servers_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
