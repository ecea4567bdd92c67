/* The streams of every I/O thread, listed for the admin thread without locks and without a long turn
 * anywhere.
 *
 * There is one page for each I/O thread, which passes between the two threads: the admin thread posts it to
 * the I/O thread; that writes at most SERVER_STREAM_DUMP_ROWS streams, remembers its position, and posts it
 * back, until all streams are written. A stream that is opened or closed meanwhile may be listed or not; none
 * is listed twice. One listing runs at a time. */
#ifndef MILLRACE_SERVER_ADMIN_STREAM_DUMP_H
#define MILLRACE_SERVER_ADMIN_STREAM_DUMP_H

#include "core/protocol.h"
#include "core/status.h"
#include "core/stream.h"
#include "server/mailbox.h"
#include "server/stream/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SERVER_STREAM_DUMP_ROWS 256 /* streams that an I/O thread writes down in one turn */

struct server;
struct server_connection;
struct server_io;
struct server_stream_dump;

/* How a stream is on its unit. */
enum server_stream_dump_state {
    SERVER_STREAM_DUMP_PRIMARY,     /* packets go to it */
    SERVER_STREAM_DUMP_MOVING,      /* packets go to it, and a live migration waits for an idle point */
    SERVER_STREAM_DUMP_HELD,        /* packets are held until the old unit, or a backup, has drained */
    SERVER_STREAM_DUMP_FAILED_OVER, /* its GPU is out of service: packets go to backup or fallback worker */
};

/* "home", "moving", ... */
const char *server_stream_dump_state_name(enum server_stream_dump_state state);

struct server_stream_dump_row {
    uint64_t connection;
    char peer[96];
    uint32_t stream;
    bool on_gpu;
    uint32_t unit;      /* number of the worker or GPU */
    bool backed;        /* it has a backup */
    bool backup_on_gpu; /* backed: the backup is on a GPU, else on a worker */
    uint32_t backup;    /* backed: number of that worker or GPU */
    enum server_stream_dump_state state;
    struct core_stream_spec spec;
    struct server_stream_account account;
};

/* ---- admin thread ---- */

struct server_stream_dump_calls {
    void (*row)(void *argument, const struct server_stream_dump_row *row);
    /* The end. complete: false if an I/O thread did not answer in time, as one that has already stopped. */
    void (*done)(void *argument, bool complete);
    void *argument;
};

/* Pages come back through `reply`, the mailbox that the admin thread runs. */
CORE_CHECKED core_status server_stream_dump_create(struct server_stream_dump **stream_dump,
                                                   struct server *server, struct server_mailbox *reply,
                                                   const struct server_stream_dump_calls *calls,
                                                   struct core_error *error);

/* Begins a listing. None may be running. */
void server_stream_dump_start(struct server_stream_dump *stream_dump);

/* A few times a second: ends a listing whose pages do not come. */
void server_stream_dump_end_overdue(struct server_stream_dump *stream_dump, core_ns now_ns);

/* Every I/O thread must have ended (or not have begun): a page may still lie in its mailbox. NULL is fine. */
void server_stream_dump_destroy(struct server_stream_dump *stream_dump);

#endif
