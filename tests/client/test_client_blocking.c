/* The blocking calls, against a server that does everything right and against many that do not. */
#include "client/millrace.h"
#include "tests/support/fake_server.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LONG_MS  20000 /* never reached unless something is broken */
#define SHORT_MS 50    /* reached by intention */

static const struct millrace_open contract = {
    .size = sizeof contract,
    .packet_bytes = 1000,
    .burst_packets = 4,
    .interval_ns = CORE_NS_PER_MS,
    .latency_ns = 20 * CORE_NS_PER_MS,
    .cipher = MILLRACE_CIPHER_AES_128_CBC,
    .padding = MILLRACE_PADDING_PKCS7,
    .key_kind = MILLRACE_KEY_INLINE,
    .key = (const uint8_t *)"0123456789abcdef",
    .key_bytes = 16,
};

static struct millrace *connect_to(const struct fake_server *server)
{
    struct millrace *connection = NULL;
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

/* ---- the good server ---- */

static void test_a_stream_from_open_to_close(void **state)
{
    (void)state;
    struct fake_server server;
    fake_server_start(&server, fake_serve, NULL);
    struct millrace *connection = connect_to(&server);
    assert_int_equal(millrace_welcome_of(connection)->packet_bytes_max, FAKE_PACKET_BYTES_MAX);
    uint32_t stream = open_stream(connection);
    assert_int_equal(stream, 1);
    for (uint32_t bytes = 0; bytes < 100; bytes++) {
        uint8_t packet[100], ciphertext[116], expected[116];
        uint32_t got;
        struct millrace_result result = {.size = sizeof result};
        memset(packet, (int)bytes, sizeof packet);
        assert_int_equal(
            millrace_encrypt(connection, stream, packet, bytes, LONG_MS, ciphertext, &got, &result, NULL),
            MILLRACE_OK);
        assert_int_equal(got, fake_encrypt(CORE_PADDING_PKCS7, packet, bytes, expected));
        assert_memory_equal(ciphertext, expected, got);
        assert_int_equal(result.flags, MILLRACE_RESULT_MET);
        assert_int_equal(result.latency_ns, 1000);
    }
    struct millrace_closed closed = {.size = sizeof closed};
    assert_int_equal(millrace_close_stream(connection, stream, LONG_MS, &closed, NULL), MILLRACE_OK);
    assert_int_equal(closed.packets, 100);
    assert_int_equal(closed.met, 100);
    millrace_disconnect(connection);
    fake_server_join(&server);
}

static void test_query_and_ping(void **state)
{
    (void)state;
    struct fake_server server;
    fake_server_start(&server, fake_serve, NULL);
    struct millrace *connection = connect_to(&server);
    struct millrace_opened opened = {.size = sizeof opened};
    assert_int_equal(millrace_query(connection, &contract, LONG_MS, &opened, NULL, NULL), MILLRACE_OK);
    assert_int_equal(opened.stream, 0);
    assert_int_equal(opened.bound_ns, contract.latency_ns);
    core_ns round_trip_ns = -1;
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_true(round_trip_ns > 0);
    millrace_disconnect(connection);
    fake_server_join(&server);
}

static void test_arguments_that_would_break_the_protocol(void **state)
{
    (void)state;
    struct fake_server server;
    fake_server_start(&server, fake_serve, NULL);
    struct millrace *connection = connect_to(&server);
    uint32_t stream = open_stream(connection);
    struct core_error error;
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_closed closed = {.size = sizeof closed};
    struct millrace_open open = contract;
    open.key_bytes = 17;
    assert_int_equal(millrace_open_stream(connection, &open, LONG_MS, &opened, NULL, error.text),
                     MILLRACE_INVALID);
    open.key_kind = MILLRACE_KEY_NONE;
    assert_int_equal(millrace_query(connection, &open, LONG_MS, &opened, NULL, error.text), MILLRACE_INVALID);
    open.key_kind = MILLRACE_KEY_NAMED;
    open.key_bytes = 64;
    assert_int_equal(millrace_open_stream(connection, &open, LONG_MS, &opened, NULL, error.text),
                     MILLRACE_INVALID);
    open.key_bytes = 0;
    assert_int_equal(millrace_open_stream(connection, &open, LONG_MS, &opened, NULL, error.text),
                     MILLRACE_INVALID);
    open.key = (const uint8_t *)"a\0b";
    open.key_bytes = 3;
    assert_int_equal(millrace_open_stream(connection, &open, LONG_MS, &opened, NULL, error.text),
                     MILLRACE_INVALID);
    static uint8_t packet[FAKE_PACKET_BYTES_MAX + 1];
    assert_int_equal(millrace_data(connection, stream, packet, sizeof packet, NULL, error.text),
                     MILLRACE_INVALID);
    assert_int_equal(millrace_data(connection, stream + 1, packet, 16, NULL, error.text), MILLRACE_NOT_FOUND);
    assert_int_equal(millrace_data(connection, 0, packet, 16, NULL, error.text), MILLRACE_NOT_FOUND);
    assert_int_equal(millrace_close_stream(connection, 99, LONG_MS, &closed, error.text), MILLRACE_NOT_FOUND);
    assert_int_equal(millrace_send_ping(connection, packet, 65, NULL, error.text), MILLRACE_INVALID);
    /* and the connection is as good as before */
    assert_int_equal(millrace_close_stream(connection, stream, LONG_MS, &closed, error.text), MILLRACE_OK);
    assert_int_equal(millrace_data(connection, stream, packet, 16, NULL, error.text), MILLRACE_NOT_FOUND);
    assert_int_equal(closed.packets, 0);
    millrace_disconnect(connection);
    fake_server_join(&server);
}

static void test_packet_that_is_not_encrypted(void **state)
{
    (void)state;
    struct fake_server server;
    fake_server_start(&server, fake_serve, NULL);
    struct millrace *connection = connect_to(&server);
    struct millrace_open open = contract;
    open.padding = MILLRACE_PADDING_NONE;
    struct millrace_opened opened = {.size = sizeof opened};
    assert_int_equal(millrace_open_stream(connection, &open, LONG_MS, &opened, NULL, NULL), MILLRACE_OK);
    uint8_t packet[32] = {0}, ciphertext[48];
    uint32_t bytes;
    struct millrace_result result = {.size = sizeof result};
    struct core_error error;
    assert_int_equal(millrace_encrypt(connection, opened.stream, packet, 17, LONG_MS, ciphertext, &bytes,
                                      &result, error.text),
                     MILLRACE_INVALID);
    assert_int_equal(result.status, MILLRACE_RESULT_NOT_BLOCKS);
    assert_int_equal(bytes, 0);
    assert_non_null(strstr(error.text, "not blocks"));
    assert_int_equal(millrace_encrypt(connection, opened.stream, packet, 32, LONG_MS, ciphertext, &bytes,
                                      &result, error.text),
                     MILLRACE_OK);
    assert_int_equal(bytes, 32);
    millrace_disconnect(connection);
    fake_server_join(&server);
}

/* ---- refusals ---- */

static void refuse_script(int descriptor, void *argument)
{
    (void)argument;
    static uint8_t body[FAKE_PACKET_BYTES_MAX];
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_header header;
    struct protocol_refused refused = {
        .code = PROTOCOL_REFUSED_CAPACITY, .constraint = 2, .offer_interval_ns = 7, .offer_latency_ns = 8};
    strcpy(refused.text, "the workers are full");
    if (!fake_welcome(descriptor))
        return;
    while (fake_read_frame(descriptor, &header, body))
        fake_write(descriptor, frame, protocol_refused_write(PROTOCOL_VERSION, frame, header.id, &refused));
}

static void test_refused(void **state)
{
    (void)state;
    struct fake_server server;
    fake_server_start(&server, refuse_script, NULL);
    struct millrace *connection = connect_to(&server);
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_refused refused = {.size = sizeof refused};
    struct core_error error;
    assert_int_equal(millrace_open_stream(connection, &contract, LONG_MS, &opened, &refused, error.text),
                     MILLRACE_REFUSED);
    assert_int_equal(refused.code, MILLRACE_REFUSED_CAPACITY);
    assert_int_equal(refused.constraint, 2);
    assert_int_equal(refused.offer_interval_ns, 7);
    assert_int_equal(refused.offer_latency_ns, 8);
    assert_string_equal(error.text, "refused (capacity): the workers are full");
    assert_int_equal(millrace_query(connection, &contract, LONG_MS, &opened, NULL, NULL), MILLRACE_REFUSED);
    millrace_disconnect(connection);
    fake_server_join(&server);
}

/* ---- silence ---- */

struct late {
    bool close_came;
    uint32_t closed_stream;
};

/* Answers the first OPEN only after the client's second frame has come, then expects a CLOSE. */
static void late_script(int descriptor, void *argument)
{
    static uint8_t body[FAKE_PACKET_BYTES_MAX];
    struct late *late = argument;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_header first, second, third;
    const struct protocol_opened opened = {.stream = 5, .unit = PROTOCOL_UNIT_CPU};
    if (!fake_welcome(descriptor) || !fake_read_frame(descriptor, &first, body) ||
        !fake_read_frame(descriptor, &second, body))
        return;
    fake_write(descriptor, frame, protocol_opened_write(PROTOCOL_VERSION, frame, first.id, &opened));
    fake_write(descriptor, frame, protocol_ping_write(frame, PROTOCOL_PONG, second.id, NULL, 0));
    if (!fake_await_frame(descriptor, PROTOCOL_CLOSE, &third, body))
        return;
    late->close_came = true;
    late->closed_stream = third.id;
    fake_write(descriptor, frame, protocol_closed_write(frame, third.id, &(struct protocol_closed){0}));
    if (fake_await_frame(descriptor, PROTOCOL_PING, &third, body))
        fake_write(descriptor, frame, protocol_ping_write(frame, PROTOCOL_PONG, third.id, NULL, 0));
}

static void count_calls_opened(void *argument, uint32_t request, const struct millrace_opened *opened)
{
    (void)request;
    (void)opened;
    ++*(int *)argument;
}

static void count_calls_closed(void *argument, uint32_t stream, const struct millrace_closed *closed)
{
    (void)stream;
    (void)closed;
    ++*(int *)argument;
}

static void test_stream_that_opens_too_late_is_closed(void **state)
{
    (void)state;
    struct fake_server server;
    struct late late = {0};
    int calls = 0;
    fake_server_start(&server, late_script, &late);
    struct millrace *connection = connect_to(&server);
    const struct millrace_callbacks callbacks = {.size = sizeof callbacks,
                                                 .on_opened = count_calls_opened,
                                                 .on_closed = count_calls_closed,
                                                 .argument = &calls};
    assert_int_equal(millrace_set_callbacks(connection, &callbacks, NULL), MILLRACE_OK);
    struct millrace_opened opened = {.size = sizeof opened};
    struct core_error error;
    core_ns round_trip_ns;
    assert_int_equal(millrace_open_stream(connection, &contract, SHORT_MS, &opened, NULL, error.text),
                     MILLRACE_TIMEOUT);
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_int_equal(millrace_data(connection, 5, "", 0, NULL, NULL), MILLRACE_NOT_FOUND);
    assert_int_equal(calls, 0);
    millrace_disconnect(connection);
    fake_server_join(&server);
    assert_true(late.close_came);
    assert_int_equal(late.closed_stream, 5);
}

static void silent_script(int descriptor, void *argument)
{
    (void)argument;
    uint8_t byte;
    if (fake_welcome(descriptor))
        while (fake_read(descriptor, &byte, 1))
            continue;
}

static void test_every_call_times_out(void **state)
{
    (void)state;
    struct fake_server server;
    fake_server_start(&server, silent_script, NULL);
    struct millrace *connection = connect_to(&server);
    struct millrace_opened opened = {.size = sizeof opened};
    core_ns round_trip_ns;
    struct core_error error;
    assert_int_equal(millrace_open_stream(connection, &contract, 0, &opened, NULL, error.text),
                     MILLRACE_TIMEOUT);
    assert_int_equal(millrace_query(connection, &contract, 1, &opened, NULL, error.text), MILLRACE_TIMEOUT);
    assert_int_equal(millrace_ping(connection, 1, &round_trip_ns, error.text), MILLRACE_TIMEOUT);
    assert_non_null(strstr(error.text, "in time"));
    millrace_disconnect(connection);
    fake_server_join(&server);
}

/* ---- an answer that comes too late, when there is no room for CLOSE ---- */

struct tardy {
    atomic_bool answers, closed;
};

/* Opens stream 1, leaves the next OPEN without an answer until it may, and then reads up to CLOSE of stream 2. */
static void tardy_script(int descriptor, void *argument)
{
    static uint8_t body[FAKE_PACKET_BYTES_MAX];
    struct tardy *tardy = argument;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_header header;
    if (!fake_welcome(descriptor))
        return;
    for (uint32_t stream = 1; stream <= 2; stream++) {
        const struct protocol_opened opened = {.stream = stream, .unit = PROTOCOL_UNIT_CPU};
        if (!fake_read_frame(descriptor, &header, body))
            return;
        while (stream == 2 && !atomic_load(&tardy->answers))
            poll(NULL, 0, 1);
        if (!fake_write(descriptor, frame,
                        protocol_opened_write(PROTOCOL_VERSION, frame, header.id, &opened)))
            return;
    }
    do
        if (!fake_await_frame(descriptor, PROTOCOL_CLOSE, &header, body))
            return;
    while (header.id != 2);
    atomic_store(&tardy->closed, true);
}

static void test_opened_too_late_with_a_full_buffer(void **state)
{
    static const uint8_t packet[1000];
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_position position = {.size = sizeof position};
    struct fake_server server;
    struct tardy tardy = {false, false};
    struct core_error error;
    (void)state;
    fake_server_start(&server, tardy_script, &tardy);
    struct millrace *connection = connect_to(&server);
    assert_int_equal(millrace_open_stream(connection, &contract, LONG_MS, &opened, NULL, NULL), MILLRACE_OK);
    assert_int_equal(millrace_open_stream(connection, &contract, 1, &opened, NULL, NULL), MILLRACE_TIMEOUT);
    millrace_status status;
    do
        status = millrace_data(connection, 1, packet, sizeof packet, NULL, NULL);
    while (status == MILLRACE_OK);
    assert_int_equal(status, MILLRACE_FULL);
    atomic_store(&tardy.answers, true);
    while (!atomic_load(&tardy.closed)) {
        struct pollfd ready = {.fd = millrace_descriptor(connection), .events = millrace_events(connection)};
        assert_true(poll(&ready, 1, LONG_MS) > 0);
        const bool ended = millrace_process(connection, 1, error.text) != MILLRACE_OK;
        if (ended && !atomic_load(&tardy.closed))
            fail_msg("%s", error.text);
    }
    assert_int_equal(millrace_position_of(connection, 1, &position, NULL), MILLRACE_OK); /* it is there */
    millrace_disconnect(connection);
    fake_server_join(&server);
}

/* ---- a server that is leaving ---- */

/* Says so together with WELCOME, once, and answers a PING. */
static void leaving_script(int descriptor, void *argument)
{
    static uint8_t body[FAKE_PACKET_BYTES_MAX];
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const struct protocol_notice notice = {.kind = PROTOCOL_NOTICE_LEAVING};
    struct protocol_header header;
    (void)argument;
    if (fake_welcome(descriptor) && fake_write(descriptor, frame, protocol_notice_write(frame, 0, &notice)) &&
        fake_await_frame(descriptor, PROTOCOL_PING, &header, body))
        (void)fake_write(descriptor, frame,
                         protocol_ping_write(frame, PROTOCOL_PONG, header.id, body, header.body_bytes));
}

static void count_notice(void *argument, uint32_t stream, const struct millrace_notice *notice)
{
    assert_int_equal(stream, 0);
    assert_int_equal(notice->kind, MILLRACE_NOTICE_LEAVING);
    ++*(unsigned *)argument;
}

static void test_leaving_before_there_are_callbacks(void **state)
{
    unsigned notices = 0;
    const struct millrace_callbacks callbacks = {
        .size = sizeof callbacks, .on_notice = count_notice, .argument = &notices};
    struct fake_server server;
    core_ns round_trip_ns;
    (void)state;
    fake_server_start(&server, leaving_script, NULL);
    struct millrace *connection = connect_to(&server);
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, NULL), MILLRACE_OK);
    assert_int_equal(millrace_set_callbacks(connection, &callbacks, NULL), MILLRACE_OK);
    (void)!millrace_process(connection, 1, NULL);
    assert_int_equal(notices, 1);
    (void)!millrace_process(connection, 1, NULL);
    assert_int_equal(notices, 1);
    millrace_disconnect(connection);
    fake_server_join(&server);
}

