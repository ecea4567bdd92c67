/* An I/O thread: one libevent base, its connections, and the hand-over of packets to the workers and back.
 *
 * Everything below is called on that thread, except where said. Work is done in turns: an event handler reads
 * frames, collects results or takes a message, and the turn ends with server_io_turn_end, which hands what
 * was gathered to the workers and writes what is due, many frames at once. */
#ifndef MILLRACE_SERVER_IO_H
#define MILLRACE_SERVER_IO_H

#include "server/connection.h"
#include "server/mailbox.h"
#include "server/state.h"
#include "server/waiting.h"

#define SERVER_READ_BYTES 65536 /* one read of a socket */

/* Packets for one worker, gathered during a turn and, when its ring is full, until it has room. */
struct server_submission {
    struct cpu_packet *head, *tail;
};

struct server_io {
    struct server *server; /* set before start */
    uint32_t index;        /* set before start: producer number at the workers */
    struct event_base *base;
    struct server_mailbox mailbox;
    int completion_descriptor, timer_descriptor; /* eventfd written by workers; timerfd for waiting streams */
    struct event *mailbox_event, *completion_event, *timer_event, *tick_event;
    struct event **listen_events; /* I/O thread 0 */
    struct cpu_engine *engine;    /* expands keys */
    struct server_connection *connections;
    struct server_connection *dirty;       /* to flush or resume at the end of the turn */
    struct server_submission *submissions; /* by worker */
    struct server_waiting waiting;
    core_ns timer_ns; /* what the timerfd is set to; CORE_NS_NEVER: off */
    size_t stream_count;
    uint8_t *read_buffer; /* SERVER_READ_BYTES */
    uint32_t stagger;
    bool draining, stopping;
    core_ns drain_until_ns;
    struct server_stats stats;
    _Atomic core_ns cpu_ns; /* atomic: CPU time of the thread, written at every tick, read by any */
    pthread_t thread;
};

CORE_CHECKED core_status server_io_create(struct server_io **io, struct server *server, uint32_t index,
                                          struct core_error *error);
/* Before the threads start: accepts on this base. */
CORE_CHECKED core_status server_io_listen(struct server_io *io, struct core_error *error);
CORE_CHECKED core_status server_io_start(struct server_io *io, struct core_error *not_permitted,
                                         struct core_error *error);
/* Any thread: a worker has put results into our ring. */
void server_io_notify(struct server_io *io);
/* Any thread: finish and deliver until drain_until_ns, then close everything and end the thread. */
void server_io_drain(struct server_io *io, core_ns drain_until_ns);
void server_io_join(struct server_io *io);
void server_io_destroy(struct server_io *io);

/* Marks a connection to be flushed (and resumed, if paused) at the end of the turn. */
void server_io_mark(struct server_connection *connection);
/* Hands over a packet that was accepted: to its worker if eligible, else to the waiting streams. */
void server_io_submit(struct server_io *io, struct server_stream *stream, struct server_packet *packet,
                      core_ns now_ns);
void server_io_turn_end(struct server_io *io);

/* accept.c: listens again after a lack of descriptors. */
void server_io_listen_again(struct server_io *io);

#endif
