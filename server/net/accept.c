/* Listening sockets: I/O thread 0 accepts and gives each connection to the thread that has the fewest. */
#include "server/net/io.h"

#include "core/log.h"
#include "server/net/accept.h"
#include "server/net/handshake.h"
#include "server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACCEPTS_PER_TURN 8 /* of all listeners together, but one of each at least */

/* Why a connection has no place, as a peer and the log are told. */
struct refusal {
    const char *cause, *text;
};

static const struct refusal refusals[] = {
    [SERVER_TURNED_CONNECTIONS] = {"accept.limit", "too many connections (limits.connections)"},
    [SERVER_TURNED_LISTENER] = {"accept.listener", "too many connections of one listener "
                                                   "(limits.connections_per_listener)"},
    [SERVER_TURNED_PEER] = {"accept.peer", "too many connections of one peer (limits.connections_per_peer)"},
    [SERVER_TURNED_HANDSHAKES] = {"accept.handshakes",
                                  "too many TLS handshakes of one peer (its share of limits.handshakes)"},
    [SERVER_TURNED_RATE] = {"accept.rate",
                            "too many TLS handshakes of one peer in a second (limits.tls_handshakes_per_s)"},
    [SERVER_TURNED_MEMORY] = {"connection.memory", "no memory for a new connection"},
};

void server_count_turned(struct server_listener *listener, enum server_turned reason)
{
    if (listener != NULL)
        atomic_fetch_add_explicit(&listener->turned[reason], 1, memory_order_relaxed);
}

void server_accepted_drop(struct server *server, struct server_accepted *accepted)
{
    server_transport_close(&accepted->transport);
    free(accepted->user.names);
    server_connection_slot_release(&server->places, &accepted->place);
    free(accepted);
}