/* ---- servers that break the protocol or go away: what they send after one OPEN ---- */

struct bad {
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX + 2048];
    uint32_t bytes;
    bool opens;       /* first opens stream 9 properly and waits for a packet */
    uint32_t answers; /* offset of an id to be set to the request's; 0: none */
};

static void bad_script(int descriptor, void *argument)
{
    static uint8_t body[FAKE_PACKET_BYTES_MAX];
    struct bad *bad = argument;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_header header;
    const struct protocol_opened opened = {.stream = 9, .unit = PROTOCOL_UNIT_CPU};
    if (!fake_welcome(descriptor) || !fake_read_frame(descriptor, &header, body))
        return;
    if (bad->opens &&
        (!fake_write(descriptor, frame, protocol_opened_write(PROTOCOL_VERSION, frame, header.id, &opened)) ||
         !fake_read_frame(descriptor, &header, body)))
        return;
    if (bad->answers > 0)
        memcpy(bad->frame + bad->answers, &header.id, 4);
    fake_write(descriptor, bad->frame, bad->bytes);
}

static millrace_status open_and_encrypt(struct millrace *connection, bool opens, struct core_error *error)
{
    struct millrace_opened opened = {.size = sizeof opened};
    uint8_t packet[16] = {0}, ciphertext[4096];
    uint32_t bytes;
    struct millrace_result result = {.size = sizeof result};
    millrace_status status = millrace_open_stream(connection, &contract, LONG_MS, &opened, NULL, error->text);
    if (!opens)
        return status;
    assert_int_equal(status, MILLRACE_OK);
    return millrace_encrypt(connection, opened.stream, packet, 16, LONG_MS, ciphertext, &bytes, &result,
                            error->text);
}

