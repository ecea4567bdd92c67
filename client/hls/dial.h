/* Connecting to the server without waiting for it: an attempt is a thread, so that one that does not answer, and a
 * name that is looked up, keep nobody. All functions are for the one thread that owns the dial. */
#ifndef MILLRACE_CLIENT_HLS_DIAL_H
#define MILLRACE_CLIENT_HLS_DIAL_H

#include "client/command.h"

#include <pthread.h>

struct hls_dial {
    /* set before the attempt */
    const struct core_options_server *server;
    int timeout_ms;
    /* */
    pthread_t thread;
    bool begun; /* and not yet taken */
    int ended;  /* eventfd, if begun: readable when there is an outcome */
    /* the thread's, until it has ended */
    struct millrace *connection;
    core_status status;
    struct core_error error;
};

/* Begins an attempt; there is none. CORE_SYSTEM. */
CORE_CHECKED core_status hls_dial_begin(struct hls_dial *dial, struct core_error *error);

/* The outcome, which ends the attempt: *connection is the caller's, or why there is none. CORE_AGAIN: not yet. */
CORE_CHECKED core_status hls_dial_take(struct hls_dial *dial, struct millrace **connection,
                                       struct core_error *error);

/* For poll, POLLIN: when there is an outcome. -1: no attempt. */
int hls_dial_descriptor(const struct hls_dial *dial);

/* Ends an attempt, if there is one; waits for its end. */
void hls_dial_close(struct hls_dial *dial);

#endif
