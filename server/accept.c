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

static struct server_io *least_busy(struct server *server)
{
    struct server_io *best = server->ios[0];
    for (uint32_t i = 1; i < server->io_count; i++)
        if (server_stats_get(&server->ios[i]->stats.connections) < server_stats_get(&best->stats.connections))
            best = server->ios[i];
    return best;
}

/* Says why and closes, without ever waiting for the peer. */
static void turn_away(int descriptor)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    uint32_t bytes = protocol_error_write(frame, 0, PROTOCOL_ERROR_LIMIT, true,
                                          "too many connections (limits.connections); try again later");
    (void)!send(descriptor, frame, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    close(descriptor);
    core_log(CORE_LOG_WARNING, "accept.limit", "connection refused: limits.connections is reached");
}

static void hand_over(struct server_io *acceptor, int descriptor, const struct server_listener *listener)
{
    struct server *server = acceptor->server;
    struct server_io *target = least_busy(server);
    bool inline_keys = listener->config->address.transport != CORE_TRANSPORT_TCP;
    struct accepted_message *accepted;

    if (atomic_fetch_add_explicit(&server->connections, 1, memory_order_relaxed) >=
        server->config->limits.connections) {
        atomic_fetch_sub_explicit(&server->connections, 1, memory_order_relaxed);
        turn_away(descriptor);
        return;
    }
    if (target == acceptor) {
        server_connection_open(acceptor, descriptor, listener->tls, inline_keys);
        return;
    }
    accepted = malloc(sizeof *accepted);
    if (accepted == NULL) {
        atomic_fetch_sub_explicit(&server->connections, 1, memory_order_relaxed);
        turn_away(descriptor);
        return;
    }
    *accepted = (struct accepted_message){.message.run = take_connection,
                                          .descriptor = descriptor,
                                          .tls = listener->tls,
                                          .inline_keys = inline_keys};
    server_mailbox_post(&target->mailbox, &accepted->message);
}

core_status server_adopt(struct server *server, int descriptor, struct core_error *error)
{
    struct accepted_message *accepted = malloc(sizeof *accepted);
    if (accepted == NULL || fcntl(descriptor, F_SETFL, O_NONBLOCK) != 0) {
        free(accepted);
        close(descriptor);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a connection");
    }
    *accepted = (struct accepted_message){
        .message.run = take_connection, .descriptor = descriptor, .inline_keys = true};
    atomic_fetch_add_explicit(&server->connections, 1, memory_order_relaxed);
    server_mailbox_post(&server->ios[0]->mailbox, &accepted->message);
    return CORE_OK;
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
            hand_over(io, accepted, listener);
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