static void check_bad(struct bad *bad, millrace_status expected, const char *words)
{
    struct fake_server server;
    struct core_error error = {.text = ""}, again = {.text = ""};
    fake_server_start(&server, bad_script, bad);
    struct millrace *connection = connect_to(&server);
    millrace_status status = open_and_encrypt(connection, bad->opens, &error);
    if (status != expected || strstr(error.text, words) == NULL)
        fail_msg("status %s, text \"%s\"; expected %s, \"%s\"", millrace_status_text(status), error.text,
                 millrace_status_text(expected), words);
    /* dead: every further call says so, with the first cause */
    core_ns round_trip_ns;
    assert_int_equal(millrace_ping(connection, LONG_MS, &round_trip_ns, again.text), MILLRACE_CLOSED);
    assert_string_equal(again.text, error.text);
    assert_int_equal(millrace_process(connection, 0, again.text), MILLRACE_CLOSED);
    assert_int_equal(millrace_flush(connection, again.text), MILLRACE_CLOSED);
    assert_int_equal(millrace_data(connection, 9, "", 0, NULL, again.text), MILLRACE_CLOSED);
    assert_int_equal(millrace_send_open(connection, &contract, NULL, again.text), MILLRACE_CLOSED);
    assert_int_equal(millrace_send_close(connection, 9, again.text), MILLRACE_CLOSED);
    assert_int_equal(millrace_unsent_bytes(connection), 0);
    millrace_disconnect(connection);
    fake_server_join(&server);
}

