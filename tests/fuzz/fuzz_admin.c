/* Arbitrary bytes as what clients of the admin port do: requests in pieces, pauses, ends in the middle, crowds
 * and readers that do not read, against RFC 9112 (support/http_verdict.h) and what docs/operations/observe.md
 * promises. A whole server answers, on the clock of support/virtual_threads.h.
 *
 * Every answer is one well-formed response; a request has one exactly if its head has come whole and in time,
 * and which one depends on its bytes alone, however they were cut; and whoever comes last is served. */
#include "core/protocol.h"
#include "server/admin/connections.h"
#include "tests/support/http_verdict.h"
#include "tests/support/require.h"
#include "tests/support/server.h"
#include "tests/support/tape.h"
#include "tests/support/virtual_threads.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS_OF_TAPE 4
#define CROWD           40 /* more than there are places */
#define STREAMS_OPEN    3
#define SAID_BYTES      10000
#define ROOM_BYTES      4608 /* the least for a socket's buffer: long answers do not fit */
#define NEWCOMER_NS     (8 * CORE_NS_PER_S)

struct guest {
    int descriptor; /* -1: none */
    core_ns since_ns;
    bool deaf, was_deaf, was_crowded, half_closed;
    size_t said_bytes, heard_bytes;
    char said[SAID_BYTES], heard[1 << 17];
};

static struct test_server server;
static struct guest guests[CLIENTS_OF_TAPE + CROWD + 1];
static struct guest *const newcomer = &guests[CLIENTS_OF_TAPE + CROWD];

int __real_accept4(int listener, struct sockaddr *address, socklen_t *bytes, int flags);
int __wrap_accept4(int listener, struct sockaddr *address, socklen_t *bytes, int flags);

int __wrap_accept4(int listener, struct sockaddr *address, socklen_t *bytes, int flags)
{
    const int descriptor = __real_accept4(listener, address, bytes, flags), room = ROOM_BYTES;
    if (descriptor >= 0)
        TEST_REQUIRE(setsockopt(descriptor, SOL_SOCKET, SO_SNDBUF, &room, sizeof room) == 0);
    return descriptor;
}

#define MUST_BE(guest, condition) ((condition) ? (void)0 : deviate(guest, #condition))

_Noreturn static void deviate(const struct guest *guest, const char *condition)
{
    fprintf(stderr, "client %d: not so: %s\nit said, in %zu bytes:\n%.*s\nand heard, in %zu bytes:\n%.*s\n",
            (int)(guest - guests), condition, guest->said_bytes, (int)guest->said_bytes, guest->said,
            guest->heard_bytes, (int)guest->heard_bytes, guest->heard);
    abort();
}

/* ---- what an answer must look like ---- */

struct answer {
    int code;
    size_t body_bytes; /* as it says */
    const char *body;
};

/* Its fields are those, in any order, each once. */
static const char *const fields[] = {"Date",         "Connection",     "Cache-Control",
                                     "Content-Type", "Content-Length", "Allow"};
enum { CONNECTION = 1, LENGTH = 4, ALLOW = 5, FIELDS = 6 };

static void read_fields(const struct guest *guest, char *next, struct answer *answer)
{
    const char *values[FIELDS] = {NULL};
    for (char *end; strncmp(next, "\r\n", 2) != 0; next = end + 2) {
        size_t which = 0;
        end = strstr(next, "\r\n");
        MUST_BE(guest, end != NULL);
        const size_t name = strcspn(next, ":");
        while (which < FIELDS && (strlen(fields[which]) != name || strncmp(next, fields[which], name) != 0))
            which++;
        MUST_BE(guest, which < FIELDS && values[which] == NULL);
        MUST_BE(guest,
                next[name + 1] == ' ' && strcspn(next + name, "\n") == (size_t)(end - next) - name + 1);
        values[which] = next + name + 2;
    }
    for (size_t which = 0; which < ALLOW; which++)
        MUST_BE(guest, values[which] != NULL);
    MUST_BE(guest, strncmp(values[CONNECTION], "close\r", 6) == 0);
    MUST_BE(guest, (values[ALLOW] != NULL) == (answer->code == 405));
    answer->body_bytes = strtoul(values[LENGTH], NULL, 10);
    answer->body = next + 2;
}

