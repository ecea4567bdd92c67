/* Connecting to a server without waiting for it: an attempt is a thread, so that one that does not answer, and a
 * name that is looked up, keep nobody. All functions are for the one thread that owns the dial. */
#ifndef MILLRACE_CLIENT_DIAL_H
#define MILLRACE_CLIENT_DIAL_H

#include "client/millrace.h"
#include "core/status.h"

#include <pthread.h>

struct client_dial {
    /* set before the attempt */
    const char *address;
    struct millrace_tls tls;
    int timeout_ms;
    uint16_t
        version_max; /* of the protocol, that is offered to one server; 0: the newest, to one or a pool */
    /* while there is one */
    pthread_t thread;
    bool begun; /* and not yet taken */
    int ended;  /* eventfd, if begun: readable when there is an outcome */
    /* the thread's, until it has ended */
    struct millrace *connection;
    core_status status;
    struct core_error error;
};

/* Begins an attempt; there is none. CORE_SYSTEM. */
CORE_CHECKED core_status client_dial_begin(struct client_dial *dial, struct core_error *error);

/* The outcome, which ends the attempt: *connection is the caller's, or why there is none. CORE_AGAIN: not yet. */
CORE_CHECKED core_status client_dial_take(struct client_dial *dial, struct millrace **connection,
                                          struct core_error *error);

/* For poll, POLLIN: when there is an outcome. -1: no attempt. */
int client_dial_descriptor(const struct client_dial *dial);

/* Ends an attempt, if there is one; waits for its end. */
void client_dial_close(struct client_dial *dial);

#endif
