/* The connections of the admin port: HTTP/1.0 and HTTP/1.1, one request each, bounded in number, memory and
 * time. And those of a port that speaks first (agent.h): a line to each, whatever it sends.
 *
 * At most SERVER_ADMIN_CONNECTIONS_MAX at once: more wait in the kernel's queue. Each has
 * SERVER_ADMIN_CONNECTIONS_REQUEST_S to send its whole request, and from then on SERVER_ADMIN_CONNECTIONS_ANSWER_S
 * to read the answer, so that no client can occupy a connection by sending or reading one byte at a time. While
 * all connections are in use, these limits are SERVER_ADMIN_CONNECTIONS_CROWD_REQUEST_MS and
 * SERVER_ADMIN_CONNECTIONS_CROWD_ANSWER_MS, and who has its whole answer makes room at the next look. Without free
 * descriptors accepting pauses.
 *
 * All memory but that of long answers is there from the start: where there is none left, an answer says so.
 * Owned by the admin thread. */
#ifndef MILLRACE_SERVER_ADMIN_CONNECTIONS_H
#define MILLRACE_SERVER_ADMIN_CONNECTIONS_H

#include "core/address.h"
#include "core/time.h"

#include <stdbool.h>
#include <stddef.h>

#define SERVER_ADMIN_CONNECTIONS_MAX              32
#define SERVER_ADMIN_CONNECTIONS_REQUEST_S        3
#define SERVER_ADMIN_CONNECTIONS_ANSWER_S         30
#define SERVER_ADMIN_CONNECTIONS_CROWD_REQUEST_MS 100
#define SERVER_ADMIN_CONNECTIONS_CROWD_ANSWER_MS  1000

struct server_admin_connections;
struct server_admin_guest; /* one connection, from its request until it has its answer */
struct server_poller;

struct server_admin_request {
    const char *path;  /* as sent, "/status" */
    const char *query; /* what is behind '?'; "" */
    bool reads;        /* GET or HEAD */
};

/* Answers with server_admin_reply or server_admin_reply_line, or lets the guest wait. The request is valid
 * until it returns; NULL on a port that speaks first, where the answer is server_admin_say. */
typedef void server_admin_answer(void *argument, struct server_admin_guest *guest,
                                 const struct server_admin_request *request);

/* A long answer, which may go to many guests. */
struct server_admin_body;

/* One text behind the other (rest may be NULL); both are of malloc, and taken over. It has one use. NULL: text
 * was NULL, or there is no memory. */
struct server_admin_body *server_admin_body_make(char *text, size_t bytes, char *rest, size_t rest_bytes);
void server_admin_body_release(struct server_admin_body *body); /* one use; NULL is fine */

struct server_admin_port {
    const char *name; /* for messages: its key in the configuration */
    const struct core_address *address;
    bool speaks_first;
    server_admin_answer *answer; /* to each request; to each connection of a port that speaks first */
    void *argument;
};

/* Listens and accepts. */
CORE_CHECKED core_status server_admin_connections_create(struct server_admin_connections **connections,
                                                         struct server_poller *poller,
                                                         const struct server_admin_port *port,
                                                         struct core_error *error);

/* With the port that the kernel chose. */
const struct core_address *server_admin_connections_bound(const struct server_admin_connections *connections);

/* Can it be reached from this machine alone? */
bool server_admin_connections_are_local(const struct server_admin_connections *connections);

/* Ten times a second: ends the connections whose time is over. */
void server_admin_connections_end_overdue(struct server_admin_connections *connections, core_ns now_ns);

/* Every guest that waits gets this body (the guests have their own uses of it); NULL: no memory for it. */
void server_admin_connections_serve(struct server_admin_connections *connections, const char *type,
                                    struct server_admin_body *body);

/* The same with a line. */
void server_admin_connections_serve_line(struct server_admin_connections *connections, int code,
                                         const char *line);

/* Closes all. NULL is fine. */
void server_admin_connections_destroy(struct server_admin_connections *connections);

/* ---- answers ---- */

/* Status 200 and this body (one use is taken over); NULL: there was no memory for it. */
void server_admin_reply(struct server_admin_guest *guest, const char *type, struct server_admin_body *body);

/* A line of text, without its end: at most 127 bytes are sent of it. */
void server_admin_reply_line(struct server_admin_guest *guest, int code, const char *line);

/* The line, of at most 126 bytes and its end, and nothing else. */
void server_admin_say(struct server_admin_guest *guest, const char *line);

/* It waits for server_admin_connections_serve. */
void server_admin_wait(struct server_admin_guest *guest);

#endif