static struct answer read_answer(struct guest *guest)
{
    struct answer answer = {0};
    guest->heard[guest->heard_bytes] = '\0';
    MUST_BE(guest, strncmp(guest->heard, "HTTP/1.1 ", 9) == 0);
    MUST_BE(guest, strspn(guest->heard + 9, "0123456789") == 3 && guest->heard[12] == ' ');
    answer.code = atoi(guest->heard + 9);
    char *end = strstr(guest->heard, "\r\n");
    MUST_BE(guest, end != NULL && end > guest->heard + 13);
    read_fields(guest, end + 2, &answer);
    return answer;
}

static bool is_one_of(const char *path, const char *paths)
{
    const char *at = strstr(paths, path);
    return path[0] == '/' && at != NULL && at[strlen(path)] == ' ';
}

/* What this request has to be answered. */
static int code_of(const struct http_verdict *verdict)
{
    if (verdict->body_too_long)
        return 413;
    if (!is_one_of(verdict->path, "/health /livez /readyz /metrics /status "))
        return 404;
    return verdict->reads ? 200 : 405;
}

static void check_status(const struct guest *guest, const struct http_verdict *verdict,
                         const struct answer *answer)
{
    json_error_t why;
    json_t *root = json_loadb(answer->body, answer->body_bytes, JSON_REJECT_DUPLICATES, &why);
    MUST_BE(guest, json_is_object(root));
    const json_t *streams = json_object_get(root, "streams");
    if (strcmp(verdict->query, "streams=1") == 0)
        MUST_BE(guest, json_array_size(streams) == STREAMS_OPEN);
    if (strstr(verdict->query, "streams=1") == NULL)
        MUST_BE(guest, streams == NULL);
    json_decref(root);
}

static void check_body(const struct guest *guest, const struct http_verdict *verdict,
                       const struct answer *answer)
{
    const size_t bytes = guest->heard_bytes - (size_t)(answer->body - guest->heard);
    const bool head = guest->said_bytes >= 5 && memcmp(guest->said, "HEAD ", 5) == 0;
    MUST_BE(guest, bytes == answer->body_bytes || (head && bytes == 0));
    if (verdict->kind >= HTTP_ODD && head) {
        MUST_BE(guest, bytes == 0);
        return;
    }
    if (answer->code == 200 && strcmp(verdict->path, "/status") == 0)
        check_status(guest, verdict, answer);
}

/* ---- when the server has closed ---- */

/* It had no answer because it was too slow in asking, or no whole one because it was too slow in reading. */
static bool is_late(const struct guest *guest)
{
    const bool silent = guest->heard_bytes == 0;
    const core_ns crowded_ms = silent ? SERVER_ADMIN_CONNECTIONS_CROWD_REQUEST_MS
                                      : SERVER_ADMIN_CONNECTIONS_CROWD_ANSWER_MS,
                  alone_s = silent ? SERVER_ADMIN_CONNECTIONS_REQUEST_S : SERVER_ADMIN_CONNECTIONS_ANSWER_S,
                  limit_ns = guest->was_crowded ? crowded_ms * CORE_NS_PER_MS : alone_s * CORE_NS_PER_S;
    return (silent || guest->was_deaf) && test_virtual_now_ns() - guest->since_ns > limit_ns;
}

static void judge(struct guest *guest)
{
    const struct http_verdict verdict = http_judge(guest->said, guest->said_bytes);
    if (is_late(guest))
        return;
    if (verdict.kind == HTTP_PART) {
        MUST_BE(guest, guest->heard_bytes == 0 && guest->half_closed);
        return;
    }
    const struct answer answer = read_answer(guest);
    if (verdict.kind == HTTP_LONG)
        MUST_BE(guest, answer.code == 431);
    else if (verdict.kind != HTTP_BAD && (verdict.kind == HTTP_GOOD || answer.code / 100 != 4))
        MUST_BE(guest, answer.code == code_of(&verdict));
    else
        MUST_BE(guest, answer.code / 100 == 4);
    check_body(guest, &verdict, &answer);
}

/* ---- clients ---- */

static void hang_up(struct guest *guest)
{
    if (guest->descriptor >= 0)
        close(guest->descriptor);
    guest->descriptor = -1;
}

