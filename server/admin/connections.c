#include "server/admin/connections.h"

#include "core/log.h"
#include "core/time.h"

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/listener.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>

#define POLL_MS         100   /* between looks at the guests */
#define INPUT_BYTES_MAX 16384 /* read ahead of what evhttp has parsed */

struct guest {
    struct bufferevent *transport; /* we hold a reference, so that it outlives evhttp's; NULL: a free place */
    core_ns since_ns;
    bool asked; /* the request is here, whole */
};

struct server_admin_connections {
    struct evconnlistener *listener; /* evhttp's */
    struct event *look;
    struct guest connections[SERVER_ADMIN_CONNECTIONS_MAX];
    uint32_t count;
};

/* evhttp frees the transport when it is done with a connection. Because of our reference that only takes its
 * callbacks away; the socket is closed when we let go. */
static bool has_left(const struct guest *guest)
{
    bufferevent_event_cb on_event;
    bufferevent_getcb(guest->transport, NULL, NULL, &on_event, NULL);
    return on_event == NULL;
}

static void see_off(struct server_admin_connections *connections, struct guest *guest)
{
    bufferevent_decref(guest->transport);
    guest->transport = NULL;
    connections->count--;
}

static core_ns time_of(const struct guest *guest, bool crowded)
{
    if (crowded)
        return (guest->asked ? SERVER_ADMIN_CONNECTIONS_CROWD_AGE_MS
                             : SERVER_ADMIN_CONNECTIONS_CROWD_REQUEST_MS) *
               CORE_NS_PER_MS;
    return (guest->asked ? SERVER_ADMIN_CONNECTIONS_AGE_S : SERVER_ADMIN_CONNECTIONS_REQUEST_S) *
           CORE_NS_PER_S;
}

/* evhttp notices the end of the connection by itself. */
static void refuse_connection(const struct guest *guest, bool crowded, core_ns now_ns)
{
    if (now_ns - guest->since_ns > time_of(guest, crowded))
        (void)shutdown(bufferevent_getfd(guest->transport), SHUT_RDWR);
}

static void on_poll(evutil_socket_t descriptor, short events, void *argument)
{
    struct server_admin_connections *connections = argument;
    core_ns now_ns = core_time_now_ns();
    bool crowded = connections->count == SERVER_ADMIN_CONNECTIONS_MAX;
    (void)descriptor, (void)events;

    for (size_t i = 0; i < SERVER_ADMIN_CONNECTIONS_MAX; i++) {
        struct guest *guest = &connections->connections[i];
        if (guest->transport != NULL && has_left(guest))
            see_off(connections, guest);
        else if (guest->transport != NULL)
            refuse_connection(guest, crowded, now_ns);
    }
    if (connections->count < SERVER_ADMIN_CONNECTIONS_MAX)
        evconnlistener_enable(connections->listener);
}

/* evhttp asks for the transport of a connection that it has accepted. NULL: it makes one itself, as it must
 * only where there is no memory. */
static struct bufferevent *on_arrival(struct event_base *base, void *argument)
{
    struct server_admin_connections *connections = argument;
    struct bufferevent *transport = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    struct guest *guest = connections->connections;

    if (transport == NULL)
        return NULL;
    bufferevent_setwatermark(transport, EV_READ, 0, INPUT_BYTES_MAX);
    bufferevent_incref(transport);
    while (guest->transport != NULL)
        guest++;
    *guest = (struct guest){.transport = transport, .since_ns = core_time_now_ns()};
    if (++connections->count == SERVER_ADMIN_CONNECTIONS_MAX)
        evconnlistener_disable(connections->listener);
    return transport;
}

/* Until the next look; else a lack of descriptors would keep this thread busy. */
static void on_accept_error(struct evconnlistener *listener, void *http)
{
    (void)http;
    core_log(CORE_LOG_WARNING, "admin.accept", "can not accept on the admin port: %m; trying again");
    evconnlistener_disable(listener);
}

core_status server_admin_connections_create(struct server_admin_connections **connections,
                                            struct event_base *base, struct evhttp *http, int descriptor,
                                            struct core_error *error)
{
    const struct timeval pause = {.tv_usec = POLL_MS * 1000};
    struct server_admin_connections *fresh = calloc(1, sizeof *fresh);
    struct evhttp_bound_socket *socket = NULL;

    if (fresh != NULL)
        fresh->look = event_new(base, -1, EV_PERSIST, on_poll, fresh);
    if (fresh != NULL && fresh->look != NULL && event_add(fresh->look, &pause) == 0)
        socket = evhttp_accept_socket_with_handle(http, descriptor);
    if (socket == NULL) {
        server_admin_connections_destroy(fresh);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for the admin port");
    }
    fresh->listener = evhttp_bound_socket_get_listener(socket);
    evconnlistener_set_error_cb(fresh->listener, on_accept_error);
    evhttp_set_bevcb(http, on_arrival, fresh);
    *connections = fresh;
    return CORE_OK;
}

void server_admin_connections_asked(struct server_admin_connections *connections,
                                    const struct bufferevent *transport)
{
    for (size_t i = 0; i < SERVER_ADMIN_CONNECTIONS_MAX; i++)
        if (connections->connections[i].transport == transport)
            connections->connections[i].asked = true;
}

void server_admin_connections_destroy(struct server_admin_connections *connections)
{
    if (connections == NULL)
        return;
    for (size_t i = 0; i < SERVER_ADMIN_CONNECTIONS_MAX; i++)
        if (connections->connections[i].transport != NULL)
            see_off(connections, &connections->connections[i]);
    if (connections->look != NULL)
        event_free(connections->look);
    free(connections);
}
