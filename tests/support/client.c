#include "tests/support/client.h"

#include "tests/support/require.h"

#include <errno.h>
#include <linux/sockios.h>
#include <openssl/err.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define FILL_BYTES 65536

void test_client_dial(struct test_client *client, const struct core_address *address)
{
    struct core_error error = {""};
    memset(client, 0, sizeof *client);
    if (core_address_connect(address, TEST_PATIENCE_MS, &client->descriptor, &error) != CORE_OK) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
}

static void await(const struct test_client *client, short events, int timeout_ms)
{
    struct pollfd ready = {.fd = client->descriptor, .events = client->shares ? POLLIN : events};
    (void)poll(&ready, 1, timeout_ms);
}

bool test_client_secure(struct test_client *client, SSL_CTX *context)
{
    client->tls = SSL_new(context);
    TEST_REQUIRE(client->tls != NULL && SSL_set_fd(client->tls, client->descriptor) == 1);
    for (;;) {
        int result = SSL_connect(client->tls);
        int reason = SSL_get_error(client->tls, result);
        if (result == 1)
            return true;
        if (reason != SSL_ERROR_WANT_READ && reason != SSL_ERROR_WANT_WRITE) {
            client->ended = true;
            ERR_clear_error(); /* or it would be taken for one of the next connection's */
            return false;
        }
        await(client, reason == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, TEST_PATIENCE_MS);
    }
}

void test_client_close(struct test_client *client)
{
    core_lane_free(&client->lane);
    SSL_free(client->tls);
    if (client->descriptor >= 0)
        close(client->descriptor);
    free(client->input);
    *client = (struct test_client){.descriptor = -1};
}

void test_client_half_close(struct test_client *client)
{
    if (client->tls != NULL)
        (void)SSL_shutdown(client->tls);
    TEST_REQUIRE(shutdown(client->descriptor, SHUT_WR) == 0);
}

static ssize_t lane_outcome(core_status status, size_t bytes)
{
    errno = status == CORE_AGAIN ? EAGAIN : EPIPE;
    return bytes > 0 ? (ssize_t)bytes : status == CORE_NOT_FOUND ? 0 : -1;
}

