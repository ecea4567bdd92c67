/* Sentences of docs/protocol.md, each of which is on the page and then true of a server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <ctype.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/client.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#define PAGE_BYTES 65536

static struct test_server server;
static struct test_client client;
static uint8_t bytes[64 * TEST_FRAME_BYTES];

/* The page with every run of white space as one blank. */
static const char *page(void)
{
    static char text[PAGE_BYTES];
    size_t length = 0;
    FILE *file = fopen(MILLRACE_SOURCE_DIR "/docs/protocol.md", "r");
    TEST_REQUIRE(file != NULL);
    for (int c; (c = fgetc(file)) != EOF && length < PAGE_BYTES - 1;)
        if (!isspace(c))
            text[length++] = (char)c;
        else if (length > 0 && text[length - 1] != ' ')
            text[length++] = ' ';
    TEST_REQUIRE(length < PAGE_BYTES - 1 && fclose(file) == 0);
    text[length] = '\0';
    return text;
}

static void says(const char *sentence)
{
    if (strstr(page(), sentence) == NULL)
        fail_msg("the page does not say: %s", sentence);
}

static int set_up(void **state)
{
    (void)state;
    memset(&server, 0, sizeof server);
    test_server_start(&server, "", &test_profile_generous);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return test_server_stop(&server) == 0 ? 0 : -1;
}

static void begin(void)
{
    test_client_dial(&client, test_server_unix(&server));
    test_client_hello_version(&client, 2, NULL);
}

/* A bare header with zeros for a body. */
static size_t write_frame(uint8_t *at, uint8_t type, uint32_t body_bytes, uint32_t id, uint32_t sequence)
{
    struct protocol_header header = {.body_bytes = body_bytes, .type = type, .id = id, .sequence = sequence};
    protocol_header_write(at, &header);
    memset(at + PROTOCOL_HEADER_BYTES, 0, body_bytes);
    return PROTOCOL_HEADER_BYTES + body_bytes;
}

/* ---- lengths ---- */

static void a_length_that_is_wrong_twice(void **state)
{
    struct core_stream_spec spec = test_spec;
    struct test_frame frame;
    (void)state;
    says("| 2 | longer than the stream's `packet_bytes`, whether a multiple of 16 or not: not encrypted, "
         "chain "
         "unchanged |");
    begin();
    spec.packet_bytes = 64;
    struct test_stream *stream = test_stream_open(&client, &spec, 1);
    static const struct {
        uint32_t length;
        uint8_t status;
    } rows[] = {{65, 2}, {79, 2}, {80, 2}, {63, 1}, {0, 1}};
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_true(test_client_send(&client, bytes,
                                     write_frame(bytes, PROTOCOL_DATA, rows[i].length, stream->id, i)));
        test_client_expect(&client, PROTOCOL_RESULT, &frame);
        assert_int_equal(frame.header.sequence, i);
        assert_int_equal(frame.body[0], rows[i].status);
    }
    test_stream_free(stream);
    test_client_close(&client);
}

/* ---- which ERROR ---- */

struct wrong {
    uint8_t type, flags;
    uint32_t body_bytes, id, sequence;
    enum protocol_error code;
};

static void expect_code(const struct wrong *wrong)
{
    struct test_frame frame;
    size_t count = write_frame(bytes, wrong->type, wrong->body_bytes, wrong->id, wrong->sequence);
    bytes[5] = wrong->flags;
    (void)test_client_send(&client, bytes, count);
    test_client_expect(&client, PROTOCOL_ERROR, &frame);
    if (frame.body[0] != wrong->code || frame.body[2] != 1)
        fail_msg("type %u, flags %u, %u bytes, id %u, sequence %u: ERROR %u, not %d", wrong->type,
                 wrong->flags, wrong->body_bytes, wrong->id, wrong->sequence, frame.body[0], wrong->code);
    test_client_expect_end(&client);
    test_client_close(&client);
}

/* Everything else is wrong with these frames, too. */
static void before_hello_it_is_4(void **state)
{
    (void)state;
    says("| 4 | any frame before HELLO, of whatever type, or a second HELLO; v3: LANE at a wrong time,");
    says("only the first error that applies is sent, in this order: 4 for a frame before HELLO;");
    for (unsigned type = 0; type < 256; type++) {
        struct wrong wrong = {(uint8_t)type, type & 1, type % 70, type & 2, type & 4, PROTOCOL_ERROR_STATE};
        if (type == PROTOCOL_HELLO)
            continue;
        test_client_dial(&client, test_server_unix(&server));
        expect_code(&wrong);
    }
}

