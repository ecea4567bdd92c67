#include "server/net/handshake.h"

#include "core/log.h"
#include "core/realtime.h"
#include "server/net/accept.h"
#include "server/net/certificate.h"
#include "server/server_internal.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>

/* One thread, and what it has under way. */
struct server_handshaker {
    struct server *server;   /* set before start */
    struct event_base *base; /* set before start */
    struct event *mail;      /* set before start */
    struct server_mailbox mailbox;
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
    event_free(accepted->event);
    accepted->event = NULL;
}

static void fail(struct server_accepted *accepted, enum server_turned reason, const char *text)
{
    struct server *server = accepted->handshaker->server;
    const struct core_log_fields fields = {.peer = accepted->peer};
    char address[300];
    core_log_with(CORE_LOG_INFO, "tls.handshake", &fields, "%s: TLS handshake with %s failed: %s; closed",
                  accepted->peer, core_address_format(&accepted->listener->bound, address, sizeof address),
                  text);
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

static void on_event(evutil_socket_t descriptor, short events, void *argument);

/* For the peer, until its time is over. */
static void wait_for_peer(struct server_accepted *accepted)
{
    struct server_handshaker *handshaker = accepted->handshaker;
    core_ns hello_ns = handshaker->server->config->timeouts.hello_ns;
    core_ns left_ns = accepted->accepted_ns + hello_ns - core_time_now_ns();
    short wanted = accepted->transport.wants_write ? EV_WRITE : EV_READ;
    char text[96];

    if (left_ns > 0) {
        struct timeval left = {.tv_sec = left_ns / CORE_NS_PER_S,
                               .tv_usec = left_ns % CORE_NS_PER_S / CORE_NS_PER_US};
        if (event_assign(accepted->event, handshaker->base, accepted->transport.descriptor, wanted, on_event,
                         accepted) != 0 ||
            event_add(accepted->event, &left) != 0)
            fail(accepted, SERVER_TURNED_MEMORY, "no memory to wait for the peer");
        return;
    }
    snprintf(text, sizeof text, "not finished within timeouts.hello_ms (%lld ms)",
             (long long)(hello_ns / CORE_NS_PER_MS));
    fail(accepted, SERVER_TURNED_TIMEOUT, text);
}

static void step(struct server_accepted *accepted)
{
    enum server_turned reason = SERVER_TURNED_PROTOCOL;
    struct core_error error = {""};
    core_status status = server_transport_handshake(&accepted->transport, &reason, &error);

    if (status == CORE_OK)
        establish(accepted);
    else if (status == CORE_AGAIN)
        wait_for_peer(accepted);
    else
        fail(accepted, reason, error.text);
}

static void on_event(evutil_socket_t descriptor, short events, void *argument)
{
    (void)descriptor;
    if ((events & EV_TIMEOUT) != 0)
        wait_for_peer(argument);
    else
        step(argument);
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
    accepted->event = event_new(handshaker->base, -1, 0, on_event, accepted);
    if (accepted->event == NULL || secure(handshaker, accepted) != CORE_OK) {
        core_log_with(CORE_LOG_ERROR, "connection.memory", &(struct core_log_fields){.peer = accepted->peer},
                      "no memory for a new connection; it is closed");
        server_count_turned(accepted->listener, SERVER_TURNED_MEMORY);
        if (accepted->event != NULL)
            event_free(accepted->event);
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

static void on_mail(evutil_socket_t descriptor, short events, void *argument)
{
    struct server_handshaker *handshaker = argument;
    (void)descriptor, (void)events;
    server_mailbox_run(&handshaker->mailbox, handshaker);
}

static void halt(void *owner, struct server_message *message)
{
    struct server_handshaker *handshaker = owner;
    (void)message;
    handshaker->halted = true;
    event_base_loopbreak(handshaker->base);
}

static void *run(void *argument)
{
    struct server_handshaker *handshaker = argument;

    while (!handshaker->halted)
        (void)event_base_loop(handshaker->base, 0); /* fails only if the kernel has no epoll left to give */
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
    struct event_config *config = event_config_new();

    if (config != NULL) {
        event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
        handshaker->base = event_base_new_with_config(config);
        event_config_free(config);
    }
    core_status status = server_mailbox_init(&handshaker->mailbox, error);
    if (status != CORE_OK)
        return status;
    if (handshaker->base != NULL)
        handshaker->mail = event_new(handshaker->base, handshaker->mailbox.descriptor, EV_READ | EV_PERSIST,
                                     on_mail, handshaker);
    if (handshaker->mail == NULL || event_add(handshaker->mail, NULL) != 0)
        return core_error_set(error, CORE_NO_MEMORY, "no memory or descriptors for TLS handshakes");
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
        handshaker->mailbox.descriptor = -1;
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
        if (handshaker->mail != NULL)
            event_free(handshaker->mail);
        if (handshaker->base != NULL)
            event_base_free(handshaker->base);
        server_mailbox_destroy(&handshaker->mailbox);
    }
    free(handshakes);
}
