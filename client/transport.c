#include "client/transport.h"

#include "client/embedded.h"

#include <errno.h>
#include <limits.h>
#include <sys/socket.h>
#include <unistd.h>

int client_milliseconds_until(core_ns deadline_ns)
{
    if (deadline_ns == CORE_NS_NEVER)
        return -1;
    core_ns left_ns = deadline_ns - core_time_now_ns();
    if (left_ns <= 0)
        return 0;
    core_ns left_ms = (left_ns - 1) / CORE_NS_PER_MS + 1;
    return left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

static core_status plain_read(struct client_transport *transport, void *room, size_t bytes, size_t *got,
                              struct core_error *error)
{
    ssize_t count;
    do
        count = recv(transport->descriptor, room, bytes, 0);
    while (count < 0 && errno == EINTR);
    if (count == 0)
        return CORE_CLOSED;
    if (count < 0)
        return errno == EAGAIN ? CORE_AGAIN : core_error_errno(error, "reading from the server");
    *got = (size_t)count;
    return CORE_OK;
}

static core_status plain_write(struct client_transport *transport, const struct iovec *parts, int count,
                               size_t *written, struct core_error *error)
{
    const struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    ssize_t bytes;
    do
        bytes = sendmsg(transport->descriptor, &message, MSG_NOSIGNAL);
    while (bytes < 0 && errno == EINTR);
    if (bytes < 0)
        return errno == EAGAIN ? CORE_AGAIN : core_error_errno(error, "writing to the server");
    *written = (size_t)bytes;
    return CORE_OK;
}

static bool plain_pending(const struct client_transport *transport)
{
    (void)transport;
    return false;
}

static void plain_close(struct client_transport *transport)
{
    core_lane_free(&transport->lane); /* one that was not answered */
    close(transport->descriptor);
}

static const struct client_transport_kind plain = {
    .read = plain_read, .write = plain_write, .pending = plain_pending, .close = plain_close};

core_status client_transport_connect(struct client_transport *transport, const struct core_address *address,
                                     const struct millrace_tls *tls, core_ns deadline_ns,
                                     struct core_error *error)
{
    int timeout_ms = client_milliseconds_until(deadline_ns);
    *transport = (struct client_transport){.kind = &plain, .descriptor = -1};
    core_status status =
        core_address_connect(address, timeout_ms < 0 ? INT_MAX : timeout_ms, &transport->descriptor, error);
    if (status || address->transport != CORE_TRANSPORT_TLS)
        return status;
    status = client_tls_start(transport, address, tls, deadline_ns, error);
    if (status == CORE_OK)
        return status;
    close(transport->descriptor);
    transport->descriptor = -1;
    char text[sizeof address->host + 16];
    return core_error_prefix(error, status, "%s", core_address_format(address, text, sizeof text));
}

core_status client_transport_embed(struct client_transport *transport, const char *path,
                                   struct core_error *error)
{
    *transport = (struct client_transport){.kind = &plain, .descriptor = -1};
    return client_embedded_connect(path, &transport->descriptor, &transport->release, error);
}
