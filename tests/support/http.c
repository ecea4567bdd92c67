#include "tests/support/http.h"

#include "tests/support/client.h"
#include "tests/support/require.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_BYTES 65536

int http_dial(const struct core_address *address)
{
    struct core_error error = {""};
    int descriptor = -1;
    if (core_address_connect(address, TEST_PATIENCE_MS, &descriptor, &error) != CORE_OK) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    return descriptor;
}

static void await(int descriptor, short events)
{
    struct pollfd ready = {.fd = descriptor, .events = events};
    TEST_REQUIRE(poll(&ready, 1, TEST_PATIENCE_MS) > 0);
}

void http_send(int descriptor, const void *bytes, size_t count)
{
    const char *next = bytes;
    while (count > 0) {
        ssize_t sent = send(descriptor, next, count, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return;
        if (sent < 0) {
            await(descriptor, POLLOUT);
            continue;
        }
        next += sent;
        count -= (size_t)sent;
    }
}

struct http_answer http_read(int descriptor)
{
    struct http_answer answer = {.bytes = calloc(1, 1)};
    size_t length = 0;
    ssize_t got;

    do {
        answer.bytes = realloc(answer.bytes, length + READ_BYTES + 1);
        TEST_REQUIRE(answer.bytes != NULL);
        await(descriptor, POLLIN);
        got = recv(descriptor, answer.bytes + length, READ_BYTES, 0);
        length += got > 0 ? (size_t)got : 0;
    } while (got > 0);
    close(descriptor);
    answer.bytes[length] = '\0';
    char *body = strstr(answer.bytes, "\r\n\r\n");
    answer.body = body == NULL ? "" : body + 4;
    if (strncmp(answer.bytes, "HTTP/1.", 7) == 0)
        answer.code = atoi(answer.bytes + 9);
    return answer;
}

void http_free(struct http_answer *answer)
{
    free(answer->bytes);
}

struct http_answer http_ask(const struct core_address *address, const char *method, const char *path)
{
    char request[512];
    int bytes = snprintf(request, sizeof request, "%s %s HTTP/1.1\r\nHost: localhost\r\n\r\n", method, path);
    int descriptor = http_dial(address);
    TEST_REQUIRE(bytes > 0 && (size_t)bytes < sizeof request);
    http_send(descriptor, request, (size_t)bytes);
    return http_read(descriptor);
}

json_t *http_json(const struct core_address *address, const char *path)
{
    struct http_answer answer = http_ask(address, "GET", path);
    json_error_t why;
    TEST_REQUIRE(answer.code == 200);
    json_t *root = json_loads(answer.body, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL)
        fprintf(stderr, "%s: %s\n", path, why.text);
    TEST_REQUIRE(json_is_object(root));
    http_free(&answer);
    return root;
}

int http_code(const struct core_address *address, const char *path)
{
    struct http_answer answer = http_ask(address, "GET", path);
    http_free(&answer);
    return answer.code;
}
