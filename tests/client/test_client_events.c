/* The event-driven calls: many streams, batches, a server that dribbles or does not read, and what callbacks
 * may do. */
#include "client/millrace.h"
#include "client/output.h"
#include "tests/support/fake_server.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define LONG_MS 20000
#define STREAMS 500
#define PACKETS 20

static const struct millrace_open contract = {
    .size = sizeof contract,
    .packet_bytes = 1000,
    .burst_packets = 4,
    .interval_ns = CORE_NS_PER_MS,
    .latency_ns = 20 * CORE_NS_PER_MS,
    .cipher = MILLRACE_CIPHER_AES_128_CBC,
    .padding = MILLRACE_PADDING_PKCS7,
    .key_kind = MILLRACE_KEY_NAMED,
    .key = (const uint8_t *)"some-key",
    .key_bytes = 8,
};

/* What the callbacks have seen. They can assert: they run on the test's own thread. */
struct seen {
    struct millrace *connection;
    unsigned opened, results, closed, pongs, errors;
    uint32_t stream[STREAMS];       /* ids, in the order of OPENED */
    uint32_t answered[STREAMS + 1]; /* next sequence, by stream id */
    bool answer_with_data;          /* on_result sends the next packet itself */
};

static void make_packet(uint8_t *packet, uint32_t bytes, uint32_t stream, uint32_t sequence)
{
    for (uint32_t i = 0; i < bytes; i++)
        packet[i] = (uint8_t)(stream * 31 + sequence * 7 + i);
}

static uint32_t packet_length(uint32_t stream, uint32_t sequence)
{
    return (stream * 131 + sequence * 97) % 1001;
}

static void send_next(struct seen *seen, uint32_t stream, uint32_t expected)
{
    uint8_t packet[1000];
    uint32_t sequence, bytes = packet_length(stream, expected);
    make_packet(packet, bytes, stream, expected);
    assert_int_equal(millrace_data(seen->connection, stream, packet, bytes, &sequence, NULL), MILLRACE_OK);
    assert_int_equal(sequence, expected);
}

static void on_result(void *argument, const struct millrace_result *result)
{
    struct seen *seen = argument;
    uint8_t packet[1000], expected[1016];
    uint32_t bytes = packet_length(result->stream, result->sequence);
    assert_int_equal(result->sequence, seen->answered[result->stream]++);
    make_packet(packet, bytes, result->stream, result->sequence);
    assert_int_equal(result->bytes, fake_encrypt(CORE_PADDING_PKCS7, packet, bytes, expected));
    assert_memory_equal(result->ciphertext, expected, result->bytes);
    seen->results++;
    if (seen->answer_with_data && result->sequence + 1 < PACKETS)
        send_next(seen, result->stream, result->sequence + 1);
}

static void on_opened(void *argument, uint32_t request, const struct millrace_opened *opened)
{
    struct seen *seen = argument;
    (void)request;
    seen->stream[seen->opened++] = opened->stream;
}

static void on_closed(void *argument, uint32_t stream, const struct millrace_closed *closed)
{
    struct seen *seen = argument;
    assert_int_equal(closed->packets, seen->answered[stream]);
    seen->closed++;
}

static void on_pong(void *argument, uint32_t request, const uint8_t *payload, uint32_t bytes)
{
    struct seen *seen = argument;
    (void)request;
    assert_int_equal(bytes, 5);
    assert_memory_equal(payload, "hello", 5);
    seen->pongs++;
}

static void on_error(void *argument, uint32_t id, enum millrace_error code, bool fatal, const char *text)
{
    struct seen *seen = argument;
    assert_int_equal(id, 0);
    assert_int_equal(code, MILLRACE_ERROR_STREAM);
    assert_false(fatal);
    assert_string_equal(text, "which stream?");
    seen->errors++;
}

static const struct millrace_callbacks callbacks = {.size = sizeof callbacks,
                                                    .on_result = on_result,
                                                    .on_opened = on_opened,
                                                    .on_closed = on_closed,
                                                    .on_pong = on_pong,
                                                    .on_error = on_error};

