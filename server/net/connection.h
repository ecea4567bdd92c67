/* One client connection, its TLS handshake done. Owned by one I/O thread from then to free; no other thread
 * touches it.
 *
 * Life: HELLO -> READY -> FINISHING -> LINGERING -> BROKEN -> DEAD. FINISHING takes no
 * more input, lets every stream finish and deliver, then writes a last frame if there is one. LINGERING has
 * written everything and discards input until the peer closes too (at most 1 s), so that the last frame is
 * not lost to a reset. BROKEN reads and writes nothing any more, and is torn down at the end of the turn.
 * DEAD has no descriptor any more and waits only for packets inside workers and answers of the planner. An
 * error of the peer goes from anywhere straight to LINGERING by way of an ERROR frame; a broken socket, or a
 * frame for which there is no memory, goes to BROKEN.
 *
 * From LINGERING on nothing more is queued. Only server_connection_settle frees the connection's streams
 * and its socket: a caller that works on a stream and sends a frame still has the stream when the call
 * returns. It is called for every marked connection at the end of the turn, when no handler is running.
 *
 * The files: connection.c (life), input.c (bytes to frames), requests.c, requests_modify.c and requests_rekey.c (what each
 * frame does), output.c (writing). */
#ifndef MILLRACE_SERVER_NET_CONNECTION_H
#define MILLRACE_SERVER_NET_CONNECTION_H

#include "config/keyring.h"
#include "core/log.h"
#include "core/protocol.h"
#include "server/net/connection_slots.h"
#include "server/net/poller.h"
#include "server/net/transport.h"
#include "server/stream/arrival.h"
#include "server/stream/io_thread.h"

#include <stdbool.h>

#define SERVER_REQUESTS_MAX 1024 /* unanswered OPENs, QUERYs, MODIFYs and REKEYs of one connection */

struct server_accepted;
struct server_io;
struct server_listener;

enum server_connection_state {
    SERVER_CONNECTION_HELLO,
    SERVER_CONNECTION_READY,
    SERVER_CONNECTION_FINISHING,
    SERVER_CONNECTION_LINGERING,
    SERVER_CONNECTION_BROKEN,
    SERVER_CONNECTION_DEAD
};

enum server_input_phase {
    SERVER_INPUT_HEADER,  /* gathering 16 bytes */
    SERVER_INPUT_BODY,    /* gathering a control frame's body behind them */
    SERVER_INPUT_SLOT,    /* a DATA header is there, its stream has no free packet */
    SERVER_INPUT_PAYLOAD, /* copying a DATA body into its packet */
    SERVER_INPUT_SKIP     /* dropping a DATA body (no such stream, or too long) */
};

struct server_input {
    enum server_input_phase phase;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    uint32_t done; /* bytes of the current phase that are there */
    struct protocol_header header;
    struct server_packet *packet; /* PAYLOAD; SKIP of a packet that is too long */
    bool ended; /* the peer has finished sending, while our last frames were still to be written */
    core_ns frame_started_ns; /* first byte of the frame in the making, or our going on to read it;
                                 CORE_NS_NEVER between frames */
    core_ns stopped_ns; /* not reading: the server's own delay since then, and the earliest time at which the
                           next input can have come; CORE_NS_NEVER: only the peer is the cause */
    bool held;          /* not reading: the peer was the cause for at least a part of the time */
    struct server_arrival arrival; /* of what is consumed now */
    struct server_socket_clock clock;
    uint8_t *stash; /* read but not consumed: while paused, or for the next turn */
    size_t stash_bytes, stash_done;
    uint64_t turn;     /* of the I/O thread, in which were handled: */
    uint32_t controls; /* so many frames other than DATA */
};

/* One connection: its socket, what is being read, what is to be written, and its place in the lists of the
 * I/O thread. Long because a connection is in several of these lists at once, and each needs its link. */
struct server_connection {
    struct server_stream_client client;         /* first member */
    struct server_connection *next, **previous; /* the I/O thread's list */
    struct server_connection *next_dirty;       /* connections with output to write or input to resume */
    bool dirty;
    struct server_connection *next_in_line; /* of those that are to be looked at in a later turn (io.h) */
    bool waits_in_line;
    struct server_io *io;
    bool inline_keys;                 /* as in struct server_accepted */
    struct config_key_user user;      /* as in struct server_accepted */
    struct server_listener *listener; /* as in struct server_accepted */
    uint16_t version;                 /* of the protocol, in force since WELCOME; 0 before */
    enum server_connection_state state;
    struct server_transport transport;
    struct server_connection_slot place;
    struct server_watch
        watch;    /* EPOLLIN: it is read, or tells of a lane; EPOLLOUT: its socket has taken no more */
    bool is_read; /* what comes is taken */
    bool told_leaving;
    bool awaits_lane; /* its LANE was not answered yet */
    struct server_input input;

