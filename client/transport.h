/* What carries a connection's bytes: a plain socket, TLS 1.3 on one, or a lane, of which the socket only tells.
 * Never blocks once connected, never raises SIGPIPE. Not thread-safe; under the connection's lock. */
#ifndef MILLRACE_CLIENT_TRANSPORT_H
#define MILLRACE_CLIENT_TRANSPORT_H

#include "client/millrace.h"
#include "core/address.h"
#include "core/lane.h"
#include "core/time.h"

#include <sys/uio.h>

struct ssl_st;
struct ssl_ctx_st;
struct client_transport;
struct client_pool;

struct client_transport_kind {
    /* CORE_OK and *got > 0; CORE_AGAIN; CORE_CLOSED at the end; CORE_SYSTEM. */
    core_status (*read)(struct client_transport *transport, void *room, size_t bytes, size_t *got,
                        struct core_error *error);
    /* CORE_OK and *written > 0; CORE_AGAIN; CORE_SYSTEM. One system call where the kind allows it. */
    core_status (*write)(struct client_transport *transport, const struct iovec *parts, int count,
                         size_t *written, struct core_error *error);
    /* Are there bytes inside that poll would not tell of? */
    bool (*pending)(const struct client_transport *transport);
    void (*close)(struct client_transport *transport);
};

struct client_transport {
    const struct client_transport_kind *kind;
    int descriptor;
    short wants; /* poll events that the last read asked for, besides POLLIN */
    struct ssl_st *tls;
    struct ssl_ctx_st *tls_context;
    struct core_lane lane;
    bool shares;           /* the lane carries the bytes: frames are made in it, and taken where they lie */
    void (*release)(void); /* of the server inside this process, after the close; NULL: it is elsewhere */
    struct client_pool *pool;
    bool full; /* the lane had no room: that there is some is told by POLLIN, not by POLLOUT */
};

/* Connects, by deadline_ns, and shakes hands where the address says tls. */
CORE_CHECKED core_status client_transport_connect(struct client_transport *transport,
                                                  const struct core_address *address,
                                                  const struct millrace_tls *tls, core_ns deadline_ns,
                                                  struct core_error *error);

/* The same with the server inside this process, which is started if need be, however long that takes. */
CORE_CHECKED core_status client_transport_embed(struct client_transport *transport, const char *path,
                                                struct core_error *error);

/* Puts TLS onto the connected descriptor of `transport`. On failure the descriptor stays open. */
CORE_CHECKED core_status client_tls_start(struct client_transport *transport,
                                          const struct core_address *address, const struct millrace_tls *tls,
                                          core_ns deadline_ns, struct core_error *error);

/* Milliseconds to the deadline as poll takes them: rounded up, -1 for CORE_NS_NEVER, 0 if it has passed. */
int client_milliseconds_until(core_ns deadline_ns);

#endif
