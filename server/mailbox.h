/* A mailbox: messages from any thread to the one that owns it, in order per sender.
 *
 * Many producers, one consumer, lock-free, unbounded because the messages bring their own memory. Control
 * path only (opening, closing, status); packets travel through the rings of cpu/worker.h. */
#ifndef MILLRACE_SERVER_MAILBOX_H
#define MILLRACE_SERVER_MAILBOX_H

#include "core/realtime.h"

#include <stdatomic.h>
#include <stdbool.h>

struct server_message {
    struct server_message *next; /* owned by the mailbox between post and run */
    /* Called on the owner's thread; the message is the callee's from then on. */
    void (*run)(void *owner, struct server_message *message);
};

struct server_mailbox {
    _Atomic(struct server_message *) head; /* atomic: pushed by producers, taken whole by the consumer */
    int descriptor;                        /* eventfd, readable while messages wait; set before start */
};

CORE_CHECKED core_status server_mailbox_init(struct server_mailbox *mailbox, struct core_error *error);

/* Any thread. */
void server_mailbox_post(struct server_mailbox *mailbox, struct server_message *message);

/* Owner: runs every message that waits, oldest first. */
void server_mailbox_run(struct server_mailbox *mailbox, void *owner);

/* Owner: blocks until a message waits or timeout_ms are over (-1: no limit), then runs as above. */
void server_mailbox_wait(struct server_mailbox *mailbox, void *owner, int timeout_ms);

/* Owner: does a message wait? */
bool server_mailbox_has_mail(const struct server_mailbox *mailbox);

/* After the last post. Messages still inside are not run. */
void server_mailbox_destroy(struct server_mailbox *mailbox);

/* A thread that does nothing but run the messages of its mailbox. */
struct server_mailbox_thread {
    struct server_message stop_message; /* first member */
    struct server_mailbox mailbox;
    void *owner;   /* passed to the messages; set before start */
    bool stopping; /* the thread's */
    pthread_t thread;
};

/* On failure nothing is left to stop. */
CORE_CHECKED core_status server_mailbox_thread_start(struct server_mailbox_thread *thread, const char *name,
                                                     size_t stack_bytes, void *owner,
                                                     struct core_error *error);

/* Ends the thread once it has run all that was posted before. After the last post. */
void server_mailbox_thread_stop(struct server_mailbox_thread *thread);

#endif
