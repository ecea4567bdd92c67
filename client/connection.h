/* The inside of a connection, shared by the files of this folder.
 *
 * All of it is under `lock`, but for what is marked constant. A function named client_... is called with the
 * lock held; one named millrace_... takes it, and is where words of the public interface become those of core
 * (client/translate.h).
 *
 * A connection dies once, by client_fail; from then on only client_alive tells of it. */
#ifndef MILLRACE_CLIENT_CONNECTION_H
#define MILLRACE_CLIENT_CONNECTION_H

#include "client/millrace.h"
#include "client/output.h"
#include "client/requests.h"
#include "client/streams.h"
#include "client/transport.h"
#include "core/protocol.h"

#include <pthread.h>

/* A blocking call that waits, on its own stack. The thread that reads the answer fills it in. */
struct client_waiter {
    struct client_waiter *next;
    uint8_t
        answer; /* protocol type of the frame it waits for; OPENED, MODIFIED and REKEYED stand for REFUSED too */
    uint32_t id;       /* request or stream */
    uint32_t sequence; /* of a RESULT */
    bool done;
    core_status status;
    struct core_error error;
    struct millrace_opened opened;
    struct millrace_refused refused;
    struct millrace_modified modified;
    struct millrace_rekeyed rekeyed;
    struct millrace_closed closed;
    struct millrace_result result;
    uint8_t *ciphertext; /* the caller's, with room for so much: */
    size_t room_bytes;
    uint32_t ciphertext_bytes;
};

struct client_input {
    uint8_t *bytes;
    size_t capacity;
    size_t begin, end; /* read and not yet parsed */
    size_t missing;    /* bytes that the frame begun last still lacks, at least */
    uint64_t read;     /* ever */
    size_t left;       /* of these, that are in the lane: a frame has begun there */
};

/* A connection of the client library: its socket, its buffers, its streams, and who waits for what. */
struct millrace {
    pthread_mutex_t lock;   /* recursive: a callback may call functions of its connection */
    pthread_cond_t changed; /* a waiter is done, or the poller has come back, or the connection died */
    struct client_transport transport; /* kind and descriptor: constant once connected */
    struct millrace_welcome welcome;   /* constant once connected */
    struct millrace_callbacks callbacks;
    uint16_t version_max; /* that HELLO offers */
    bool welcomed;
    bool leaving; /* the server has said so, maybe together with WELCOME; */
    bool told_leaving;
    bool awaits_lane; /* LANE was sent, and not answered */
    bool receiving;   /* frames are being handled, maybe by a callback */

    bool dead;
    enum protocol_error fatal; /* code of the server's last word, 0: it said none */
    struct core_error cause;   /* of death */
    bool unwritable;           /* a write failed; what the server still says is read before death */
    struct core_error write_error;

    struct client_output output;
    struct client_input input;
    struct client_streams streams;
    struct client_requests requests;
    size_t opening; /* OPENs among the requests */
    bool closes;    /* some streams are to be closed when there is room */

    struct client_waiter *waiters;
    /* Of a pool (client/pool.h): its inside, and how many nodes were asked for the answer at hand. Of a node of
     * one: whose frames these are. */
    struct client_pool *pool;
    unsigned asked;
    struct client_link *link;

    bool polling;        /* a blocking call sleeps in poll, without the lock */
    short polled_events; /* for what */
    int wake;            /* eventfd that ends the sleep; -1 until the first blocking call */
};

void client_lock(struct millrace *connection);
void client_unlock(struct millrace *connection);

/* Ends the connection: keeps the first cause, and fails all waiting calls. Returns status. */
core_status client_fail(struct millrace *connection, core_status status, const char *format, ...)
    CORE_PRINTF(3, 4);

/* CORE_OK while it lives, else CORE_CLOSED with the first cause. */
CORE_CHECKED core_status client_alive(const struct millrace *connection, struct core_error *error);

short client_events(const struct millrace *connection);

/* In the lane and behind it. */
size_t client_unsent_bytes(const struct millrace *connection);
void client_discard(struct millrace *connection); /* all of them; keys are wiped */

/* Writes until nothing waits or the socket takes no more. Never fails: sets `unwritable`. */
void client_flush(struct millrace *connection);

/* Writes, reads and dispatches at most `reads` times (0: no limit), and writes what callbacks buffered. */
CORE_CHECKED core_status client_process(struct millrace *connection, unsigned reads,
                                        struct core_error *error);

/* Handles one frame whose header is sound. CORE_OK, or the status with which the connection died. */
typedef core_status client_frame_handler(struct millrace *connection, const struct protocol_header *header,
                                         const uint8_t *body);

/* A connection without a transport; CORE_NO_MEMORY. */
CORE_CHECKED core_status client_create(struct millrace **connection, struct core_error *error);

/* As millrace_connect, to one server, and offers no version above this one. */
CORE_CHECKED core_status client_connect(const char *address, const struct millrace_tls *tls,
                                        uint16_t version_max, int timeout_ms, struct millrace **connection,
                                        struct core_error *error);

/* Until the connection is welcomed, and has its lane where it wants one. Nobody else has it yet, so this waits
 * without the ceremony of a blocking call. */
CORE_CHECKED core_status client_await_answer(struct millrace *connection, core_ns deadline_ns,
                                             struct core_error *error);

/* CLOSED, once it is decoded: for who waits, for the callbacks; the stream, which is open, is gone. */
void client_take_closed(struct millrace *connection, uint32_t stream, const struct millrace_closed *closed);

/* NULL for what no server sends in this version. */
client_frame_handler *client_frame_handler_of(uint16_t version, uint8_t type);

#define CLIENT_BREACH "the server broke the protocol: "

/* As millrace_send_open, _modify, _ping, _close and millrace_data, under the lock. */
CORE_CHECKED core_status client_send_open(struct millrace *connection, enum protocol_type type,
                                          const struct protocol_open *open, uint32_t *request,
                                          struct core_error *error);
CORE_CHECKED core_status client_send_modify(struct millrace *connection, const struct protocol_modify *modify,
                                            uint32_t *request, struct core_error *error);
CORE_CHECKED core_status client_send_rekey(struct millrace *connection, const struct protocol_rekey *rekey,
                                           uint32_t *request, struct core_error *error);
CORE_CHECKED core_status client_send_ping(struct millrace *connection, const void *payload, uint32_t bytes,
                                          uint32_t *request, struct core_error *error);
CORE_CHECKED core_status client_send_close(struct millrace *connection, uint32_t stream,
                                           struct core_error *error);
/* The same for a stream that nobody has here any more: as soon as there is room. */
void client_close_soon(struct millrace *connection, uint32_t stream);
/* flags: of the frame, or those of a packet that is a whole message or, in a stream without them, none. */
#define CLIENT_WHOLE UINT32_MAX
CORE_CHECKED core_status client_send_data(struct millrace *connection, uint32_t stream, uint32_t bytes,
                                          unsigned flags, uint8_t **packet, uint32_t *sequence,
                                          struct core_error *error);

/* The waiter for this answer, or NULL. sequence counts for PROTOCOL_RESULT only. */
struct client_waiter *client_waiter_find(const struct millrace *connection, uint8_t answer, uint32_t id,
                                         uint32_t sequence);
void client_waiter_done(struct millrace *connection, struct client_waiter *waiter, core_status status);

/* Wakes every blocking call to look again. */
void client_wake(struct millrace *connection);

#endif