static void then_one_after_the_other(void **state)
{
    static const struct wrong rows[] = {
        {0, 1, 3, 1, 1, PROTOCOL_ERROR_UNKNOWN_TYPE},
        {200, 1, 3, 1, 1, PROTOCOL_ERROR_UNKNOWN_TYPE},
        {PROTOCOL_WELCOME, 1, 3, 1, 1, PROTOCOL_ERROR_UNKNOWN_TYPE},
        {PROTOCOL_WELCOME, 0, 48, 0, 0, PROTOCOL_ERROR_UNKNOWN_TYPE},
        {PROTOCOL_RESULT, 0, 16, 1, 0, PROTOCOL_ERROR_UNKNOWN_TYPE},
        {PROTOCOL_HELLO, 1, 3, 0, 0, PROTOCOL_ERROR_MALFORMED},
        {PROTOCOL_HELLO, 0, 3, 1, 0, PROTOCOL_ERROR_MALFORMED},
        {PROTOCOL_PING, 1, 65, 1, 0, PROTOCOL_ERROR_MALFORMED},
        {PROTOCOL_PING, 0, 65, 1, 1, PROTOCOL_ERROR_MALFORMED},
        {PROTOCOL_CLOSE, 0, 1, 77, 1, PROTOCOL_ERROR_MALFORMED},
        {PROTOCOL_HELLO, 0, 3, 0, 0, PROTOCOL_ERROR_STATE},
        {PROTOCOL_HELLO, 0, 8, 0, 0, PROTOCOL_ERROR_STATE}, /* without a magic, too */
        {PROTOCOL_PING, 0, 65, 1, 0, PROTOCOL_ERROR_OVERSIZED},
        {PROTOCOL_CLOSE, 0, 1, 77, 0, PROTOCOL_ERROR_OVERSIZED}, /* and no such stream */
        {PROTOCOL_MODIFY, 0, 23, 1, 0, PROTOCOL_ERROR_OVERSIZED},
    };
    (void)state;
    says("3; 1 for a header field; 4 for a second HELLO; 2;");
    says("Once the body is there follow 1 for the body, 4 for LANE (v3), 5, and 9.");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        begin();
        expect_code(&rows[i]);
    }
    begin();
    size_t count = write_frame(bytes, PROTOCOL_OPEN, 32, 1, 0);
    bytes[PROTOCOL_HEADER_BYTES + 26] = 3; /* a key kind that there is not; all numbers out of range, too */
    assert_true(test_client_send(&client, bytes, count));
    test_client_expect_error(&client, PROTOCOL_ERROR_MALFORMED, 0, true);
    test_client_close(&client);
}

/* Longer than the server takes, of no stream, and with a wrong sequence; then without the length. */
static void of_data_2_then_6_then_7(void **state)
{
    struct protocol_header header = {
        .type = PROTOCOL_DATA, .body_bytes = UINT32_MAX, .id = 77, .sequence = 9};
    struct test_frame frame;
    (void)state;
    says("2; 6 for DATA and CLOSE; 7 for DATA");
    begin();
    protocol_header_write(bytes, &header);
    assert_true(test_client_send(&client, bytes, PROTOCOL_HEADER_BYTES));
    test_client_expect_error(&client, PROTOCOL_ERROR_OVERSIZED, 77, true);
    test_client_close(&client);
    begin();
    struct test_stream *stream = test_stream_open(&client, &test_spec, 1);
    assert_true(test_client_send(&client, bytes, write_frame(bytes, PROTOCOL_DATA, 16, 77, 9)));
    test_client_expect(&client, PROTOCOL_ERROR, &frame);
    assert_int_equal(frame.body[0], PROTOCOL_ERROR_STREAM);
    assert_true(test_client_send(&client, bytes, write_frame(bytes, PROTOCOL_DATA, 16, stream->id, 9)));
    test_client_expect_error(&client, PROTOCOL_ERROR_SEQUENCE, stream->id, true);
    test_stream_free(stream);
    test_client_close(&client);
}

/* ---- after a fatal ERROR ---- */

