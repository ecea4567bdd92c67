/* The admin port: plain HTTP on a thread of its own, for people and their monitoring.
 *
 *   GET /health           200 "ok", or 503 "draining" once the server is stopping
 *   GET /livez            200 "ok", or 503 and the thread that makes no progress
 *   GET /readyz           200 "ready", or 503 and why nothing new should come
 *   GET /metrics          prometheus.h
 *   GET /status           status_json.h; with ?streams=1 also every stream
 *
 * The thread runs at the default priority. Its figures are those that the other threads publish (snapshot.h)
 * or write when asked (stream_dump.h); no thread ever waits for it. It serves HAProxy's agent-check as well, on an
 * address of its own (agent.h). There is no password: every client that
 * can connect may read, and none can change anything. */
#ifndef MILLRACE_SERVER_ADMIN_HTTP_H
#define MILLRACE_SERVER_ADMIN_HTTP_H

#include "core/address.h"

struct server;
struct server_admin;

/* Listens on the configured address and starts the thread. After the planner, the workers and the I/O
 * threads' structs are there; before the I/O threads run. */
CORE_CHECKED core_status server_admin_start(struct server_admin **admin, struct server *server,
                                            struct core_error *error);

/* After every I/O thread has ended, before anything else is taken apart. NULL is fine. */
void server_admin_stop(struct server_admin *admin);

/* Of HAProxy's agent-check (agent.h); NULL: it is not configured. */
const struct core_address *server_admin_agent(const struct server_admin *admin);

/* With the port that the kernel chose. */
const struct core_address *server_admin_bound(const struct server_admin *admin);

#endif