static void test_server_goes_away(void **state)
{
    (void)state;
    struct bad nothing = {.bytes = 0}, cut = {.bytes = 20}, after_open = {.opens = true};
    check_bad(&nothing, MILLRACE_CLOSED, "closed the connection");
    const struct protocol_opened opened = {.stream = 1, .unit = PROTOCOL_UNIT_CPU};
    protocol_opened_write(PROTOCOL_VERSION, cut.frame, 1, &opened);
    check_bad(&cut, MILLRACE_CLOSED, "in the middle of a frame");
    check_bad(&after_open, MILLRACE_CLOSED, "closed the connection");
}

static void test_fatal_error_is_told(void **state)
{
    (void)state;
    struct bad bad = {.bytes = 0};
    bad.bytes = protocol_error_write(bad.frame, 0, PROTOCOL_ERROR_SHUTDOWN, true, "bye");
    check_bad(&bad, MILLRACE_CLOSED, "(shutdown): bye");
}

static void test_garbage(void **state)
{
    (void)state;
    struct bad text = {.bytes = 40};
    memcpy(text.frame, "HTTP/1.1 400 Bad Request\r\nServer: other\r\n", 40);
    check_bad(&text, MILLRACE_INVALID, "is this a Millrace server");
    struct bad flags = {.bytes = 16, .frame = {[4] = PROTOCOL_PONG, [5] = 1}};
    check_bad(&flags, MILLRACE_INVALID, "broke the protocol");
    struct bad client_type = {.bytes = 16, .frame = {[4] = PROTOCOL_PING}};
    check_bad(&client_type, MILLRACE_INVALID, "broke the protocol");
    struct bad long_control = {.bytes = 16, .frame = {[1] = 3, [4] = PROTOCOL_PONG}};
    check_bad(&long_control, MILLRACE_INVALID, "768 bytes");
    struct bad long_result = {.bytes = 16, .frame = {[3] = 0x40, [4] = PROTOCOL_RESULT}};
    check_bad(&long_result, MILLRACE_INVALID, "1073741824 bytes");
    struct bad second_welcome = {.bytes = 64, .frame = {48, 0, 0, 0, PROTOCOL_WELCOME}};
    check_bad(&second_welcome, MILLRACE_INVALID, "second WELCOME");
}

