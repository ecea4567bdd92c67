/* The inside of a pool: a connection of the library (the upper one) that has no socket but connections to nodes.
 * What is sent on the upper one comes here before it is made a frame (client/send.c), and goes to a node's
 * connection; what a node says goes through its own connection's checks, gets the upper one's numbers, and is
 * handled there. So all of the public interface, blocking calls and callbacks too, is the same code for one server
 * and for many.
 *
 * Guarantee, by stream: the upper one sees each sequence once and in order, and all ciphertext is what one server
 * would have made. A packet is kept from when it is given until its result is told, one of a message until the
 * whole message is; a stream begins anew behind what it has let go, with the chaining value of that place.
 *
 * Want of memory ends no stream: what is taken from the upper connection says so, and all else is tried again.
 *
 * All of it is under the upper connection's lock, and in one of two places: what is taken from the upper one, and
 * flushed, which calls nobody back; and the turn (`read` of the transport), which looks at nodes and clock, and
 * alone loses nodes, and asks and answers. The nodes' own locks are not taken: nobody else has their connections.
 * Attempts to connect are threads (client/dial.h).
 *
 * Files: pool.c has the links and the turn; pool_connect.c, how a pool begins and ends; pool_ask.c, which node is
 * asked for what; pool_stream.c, packets and what becomes of a stream. */
#ifndef MILLRACE_CLIENT_POOL_H
#define MILLRACE_CLIENT_POOL_H

#include "client/connection.h"
#include "client/dial.h"

#define CLIENT_POOL_LINKS_MAX 64

/* A request of the upper connection, or the pool's own of a stream, until it is answered. */
struct client_ask {
    struct client_ask *next;           /* in the queue of those that wait for a node, or for their refusal */
    enum protocol_type type;           /* OPEN, QUERY, MODIFY, REKEY or PING */
    bool own;                          /* the pool's: the stream is to go on at another node */
    bool sent;                         /* a node has it */
    uint32_t request;                  /* the upper connection's */
    struct client_pool_stream *stream; /* NULL: PING; or it has ended, or gone on, without the answer */
    uint64_t tried;                    /* links that were asked in this round, bit by bit */
    core_ns begun_ns, due_ns, pause_ns;
    core_ns sent_ns;                 /* to the node that has it, or had it last; 0: none had it */
    struct protocol_refused refused; /* the last answer; or why nobody was asked */
    struct protocol_modify modify;
    struct protocol_rekey rekey; /* its key is `bytes` */
    uint8_t bytes[PROTOCOL_PING_BYTES_MAX];
    uint32_t byte_count; /* of a PING */
};

/* One connection to an address, and what is known of the node behind it. */
struct client_link {
    struct client_pool *pool;
    struct client_dial dial; /* has the address */
    struct millrace *node;   /* NULL: down */
    bool leaving;            /* it is stopping, or was: asked only where nobody else is left */
    bool refuses;            /* and has refused for that */
    bool blocked;            /* a stream waits for room in its output */
    short events;            /* that epoll looks for */
    core_ns made_ns, retry_ns, delay_ns;
    core_ns heard_ns, pinged_ns; /* something was last read; was asked for it since (0: not) */
    uint64_t heard;              /* bytes, by then */
    core_ns full_ns;             /* it has refused for want of room: until then others are asked first */
    bool was_full;               /* and has granted nothing since: others are asked second */
    core_ns overdue_ns;          /* when to look for what it leaves without an answer */
    uint64_t opened, refused, lost, losses;
    struct core_error cause; /* that it is down; "": it has not been tried */
};

/* A place in a stream: ahead of packet `sequence`. */
struct client_pool_mark {
    uint32_t sequence;
    size_t bytes;      /* of records that are kept ahead of it */
    uint64_t messages; /* that have ended ahead of it */
    bool within;       /* a message */
    uint8_t chain[CORE_BLOCK_BYTES];
};

