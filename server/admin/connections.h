/* The connections of the admin port, bounded in number and in time, which evhttp does not do.
 *
 * At most SERVER_GUESTS_MAX at once: more wait in the kernel's queue. Each has SERVER_GUESTS_REQUEST_S to
 * send its request whole, and is ended after SERVER_GUESTS_AGE_S, so that nobody can hold a place by sending
 * or reading one byte at a time. When all places are taken others may be waiting: then who has not asked
 * after SERVER_GUESTS_CROWD_REQUEST_MS gives way, and who has not read its answer after
 * SERVER_GUESTS_CROWD_AGE_MS. Without descriptors accepting pauses. The admin thread owns all of it. */
#ifndef MILLRACE_SERVER_ADMIN_CONNECTIONS_H
#define MILLRACE_SERVER_ADMIN_CONNECTIONS_H

#include "core/status.h"

#define SERVER_GUESTS_MAX              32
#define SERVER_GUESTS_REQUEST_S        3
#define SERVER_GUESTS_AGE_S            30
#define SERVER_GUESTS_CROWD_REQUEST_MS 100
#define SERVER_GUESTS_CROWD_AGE_MS     1000

struct bufferevent;
struct event_base;
struct evhttp;
struct server_guests;

/* Lets `http` accept on the listening descriptor, which is http's from here on (still the caller's on
 * failure). */
CORE_CHECKED core_status server_guests_create(struct server_guests **guests, struct event_base *base,
                                              struct evhttp *http, int descriptor, struct core_error *error);

/* The guest with this transport has sent its request. */
void server_guests_asked(struct server_guests *guests, const struct bufferevent *transport);

/* After evhttp_free, before event_base_free. NULL is fine. */
void server_guests_destroy(struct server_guests *guests);

#endif
