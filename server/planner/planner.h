/* The planner thread: owns the set of admitted streams and answers who may join it.
 *
 * I/O threads post requests and grants to its mailbox; it posts the answers back to theirs. Asking (QUERY)
 * and being admitted (OPEN) are one decision, that of partition/admission/admission.h as things stand, and so
 * are offers: what QUERY grants, or an offer names, an OPEN is given if nothing has changed. An OPEN that is
 * refused may then have others moved (replan.c); a QUERY is told that, no more.
 *
 * Connections take turns (turns.h): one that asks for one stream waits for one decision of each other
 * connection at most, not for all that they have sent. A decision takes less than a millisecond. Telling a
 * refused one why, and what it might have instead, takes several, where GPUs are full: that is cut off when
 * others wait, and the request decided anew once nobody does; but after so many cuts it is told, so that it
 * is answered at last. What a closed connection has asked is not decided any more. */
#ifndef MILLRACE_SERVER_PLANNER_PLANNER_H
#define MILLRACE_SERVER_PLANNER_PLANNER_H

#include "core/protocol.h"
#include "partition/admission/admission.h"
#include "server/mailbox.h"
#include "server/memory.h"
#include "server/planner/turns.h"

#include <stdatomic.h>

#define SERVER_KEY_BYTES 32         /* room for every key */
#define SERVER_NO_GPU    UINT32_MAX /* a CPU worker's stream */

struct server;
struct server_change;
struct server_planner;
struct server_connection;
struct server_order;
struct server_stream;
struct server_watch_levels;

/* The room that is held on another unit, a worker or a GPU, for the loss of a stream's GPU
 * (partition/admission/admission.h). */
struct server_backup {
    uint32_t unit;                  /* of the standing plan; PARTITION_STANDING_NONE: none is */
    struct perfmodel_cpu_task task; /* a worker: what it is to schedule by then */
    core_ns gpu_bound_ns;           /* d_g: guaranteed latency while there is no loss */
    core_ns detection_ns;           /* delta */
    core_ns bound_ns;               /* guaranteed latency through a loss */
    int64_t reserved_ppb;           /* share of the unit's time */
};

/* The GPUs that are charged for a stream: the one that it is on and behind it, for a guaranteed one, the one
 * that it comes to when that is lost, if its backup is on a GPU. None on a worker. */
struct server_planner_plans {
    uint32_t gpu[2], count;
    uint64_t number[2]; /* put: the stream counts on this plan of the GPU */
};

/* The place at a GPU that a guaranteed stream on another one has for the loss of that. */
struct server_spare {
    uint32_t gpu;   /* or SERVER_NO_GPU; set by the planner. */
    uint32_t slot;  /* Set by the I/O thread: what it had there, or SERVER_GPU_NO_SLOT; */
    uint64_t batch; /* newest batch with a packet of it, 0: none */
};

/* What an admitted stream holds of one unit, and of that of its backup; the planner's while not granted, the
 * stream's until it is given back. A stream that is on its way to another unit has a second one, for the room
 * there. */
struct server_grant {
    struct server_message message; /* first member */
    uint32_t stream, unit;         /* of the standing plan */
    uint32_t gpu;                  /* or SERVER_NO_GPU */
    struct core_stream_spec spec; /* that the unit is charged for: of a guaranteed stream on a GPU with d_g */
    struct server_backup backup;  /* the I/O thread's while granted */
    uint32_t io;
    uint64_t buffer_bytes;
    struct server_stream *holder; /* the I/O thread's: whose it is; NULL before and after */
    struct server_change *change; /* the planner's: of its contract, that has not settled yet */
    struct server_order
        *order;             /* the planner's: by which the stream leaves this unit; NULL: none under way */
    uint64_t born;          /* the planner's: numbers grants as they are made */
    uint32_t home;          /* the planner's: the GPU that it has taken refuge from, or SERVER_NO_GPU, */
    core_ns home_period_ns; /* which had this period */
    bool asking;            /* the planner's: a change of its contract waits for its turn */
    bool movable;           /* the planner's: it has packets enough for a GPU */
    bool leaving;           /* the planner's: it has been given back */
    bool second;            /* the planner's: another grant of the same stream counts for it */
    /* Set by the I/O thread before it gives the grant back: */
    uint64_t pauses;    /* its last packet was finished at this count of the worker's pauses, if */
    uint32_t gpu_slot;  /* on a GPU: what it had there, or SERVER_GPU_NO_SLOT */
    uint64_t gpu_batch; /* newest batch with a packet of it, 0: none */
    bool worked;        /* it has had a packet at its worker or in a batch at all, */
    bool diverted;      /* or, with a backup on a worker, at that one: `pauses` is of that */
    struct server_spare spare;
};

