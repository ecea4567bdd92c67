/* A connection on its way from a listening socket to its I/O thread. I/O thread 0 accepts, a few a turn, and
 * asks for a place; a TLS connection goes by way of a handshake thread (server/net/handshake.h). So does, before
 * that, one of a listener with PROXY headers; then I/O thread 0 asks for the place of the client that the header
 * has named. It has one owner at a time, which passes it on by message. */
#ifndef MILLRACE_SERVER_NET_ACCEPT_H
#define MILLRACE_SERVER_NET_ACCEPT_H

#include "config/keyring.h"
#include "core/time.h"
#include "server/mailbox.h"
#include "server/net/connection_slots.h"
#include "server/net/poller.h"
#include "server/net/proxy.h"
#include "server/net/transport.h"

#include <stdbool.h>

struct server;
struct server_listener;
struct server_handshaker;

struct server_accepted {
    struct server_message message; /* first member */
    struct server_transport transport;
    struct server_connection_slot place;
    struct server_peer_key key;
    char peer[96];    /* "unix:pid=17,uid=0", "tcp:127.0.0.1:5151" */
    bool inline_keys; /* unix or tls; unix with a proxy's client: no */
    struct config_key_user user;
    core_ns accepted_ns;
    struct server_listener *listener; /* NULL: adopted */
    bool header_due;                  /* its PROXY header is still to come, or to be taken: */
    struct server_proxy header;
    /* of its handshake */
    struct server_handshaker *handshaker;
    struct server_watch watch;
    struct server_accepted *next, **previous;
};

/* Any thread: to the I/O thread that has the fewest connections. */
void server_accepted_hand_over(struct server *server, struct server_accepted *accepted);

/* Any thread: its PROXY header is whole; to I/O thread 0. */
void server_accepted_introduce(struct server *server, struct server_accepted *accepted);

/* Any thread: closes it and gives its place back. */
void server_accepted_drop(struct server *server, struct server_accepted *accepted);

/* Any thread. The listener: NULL of a connection that was adopted, which is not counted. */
void server_count_turned(struct server_listener *listener, enum server_turned reason);

#endif