static void take_connection(void *owner, struct server_message *message)
{
    server_connection_open(owner, (struct server_accepted *)message);
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

static void assign(struct server_io *io, struct server_accepted *accepted)
{
    accepted->message.run = take_connection;
    atomic_fetch_add_explicit(&io->assigned, 1, memory_order_relaxed);
    server_mailbox_post(&io->mailbox, &accepted->message);
}

void server_accepted_hand_over(struct server *server, struct server_accepted *accepted)
{
    assign(least_busy(server), accepted);
}

/* Says why (not on TLS, where nothing can be said before the handshake) and closes, without ever waiting for
 * the peer. */
static void turn_away(struct server_accepted *accepted, enum server_turned reason)
{
    struct server_listener *listener = accepted->listener;
    const struct refusal *refusal = &refusals[reason];
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    char text[128], address[300];

    server_count_turned(listener, reason);
    snprintf(text, sizeof text, "%s; try again later", refusal->text);
    uint32_t bytes = protocol_error_write(frame, 0, PROTOCOL_ERROR_LIMIT, true, text);
    if (!server_listener_is_tls(listener))
        (void)!send(accepted->transport.descriptor, frame, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    server_transport_close(&accepted->transport);
    core_log_with(CORE_LOG_WARNING, refusal->cause, &(struct core_log_fields){.peer = accepted->peer},
                  "connection of %s to %s refused: %s", accepted->peer,
                  core_address_format(&listener->bound, address, sizeof address), refusal->text);
}

/* Until a handshake has shown a certificate. */
static struct config_key_user user_of(const struct server_peer_key *key, const struct core_address *listener)
{
    bool known = key->kind == SERVER_PEER_USER && key->number != UINT32_MAX;
    return (struct config_key_user){
        .listener = listener, .has_uid = known, .uid = known ? (uint32_t)key->number : 0};
}

static struct server_files *files_of(const struct server *server, const struct server_listener *listener)
{
    return listener->config->address.transport == CORE_TRANSPORT_UNIX ? server->files : NULL;
}

static void go_on(struct server *server, struct server_accepted *accepted)
{
    if (accepted->header_due || server_listener_is_tls(accepted->listener))
        server_handshakes_add(server->handshakes, accepted);
    else
        server_accepted_hand_over(server, accepted);
}

static const char *transport_of(const struct server_listener *listener)
{
    return server_listener_is_tls(listener) ? "tls" : "tcp";
}

/* What the socket says of its peer is said of the proxy. A client of it is no user, and may have come by a plain
 * network, over which no key goes; but TLS that ends here is the client's own. */
static void forget_proxy(struct server_accepted *accepted)
{
    const struct core_address *listener = &accepted->listener->config->address;

    accepted->user = (struct config_key_user){.listener = listener};
    accepted->inline_keys = listener->transport == CORE_TRANSPORT_TLS;
}

/* A place for the client that the proxy has named, if it has named one. */
static void introduce(void *owner, struct server_message *message)
{
    struct server *server = ((struct server_io *)owner)->server;
    struct server_accepted *accepted = (struct server_accepted *)message;
    struct server_listener *listener = accepted->listener;
    struct sockaddr_storage client;

    if (server_proxy_client(&accepted->header, &client))
        accepted->key =
            server_peer_of(&client, transport_of(listener), accepted->peer, sizeof accepted->peer);
    if (!server_proxy_is_local(&accepted->header))
        forget_proxy(accepted);
    accepted->header_due = false;
    server_connection_slot_release(&server->places, &accepted->place);
    enum server_turned reason = server_connection_slots_acquire(
        &server->places, &accepted->key, &listener->connections, server_listener_is_tls(listener),
        core_time_now_ns(), &accepted->place);
    if (reason == SERVER_TURNED_NOT) {
        go_on(server, accepted);
        return;
    }
    turn_away(accepted, reason);
    free(accepted);
}

void server_accepted_introduce(struct server *server, struct server_accepted *accepted)
{
    accepted->message.run = introduce;
    server_mailbox_post(server_io_mailbox(server->ios[0]), &accepted->message);
}

static enum server_turned take_place(struct server *server, struct server_accepted *accepted)
{
    struct server_listener *listener = accepted->listener;
    if (listener->config->proxy)
        return server_connection_slots_acquire_unknown(&server->places, &listener->connections,
                                                       &accepted->place);
    return server_connection_slots_acquire(&server->places, &accepted->key, &listener->connections,
                                           server_listener_is_tls(listener), accepted->accepted_ns,
                                           &accepted->place);
}

static void welcome(struct server *server, int descriptor, struct server_listener *listener)
{
    struct server_accepted accepted = {.inline_keys =
                                           listener->config->address.transport != CORE_TRANSPORT_TCP,
                                       .listener = listener,
                                       .header_due = listener->config->proxy,
                                       .accepted_ns = core_time_now_ns()};
    struct server_accepted *made = NULL;

    server_transport_init(&accepted.transport, descriptor, files_of(server, listener));
    accepted.key =
        server_peer_identify(descriptor, transport_of(listener), accepted.peer, sizeof accepted.peer);
    accepted.user = user_of(&accepted.key, &listener->config->address);
    enum server_turned reason = take_place(server, &accepted);
    if (reason == SERVER_TURNED_NOT && (made = malloc(sizeof *made)) == NULL) {
        server_connection_slot_release(&server->places, &accepted.place);
        reason = SERVER_TURNED_MEMORY;
    }
    if (reason != SERVER_TURNED_NOT) {
        turn_away(&accepted, reason);
        return;
    }
    *made = accepted;
    go_on(server, made);
}

core_status server_adopt(struct server *server, int descriptor, struct core_error *error)
{
    struct server_accepted *accepted = calloc(1, sizeof *accepted);
    if (accepted == NULL || fcntl(descriptor, F_SETFL, O_NONBLOCK) != 0) {
        free(accepted);
        close(descriptor);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a connection");
    }
    struct server_peer_key key =
        server_peer_identify(descriptor, "tcp", accepted->peer, sizeof accepted->peer);
    server_transport_init(&accepted->transport, descriptor,
                          key.kind == SERVER_PEER_USER ? server->files : NULL);
    accepted->user = user_of(&key, NULL);
    accepted->inline_keys = true;
    accepted->accepted_ns = core_time_now_ns();
    server_connection_slots_acquire_one(&server->places);
    server_accepted_hand_over(server, accepted);
    return CORE_OK;
}

/* The tick listens again. */
static void pause_listening(struct server_io *io, const struct server_listener *listener)
{
    (void)server_poller_watch(&io->poller, &io->listening[listener - io->server->listeners], 0);
}

/* Of one listener, in one turn of the loop. */
static uint32_t accepts_per_turn(const struct server *server)
{
    uint32_t share = ACCEPTS_PER_TURN / server->listener_count;
    return share > 0 ? share : 1;
}

/* False: no more for now. */
static bool accept_one(struct server_io *io, struct server_listener *listener)
{
    if ((server_listener_is_tls(listener) || listener->config->proxy) &&
        server_connection_slots_handshakes_full(&io->server->places)) {
        core_log(CORE_LOG_WARNING, "accept.handshakes",
                 "limits.handshakes (%u) handshakes are in progress: further connections wait",
                 io->server->config->limits.handshakes);
        pause_listening(io, listener);
        return false;
    }
    int accepted = accept4(listener->descriptor, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (accepted >= 0) {
        welcome(io->server, accepted, listener);
        return true;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        core_log(CORE_LOG_ERROR, "accept.descriptors",
                 "can not accept: no descriptors or memory left; raise the limit of open files (ulimit -n)");
        pause_listening(io, listener);
    }
    return false;
}

static void on_connect(struct server_watch *watch, uint32_t events)
{
    struct server_io *io = watch->owner;
    struct server_listener *listener = &io->server->listeners[watch - io->listening];
    (void)events;

    for (uint32_t left = accepts_per_turn(io->server); left > 0 && accept_one(io, listener);)
        left--;
}

core_status server_io_listen(struct server_io *io, struct core_error *error)
{
    uint32_t count = io->server->listener_count;
    io->listening = calloc(count, sizeof *io->listening);
    if (io->listening == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the listeners");
    for (uint32_t i = 0; i < count; i++) {
        io->listening[i] = (struct server_watch){
            .descriptor = io->server->listeners[i].descriptor, .ready = on_connect, .owner = io};
        if (!server_poller_watch(&io->poller, &io->listening[i], EPOLLIN))
            return core_error_set(error, CORE_NO_MEMORY, "no memory for the listeners");
    }
    return CORE_OK;
}

void server_io_listen_again(struct server_io *io)
{
    for (uint32_t i = 0; io->listening != NULL && i < io->server->listener_count; i++)
        (void)server_poller_watch(&io->poller, &io->listening[i], EPOLLIN); /* else at the next tick */
}