/* An OPEN or QUERY on its way to the planner and back. Allocated by the I/O thread, which also frees it. */
struct server_request {
    struct server_message message; /* first member */
    struct server_turn turn;
    struct server_connection *connection;
    struct server_mailbox *reply; /* the I/O thread's */
    void (*answered)(void *io, struct server_message *message);
    struct protocol_open open; /* key and its length: see below */
    uint8_t *key;              /* secret memory, SERVER_KEY_BYTES; NULL for a QUERY without */
    bool is_query;
    uint32_t request, io;
    struct server_memory_order
        memory;   /* that the stream will have on a CPU worker; the answer: where it is placed */
    bool movable; /* the planner's: see the grant */
    core_ns received_ns;
    /* the answer */
    enum protocol_refusal refusal; /* 0: granted */
    struct partition_standing_placement placement;
    struct server_grant *grant;   /* OPEN granted */
    uint32_t gpu;                 /* granted: which one, or SERVER_NO_GPU */
    uint64_t plan;                /* granted on a GPU: not before this plan of it is in force, */
    uint64_t spare_plan;          /* and with a backup on another one this plan of that */
    uint32_t keys;                /* the I/O thread's: GPUs that have not answered for its key yet */
    bool overdue;                 /* the I/O thread's: the plan of one of them was not in force in time */
    uint8_t iv[CORE_BLOCK_BYTES]; /* of the stream, once it is made */
    core_ns decided_ns;           /* from receipt to decision */
    const char *refusal_text;     /* for refusals that are not about capacity; */
    const char *advice;           /* about moving others, behind the reason; or NULL */
};

/* The last published figures: atomic, written by the planner, read by any. */
struct server_planner_load {
    _Atomic uint64_t streams;
    _Atomic int64_t utilisation_ppb, headroom_ppb;
    _Atomic uint64_t backups;     /* streams of GPUs for whose loss it holds room, */
    _Atomic int64_t reserved_ppb; /* at most so much of it at once */
};

/* What became of streams that were to go to another unit: atomic, written by the planner, read by any. */
struct server_planner_figures {
    _Atomic uint64_t moved, stayed; /* stayed: there was no moment for it in time */
    _Atomic core_ns held_max_ns;    /* moved: the longest that packets of one could not go anywhere */
};

CORE_CHECKED core_status server_planner_start(struct server_planner **planner, struct server *server,
                                              struct core_error *error);
/* After every I/O thread has stopped, before the workers do. */
void server_planner_stop(struct server_planner *planner);

/* I/O thread: the answer comes to request->reply, run as request->answered. */
void server_planner_ask(struct server_planner *planner, struct server_request *request);
/* I/O thread: asks for another contract; and gives the change back once it is in force or will not be
 * (server/stream/modify.h). */
void server_planner_change(struct server_planner *planner, struct server_change *change);
void server_planner_changed(struct server_planner *planner, struct server_change *change);
/* Batcher: the slot of the grant's stream is given up. */
void server_planner_cleared(struct server_planner *planner, struct server_grant *grant);
/* I/O thread: gives a grant back. Its room is promised again once the worker has paused since the stream's
 * last packet (partition/admission/unit_worker.h says why). */
void server_planner_release(struct server_planner *planner, struct server_grant *grant);

/* Any thread: packet memory that is given up (server_memory_wipe), before the grant or the change that it was
 * charged with. */
void server_planner_wipe(struct server_planner *planner, struct server_block *blocks);

/* Any thread: lets up to `streams` of the streams of unit `from` (partition/admission/admission.h numbers
 * units) go to unit `to`, one after the other, as far as it takes them and there is a moment for each within
 * patience_ns. What came of it is in `answered` below, which may wait for as long. */
struct server_shift {
    struct server_message message; /* first member */
    uint32_t from, to;
    size_t streams;
    core_ns patience_ns;
    void (*answered)(struct server_shift *shift); /* planner thread */
    size_t asked, moved;                          /* of these, that the unit took; that went there */
};
void server_planner_shift(struct server_planner *planner, struct server_shift *shift);

/* Any thread: for messages whose run is the planner's own (server/stream/route.h). */
struct server_mailbox *server_planner_mailbox(struct server_planner *planner);

/* The watch: newcomers are to be kept from what the units lost (server/overload/monitor.h). */
void server_planner_hold_back(struct server_planner *planner, struct server_watch_levels *levels);

const struct server_planner_load *server_planner_worker_load(const struct server_planner *planner,
                                                             uint32_t worker);
const struct server_planner_load *server_planner_io_load(const struct server_planner *planner, uint32_t io);
const struct server_planner_figures *server_planner_figures(const struct server_planner *planner);

#endif
