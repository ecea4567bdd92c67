/* The inside of a pool: a connection of the library (the upper one) whose transport is no socket but connections
 * to nodes. What the upper one writes, whole frames, is taken apart here and goes to a node's connection; what a
 * node says goes through its own connection's checks, gets the upper one's numbers, and is handled there. So all
 * of the public interface, blocking calls and callbacks too, is the same code for one server and for many.
 *
 * Guarantee, by stream: the upper one sees each sequence once and in order, and all ciphertext is what one server
 * would have made. A packet is kept from when it is given until its result is told, one of a message until the
 * whole message is; a stream begins anew behind what it has let go, with the chaining value of that place.
 *
 * All of it is under the upper connection's lock, and in one of two places: `write`, which takes frames and never
 * calls back, and `read`, which looks at nodes and clock, and alone loses nodes and answers. The nodes' own locks
 * are not taken: nobody else has their connections. Attempts to connect are threads (client/dial.h).
 *
 * Files: pool.c has the links and the turn; pool_ask.c, which node is asked for what; pool_stream.c, packets and
 * what becomes of a stream. */
#ifndef MILLRACE_CLIENT_POOL_H
#define MILLRACE_CLIENT_POOL_H

#include "client/connection.h"
#include "client/dial.h"

#define CLIENT_POOL_LINKS_MAX 64
#define CLIENT_POOL_ASKS_MAX  16 /* streams of one link that wait for an answer */

/* A request of the upper connection, or a stream's for another node, until it is answered. */
struct client_ask {
    struct client_ask *next;           /* in the queue of those that no node has been given */
    enum protocol_type type;           /* OPEN, QUERY, MODIFY, REKEY or PING */
    bool resumes;                      /* the pool's own: a stream that has lost its node */
    uint32_t request;                  /* the upper connection's */
    struct client_pool_stream *stream; /* NULL: PING; or it has ended meanwhile */
    uint64_t tried;                    /* links that were asked in this round, bit by bit */
    unsigned asked, asked_now, rounds; /* in all; in this round; rounds that are over */
    core_ns begun_ns, due_ns;
    struct protocol_refused refused; /* the last answer; or why nobody was asked */
    uint8_t payload[PROTOCOL_PING_BYTES_MAX];
    uint32_t payload_bytes;
};

/* One connection to an address, and what is known of the node behind it. */
struct client_link {
    struct client_pool *pool;
    const char *address;
    struct client_dial dial;
    struct millrace *node; /* NULL: down */
    bool leaving;          /* it is stopping, or was: asked only where nobody else is left */
    bool tried;            /* to be connected, once */
    bool blocked;          /* a stream waits for room in its output */
    short events;          /* that epoll looks for */
    core_ns up_ns, retry_ns, delay_ns;
    core_ns heard_ns, pinged_ns; /* a frame was last read; was asked for one since (0: not) */
    double weight; /* 1, halved by each refusal for capacity, doubled by each second since refused_ns */
    core_ns refused_ns;
    uint32_t streams, asking; /* there; waiting for its answer */
    uint32_t pings;           /* of the upper connection, that it has not answered */
    uint64_t opened, refused, lost, losses;
    struct core_error cause; /* that it is down */
    struct client_ask *asks[CLIENT_REQUESTS_MAX];
};

enum client_pool_place {
    CLIENT_POOL_ASKED, /* new, or without a node: an ask has it */
    CLIENT_POOL_THERE,
    CLIENT_POOL_MOVING, /* closed at its node, to go on elsewhere */
    CLIENT_POOL_LOST,   /* taken off its node, and what becomes of it is not decided yet */
};

/* A stream of a pool: one struct, since each packet needs nearly all of it. Sequences are the upper connection's.
 */
struct client_pool_stream {
    uint32_t id; /* the upper connection's; 0: not opened yet */
    enum client_pool_place place;
    struct protocol_open open; /* contract and key by now */
    uint8_t key[PROTOCOL_KEY_NAME_MAX + 1];
    struct client_link *link;
    uint32_t node_id, queue_packets;
    /* Where its node is leaving: another one is asked (QUERY) before it is closed there; NULL: none is. */
    struct client_ask *seek;
    bool may_move;    /* another one has room */
    core_ns stays_ns; /* no other one has, and none is asked before this */

    /* What is kept: records of sequences [first, given), of which [first, answered) have results from this node,
     * [first, handed) went to it, and [first, told) have been told. */
    struct client_output kept;
    size_t answered_bytes, handed_bytes;
    uint32_t first, answered, handed, told, given;
    uint32_t node_first; /* that the node calls 0 */
    bool torn;           /* the message it is in has been too long to be kept */
    bool catches_up;     /* never more at the node than its queue takes */
    bool closing, close_sent;
    const char *doom; /* it must end, and why */

    uint8_t chain[CORE_BLOCK_BYTES];      /* ahead of `first` */
    uint8_t chain_last[CORE_BLOCK_BYTES]; /* ahead of `answered` */
    uint64_t messages, node_messages;     /* let go; and when this node was asked */
    core_ns arrival_ns;                   /* TAT of docs/protocol.md, section 4 */

    bool modifies, rekeys; /* unanswered */
    bool has_next_key;     /* in force from message next_first on, and not yet all there is */
    bool awaits_key;       /* nothing is handed before the node has it */
    struct protocol_modify modify;
    struct protocol_rekey next; /* its key is next_key */
    uint8_t next_key[PROTOCOL_KEY_NAME_MAX + 1];

    bool in_gap;
    core_ns lost_ns;
    uint32_t mended; /* sequences before it belong to the gap */
    bool behind;     /* packets wait, or have waited, here for those before them: the gap's, or later ones */
    uint32_t behind_end; /* the first one that has not, once the stream has caught up */
    struct millrace_resumed gap;
    struct millrace_closed sums;
};