    struct server_stream **streams; /* by id - 1; NULL: free id; or one that is not given again, see below */
    uint32_t stream_capacity, stream_count, first_free;
    uint32_t next_poll; /* index at which the scan for idle streams continues */
    uint32_t opening;   /* of client.requests: OPEN, not QUERY */
    bool overdue; /* closed since the drain time was over: discarded packets count as lost by the server */

    struct server_output *output_head, *output_tail;
    uint32_t output_done; /* bytes of the head that are written */
    uint32_t borrowed;    /* results in the queue whose ciphertext is not in their slot */
    size_t control_bytes; /* of control frames in the queue */
    core_ns blocked_ns;   /* since when the socket has taken no more; CORE_NS_NEVER while it does */
    core_ns progress_ns;  /* last time it took something */
    size_t waiting_bytes; /* unsent bytes in the socket at the last tick */

    core_ns opened_ns, lingering_ns;
    core_ns
        alive_ns; /* last frame, end of a stream, or our own going on to read: idle time counts from here */
    core_ns read_on_ns;  /* our own going on to read, the last time */
    bool has_last_error; /* FINISHING: send this when all is delivered */
    enum protocol_error last_error;
};

static inline struct server_connection *server_connection_of(const struct server_stream *stream)
{
    return (struct server_connection *)stream->client;
}

static inline bool server_connection_is_read(const struct server_connection *connection)
{
    return connection->is_read;
}

/* connection.c
 * ------------------------------------------------------------------------------------------------ */

/* Watches the socket for EPOLLIN or EPOLLOUT, or no longer. Without memory for that it is torn down. */
void server_connection_watch(struct server_connection *connection, uint32_t event, bool wanted);

/* Takes over what was accepted. On failure it is closed and logged. */
void server_connection_open(struct server_io *io, struct server_accepted *accepted);

/* The peer broke the protocol: one fatal ERROR, then lingering. Streams are abandoned at the end of the turn.
 */
void server_connection_fail(struct server_connection *connection, uint32_t id, enum protocol_error code,
                            const char *text);

/* No more input; streams finish and are delivered, then (optionally) a fatal ERROR, then lingering. */
void server_connection_finish(struct server_connection *connection, enum protocol_close_reason reason,
                              const enum protocol_error *last_error);

/* The socket is gone or must go: BROKEN from now on. */
void server_connection_abort(struct server_connection *connection);

/* Is the peer gone altogether, not only done with writing? Then nobody will read what is still to come. */
bool server_connection_peer_gone(const struct server_connection *connection);

/* A stream may have finished: sends CLOSED and frees it if so. */
void server_connection_settle_stream(struct server_stream *stream);

/* The end of a turn: a phase of the connection may have ended; goes on to the next. It may be freed. */
void server_connection_settle(struct server_connection *connection);

/* A packet that was received whole is not delivered. */
void server_connection_count_lost(struct server_connection *connection);

/* NOTICE, where the server is leaving: once, and again after it has stayed meanwhile. */
void server_connection_tell_leaving(struct server_connection *connection);

/* Timeouts, and what is to be told, called a few times a second. */
void server_connection_tick(struct server_connection *connection, core_ns now_ns);

/* Registers a stream under a free id (sets stream->id). CORE_NO_MEMORY. */
CORE_CHECKED core_status server_connection_add_stream(struct server_connection *connection,
                                                      struct server_stream *stream);
struct server_stream *server_connection_find_stream(const struct server_connection *connection, uint32_t id);

/* Asks memory for the place of a stream, which is to be looked up soon. Any id. */
static inline void server_connection_prefetch_place(const struct server_connection *connection, uint32_t id)
{
    if (id - 1 < connection->stream_capacity)
        __builtin_prefetch(&connection->streams[id - 1]);
}

/* The stream at this place of `streams`; NULL: there is none. The id of a stream that was closed as idle is
 * not given to another one on its connection: its client, who learns of it later, may still send packets to
 * it. */
