/* An I/O thread: its poller, its connections, and the hand-over of packets to the workers and back.
 *
 * Everything below is called on that thread, except where said. Work is done in turns: the handlers of all
 * events that were ready together read frames, collect results or take messages; then the turn ends: what was
 * gathered goes to the workers and what is due is written, many frames at once. A turn that has read
 * TURN_BYTES (io.c) ends early, so that no result waits for more input than that.
 *
 * Moderation. When packets come in quick succession, the thread rests for server_io_rest_ns after a turn that
 * has read input, and lets input and results gather: one wake-up and one system call then serve many packets.
 * A rest is at most half of perfmodel_io_rest_ns of the shortest latency bound among the thread's streams: a
 * packet may meet one before it is read and one before its result is written, and admission has taken both
 * off every deadline. A packet that comes alone never waits for it.
 *
 * Workers that sleep. Where this is the only I/O thread, what a turn has gathered for one of them is encrypted on
 * this thread at the end of the turn (cpu_worker_serve), after all that others wait for, if it is one burst. It takes
 * the time, with as long again for its results, from the rest that follows, which is so much shorter; or, without
 * a rest, the turn with it is no longer than promises reckon with (in_ns). A turn that ends early serves nobody, since
 * such a thread has enough to do. So a lightly loaded server wakes no worker, and results leave with the turn that has
 * read their packets; under load workers have cores of their own. With more I/O threads one that lost its core
 * inside a burst would hold up the streams of another. */
#ifndef MILLRACE_SERVER_NET_IO_H
#define MILLRACE_SERVER_NET_IO_H

#include "perfmodel/cpu.h"
#include "server/net/connection.h"
#include "server/net/io_thread.h"
#include "server/stream/arrival.h"
#include "server/stream/eligible_queue.h"
#include "server/stream/iv.h"

#define SERVER_READ_BYTES 65536 /* one read of a socket */

/* Packets for one worker, gathered during a turn and, when its ring is full, until it has room. */
struct server_submission {
    struct cpu_packet *head, *tail;
    uint32_t packets;
    bool
        is_burst; /* each has one piece and is the only one of its stream inside: together they are a burst, */
    core_ns pieces_ns; /* whose pieces cost so much, */
    uint32_t ciphers;  /* of this set of ciphers */
};

/* What was put for a worker that sleeps and may be served; no packets: nothing. */
struct server_unserved {
    uint32_t packets;
    core_ns cost_ns; /* of the burst */
};

/* Connections, first come, first served. */
struct server_connection_line {
    struct server_connection *first, *last;
};

/* One I/O thread: its events, its lists of what is to be done before the turn ends, and its measurements.
 * Nothing in it is for another thread but what is marked atomic, and the mailbox. */
struct server_io {
    struct server_stream_io streams; /* first member */
    struct server *server;           /* set before start */
    uint32_t index;                  /* set before start: producer number at the workers */
    struct server_poller poller;
    struct server_mailbox mailbox;
    struct server_watch mail, completion; /* its mailbox; an eventfd that workers write */
    struct server_watch timer, tick;      /* timerfds: for waiting streams; every TICK_MS (io.c) */
    struct server_polls turns;            /* for the earliest time at which input of a turn can have come */
    core_ns beat_ns;                      /* the longest sleep while streams are open */
    core_ns allowed_ns; /* a turn that has taken longer is late: in_ns and the rest before it */
    struct perfmodel_cpu_worker worker; /* what bursts of each worker may cost */
    core_ns rest_until_ns;              /* at the end of a turn that is followed by a rest; else 0 */
    core_ns served_ns;                  /* what serving workers took at the last end of a turn */
    uint64_t turn;                      /* number of the present one, in which were handled: */
    uint32_t controls;                  /* so many frames other than DATA */
    size_t turn_bytes;                  /* read since the last end of a turn */
    uint64_t packets;                   /* received whole, ever */
    uint64_t rate_packets;              /* as of rate_ns */
    core_ns rate_ns;                    /* when the rate was last taken */
    double packets_per_ns;              /* rate of arrival over about the last millisecond */
    uint32_t latency_classes[64];       /* open streams by floor(log2(counted_ns)) */
    struct server_watch *listening;     /* I/O thread 0: by number of the listener */
    struct server_ivs ivs;              /* for streams whose client gives none */
    struct server_connection *connections;
    struct server_connection_cursor cursor;         /* position of the admin thread's stream dump */
    struct server_connection *dirty;                /* to flush or resume at the end of the turn */
    struct server_connection_line again, strangers; /* to be looked at: all in the next turn; a few */
    struct server_submission *submissions;          /* by worker, the fallback worker last */
    struct server_unserved *unserved;               /* by worker, within an end of a turn */
    struct server_eligible_queue waiting;
    core_ns timer_ns; /* what the timerfd is set to; CORE_NS_NEVER: off */
    size_t stream_count;
    uint8_t *read_buffer; /* SERVER_READ_BYTES */
    bool stream_ended;    /* a stream has ended: wipe the read buffer at the end of the turn */
    bool behind;          /* of what a card has lost some is to be taken in the next turn */
    bool draining;
    core_ns drain_until_ns;              /* set before drain_message is posted */
    struct server_message drain_message; /* posted once */
    _Atomic uint32_t
        assigned; /* atomic: connections of this thread; raised by the thread that hands one over,
                                  lowered by this thread when one ends */
    struct server_stats stats;
    _Atomic core_ns cpu_ns;    /* atomic: CPU time of the thread, written at every tick, read by any */
    _Atomic bool ended;        /* atomic: set at its end, read by any */
    _Atomic int32_t thread_id; /* atomic: the system's, written at the start, read by any; 0 before */
    pthread_t thread;
};

/* If the present turn is late, enters it among the thread's stalls now. */
void server_io_admit_stall(struct server_io *io, core_ns now_ns);

/* Marks a connection to be flushed (and resumed, if paused) at the end of the turn. */
void server_io_mark(struct server_connection *connection);
/* A connection without streams has something to read: it is read when those that came before it have been, a
 * few in each turn. What it sends is no packet, so its time of arrival matters to no deadline. One with streams is
 * looked at in the next turn. That begins in a millisecond, if nothing else begins it before. */
void server_io_put_off(struct server_connection *connection);
/* The same, at once: there are packets, and no socket tells of them. */
void server_io_look_again(struct server_connection *connection);
/* A handler has read `bytes`: ends the turn early if that was much. */
void server_io_has_read(struct server_io *io, size_t bytes);

/* Counts the present latency bound of the stream among those that limit the rest, instead of its former one;
 * or (discount) no longer counts the stream. */
void server_io_count_stream(struct server_stream *stream);
void server_io_discount_stream(struct server_stream *stream);

/* How long the thread rests now; 0 while fewer than a few packets would gather. */
core_ns server_io_rest_ns(const struct server_io *io);

/* accept.c: listens again after a lack of descriptors. */
void server_io_listen_again(struct server_io *io);

#endif