static void test_answers_to_what_was_not_asked(void **state)
{
    (void)state;
    struct bad opened = {0}, refused = {0}, pong = {0}, pong_for_open = {.answers = 8};
    struct bad no_stream = {.answers = 8}, malformed = {.answers = 8}, taken = {.opens = true};
    struct protocol_opened good = {.stream = 1, .unit = PROTOCOL_UNIT_CPU};
    struct protocol_refused refusal = {.code = PROTOCOL_REFUSED_SPEC};
    opened.bytes = protocol_opened_write(PROTOCOL_VERSION, opened.frame, 0x7777, &good);
    check_bad(&opened, MILLRACE_INVALID, "which was not made");
    refused.bytes = protocol_refused_write(PROTOCOL_VERSION, refused.frame, 3, &refusal);
    check_bad(&refused, MILLRACE_INVALID, "which was not made");
    pong.bytes = protocol_ping_write(pong.frame, PROTOCOL_PONG, 3, NULL, 0);
    check_bad(&pong, MILLRACE_INVALID, "which was not made");
    pong_for_open.bytes = protocol_ping_write(pong_for_open.frame, PROTOCOL_PONG, 3, NULL, 0);
    check_bad(&pong_for_open, MILLRACE_INVALID, "which was not made");
    good.stream = 0;
    no_stream.bytes = protocol_opened_write(PROTOCOL_VERSION, no_stream.frame, 3, &good);
    check_bad(&no_stream, MILLRACE_INVALID, "zero or taken");
    malformed.bytes = protocol_opened_write(PROTOCOL_VERSION, malformed.frame, 3, &good);
    malformed.frame[PROTOCOL_HEADER_BYTES + 5] = 1;
    check_bad(&malformed, MILLRACE_INVALID, "OPENED field at 5");
    taken.bytes = protocol_closed_write(taken.frame, 8, &(struct protocol_closed){0});
    check_bad(&taken, MILLRACE_INVALID, "CLOSED for stream 8");
}

