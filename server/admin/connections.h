/* The connections of the admin port, bounded in number and in time, which evhttp does not do.
 *
 * At most SERVER_ADMIN_CONNECTIONS_MAX at once: more wait in the kernel's queue. Each has
 * SERVER_ADMIN_CONNECTIONS_REQUEST_S to send its whole request, and is closed after
 * SERVER_ADMIN_CONNECTIONS_AGE_S, so that no client can occupy a connection by sending or reading one byte at
 * a time. While all connections are in use, these limits are shorter: a connection without a request is
 * closed after SERVER_ADMIN_CONNECTIONS_CROWD_REQUEST_MS, and one that has not read its answer after
 * SERVER_ADMIN_CONNECTIONS_CROWD_AGE_MS. Without free descriptors accepting pauses. Owned by the admin
 * thread. */
#ifndef MILLRACE_SERVER_ADMIN_CONNECTIONS_H
#define MILLRACE_SERVER_ADMIN_CONNECTIONS_H

#include "core/status.h"

#define SERVER_ADMIN_CONNECTIONS_MAX              32
#define SERVER_ADMIN_CONNECTIONS_REQUEST_S        3
#define SERVER_ADMIN_CONNECTIONS_AGE_S            30
#define SERVER_ADMIN_CONNECTIONS_CROWD_REQUEST_MS 100
#define SERVER_ADMIN_CONNECTIONS_CROWD_AGE_MS     1000

struct bufferevent;
struct event_base;
struct evhttp;
struct server_admin_connections;

/* Lets `http` accept on the listening descriptor, which is http's from here on (still the caller's on
 * failure). */
CORE_CHECKED core_status server_admin_connections_create(struct server_admin_connections **connections,
                                                         struct event_base *base, struct evhttp *http,
                                                         int descriptor, struct core_error *error);

/* The client of this connection has sent its request. */
void server_admin_connections_asked(struct server_admin_connections *connections,
                                    const struct bufferevent *transport);

/* After evhttp_free, before event_base_free. NULL is fine. */
void server_admin_connections_destroy(struct server_admin_connections *connections);

#endif