static ssize_t write_some(struct test_client *client, const uint8_t *bytes, size_t count)
{
    if (client->shares) {
        const struct iovec all = {.iov_base = (uint8_t *)bytes, .iov_len = count};
        size_t taken;
        core_status status = core_lane_write(&client->lane, &all, 1, &taken);
        return lane_outcome(status, taken);
    }
    if (client->tls == NULL)
        return send(client->descriptor, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    size_t written;
    int result = SSL_write_ex(client->tls, bytes, count, &written);
    if (result == 1)
        return (ssize_t)written;
    int reason = SSL_get_error(client->tls, result);
    errno = reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE ? EAGAIN : EPIPE;
    return -1;
}

bool test_client_send(struct test_client *client, const void *bytes, size_t count)
{
    const uint8_t *next = bytes;
    while (count > 0) {
        ssize_t sent = write_some(client, next, count);
        if (sent >= 0) {
            next += sent;
            count -= (size_t)sent;
            continue;
        }
        if (errno != EAGAIN)
            return false;
        await(client, POLLIN | POLLOUT, TEST_PATIENCE_MS);
        if (!test_client_fill(client, SIZE_MAX))
            return false;
    }
    return true;
}

/* Nothing of what was sent lies in the socket any more. */
static bool all_read(const struct test_client *client)
{
    int waiting_bytes = 0;
    TEST_REQUIRE(ioctl(client->descriptor, SIOCOUTQ, &waiting_bytes) == 0);
    return waiting_bytes == 0;
}

void test_client_send_cut(struct test_client *client, const void *bytes, size_t count, size_t first,
                          size_t then)
{
    const uint8_t *next = bytes;
    for (size_t piece = first; count > 0; piece = then) {
        piece = piece < count ? piece : count;
        TEST_REQUIRE(test_client_send(client, next, piece));
        while (client->tls == NULL && !all_read(client))
            sched_yield();
        next += piece;
        count -= piece;
    }
}

size_t test_client_push(struct test_client *client, const void *bytes, size_t count)
{
    size_t done = 0;
    while (done < count) {
        ssize_t sent = write_some(client, (const uint8_t *)bytes + done, count - done);
        if (sent < 0)
            break;
        done += (size_t)sent;
    }
    return done;
}

/* Makes room for one more read, at the buffer's end. */
static void make_room(struct test_client *client)
{
    if (client->input_start > 0) {
        memmove(client->input, client->input + client->input_start, client->input_end - client->input_start);
        client->input_end -= client->input_start;
        client->input_start = 0;
    }
    if (client->input_capacity - client->input_end >= FILL_BYTES)
        return;
    client->input_capacity = 2 * client->input_capacity + FILL_BYTES;
    client->input = realloc(client->input, client->input_capacity);
    TEST_REQUIRE(client->input != NULL);
}

static ssize_t read_some(struct test_client *client, uint8_t *bytes, size_t count)
{
    if (client->shares) {
        size_t got;
        core_status status = core_lane_read(&client->lane, bytes, count, &got);
        if (got > 0)
            core_lane_release(&client->lane);
        return lane_outcome(status, got);
    }
    if (client->tls == NULL)
        return recv(client->descriptor, bytes, count, MSG_DONTWAIT);
    size_t got;
    int result = SSL_read_ex(client->tls, bytes, count, &got);
    if (result == 1)
        return (ssize_t)got;
    int reason = SSL_get_error(client->tls, result);
    errno = reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE ? EAGAIN : EPIPE;
    return reason == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

bool test_client_fill(struct test_client *client, size_t limit)
{
    while (limit > 0 && !client->ended) {
        make_room(client);
        ssize_t got =
            read_some(client, client->input + client->input_end, limit < FILL_BYTES ? limit : FILL_BYTES);
        if (got < 0 && errno == EAGAIN)
            break;
        if (got <= 0)
            client->ended = true;
        else {
            client->input_end += (size_t)got;
            limit -= (size_t)got;
        }
    }
    return !client->ended;
}

static bool take_frame(struct test_client *client, struct test_frame *frame)
{
    const uint8_t *bytes = client->input + client->input_start;
    size_t count = client->input_end - client->input_start;
    if (count < PROTOCOL_HEADER_BYTES)
        return false;
    TEST_REQUIRE(protocol_header_read(client->version, bytes, &frame->header) == CORE_OK);
    if (count < PROTOCOL_HEADER_BYTES + (size_t)frame->header.body_bytes)
        return false;
    frame->body = bytes + PROTOCOL_HEADER_BYTES;
    client->input_start += PROTOCOL_HEADER_BYTES + (size_t)frame->header.body_bytes;
    return true;
}

enum test_outcome test_client_next(struct test_client *client, struct test_frame *frame, int timeout_ms)
{
    core_ns until_ns = core_time_now_ns() + timeout_ms * CORE_NS_PER_MS;
    for (;;) {
        if (take_frame(client, frame))
            return TEST_FRAME;
        if (client->ended)
            return TEST_END;
        /* Read before waiting: TLS may hold decrypted bytes that the socket does not show any more. */
        size_t before = client->input_end - client->input_start;
        (void)test_client_fill(client, FILL_BYTES);
        if (client->input_end - client->input_start != before || client->ended)
            continue;
        core_ns left_ns = until_ns - core_time_now_ns();
        if (left_ns <= 0)
            return TEST_SILENCE;
        await(client, POLLIN, (int)(left_ns / CORE_NS_PER_MS) + 1);
    }
}

void test_client_expect(struct test_client *client, enum protocol_type type, struct test_frame *frame)
{
    enum test_outcome outcome = test_client_next(client, frame, TEST_PATIENCE_MS);
    if (outcome == TEST_FRAME && frame->header.type == type)
        return;
    if (outcome == TEST_FRAME && frame->header.type == PROTOCOL_ERROR)
        fprintf(stderr, "ERROR %u: %.*s\n", frame->body[0], (int)frame->header.body_bytes - 4,
                (const char *)frame->body + 4);
    fprintf(stderr, "awaited a frame of type %d, got %s (type %d)\n", (int)type,
            outcome == TEST_FRAME ? "another"
            : outcome == TEST_END ? "the end"
                                  : "nothing",
            outcome == TEST_FRAME ? frame->header.type : 0);
    abort();
}

void test_client_expect_end(struct test_client *client)
{
    struct test_frame frame;
    TEST_REQUIRE(test_client_next(client, &frame, TEST_PATIENCE_MS) == TEST_END);
}

void test_client_expect_error(struct test_client *client, enum protocol_error code, uint32_t id, bool fatal)
{
    char text[PROTOCOL_CONTROL_BYTES_MAX];
    enum protocol_error got;
    struct test_frame frame;
    bool got_fatal;

    test_client_expect(client, PROTOCOL_ERROR, &frame);
    TEST_REQUIRE(protocol_error_read(frame.body, frame.header.body_bytes, &got, &got_fatal, text, sizeof text,
                                     NULL) == CORE_OK);
    if (got != code || got_fatal != fatal || frame.header.id != id) {
        fprintf(stderr, "awaited ERROR %d, fatal %d, id %u; got ERROR %d, fatal %d, id %u: %s\n", (int)code,
                fatal, id, (int)got, got_fatal, frame.header.id, text);
        abort();
    }
    TEST_REQUIRE(text[0] != '\0');
    if (fatal)
        test_client_expect_end(client);
}

void test_client_hello(struct test_client *client, struct protocol_welcome *welcome)
{
    test_client_hello_version(client, 1, welcome);
}

void test_client_hello_version(struct test_client *client, uint16_t version, struct protocol_welcome *welcome)
{
    uint8_t bytes[TEST_FRAME_BYTES];
    struct protocol_welcome welcome_here;
    struct test_frame frame;

    welcome = welcome != NULL ? welcome : &welcome_here;
    TEST_REQUIRE(test_client_send(client, bytes, protocol_hello_write(bytes, version, version)));
    test_client_expect(client, PROTOCOL_WELCOME, &frame);
    TEST_REQUIRE(protocol_welcome_read(frame.body, frame.header.body_bytes, welcome, NULL) == CORE_OK);
    TEST_REQUIRE(welcome->version == version);
    client->welcome_flags = welcome->flags;
    client->version = version;
}

void test_client_connect(struct test_client *client, const struct core_address *address,
                         struct protocol_welcome *welcome)
{
    test_client_dial(client, address);
    test_client_hello(client, welcome);
}

bool test_client_ask(struct test_client *client, enum protocol_type type, const struct protocol_open *open,
                     struct protocol_opened *opened, struct protocol_refused *refused)
{
    static _Atomic uint32_t last_request;
    uint32_t request = ++last_request;
    uint8_t bytes[TEST_FRAME_BYTES];
    struct protocol_opened opened_here;
    struct protocol_refused refused_here;
    struct test_frame frame;

    TEST_REQUIRE(
        test_client_send(client, bytes, protocol_open_write(client->version, bytes, type, request, open)));
    TEST_REQUIRE(test_client_next(client, &frame, TEST_PATIENCE_MS) == TEST_FRAME);
    TEST_REQUIRE(frame.header.id == request);
    if (frame.header.type == PROTOCOL_OPENED) {
        opened = opened != NULL ? opened : &opened_here;
        TEST_REQUIRE(protocol_opened_read(client->version, frame.body, frame.header.body_bytes, opened,
                                          NULL) == CORE_OK);
        TEST_REQUIRE((opened->stream != 0) == (type == PROTOCOL_OPEN));
        return true;
    }
    TEST_REQUIRE(frame.header.type == PROTOCOL_REFUSED);
    refused = refused != NULL ? refused : &refused_here;
    TEST_REQUIRE(protocol_refused_read(client->version, frame.body, frame.header.body_bytes, refused, NULL) ==
                 CORE_OK);
    TEST_REQUIRE(refused->text[0] != '\0');
    return false;
}

void test_client_ping(struct test_client *client)
{
    static const char payload[] = "still there?";
    uint8_t bytes[TEST_FRAME_BYTES];
    struct test_frame frame;

    TEST_REQUIRE(test_client_send(client, bytes,
                                  protocol_ping_write(bytes, PROTOCOL_PING, 77, payload, sizeof payload)));
    test_client_expect(client, PROTOCOL_PONG, &frame);
    TEST_REQUIRE(frame.header.id == 77 && frame.header.body_bytes == sizeof payload);
    TEST_REQUIRE(memcmp(frame.body, payload, sizeof payload) == 0);
}

void test_data_header(uint8_t frame[PROTOCOL_HEADER_BYTES], uint32_t stream, uint32_t sequence,
                      uint32_t bytes)
{
    struct protocol_header header = {
        .body_bytes = bytes, .type = PROTOCOL_DATA, .id = stream, .sequence = sequence};
    protocol_header_write(frame, &header);
}

void test_client_send_lane(struct test_client *client, uint32_t ring_bytes, int file)
{
    test_client_send_lane_and(client, ring_bytes, file, NULL, 0);
}

void test_client_send_lane_and(struct test_client *client, uint32_t ring_bytes, int file, const void *behind,
                               size_t bytes)
{
    uint8_t frame[TEST_FRAME_BYTES];
    union {
        struct cmsghdr header;
        uint8_t room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec parts[] = {{.iov_base = frame, .iov_len = protocol_lane_write(frame, ring_bytes)},
                            {.iov_base = (void *)behind, .iov_len = bytes}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (file >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        control.header = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &file, sizeof file);
    }
    TEST_REQUIRE(sendmsg(client->descriptor, &message, MSG_NOSIGNAL) == (ssize_t)(parts[0].iov_len + bytes));
}

bool test_client_share(struct test_client *client, uint32_t ring_bytes, char text[PROTOCOL_CONTROL_BYTES_MAX])
{
    struct test_frame frame;
    struct core_error error;
    uint32_t granted;
    int file;
    TEST_REQUIRE(core_lane_create(&client->lane, ring_bytes, client->descriptor, &file, &error) == CORE_OK);
    test_client_send_lane(client, ring_bytes, file);
    close(file);
    test_client_expect(client, PROTOCOL_LANED, &frame);
    TEST_REQUIRE(protocol_laned_read(frame.body, frame.header.body_bytes, &granted, text,
                                     PROTOCOL_CONTROL_BYTES_MAX, &error) == CORE_OK);
    TEST_REQUIRE(granted == ring_bytes || granted == 0);
    client->shares = granted > 0;
    if (!client->shares)
        core_lane_free(&client->lane);
    return client->shares;
}