static void bad_result(struct bad *bad, uint32_t stream, uint32_t sequence, uint32_t cipher_bytes)
{
    const struct protocol_result result = {.status = PROTOCOL_RESULT_OK};
    *bad = (struct bad){.opens = true};
    protocol_result_write(bad->frame, stream, sequence, &result, cipher_bytes);
    bad->bytes = PROTOCOL_HEADER_BYTES + PROTOCOL_RESULT_BYTES + cipher_bytes;
}

static void test_results_that_can_not_be(void **state)
{
    (void)state;
    struct bad bad;
    bad_result(&bad, 8, 0, 32);
    check_bad(&bad, MILLRACE_INVALID, "RESULT for stream 8");
    bad_result(&bad, 9, 1, 32);
    check_bad(&bad, MILLRACE_INVALID, "expected is 0");
    bad_result(&bad, 9, 0, 1024);
    check_bad(&bad, MILLRACE_INVALID, "longer than a packet");
    bad_result(&bad, 9, 0, 48); /* not of a packet of 16 bytes: its caller has room for 32 */
    check_bad(&bad, MILLRACE_INVALID, "48 bytes, more than its packet can become");
    bad_result(&bad, 9, 0, 17);
    check_bad(&bad, MILLRACE_INVALID, "17 bytes of ciphertext");
    bad_result(&bad, 9, 0, 32); /* twice: the second was never sent for */
    memcpy(bad.frame + bad.bytes, bad.frame, bad.bytes);
    bad.frame[bad.bytes + 12] = 1;
    bad.bytes *= 2;
    struct fake_server server;
    struct core_error error;
    core_ns round_trip_ns;
    fake_server_start(&server, bad_script, &bad);
    struct millrace *connection = connect_to(&server);
    assert_int_equal(open_and_encrypt(connection, true, &error), MILLRACE_OK);
    assert_true(millrace_ping(connection, LONG_MS, &round_trip_ns, error.text) != MILLRACE_OK);
    assert_non_null(strstr(error.text, "RESULT 1 of stream 9"));
    millrace_disconnect(connection);
    fake_server_join(&server);
}

