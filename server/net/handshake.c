#include "server/net/handshake.h"

#include "core/log.h"
#include "core/realtime.h"
#include "server/net/accept.h"
#include "server/net/certificate.h"
#include "server/server_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#define TICK_MS 50 /* between looks for those whose time is over */

/* One thread, and what it has under way. */
struct server_handshaker {
    struct server *server; /* set before start */
    struct server_mailbox mailbox;
    struct server_poller poller; /* its own from the start on, and the rest */
    struct server_watch mail;
    struct server_accepted *under_way;
    bool halted;
    struct server_message halt; /* posted once */
    bool started;               /* whoever starts and halts */
    pthread_t thread;
};

struct server_handshakes {
    uint32_t count, next; /* next: I/O thread 0 */
    struct server_handshaker threads[];
};

static void link_accepted(struct server_handshaker *handshaker, struct server_accepted *accepted)
{
    accepted->next = handshaker->under_way;
    accepted->previous = &handshaker->under_way;
    if (accepted->next != NULL)
        accepted->next->previous = &accepted->next;
    handshaker->under_way = accepted;
}

static void unlink_accepted(struct server_accepted *accepted)
{
    *accepted->previous = accepted->next;
    if (accepted->next != NULL)
        accepted->next->previous = accepted->previous;
    (void)server_poller_watch(&accepted->handshaker->poller, &accepted->watch, 0);
}

static const char *what(const struct server_accepted *accepted)
{
    return accepted->header_due ? "PROXY header" : "TLS handshake";
}

static void fail(struct server_accepted *accepted, enum server_turned reason, const char *text)
{
    struct server *server = accepted->handshaker->server;
    const struct core_log_fields fields = {.peer = accepted->peer};
    char address[300];
    /* who comes and goes without a word only looks whether there is a server */
    core_log_with(accepted->header_due && accepted->header.got == 0 ? CORE_LOG_DEBUG : CORE_LOG_INFO,
                  accepted->header_due ? "proxy.header" : "tls.handshake", &fields,
                  "%s: %s with %s failed: %s; closed", accepted->peer, what(accepted),
                  core_address_format(&accepted->listener->bound, address, sizeof address), text);
    server_count_turned(accepted->listener, reason);
    unlink_accepted(accepted);
    server_accepted_drop(server, accepted);
}

static void establish(struct server_accepted *accepted)
{
    struct server *server = accepted->handshaker->server;
    if (server_certificate_identify(accepted->transport.tls, &accepted->user) != CORE_OK) {
        fail(accepted, SERVER_TURNED_MEMORY, "no memory for the names in the certificate");
        return;
    }
    unlink_accepted(accepted);
    server_connection_slot_established(&server->places, &accepted->place);
    atomic_fetch_add_explicit(&server->handshakes_done, 1, memory_order_relaxed);
    server_accepted_hand_over(server, accepted);
}

static void wait_for_peer(struct server_accepted *accepted)
{
    const uint32_t wanted = accepted->transport.wants_write ? EPOLLOUT : EPOLLIN;
    if (!server_poller_watch(&accepted->handshaker->poller, &accepted->watch, wanted))
        fail(accepted, SERVER_TURNED_MEMORY, "no memory to wait for the peer");
}