struct client_pool {
    struct millrace *upper;
    struct client_link *links;
    unsigned link_count, attempts;
    core_ns patience_ns;
    size_t kept_bytes_max;
    int attempt_ms;
    int timer;
    bool urgent; /* there is something to do at once */
    bool doomed; /* a stream may be, and be in a place where it can be ended */
    core_ns now_ns;
    uint64_t random;
    struct client_pool_stream **streams; /* by id - 1; NULL: free */
    uint32_t stream_room;
    /* How many `write`s had begun, this one included; and when an id became free. What the upper connection had
     * buffered by then for the stream that had it goes with the next one: only then may another stream have it. */
    uint64_t writes, *freed;
    struct client_ask *queue, **queue_end;
    char *addresses, *tls_texts[4]; /* owned */
};

/* ---- for the rest of the library; pool may be NULL, a connection may be no pool's ---- */

bool client_pool_names_several(const char *address);
size_t client_pool_unsent_bytes(const struct client_pool *pool);

/* May a packet be put into the output buffer? CORE_FULL: the stream keeps as much as it may. */
CORE_CHECKED core_status client_pool_check_room(struct millrace *connection, uint32_t stream, uint32_t bytes,
                                                struct core_error *error);

/* A frame of a node: in the place of its connection's own handlers, which it calls. */
core_status client_pool_take_frame(struct millrace *node, const struct protocol_header *header,
                                   const uint8_t *body);

/* ---- between its files ---- */

/* Handles a frame at the upper connection, as if a server had sent it. */
void client_pool_tell(struct client_pool *pool, enum protocol_type type, uint32_t id, uint32_t sequence,
                      const uint8_t *body, uint32_t bytes);
double client_pool_draw(struct client_pool *pool); /* uniform in [0, 1) */

/* Asks the node that fits best, or puts it into the queue. Gives the ask away. */
void client_ask_place(struct client_pool *pool, struct client_ask *ask);
/* NULL: no memory. */
struct client_ask *client_ask_create(struct client_pool *pool, enum protocol_type type, uint32_t request,
                                     struct client_pool_stream *stream);
void client_ask_free(struct client_ask *ask);
void client_ask_enqueue(struct client_pool *pool, struct client_ask *ask, core_ns due_ns);
/* The node has no room. */
void client_link_refuses(struct client_link *link);
/* Sends it by this link. Anything but CORE_OK: not sent. */
CORE_CHECKED core_status client_ask_send(struct client_link *link, struct client_ask *ask);
/* Has been refused there, or the link is lost: places it anew, or ends it. */
void client_ask_again(struct client_pool *pool, struct client_ask *ask);
void client_ask_answer(struct client_pool *pool, const struct client_ask *ask,
                       const struct protocol_refused *refused);
/* Places what may be placed by now, ends what has waited for too long; returns when it is to be called again. */
core_ns client_asks_look(struct client_pool *pool);

CORE_CHECKED core_status client_pool_stream_create(struct client_pool *pool, const struct protocol_open *open,
                                                   struct client_pool_stream **stream);
void client_pool_stream_free(struct client_pool *pool, struct client_pool_stream *stream);
/* Takes a DATA, CLOSE, MODIFY or REKEY of the upper connection; stream is NULL where it has ended meanwhile.
 * CORE_NO_MEMORY: a request that can not even be refused. */
CORE_CHECKED core_status client_pool_stream_take(struct client_pool *pool, struct client_pool_stream *stream,
                                                 const struct protocol_header *header, const uint8_t *body);
/* It is ended as soon as its place allows: CLOSED with reason LOST and this text, which is constant. */
void client_pool_stream_doom(struct client_pool *pool, struct client_pool_stream *stream, const char *why);
/* What it is to be opened with now. */
struct protocol_open client_pool_stream_open(const struct client_pool_stream *stream, bool resumes);
/* A node has it. */
void client_pool_stream_opened(struct client_link *link, struct client_ask *ask, uint8_t *body,
                               uint32_t bytes);
/* Its node is gone, or has closed it. Two steps, since the second may call the application back, which may then use
 * all streams: none may be at a node that is gone. The first takes it off its node; the second asks for another
 * one, or ends it. */
void client_pool_stream_detach(struct client_pool *pool, struct client_pool_stream *stream);
void client_pool_stream_settle(struct client_pool *pool, struct client_pool_stream *stream,
                               const char *address);
/* Its node is leaving: asks for room elsewhere and, when there is some, closes it at its node, to go on there. Returns
 * whether it is about that now; *next_ns: when to call again, at the latest. */
bool client_pool_stream_move(struct client_pool *pool, struct client_pool_stream *stream, core_ns *next_ns);
/* What was found out about room elsewhere: NULL for some. */
void client_pool_stream_sought(struct client_pool *pool, struct client_pool_stream *stream,
                               const struct protocol_refused *refused);
/* CLOSED to the upper connection; the stream is gone. */
void client_pool_stream_end(struct client_pool *pool, struct client_pool_stream *stream,
                            enum millrace_close_reason reason, const char *format, ...) CORE_PRINTF(4, 5);
/* Sends what may be sent. */
void client_pool_stream_hand(struct client_pool_stream *stream);
void client_pool_stream_result(struct client_pool_stream *stream, const struct protocol_header *header,
                               uint8_t *body);
/* MODIFIED, REKEYED, or REFUSED of one of them. */
void client_pool_stream_changed(struct client_link *link, struct client_ask *ask, uint8_t type, uint8_t *body,
                                uint32_t bytes);
void client_pool_stream_closed(struct client_pool_stream *stream, enum millrace_close_reason reason);

#endif