struct server_stream *server_connection_stream_at(const struct server_connection *connection, uint32_t place);

/* A position in the streams of an I/O thread, which stays while connections come and go. */
struct server_connection_cursor {
    struct server_connection *connection; /* NULL: at the end */
    uint32_t place;                       /* in its `streams` */
};

/* If the cursor is at this connection, moves it to the first stream of the next one. */
void server_connection_pass(struct server_connection_cursor *cursor,
                            const struct server_connection *connection);

/* input.c
 * ----------------------------------------------------------------------------------------------------- */

void server_input_init(struct server_input *input);
void server_input_free(struct server_connection *connection);
/* The socket is readable. Returns how many bytes were read. */
size_t server_input_read(struct server_connection *connection);
/* A packet or output room came free: goes on if input was paused for it. */
void server_input_resume(struct server_connection *connection);
/* The socket is readable, but not to be read: of a lane, it tells that there is room. */
void server_input_pass_over(struct server_connection *connection);
/* Reads the connection from now on, or no longer, as state and pause demand. */
void server_input_arm(struct server_connection *connection);

/* requests.c
 * ---------------------------------------------------------------------------------------------------- */

/* The number that REFUSED carries. */
uint16_t server_frame_limit(enum perfmodel_limit limit);
/* Sends REFUSED and counts it. */
void server_frame_refuse(struct server_connection *connection, enum server_asked asked, uint32_t request,
                         const struct protocol_refused *refused);
/* A control frame is complete. */
void server_frame_handle(struct server_connection *connection, const struct protocol_header *header,
                         const uint8_t *body, core_ns now_ns);
/* The configured limits of one stream and of this connection, which would then have so many; error names the
 * first that is exceeded. */
bool server_frame_within_limits(const struct server_connection *connection,
                                const struct core_stream_spec *spec, uint32_t streams,
                                struct core_error *error);
/* Copies the key into `key`, secret memory of SERVER_KEY_BYTES, and says which packets are audited. 0, or the
 * refusal with its reason in error. is_query: it may go without. */
enum protocol_refusal server_frame_fetch_key(struct server_connection *connection, struct protocol_open *open,
                                             bool is_query, uint8_t *key, struct core_error *error);
/* A DATA packet is complete in its slot (or skipped because too long). */
void server_frame_data(struct server_connection *connection, struct server_packet *packet, core_ns now_ns);
/* The planner answered. Run on the I/O thread. */
void server_frame_answered(void *io, struct server_message *message);
/* The answers that a stream calls for (server/stream/io_thread.h). */
void server_frame_armed(struct server_request *request, struct server_stream *stream);
void server_frame_overdue(struct server_request *request, struct server_stream *stream);

/* requests_modify.c
 * --------------------------------------------------------------------------------------------- */

void server_frame_modify(struct server_connection *connection, const struct protocol_header *header,
                         const uint8_t *body, core_ns now_ns);
void server_frame_modified(const struct server_modify *modify, uint32_t first);
void server_frame_not_modified(const struct server_modify *modify, enum protocol_refusal code,
                               const char *text, core_ns decided_ns);

/* requests_rekey.c
 * --------------------------------------------------------------------------------------------- */

void server_frame_rekey(struct server_connection *connection, const struct protocol_header *header,
                        const uint8_t *body, core_ns now_ns);
void server_frame_rekeyed(struct server_stream *stream, enum protocol_refusal refusal, const char *text);

/* output.c
 * ---------------------------------------------------------------------------------------------------- */

/* Queues a frame whose memory is the caller's, to be left alone until it has left the queue. */
void server_output_append(struct server_connection *connection, struct server_output *output);
/* Queues a control frame (copied). Without memory for it the connection is BROKEN when this returns. */
void server_output_control(struct server_connection *connection, const uint8_t *frame, uint32_t bytes);
void server_output_error(struct server_connection *connection, uint32_t id, enum protocol_error code,
                         bool fatal, const char *text);
/* Moves the stream's deliverable packets to the output queue. */
void server_output_results(struct server_stream *stream);
/* Writes what the socket takes. */
void server_output_flush(struct server_connection *connection);
/* Waits until the socket takes more, or no longer. */
void server_output_arm(struct server_connection *connection, bool wanted);
/* Drops everything that is queued. */
void server_output_purge(struct server_connection *connection);

#endif
