/* TLS handshakes, and the PROXY headers before them, on threads of ordinary priority: their cost, and a client that begins many of them, takes
 * no time of an I/O thread. Established connections go on to their I/O thread; those that fail, or have not
 * come so far within timeouts.hello_ms, are closed, logged and counted by reason. */
#ifndef MILLRACE_SERVER_NET_HANDSHAKE_H
#define MILLRACE_SERVER_NET_HANDSHAKE_H

#include "core/status.h"

struct server;
struct server_accepted;
struct server_handshakes;

/* threads.tls of them; before I/O threads start. */
CORE_CHECKED core_status server_handshakes_start(struct server_handshakes **handshakes, struct server *server,
                                                 struct core_error *error);

/* I/O thread 0: makes the handshake; `accepted` is not the caller's any more. */
void server_handshakes_add(struct server_handshakes *handshakes, struct server_accepted *accepted);

/* Ends the threads, and all handshakes under way, before I/O threads end: nothing comes to these afterwards.
 * What is added meanwhile, or later, is closed by destroy. NULL is fine, and so is twice. */
void server_handshakes_halt(struct server_handshakes *handshakes);

/* After halt, when no thread adds any more. NULL is fine. */
void server_handshakes_destroy(struct server_handshakes *handshakes);

#endif
