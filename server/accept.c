/* Listening sockets: I/O thread 0 accepts and gives each connection to the thread that has the fewest. */
#include "server/io.h"

#include "core/log.h"
#include "server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACCEPTS_PER_TURN 64

struct accepted_message {
    struct server_message message; /* first member */
    int descriptor;
    SSL_CTX *tls;
    bool inline_keys;
};

static void take_connection(void *owner, struct server_message *message)
{
    struct accepted_message *accepted = (struct accepted_message *)message;
    server_connection_open(owner, accepted->descriptor, accepted->tls, accepted->inline_keys);
    free(accepted);
}

static uint32_t assigned(const struct server_io *io)
{
    return atomic_load_explicit(&io->assigned, memory_order_relaxed);
}

static struct server_io *least_busy(struct server *server)
{
    struct server_io *best = server->ios[0];
    for (uint32_t i = 1; i < server->io_count; i++)
        if (assigned(server->ios[i]) < assigned(best))
            best = server->ios[i];
    return best;
}

static bool take_place(struct server *server)
{
    uint32_t taken = atomic_fetch_add_explicit(&server->connections, 1, memory_order_relaxed);
    if (taken < server->config->limits.connections)
        return true;
    atomic_fetch_sub_explicit(&server->connections, 1, memory_order_relaxed);
    return false;
}

/* Says why (not on TLS, where nothing can be said before the handshake) and closes, without ever waiting for
 * the peer. */
static void turn_away(int descriptor, bool tls)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    uint32_t bytes = protocol_error_write(frame, 0, PROTOCOL_ERROR_LIMIT, true,
                                          "too many connections (limits.connections); try again later");
    if (!tls)
        (void)!send(descriptor, frame, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    close(descriptor);
}

/* Puts the descriptor into the thread's hands, which closes it in any case. False without memory. */
static bool assign(struct server_io *io, int descriptor, SSL_CTX *tls, bool inline_keys)
{
    struct accepted_message *accepted = malloc(sizeof *accepted);
    if (accepted == NULL)
        return false;
    *accepted = (struct accepted_message){
        .message.run = take_connection, .descriptor = descriptor, .tls = tls, .inline_keys = inline_keys};
    atomic_fetch_add_explicit(&io->assigned, 1, memory_order_relaxed);
    server_mailbox_post(&io->mailbox, &accepted->message);
    return true;
}

static void hand_over(struct server *server, int descriptor, const struct server_listener *listener)
{
    bool inline_keys = listener->config->address.transport != CORE_TRANSPORT_TCP;

    if (!take_place(server)) {
        if (listener->tls == NULL)
            turn_away(descriptor, listener->tls != NULL);
        else /* nothing can be said before the handshake */
            close(descriptor);
        core_log(CORE_LOG_WARNING, "accept.limit", "connection refused: limits.connections is reached");
    } else if (!assign(least_busy(server), descriptor, listener->tls, inline_keys)) {
        atomic_fetch_sub_explicit(&server->connections, 1, memory_order_relaxed);
        close(descriptor);
        core_log(CORE_LOG_ERROR, "connection.memory", "no memory for a new connection; it is closed");
    }
}

core_status server_adopt(struct server *server, int descriptor, struct core_error *error)
{
    if (fcntl(descriptor, F_SETFL, O_NONBLOCK) == 0) {
        atomic_fetch_add_explicit(&server->connections, 1, memory_order_relaxed);
        if (assign(server->ios[0], descriptor, NULL, true))
            return CORE_OK;
        atomic_fetch_sub_explicit(&server->connections, 1, memory_order_relaxed);
    }
    close(descriptor);
    return core_error_set(error, CORE_NO_MEMORY, "no memory for a connection");
}

static const struct server_listener *listener_of(const struct server *server, int descriptor)
{
    const struct server_listener *listener = server->listeners;
    while (listener->descriptor != descriptor)
        listener++;
    return listener;
}

static void on_connect(evutil_socket_t descriptor, short events, void *argument)
{
    struct server_io *io = argument;
    const struct server_listener *listener = listener_of(io->server, descriptor);
    (void)events;

    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int accepted = accept4(descriptor, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (accepted >= 0) {
            hand_over(io->server, accepted, listener);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            core_log(
                CORE_LOG_ERROR, "accept.descriptors",
                "can not accept: no descriptors or memory left; raise the limit of open files (ulimit -n)");
            event_del(io->listen_events[listener - io->server->listeners]); /* the tick adds it again */
        }
        break;
    }
}

core_status server_io_listen(struct server_io *io, struct core_error *error)
{
    uint32_t count = io->server->listener_count;
    io->listen_events = calloc(count, sizeof(struct event *));
    if (io->listen_events == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the listeners");
    for (uint32_t i = 0; i < count; i++) {
        io->listen_events[i] =
            event_new(io->base, io->server->listeners[i].descriptor, EV_READ | EV_PERSIST, on_connect, io);
        if (io->listen_events[i] == NULL || event_add(io->listen_events[i], NULL) != 0)
            return core_error_set(error, CORE_NO_MEMORY, "no memory for the listeners");
    }
    return CORE_OK;
}

void server_io_listen_again(struct server_io *io)
{
    for (uint32_t i = 0; io->listen_events != NULL && i < io->server->listener_count; i++)
        if (!event_pending(io->listen_events[i], EV_READ, NULL))
            event_add(io->listen_events[i], NULL);
}