/* Packets and questions, and then a breach, in one write: some answers in order, the ERROR, and the end. */
static void nothing_comes_after_a_fatal_error(void **state)
{
    enum { PACKETS = 20 };
    struct test_frame frame;
    (void)state;
    says("**After a fatal ERROR** nothing more comes. Of the packets and requests that the server had "
         "accepted before, those are answered whose answers were on their way before the ERROR; the rest is "
         "dropped.");
    says("(except those that a fatal ERROR cuts off, section 7)");
    for (int round = 0; round < 20; round++) {
        uint32_t results = 0;
        size_t count = 0;
        bool failed = false;
        begin();
        struct test_stream *stream = test_stream_open(&client, &test_spec, 1);
        for (int i = 0; i < PACKETS; i++)
            count += test_stream_frame(stream, 160, bytes + count);
        count += write_frame(bytes + count, PROTOCOL_PING, 0, 5, 0);
        count += write_frame(bytes + count, 99, 0, 0, 0);
        assert_true(test_client_send(&client, bytes, count));
        while (!failed) {
            assert_int_equal(test_client_next(&client, &frame, TEST_PATIENCE_MS), TEST_FRAME);
            failed = frame.header.type == PROTOCOL_ERROR;
            if (frame.header.type != PROTOCOL_RESULT)
                continue;
            (void)test_stream_check(stream, &frame); /* in order, and right */
            results++;
        }
        assert_true(results <= PACKETS);
        assert_int_equal(frame.body[0], PROTOCOL_ERROR_UNKNOWN_TYPE);
        test_client_expect_end(&client);
        test_stream_free(stream);
        test_client_close(&client);
    }
}

/* ---- half a frame ---- */

static void half_a_frame_and_no_more(void **state)
{
    struct test_frame frame;
    (void)state;
    says("If the client shuts down in the middle of a frame, that frame is dropped, without an ERROR.");
    says("Before its HELLO was read whole, the server closes without an answer.");
    for (size_t cut = 1; cut < PROTOCOL_HEADER_BYTES + 160; cut += 29) { /* in the header, in the body */
        begin();
        struct test_stream *stream = test_stream_open(&client, &test_spec, 1);
        size_t count = test_stream_frame(stream, 160, bytes);
        (void)test_stream_frame(stream, 160, bytes + count);
        stream->sent--;
        assert_true(test_client_send(&client, bytes, count + cut));
        test_client_half_close(&client);
        (void)test_streams_take(&client, &stream);
        test_client_expect(&client, PROTOCOL_CLOSED, &frame);
        assert_int_equal(frame.header.id, stream->id);
        test_client_expect_end(&client);
        test_stream_free(stream);
        test_client_close(&client);
    }
    for (size_t cut = 0; cut < PROTOCOL_HEADER_BYTES + PROTOCOL_HELLO_BYTES; cut += 5) {
        test_client_dial(&client, test_server_unix(&server));
        (void)protocol_hello_write(bytes, 1, 2);
        assert_true(test_client_send(&client, bytes, cut));
        test_client_half_close(&client);
        test_client_expect_end(&client);
        test_client_close(&client);
    }
}

/* ---- the end ---- */

static void *run_stop(void *argument)
{
    TEST_REQUIRE(test_server_stop(argument) == 0);
    return NULL;
}

/* A client that keeps its end open does not keep the server, and who comes later hears nothing. */
static void the_end_of_a_server(void **state)
{
    struct core_address address;
    struct core_error error;
    pthread_t thread;
    int late;
    (void)state;
    says("The server ends when all clients have closed their ends of the connections after ERROR 10, or a "
         "second "
         "later.");
    says("A connection that is made after the server was told to stop is refused, or ends without a byte.");
    (void)set_up(NULL);
    address = *test_server_unix(&server);
    begin();
    assert_int_equal(pthread_create(&thread, NULL, run_stop, &server), 0);
    test_client_expect_error(&client, PROTOCOL_ERROR_SHUTDOWN, 0, true);
    if (core_address_connect(&address, 1000, &late, &error) == CORE_OK) {
        struct pollfd ending = {.fd = late, .events = POLLIN};
        uint8_t byte;
        assert_int_equal(poll(&ending, 1, TEST_PATIENCE_MS), 1);
        assert_true(recv(late, &byte, 1, 0) <= 0);
        close(late);
    }
    assert_int_equal(pthread_join(thread, NULL), 0); /* with our end open */
    test_client_close(&client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_length_that_is_wrong_twice, set_up, tear_down),
        cmocka_unit_test_setup_teardown(before_hello_it_is_4, set_up, tear_down),
        cmocka_unit_test_setup_teardown(then_one_after_the_other, set_up, tear_down),
        cmocka_unit_test_setup_teardown(of_data_2_then_6_then_7, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_comes_after_a_fatal_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(half_a_frame_and_no_more, set_up, tear_down),
        cmocka_unit_test(the_end_of_a_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