/* A stream of a pool: one struct, since each packet needs nearly all of it. Sequences are the upper connection's.
 * It is at a node (link), or an ask for one is under way (ask), or both: its node has another request of it, or is
 * leaving. Neither: it has lost its node, and the next turn sees to it. */
struct client_pool_stream {
    uint32_t id;               /* the upper connection's */
    struct protocol_open open; /* contract and key by now */
    uint8_t key[PROTOCOL_KEY_NAME_MAX + 1];
    struct client_link *link;
    struct client_ask *ask;
    uint32_t node_id, queue_packets;
    core_ns stays_ns; /* its node is leaving, and no other one is asked before this */

    /* What is kept: records of sequences [first, given), of which [first, answered) have results from this node,
     * [first, handed) went to it, and [first, told) have been told. */
    struct client_output kept;
    struct client_pool_mark first, answered;
    size_t handed_bytes;
    uint32_t handed, told, given;
    uint64_t given_messages; /* whole ones */
    uint32_t node_first;     /* that the node calls 0 */
    uint64_t node_messages;  /* of `first`, then */
    bool closing;
    core_ns arrival_ns; /* TAT of docs/protocol.md, section 4 */

    struct protocol_rekey
        next; /* in force from message next.first on, and not yet all there is; key_bytes 0: none */
    uint8_t next_key[PROTOCOL_KEY_NAME_MAX + 1];

    bool in_gap;
    bool behind; /* packets wait here for those of the gap, which go no faster than the node takes them */
    core_ns lost_ns;
    uint32_t mended; /* sequences before it belong to the gap */
    struct millrace_resumed gap;
    struct millrace_closed sums;
};

struct client_pool {
    struct millrace *upper;
    struct client_link links[CLIENT_POOL_LINKS_MAX];
    unsigned link_count, attempts;
    core_ns patience_ns;
    size_t kept_bytes_max;
    int attempt_ms;
    core_ns connect_ns; /* from then on one node is enough */
    int timer;
    bool astray; /* a stream may have no node, or one that is leaving */
    bool woken;  /* there is something for the next turn, since the last one has looked */
    core_ns now_ns;
    unsigned random;
    struct client_pool_stream **streams; /* by id - 1; NULL: free */
    uint32_t stream_room;
    struct client_pool_stream *filled; /* its last packet is being filled in until the next call */
    struct client_ask *queue, **queue_end;
    char *addresses, *tls_texts[4]; /* owned */
};

/* ---- for the rest of the library ---- */

bool client_pool_names_several(const char *address);
size_t client_pool_unsent_bytes(struct client_pool *pool);

/* A frame, other than DATA, that is sent on the upper connection. CORE_NO_MEMORY: not taken. */
CORE_CHECKED core_status client_pool_take(struct client_pool *pool, const uint8_t *frame,
                                          struct core_error *error);
/* Room for a packet, to be filled before anything else is called. CORE_FULL: as much is kept of its stream as
 * may be. */
CORE_CHECKED core_status client_pool_take_data(struct client_pool *pool, const struct protocol_header *header,
                                               uint8_t **packet, struct core_error *error);
void client_pool_flush(struct client_pool *pool);

/* A frame of a node: in the place of its connection's own handlers, which it calls. */
core_status client_pool_take_frame(struct millrace *node, const struct protocol_header *header,
                                   const uint8_t *body);

/* ---- pool.c ---- */

void client_pool_hand_filled(struct client_pool *pool); /* the packet given last: it is filled in by now */
/* The turn: `read` of the transport, which finds no bytes: CORE_AGAIN, or CORE_CLOSED where it has ended. */
core_status client_pool_read(struct client_transport *transport, void *room, size_t bytes, size_t *got,
                             struct core_error *error);
/* Handles a frame at the upper connection, as if a server had sent it. */
void client_pool_tell(struct client_pool *pool, enum protocol_type type, uint32_t id, uint32_t sequence,
                      const uint8_t *body, uint32_t bytes);