static bool hear(struct guest *guest)
{
    const ssize_t got = recv(guest->descriptor, guest->heard + guest->heard_bytes,
                             sizeof guest->heard - 1 - guest->heard_bytes, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN)
        return false;
    if (got > 0) {
        guest->heard_bytes += (size_t)got;
        MUST_BE(guest, guest->heard_bytes < sizeof guest->heard - 1);
        return true;
    }
    judge(guest);
    hang_up(guest);
    return true;
}

static bool hear_all(void)
{
    const size_t count = sizeof guests / sizeof *guests;
    struct pollfd ready[sizeof guests / sizeof *guests];
    bool any = false;
    for (size_t at = 0; at < count; at++)
        ready[at] = (struct pollfd){.fd = guests[at].deaf ? -1 : guests[at].descriptor, .events = POLLIN};
    (void)poll(ready, count, 0);
    for (size_t at = 0; at < count; at++)
        any |= ready[at].revents != 0 && hear(&guests[at]);
    return any;
}

static void pass(core_ns time_ns)
{
    test_virtual_run(test_virtual_now_ns() + time_ns);
}

static size_t count_guests(void)
{
    size_t count = 0;
    for (size_t at = 0; at < sizeof guests / sizeof *guests; at++)
        count += guests[at].descriptor >= 0;
    return count;
}

static void dial(struct guest *guest)
{
    struct core_error error;
    memset(guest, 0, offsetof(struct guest, said));
    TEST_REQUIRE(core_address_connect(server_admin_address(server.server), 1000, &guest->descriptor,
                                      &error) == CORE_OK);
    guest->since_ns = test_virtual_now_ns();
    if (count_guests() >= SERVER_ADMIN_CONNECTIONS_MAX)
        for (size_t at = 0; at < sizeof guests / sizeof *guests; at++)
            guests[at].was_crowded = true;
}

/* What the socket does not take at once is not said. */
static void say(struct guest *guest, const void *bytes, size_t count)
{
    if (guest->descriptor < 0 || guest->half_closed || count > SAID_BYTES - guest->said_bytes)
        return;
    const ssize_t sent = send(guest->descriptor, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0)
        return;
    memcpy(guest->said + guest->said_bytes, bytes, (size_t)sent);
    guest->said_bytes += (size_t)sent;
}

static void half_close(struct guest *guest)
{
    if (guest->descriptor < 0)
        return;
    guest->half_closed = true;
    (void)shutdown(guest->descriptor, SHUT_WR);
}

/* ---- sequences ---- */

static void say_word(struct guest *guest, uint32_t which)
{
    static const char *const words[] = {"GET ",
                                        "HEAD ",
                                        "POST ",
                                        "/health",
                                        "/livez",
                                        "/readyz",
                                        "/metrics",
                                        "/status",
                                        "/status?streams=1",
                                        "?streams=1",
                                        "&",
                                        "#",
                                        "*",
                                        "http://",
                                        "localhost",
                                        " HTTP/1.1\r\n",
                                        " HTTP/1.0\r\n",
                                        " ",
                                        ":",
                                        "\r",
                                        "\n",
                                        "\r\n",
                                        "Host: localhost\r\n",
                                        "Content-Length: ",
                                        "0",
                                        "7",
                                        "4096",
                                        "\t",
                                        "\r\n\r\n",
                                        "Expect: 100-continue\r\n",
                                        "Transfer-Encoding: chunked\r\n",
                                        "X-Y_Z: ",
                                        "GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
                                        "GET /metrics HTTP/1.0\r\n\r\n",
                                        "HEAD /status?streams=1 HTTP/1.0\r\n\r\n",
                                        "GET /status?x&streams=1 HTTP/1.0\r\n\r\n"};
    const char *word = words[which % (sizeof words / sizeof *words)];
    say(guest, word, strlen(word));
}

static void say_much(struct guest *guest, uint32_t count, uint32_t byte)
{
    char bytes[64 * 255];
    memset(bytes, (int)byte, sizeof bytes);
    say(guest, bytes, (size_t)64 * count);
}

static void say_bytes(struct guest *guest, struct tape *tape)
{
    size_t count;
    const size_t most = take(tape) % 64;
    const uint8_t *bytes = take_bytes(tape, most, &count);
    say(guest, bytes, count);
}

static void come_in_crowds(uint32_t count)
{
    for (struct guest *guest = guests + CLIENTS_OF_TAPE; guest < newcomer && count > 0; guest++)
        if (guest->descriptor < 0) {
            dial(guest);
            guest->deaf = guest->was_deaf = count % 4 == 1;
            if (count-- % 2 == 0)
                say_word(guest, count);
        }
}