static void begin(struct fake_server *server, fake_script *script, void *argument, struct seen *seen)
{
    struct millrace_callbacks with_argument = callbacks;
    struct core_error error;
    *seen = (struct seen){0};
    fake_server_start(server, script, argument);
    if (millrace_connect(server->address, NULL, LONG_MS, &seen->connection, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    with_argument.argument = seen;
    assert_int_equal(millrace_set_callbacks(seen->connection, &with_argument, NULL), MILLRACE_OK);
}

static void end(struct fake_server *server, struct seen *seen)
{
    millrace_disconnect(seen->connection);
    fake_server_join(server);
}

static void process_until(struct seen *seen, const unsigned *counter, unsigned value, unsigned reads)
{
    struct core_error error;
    while (*counter < value) {
        struct pollfd ready = {.fd = millrace_descriptor(seen->connection),
                               .events = millrace_events(seen->connection)};
        assert_int_equal(poll(&ready, 1, LONG_MS), 1);
        if (millrace_process(seen->connection, reads, error.text) != MILLRACE_OK)
            fail_msg("%s", error.text);
    }
    assert_int_equal(*counter, value);
}

static void open_streams(struct seen *seen, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(millrace_send_open(seen->connection, &contract, NULL, NULL), MILLRACE_OK);
    process_until(seen, &seen->opened, count, 0);
}

static void test_many_streams(void **state)
{
    (void)state;
    struct fake_server server;
    static struct seen seen;
    begin(&server, fake_serve, NULL, &seen);
    open_streams(&seen, STREAMS);
    for (uint32_t sequence = 0; sequence < PACKETS; sequence++)
        for (unsigned i = 0; i < STREAMS; i++)
            send_next(&seen, seen.stream[i], sequence);
    assert_true(millrace_unsent_bytes(seen.connection) > 0);
    assert_true(millrace_events(seen.connection) & POLLOUT);
    process_until(&seen, &seen.results, STREAMS * PACKETS, 3);
    assert_int_equal(millrace_unsent_bytes(seen.connection), 0);
    assert_int_equal(millrace_events(seen.connection), POLLIN);
    for (unsigned i = 0; i < STREAMS; i++)
        assert_int_equal(millrace_send_close(seen.connection, seen.stream[i], NULL), MILLRACE_OK);
    assert_int_equal(millrace_data(seen.connection, seen.stream[0], "", 0, NULL, NULL), MILLRACE_NOT_FOUND);
    process_until(&seen, &seen.closed, STREAMS, 0);
    end(&server, &seen);
}

static void test_callbacks_that_send(void **state)
{
    (void)state;
    struct fake_server server;
    static struct seen seen;
    begin(&server, fake_serve, NULL, &seen);
    seen.answer_with_data = true;
    open_streams(&seen, 50);
    for (unsigned i = 0; i < 50; i++)
        send_next(&seen, seen.stream[i], 0);
    process_until(&seen, &seen.results, 50 * PACKETS, 0);
    end(&server, &seen);
}

static void test_packets_filled_in_place(void **state)
{
    (void)state;
    struct fake_server server;
    static struct seen seen;
    begin(&server, fake_serve, NULL, &seen);
    open_streams(&seen, 1);
    for (uint32_t expected = 0; expected < 300; expected++) {
        uint8_t *room;
        uint32_t sequence, bytes = packet_length(seen.stream[0], expected);
        assert_int_equal(
            millrace_data_reserve(seen.connection, seen.stream[0], bytes, &room, &sequence, NULL),
            MILLRACE_OK);
        assert_int_equal(sequence, expected);
        make_packet(room, bytes, seen.stream[0], expected);
    }
    assert_int_equal(millrace_flush(seen.connection, NULL), MILLRACE_OK);
    process_until(&seen, &seen.results, 300, 1);
    end(&server, &seen);
}

static void test_ping_with_payload(void **state)
{
    (void)state;
    struct fake_server server;
    static struct seen seen;
    uint32_t request = 0;
    begin(&server, fake_serve, NULL, &seen);
    assert_int_equal(millrace_send_ping(seen.connection, "hello", 5, &request, NULL), MILLRACE_OK);
    assert_true(request != 0);
    process_until(&seen, &seen.pongs, 1, 0);
    end(&server, &seen);
}

/* ---- the server dribbles: one byte a write ---- */

static void dribble(int from, int to)
{
    uint8_t byte;
    while (fake_read(from, &byte, 1) && fake_write(to, &byte, 1))
        continue;
}

struct inner {
    int descriptor;
};

static void *serve_inside(void *argument)
{
    struct inner *inner = argument;
    fake_serve(inner->descriptor, NULL);
    close(inner->descriptor);
    return NULL;
}

static void *dribble_up(void *argument)
{
    const int *pair = argument;
    dribble(pair[0], pair[1]);
    shutdown(pair[1], SHUT_WR);
    return NULL;
}

/* A good server behind a wire that carries single bytes, both ways. */
static void dribble_script(int descriptor, void *argument)
{
    (void)argument;
    int ends[2];
    pthread_t up, server;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        abort();
    struct inner inner = {ends[1]};
    int wire[2] = {descriptor, ends[0]};
    pthread_create(&server, NULL, serve_inside, &inner);
    pthread_create(&up, NULL, dribble_up, wire);
    dribble(ends[0], descriptor);
    pthread_join(up, NULL);
    pthread_join(server, NULL);
    close(ends[0]);
}

static void test_single_bytes(void **state)
{
    (void)state;
    struct fake_server server;
    static struct seen seen;
    begin(&server, dribble_script, NULL, &seen);
    open_streams(&seen, 2);
    for (uint32_t sequence = 0; sequence < 4; sequence++)
        for (unsigned i = 0; i < 2; i++)
            send_next(&seen, seen.stream[i], sequence);
    process_until(&seen, &seen.results, 8, 1);
    end(&server, &seen);
}

/* ---- the server does not read ---- */

/* Grants one stream, then reads nothing until a byte comes through the pipe. */
static void stall_script(int descriptor, void *argument)
{
    static uint8_t body[FAKE_PACKET_BYTES_MAX];
    const int *go = argument;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX], byte;
    struct protocol_header header;
    const struct protocol_opened opened = {.stream = 1, .unit = PROTOCOL_UNIT_CPU};
    if (!fake_welcome(descriptor) || !fake_read_frame(descriptor, &header, body) ||
        !fake_write(descriptor, frame, protocol_opened_write(PROTOCOL_VERSION, frame, header.id, &opened)))
        return;
    if (read(*go, &byte, 1) == 1)
        while (fake_read_frame(descriptor, &header, body))
            if (header.type == PROTOCOL_PING)
                fake_write(descriptor, frame,
                           protocol_ping_write(frame, PROTOCOL_PONG, header.id, body, header.body_bytes));
}

static void test_output_is_bounded(void **state)
{
    (void)state;
    struct fake_server server;
    static struct seen seen;
    static uint8_t packet[60000];
    int go[2];
    assert_int_equal(pipe(go), 0);
    begin(&server, stall_script, &go[0], &seen);
    open_streams(&seen, 1);
    millrace_status status;
    struct core_error error;
    size_t packets = 0;
    while ((status = millrace_data(seen.connection, 1, packet, sizeof packet, NULL, error.text)) ==
           MILLRACE_OK) {
        packets++;
        assert_int_equal(millrace_flush(seen.connection, NULL), MILLRACE_OK);
        assert_true(packets < 1000);
    }
    assert_int_equal(status, MILLRACE_FULL);
    assert_non_null(strstr(error.text, "no room"));
    assert_true(millrace_unsent_bytes(seen.connection) <= CLIENT_OUTPUT_BYTES_MAX);
    assert_true(millrace_unsent_bytes(seen.connection) + sizeof packet + 16 > CLIENT_OUTPUT_BYTES_MAX);
    core_ns round_trip_ns;
    assert_int_equal(millrace_ping(seen.connection, 20, &round_trip_ns, error.text), MILLRACE_TIMEOUT);
    assert_int_equal(write(go[1], "g", 1), 1);
    while ((status = millrace_send_ping(seen.connection, "hello", 5, NULL, NULL)) == MILLRACE_FULL)
        assert_int_equal(millrace_process(seen.connection, 0, NULL), MILLRACE_OK);
    assert_int_equal(status, MILLRACE_OK);
    process_until(&seen, &seen.pongs, 1, 0);
    end(&server, &seen);
    close(go[0]);
    close(go[1]);
}

/* ---- what callbacks must not do; errors that are not fatal ---- */

static void error_script(int descriptor, void *argument)
{
    static uint8_t body[FAKE_PACKET_BYTES_MAX];
    struct protocol_header header;
    (void)argument;
    if (!fake_welcome(descriptor))
        return;
    while (fake_read_frame(descriptor, &header, body))
        fake_write_error(descriptor, PROTOCOL_ERROR_STREAM, false, "which stream?");
}

static void try_forbidden_calls(void *argument, uint32_t id, enum millrace_error code, bool fatal,
                                const char *text)
{
    struct seen *seen = argument;
    core_ns round_trip_ns;
    on_error(argument, id, code, fatal, text);
    assert_int_equal(millrace_process(seen->connection, 0, NULL), MILLRACE_INVALID);
    assert_int_equal(millrace_ping(seen->connection, 10, &round_trip_ns, NULL), MILLRACE_INVALID);
    assert_int_equal(millrace_flush(seen->connection, NULL), MILLRACE_OK);
    assert_int_equal(millrace_unsent_bytes(seen->connection), 0);
}

static void test_errors_and_forbidden_calls(void **state)
{
    (void)state;
    struct fake_server server;
    static struct seen seen;
    begin(&server, error_script, NULL, &seen);
    const struct millrace_callbacks forbidden = {
        .size = sizeof forbidden, .on_error = try_forbidden_calls, .argument = &seen};
    assert_int_equal(millrace_set_callbacks(seen.connection, &forbidden, NULL), MILLRACE_OK);
    assert_int_equal(millrace_send_ping(seen.connection, NULL, 0, NULL, NULL), MILLRACE_OK);
    process_until(&seen, &seen.errors, 1, 0);
    end(&server, &seen);
}

static void test_unanswered_requests_are_bounded(void **state)
{
    (void)state;
    struct fake_server server;
    static struct seen seen;
    struct core_error error;
    begin(&server, error_script, NULL, &seen);
    for (unsigned i = 0; i < 1024; i++)
        assert_int_equal(millrace_send_query(seen.connection, &contract, NULL, NULL), MILLRACE_OK);
    assert_int_equal(millrace_send_query(seen.connection, &contract, NULL, error.text), MILLRACE_FULL);
    assert_non_null(strstr(error.text, "unanswered"));
    end(&server, &seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_streams),
        cmocka_unit_test(test_callbacks_that_send),
        cmocka_unit_test(test_packets_filled_in_place),
        cmocka_unit_test(test_ping_with_payload),
        cmocka_unit_test(test_single_bytes),
        cmocka_unit_test(test_output_is_bounded),
        cmocka_unit_test(test_errors_and_forbidden_calls),
        cmocka_unit_test(test_unanswered_requests_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