double client_pool_draw(struct client_pool *pool); /* uniform in [0, 1): to spread, not to hide */
/* When to try again: behind *delay_ns, give or take a quarter, which is doubled, up to most_ns. */
core_ns client_pool_back_off(struct client_pool *pool, core_ns *delay_ns, core_ns most_ns);
/* The next turn is due at once; or soon, where it is this turn that calls back who asks for it. */
void client_pool_wake(struct client_pool *pool);
bool client_pool_is_any_up(const struct client_pool *pool);

/* ---- pool_ask.c ---- */

/* NULL: no memory. */
struct client_ask *client_ask_create(struct client_pool *pool, enum protocol_type type, uint32_t request);
void client_ask_bind(struct client_ask *ask, struct client_pool_stream *stream); /* each has the other */
void client_ask_release(struct client_ask *ask);                                 /* no more */
void client_ask_free(struct client_ask *ask);                                    /* releases it */
bool client_ask_changes(const struct client_ask *ask); /* a stream that is open: MODIFY, REKEY */
/* The turn sends it to a node, or answers it. */
void client_ask_enqueue(struct client_pool *pool, struct client_ask *ask);
/* What this link was asked for, it will not answer: into the queue with it. */
void client_asks_recall(struct client_link *link);
/* The same for what it has not answered for too long, but for changes that the program asks for; to be called again at
 * overdue_ns. */
void client_asks_withdraw(struct client_link *link);
/* Tells the upper connection, if it is one of its requests; and frees it. */
void client_ask_answer(struct client_pool *pool, struct client_ask *ask, enum protocol_type type,
                       const uint8_t *body, uint32_t bytes);
/* Sends it by this link. Anything but CORE_OK: not sent. */
CORE_CHECKED core_status client_ask_send(struct client_link *link, struct client_ask *ask);
/* Its node says no. Takes the ask. */
void client_ask_refused(struct client_link *link, struct client_ask *ask, const uint8_t *body,
                        uint32_t bytes);
/* Places what may be placed by now, ends what has waited for too long; returns when it is to be called again. */
core_ns client_asks_look(struct client_pool *pool);

/* ---- pool_stream.c ---- */

void client_pool_stream_free(struct client_pool *pool, struct client_pool_stream *stream);
/* CLOSED to the upper connection; the stream is gone. With reason LOST: why it can not go on. */
void client_pool_stream_end(struct client_pool *pool, struct client_pool_stream *stream,
                            enum millrace_close_reason reason, const char *why);
/* What it is to be opened with now. */
struct protocol_open client_pool_stream_open(const struct client_pool_stream *stream, bool own);
/* Do its messages have numbers that count (a counter, a MAC), from first_unit on? */
bool client_pool_stream_is_numbered(const struct core_stream_spec *spec);
/* May it be asked for elsewhere while it is at a node? */
bool client_pool_stream_may_move(const struct client_pool_stream *stream);
/* A node has it: the first one, or the next one. */
void client_pool_stream_opened(struct client_link *link, struct client_ask *ask, uint8_t *body);
/* Its node is gone, or has closed it. */
void client_pool_stream_detach(struct client_pool *pool, struct client_pool_stream *stream);
/* Asks for other nodes where they are needed; returns when it is to be called again. */
core_ns client_pool_streams_look(struct client_pool *pool);
/* Sends what may be sent. */
void client_pool_stream_hand(struct client_pool_stream *stream);
/* May the packet that is answered next have so long a result? Else its node, and no more, has broken the protocol. */
bool client_pool_stream_fits(const struct client_pool_stream *stream, uint32_t bytes, uint32_t more_bytes);
void client_pool_stream_result(struct client_pool_stream *stream, const struct protocol_header *header,
                               uint8_t *body);
/* MODIFIED, REKEYED, or REFUSED of one of them. */
void client_pool_stream_changed(struct client_pool_stream *stream, struct client_ask *ask, bool granted,
                                uint8_t *body);
void client_pool_stream_closed(struct client_pool_stream *stream, enum millrace_close_reason reason);

#endif