static void disturb(struct guest *guest, struct tape *tape)
{
    const uint32_t how = take(tape) % 8;
    if (how == 0)
        hang_up(guest);
    else if (how == 1)
        half_close(guest);
    else if (how == 2)
        guest->deaf = guest->was_deaf = true;
    else if (how == 3)
        guest->deaf = false;
    else if (how == 4)
        come_in_crowds(take(tape) % (CROWD + 1));
    else
        pass((core_ns)take(tape) << take(tape) % 24);
}

static void step(struct tape *tape)
{
    const uint32_t first = take(tape);
    struct guest *guest = &guests[first % CLIENTS_OF_TAPE];
    const uint32_t what = first / CLIENTS_OF_TAPE % 16, then = first / CLIENTS_OF_TAPE / 16;

    if (guest->descriptor < 0)
        dial(guest);
    if (what < 10)
        say_word(guest, take(tape));
    else if (what < 13)
        say_bytes(guest, tape);
    else if (what == 13)
        say_much(guest, take(tape), take(tape));
    else
        disturb(guest, tape);
    if (then == 0) /* else the next comes in between */
        pass(0);
    else if (then == 1)
        test_virtual_turn();
}

/* Whoever comes last is served, although the others stay; and then they end. */
static void finish(void)
{
    const core_ns patience_ns = test_virtual_now_ns() + NEWCOMER_NS;
    dial(newcomer);
    say_word(newcomer, 32);
    while (newcomer->descriptor >= 0 && test_virtual_now_ns() < patience_ns)
        pass(newcomer->was_crowded ? 10 * CORE_NS_PER_MS : 0);
    MUST_BE(newcomer, newcomer->descriptor < 0);
    MUST_BE(newcomer, newcomer->heard_bytes > 0);
    for (size_t at = 0; at < sizeof guests / sizeof *guests; at++) {
        guests[at].deaf = false;
        half_close(&guests[at]);
    }
    for (uint32_t ticks = 0; ticks < 30 && count_guests() > 0; ticks++)
        pass(ticks == 0 ? 0 : 100 * CORE_NS_PER_MS);
    for (size_t at = 0; at < sizeof guests / sizeof *guests; at++)
        MUST_BE(&guests[at], guests[at].descriptor < 0);
}

/* ---- the server ---- */

/* Some streams for the list. */
static void open_streams(void)
{
    static const uint8_t key[16];
    const struct protocol_open open = {.spec = {.packet_bytes = 512,
                                                .burst_packets = 1,
                                                .interval_ns = 10 * CORE_NS_PER_MS,
                                                .latency_ns = 20 * CORE_NS_PER_MS,
                                                .cipher = CORE_CIPHER_AES_128_CBC,
                                                .padding = CORE_PADDING_NONE},
                                       .key = key};
    uint8_t frames[(STREAMS_OPEN + 1) * (PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX)];
    struct core_error error;
    int pair[2];

    TEST_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    TEST_REQUIRE(server_adopt(server.server, pair[1], &error) == CORE_OK);
    uint32_t bytes = protocol_hello_write(frames, 1, 1);
    for (uint32_t i = 0; i < STREAMS_OPEN; i++)
        bytes += protocol_open_write(2, frames + bytes, PROTOCOL_OPEN, i + 1, &open);
    TEST_REQUIRE(send(pair[0], frames, bytes, 0) == (ssize_t)bytes);
    pass(CORE_NS_PER_S);
}

static void start(void)
{
    test_server_start(&server,
                      "listeners: [{address: 'unix:socket'}]\n"
                      "admin: 'unix:admin'\n"
                      "timeouts: {hello_ms: 3600000, frame_ms: 3600000, idle_ms: 3600000, stream_idle_ms: 0, "
                      "stall_ms: 3600000}\n",
                      &test_profile_real);
    for (size_t at = 0; at < sizeof guests / sizeof *guests; at++)
        guests[at].descriptor = -1;
    open_streams();
    test_virtual_rest(hear_all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool started;
    struct tape tape = {data, size};
    if (!started)
        start();
    started = true;
    while (tape.left > 0)
        step(&tape);
    finish();
    return 0;
}
