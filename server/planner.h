/* The planner thread: owns the set of admitted streams and answers who may join it.
 *
 * I/O threads post requests and grants to its mailbox; it posts the answers back to theirs. Asking (QUERY)
 * and being admitted (OPEN) run the same code of partition/workers.h. */
#ifndef MILLRACE_SERVER_PLANNER_H
#define MILLRACE_SERVER_PLANNER_H

#include "partition/workers.h"
#include "server/mailbox.h"
#include "server/protocol.h"

#include <stdatomic.h>

struct server;
struct server_planner;
struct server_connection;

/* What an admitted stream holds; the planner's while not granted, the stream's until it is given back. */
struct server_grant {
    struct server_message message; /* first member */
    struct partition_placement placement;
    uint32_t io;
    uint64_t buffer_bytes;
    /* Set by the I/O thread before it gives the grant back: */
    bool worked;     /* the stream has had a packet at its worker, */
    uint64_t pauses; /* the last of which was finished at this count of the worker's pauses */
};

/* An OPEN or QUERY on its way to the planner and back. Allocated by the I/O thread, which also frees it. */
struct server_request {
    struct server_message message; /* first member */
    struct server_connection *connection;
    struct server_mailbox *reply; /* the I/O thread's */
    void (*answered)(void *io, struct server_message *message);
    struct protocol_open open; /* key and its length: see below */
    uint8_t *key;              /* secret memory, 32 bytes; NULL for a QUERY without */
    bool is_query;
    uint32_t request, io;
    uint32_t queue_packets; /* that the stream will hold */
    uint64_t buffer_bytes;
    core_ns received_ns;
    /* the answer */
    enum protocol_refusal refusal; /* 0: granted */
    struct partition_placement placement;
    struct server_grant *grant; /* OPEN granted */
    core_ns decided_ns;         /* from receipt to decision */
    const char *refusal_text;   /* for refusals that are not about capacity */
};

/* The last published figures: atomic, written by the planner, read by any. */
struct server_planner_load {
    _Atomic uint64_t streams;
    _Atomic int64_t utilisation_ppb, headroom_ppb;
};

CORE_CHECKED core_status server_planner_start(struct server_planner **planner, struct server *server,
                                              struct core_error *error);
/* After every I/O thread has stopped, before the workers do. */
void server_planner_stop(struct server_planner *planner);

/* I/O thread: the answer comes to request->reply, run as request->answered. */
void server_planner_ask(struct server_planner *planner, struct server_request *request);
/* I/O thread: gives a grant back. Its room is promised again once the worker has paused since the stream's
 * last packet (partition/workers.h says why). */
void server_planner_release(struct server_planner *planner, struct server_grant *grant);

const struct server_planner_load *server_planner_worker_load(const struct server_planner *planner,
                                                             uint32_t worker);
const struct server_planner_load *server_planner_io_load(const struct server_planner *planner, uint32_t io);

#endif