static void test_stream_closed_under_a_waiting_packet(void **state)
{
    (void)state;
    struct bad bad = {.opens = true};
    const struct protocol_closed closed = {.reason = PROTOCOL_CLOSE_FAILED};
    struct fake_server server;
    struct core_error error;
    bad.bytes = protocol_closed_write(bad.frame, 9, &closed);
    fake_server_start(&server, bad_script, &bad);
    struct millrace *connection = connect_to(&server);
    assert_int_equal(open_and_encrypt(connection, true, &error), MILLRACE_CLOSED);
    assert_non_null(strstr(error.text, "stream 9 was closed before packet 0"));
    millrace_disconnect(connection);
    fake_server_join(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stream_from_open_to_close),
        cmocka_unit_test(test_query_and_ping),
        cmocka_unit_test(test_arguments_that_would_break_the_protocol),
        cmocka_unit_test(test_packet_that_is_not_encrypted),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_stream_that_opens_too_late_is_closed),
        cmocka_unit_test(test_every_call_times_out),
        cmocka_unit_test(test_opened_too_late_with_a_full_buffer),
        cmocka_unit_test(test_leaving_before_there_are_callbacks),
        cmocka_unit_test(test_server_goes_away),
        cmocka_unit_test(test_fatal_error_is_told),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_answers_to_what_was_not_asked),
        cmocka_unit_test(test_results_that_can_not_be),
        cmocka_unit_test(test_stream_closed_under_a_waiting_packet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
