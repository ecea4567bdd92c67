/* The little of HTTP/1.0 that fetching a page from our own server's admin socket takes: one request, one
 * answer, and the server closes. */
#include "client/command.h"

#include "core/address.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_BYTES_MAX ((size_t)256 << 20) /* beyond any status page; stops a server that never ends */

struct page {
    char *bytes; /* terminated */
    size_t length, capacity;
};

static core_status await(int descriptor, short events, core_ns deadline_ns, struct core_error *error)
{
    struct pollfd ready = {.fd = descriptor, .events = events};
    core_ns left_ns = deadline_ns - core_time_now_ns();
    int count = poll(&ready, 1, left_ns <= 0 ? 0 : (int)(left_ns / CORE_NS_PER_MS) + 1);
    if (count == 0)
        return core_error_set(error, CORE_TIMEOUT, "the server did not answer in time");
    return count < 0 && errno != EINTR ? core_error_errno(error, "poll") : CORE_OK;
}

static core_status write_request(int descriptor, const char *path, core_ns deadline_ns,
                                 struct core_error *error)
{
    char request[512];
    int bytes = snprintf(
        request, sizeof request,
        "GET %s HTTP/1.0\r\nHost: localhost\r\nAccept: application/json\r\nConnection: close\r\n\r\n", path);
    if (bytes < 0 || (size_t)bytes >= sizeof request)
        return core_error_set(error, CORE_INVALID, "the path %s is too long", path);
    for (size_t sent = 0; sent < (size_t)bytes;) {
        ssize_t count = send(descriptor, request + sent, (size_t)bytes - sent, MSG_NOSIGNAL);
        if (count < 0 && errno != EAGAIN && errno != EINTR)
            return core_error_errno(error, "writing");
        core_status status = count < 0 ? await(descriptor, POLLOUT, deadline_ns, error) : CORE_OK;
        if (status)
            return status;
        sent += count > 0 ? (size_t)count : 0;
    }
    return CORE_OK;
}

static core_status make_room(struct page *page, struct core_error *error)
{
    if (page->capacity - page->length > 1)
        return CORE_OK;
    size_t capacity = page->capacity == 0 ? 65536 : 2 * page->capacity;
    char *larger = capacity > ANSWER_BYTES_MAX ? NULL : realloc(page->bytes, capacity);
    if (larger == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "the answer is too long");
    page->bytes = larger;
    page->capacity = capacity;
    return CORE_OK;
}

static core_status read_answer(int descriptor, struct page *page, core_ns deadline_ns,
                               struct core_error *error)
{
    for (;;) {
        core_status status = make_room(page, error);
        if (status)
            return status;
        ssize_t count = recv(descriptor, page->bytes + page->length, page->capacity - page->length - 1, 0);
        if (count < 0 && errno != EAGAIN && errno != EINTR)
            return core_error_errno(error, "reading");
        if (count < 0 && (status = await(descriptor, POLLIN, deadline_ns, error)))
            return status;
        page->length += count > 0 ? (size_t)count : 0;
        page->bytes[page->length] = '\0';
        if (count == 0)
            return CORE_OK;
    }
}

/* The head must be ours to understand, and the body as long as it says, if it says. */
core_status command_http_body(const char *answer, size_t bytes, const char **body, struct core_error *error)
{
    static const char protocol[] = "HTTP/1.", length_field[] = "\r\nContent-Length:";
    const char *end = strstr(answer, "\r\n\r\n");
    if (end == NULL || strncmp(answer, protocol, sizeof protocol - 1) != 0)
        return core_error_set(error, CORE_INVALID,
                              "no HTTP answer (is this the address of the admin socket?)");
    *body = end + 4;
    if (strtol(answer + sizeof protocol, NULL, 10) != 200) /* behind the minor version */
        return core_error_set(error, CORE_INVALID, "the answer is %.*s", (int)strcspn(answer, "\r\n"),
                              answer);
    size_t length = bytes - (size_t)(*body - answer);
    const char *field = strcasestr(answer, length_field);
    if (field != NULL && field < end && strtoull(field + sizeof length_field - 1, NULL, 10) != length)
        return core_error_set(error, CORE_INVALID, "the answer was cut off");
    return CORE_OK;
}

static core_status get(int descriptor, const char *path, core_ns deadline_ns, struct page *page,
                       size_t *body_bytes, struct core_error *error)
{
    const char *body = NULL;
    core_status status;
    if ((status = write_request(descriptor, path, deadline_ns, error)) ||
        (status = read_answer(descriptor, page, deadline_ns, error)) ||
        (status = command_http_body(page->bytes, page->length, &body, error)))
        return status;
    *body_bytes = page->length - (size_t)(body - page->bytes);
    memmove(page->bytes, body, *body_bytes + 1);
    return CORE_OK;
}

core_status command_http_get(const char *address_text, const char *path, int timeout_ms, char **body,
                             size_t *body_bytes, struct core_error *error)
{
    core_ns deadline_ns = core_time_now_ns() + timeout_ms * CORE_NS_PER_MS;
    struct core_address address;
    struct page page = {0};
    int descriptor;
    core_status status = core_address_parse(address_text, &address, error);
    if (status == CORE_OK && address.transport == CORE_TRANSPORT_TLS)
        return core_error_set(error, CORE_UNSUPPORTED,
                              "%s: the admin socket is plain: unix: or tcp:", address_text);
    if (status || (status = core_address_connect(&address, timeout_ms, &descriptor, error)))
        return status;
    status = get(descriptor, path, deadline_ns, &page, body_bytes, error);
    close(descriptor);
    if (status) {
        free(page.bytes);
        return core_error_prefix(error, status, "%s%s", address_text, path);
    }
    *body = page.bytes;
    return CORE_OK;
}