/* CORE_OK: it is whole; CORE_AGAIN; CORE_CLOSED and why. */
static core_status read_header(struct server_accepted *accepted, enum server_turned *reason,
                               struct core_error *error)
{
    core_status status = CORE_AGAIN;
    while (status == CORE_AGAIN) {
        size_t bytes;
        uint8_t *room = server_proxy_room(&accepted->header, &bytes);
        const ssize_t got = recv(accepted->transport.descriptor, room, bytes, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return CORE_AGAIN;
        *reason = got > 0 ? SERVER_TURNED_PROXY : SERVER_TURNED_GONE;
        if (got <= 0)
            return core_error_set(error, CORE_CLOSED, "the peer closed the connection");
        status = server_proxy_take(&accepted->header, (size_t)got, error);
    }
    return status;
}

static void step(struct server_accepted *accepted)
{
    const bool header = accepted->header_due;
    enum server_turned reason = header ? SERVER_TURNED_PROXY : SERVER_TURNED_PROTOCOL;
    struct core_error error = {""};
    const core_status status = header ? read_header(accepted, &reason, &error)
                                      : server_transport_handshake(&accepted->transport, &reason, &error);

    if (status == CORE_AGAIN) {
        wait_for_peer(accepted);
    } else if (status != CORE_OK) {
        fail(accepted, reason, error.text);
    } else if (header) {
        unlink_accepted(accepted);
        server_accepted_introduce(accepted->handshaker->server, accepted);
    } else {
        establish(accepted);
    }
}

static void on_socket(struct server_watch *watch, uint32_t events)
{
    (void)events;
    step(watch->owner);
}

static void end_overdue(struct server_handshaker *handshaker)
{
    const core_ns hello_ns = handshaker->server->config->timeouts.hello_ns;
    const core_ns now_ns = core_time_now_ns();
    char text[96];

    snprintf(text, sizeof text, "not finished within timeouts.hello_ms (%lld ms)",
             (long long)(hello_ns / CORE_NS_PER_MS));
    for (struct server_accepted *accepted = handshaker->under_way, *next; accepted != NULL; accepted = next) {
        next = accepted->next;
        if (now_ns >= accepted->accepted_ns + hello_ns)
            fail(accepted, SERVER_TURNED_TIMEOUT, text);
    }
}

/* With the certificate that is in force now. */
static core_status secure(struct server_handshaker *handshaker, struct server_accepted *accepted)
{
    struct server *server = handshaker->server;
    struct core_error error = {""};

    pthread_mutex_lock(&server->reload_lock); /* for a moment: I/O threads may want it */
    SSL_CTX *context = accepted->listener->tls;
    bool held = SSL_CTX_up_ref(context) == 1;
    pthread_mutex_unlock(&server->reload_lock);
    if (!held)
        return CORE_NO_MEMORY;
    core_status status = server_transport_secure(&accepted->transport, context, &handshaker->mailbox, &error);
    SSL_CTX_free(context);
    return status;
}

static void begin(void *owner, struct server_message *message)
{
    struct server_handshaker *handshaker = owner;
    struct server_accepted *accepted = (struct server_accepted *)message;

    if (handshaker->halted) {
        server_accepted_drop(handshaker->server, accepted);
        return;
    }
    accepted->handshaker = handshaker;
    accepted->watch = (struct server_watch){
        .descriptor = accepted->transport.descriptor, .ready = on_socket, .owner = accepted};
    if (!accepted->header_due && secure(handshaker, accepted) != CORE_OK) {
        core_log_with(CORE_LOG_ERROR, "connection.memory", &(struct core_log_fields){.peer = accepted->peer},
                      "no memory for a new connection; it is closed");
        server_count_turned(accepted->listener, SERVER_TURNED_MEMORY);
        server_accepted_drop(handshaker->server, accepted);
        return;
    }
    link_accepted(handshaker, accepted);
    wait_for_peer(accepted);
}

void server_handshakes_add(struct server_handshakes *handshakes, struct server_accepted *accepted)
{
    struct server_handshaker *handshaker = &handshakes->threads[handshakes->next++ % handshakes->count];
    accepted->message.run = begin;
    server_mailbox_post(&handshaker->mailbox, &accepted->message);
}

static void on_mail(struct server_watch *watch, uint32_t events)
{
    struct server_handshaker *handshaker = watch->owner;
    (void)events;
    server_mailbox_run(&handshaker->mailbox, handshaker);
}

static void halt(void *owner, struct server_message *message)
{
    struct server_handshaker *handshaker = owner;
    (void)message;
    handshaker->halted = true;
}

static void *run(void *argument)
{
    struct server_handshaker *handshaker = argument;

    while (!handshaker->halted) {
        if (server_poller_look(&handshaker->poller, handshaker->under_way == NULL ? -1 : TICK_MS) > 0)
            server_poller_run(&handshaker->poller);
        end_overdue(handshaker);
    }
    while (handshaker->under_way != NULL) {
        struct server_accepted *accepted = handshaker->under_way;
        unlink_accepted(accepted);
        server_accepted_drop(handshaker->server, accepted);
    }
    return NULL;
}

static core_status start_one(struct server_handshaker *handshaker, uint32_t index, struct core_error *error)
{
    char name[24];
    core_status status = server_mailbox_init(&handshaker->mailbox, error);
    if (status == CORE_OK)
        status = server_poller_init(&handshaker->poller, error);
    if (status != CORE_OK)
        return status;
    handshaker->mail = (struct server_watch){
        .descriptor = handshaker->mailbox.descriptor, .ready = on_mail, .owner = handshaker};
    if (!server_poller_watch(&handshaker->poller, &handshaker->mail, EPOLLIN))
        return core_error_set(error, CORE_NO_MEMORY, "no memory for TLS handshakes");
    snprintf(name, sizeof name, "tls-%u", index);
    const struct core_thread_options options = {.name = name, .cpu = -1};
    status = core_thread_start(&handshaker->thread, &options, run, handshaker, NULL, error);
    handshaker->started = status == CORE_OK;
    return status;
}

core_status server_handshakes_start(struct server_handshakes **handshakes, struct server *server,
                                    struct core_error *error)
{
    uint32_t count = server->config->threads.tls;
    core_status status = CORE_OK;
    *handshakes = calloc(1, sizeof **handshakes + count * sizeof(struct server_handshaker));
    if (*handshakes == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for TLS handshakes");
    for (; status == CORE_OK && (*handshakes)->count < count; (*handshakes)->count++) {
        struct server_handshaker *handshaker = &(*handshakes)->threads[(*handshakes)->count];
        handshaker->server = server;
        handshaker->mailbox.descriptor = handshaker->poller.descriptor = -1;
        status = start_one(handshaker, (*handshakes)->count, error);
    }
    return status;
}

void server_handshakes_halt(struct server_handshakes *handshakes)
{
    for (uint32_t i = 0; handshakes != NULL && i < handshakes->count; i++) {
        struct server_handshaker *handshaker = &handshakes->threads[i];
        if (!handshaker->started)
            continue;
        handshaker->halt.run = halt;
        server_mailbox_post(&handshaker->mailbox, &handshaker->halt);
        pthread_join(handshaker->thread, NULL);
        handshaker->started = false;
    }
}

void server_handshakes_destroy(struct server_handshakes *handshakes)
{
    for (uint32_t i = 0; handshakes != NULL && i < handshakes->count; i++) {
        struct server_handshaker *handshaker = &handshakes->threads[i];
        if (handshaker->halted)
            server_mailbox_run(&handshaker->mailbox, handshaker);
        server_poller_free(&handshaker->poller);
        server_mailbox_destroy(&handshaker->mailbox);
    }
    free(handshakes);
}
