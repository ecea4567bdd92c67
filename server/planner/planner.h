/* The planner thread: brings what I/O threads ask to the planner (partition/planner/planner.h), which
 * decides, and brings what that decides to the I/O threads and the batchers.
 *
 * I/O threads post requests and reservations to its mailbox; it posts the answers back to theirs. Asking
 * (QUERY) and being admitted (OPEN) are one decision, and so are offers: an OPEN is granted what a QUERY
 * granted, or an offer named, if nothing has changed. For an OPEN that is refused, other streams may be
 * migrated; the answer to a QUERY only says so.
 *
 * Connections take turns (turns.h): one that asks for one stream waits for one decision of each other
 * connection at most, not for all that they have sent. A decision takes less than a millisecond. The reason
 * and the offer of a refusal take several where GPUs are full: this search is cut off when other
 * connections wait, and the request is decided again once none does. The number of cuts is limited, so that
 * every request is answered. Requests of a closed connection are dropped. */
#ifndef MILLRACE_SERVER_PLANNER_PLANNER_H
#define MILLRACE_SERVER_PLANNER_PLANNER_H

#include "core/protocol.h"
#include "partition/planner/planner.h"
#include "server/gpu/batcher.h"
#include "server/mailbox.h"
#include "server/memory.h"
#include "server/planner/turns.h"

#include <stdatomic.h>

#define SERVER_NO_GPU UINT32_MAX /* a CPU worker's stream */

struct server;
struct server_modify;
struct server_planner;
struct server_connection;
struct server_gpu_binding;
struct server_stream;

/* The backup of a stream: capacity of another unit that is reserved for the failure of the stream's GPU
 * (partition/admission/admission.h). */
struct server_backup {
    uint32_t unit;                  /* of the admission state; ADMISSION_NONE: no backup */
    struct perfmodel_cpu_task task; /* a worker: task of the stream after a failover */
    core_ns gpu_bound_ns;           /* d_g: guaranteed latency while no GPU is out of service */
    core_ns detection_ns;           /* delta: time from a failure to the failover */
    core_ns bound_ns;               /* guaranteed latency through a failure */
    int64_t reserved_ppb;           /* share of the unit's time that is reserved */
};

/* The secondary GPU binding of a guaranteed stream: its backup on a GPU. */
struct server_secondary {
    uint32_t gpu;  /* or SERVER_NO_GPU; set by the planner */
    uint32_t slot; /* the stream's slot there, or SERVER_GPU_NO_SLOT; set by the I/O thread */
};

/* The reservation of an admitted stream at one unit and at the unit of its backup. Owned by the planner
 * until it is granted, then by the stream until it is given back. A stream that is migrating has a second
 * reservation, for the new unit. */
struct server_reservation {
    struct server_gpu_leave leave; /* first member: on its way back */
    uint32_t stream, unit;         /* of the admission state */
    uint32_t gpu;                  /* or SERVER_NO_GPU */
    struct server_backup backup;   /* the I/O thread's while granted */
    uint32_t io;
    struct server_mailbox *mailbox; /* of that I/O thread */
    uint64_t buffer_bytes;
    struct server_stream *holder; /* the I/O thread's: the stream; NULL before and after */
    struct server_secondary secondary;
    uint32_t gpu_slot; /* given back, on a GPU: the stream's slot there, or SERVER_GPU_NO_SLOT */
    struct partition_planner_use use; /* given back: what was served under it */
};

/* An OPEN or QUERY on its way to the planner and back. Allocated by the I/O thread, which also frees it.
 * Question and answer are in one struct so that the planner allocates nothing. */
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
    struct server_memory_request
        memory;   /* that the stream will have on a CPU worker; the answer: where it is placed */
    bool movable; /* the planner's: its queue is large enough for a GPU's latency */
    core_ns received_ns;
    /* the answer */
    enum protocol_refusal refusal; /* 0: granted */
    struct admission_placement placement;
    struct server_reservation *reservation; /* OPEN granted */
    uint32_t gpu;                           /* granted: which one, or SERVER_NO_GPU */
    uint64_t plan;                /* granted on a GPU: may be used once this plan of the GPU is in force */
    uint64_t secondary_plan;      /* granted with a backup on a GPU: and once this plan of that GPU is */
    uint32_t keys;                /* the I/O thread's: GPUs that have not confirmed the key yet */
    bool overdue;                 /* the I/O thread's: a plan that it needs was not in force in time, */
    bool lacking;                 /* for want of memory */
    uint8_t iv[CORE_BLOCK_BYTES]; /* of the stream, once it is made */
    core_ns decided_ns;           /* from receipt to decision */
    const char *refusal_text;     /* for refusals that are not about capacity */
    const char *advice;           /* about migrating other streams, sent behind the reason; or NULL */
};

/* What the planner asks of those who make streams (server/stream/stream.h). */
struct server_planner_stream_ops {
    const struct server_memory_ops *memory; /* of their packets */
    /* Packets that a stream needs: on a GPU; with a backlog; and the bytes that so many of them take. */
    uint32_t (*gpu_packets)(const struct core_stream_spec *spec);
    uint32_t (*queue_packets)(const struct core_stream_spec *spec, uint32_t backlog_packets);
    uint64_t (*buffer_bytes)(const struct core_stream_spec *spec, uint32_t queue_packets);
    struct server_gpu_binding *(*create_binding)(uint64_t plan);
    void (*destroy_binding)(struct server_gpu_binding *binding);
    void (*migrate)(void *io, struct server_message *migration); /* run on the stream's I/O thread */
};

/* The last published figures: atomic, written by the planner, read by any. */
struct server_planner_load {
    _Atomic uint64_t streams;
    _Atomic int64_t utilisation_ppb, headroom_ppb;
    _Atomic uint64_t backups;     /* streams of GPUs whose backup is here */
    _Atomic int64_t reserved_ppb; /* reserved for them: in the failure scenario that needs most */
};

/* Atomic, read by any. Outcomes of migrations: written by the planner. Checks of the plan in force
 * (check_plans): by the replanner's thread. */
struct server_planner_figures {
    _Atomic uint64_t moved, stayed;     /* stayed: the migration timed out */
    _Atomic core_ns held_max_ns;        /* moved: the longest time that packets of a stream were held */
    _Atomic uint64_t checked, rejected; /* plans; of these, plans that do not hold */
};

CORE_CHECKED core_status server_planner_start(struct server_planner **planner, struct server *server,
                                              const struct server_planner_stream_ops *stream_ops,
                                              struct core_error *error);
/* After every I/O thread has stopped, before the workers do. */
void server_planner_stop(struct server_planner *planner);

/* I/O thread: the answer comes to request->reply, run as request->answered. */
void server_planner_ask(struct server_planner *planner, struct server_request *request);
/* I/O thread: asks for another contract; and gives the change back once it is in force or will not be
 * (messages.h). */
void server_planner_modify(struct server_planner *planner, struct server_modify *modify);
void server_planner_modified(struct server_planner *planner, struct server_modify *modify);
/* Any thread: gives a reservation back, by way of the GPUs where its stream has a slot. Its capacity can be
 * reserved again once the unit has paused since the stream's last packet (partition/admission/unit_worker.h
 * says why). */
void server_planner_release(struct server_planner *planner, struct server_reservation *reservation);

/* Any thread: packet memory that is given up (server_memory_wipe), before the reservation or the change that
 * it was charged with. */
void server_planner_wipe(struct server_planner *planner, struct server_block *blocks);

/* Any thread: for messages whose run is the planner's own (messages.h). */
struct server_mailbox *server_planner_mailbox(struct server_planner *planner);

/* What units lose by overrunning their bounds, and which share of them is withheld for that
 * (server/overload/reserve.h). Owned by the monitor; by the planner between the post and `applied`. */
struct server_planner_levels {
    struct server_message message; /* first member */
    int64_t (*share_ppb)(core_ns level_ns, core_ns shortest_ns);
    void (*withheld)(void *monitor, uint32_t unit, int64_t share_ppb); /* this share now is */
    void (*applied)(void *monitor);
    void *monitor;
    uint32_t unit_count;
    core_ns level_ns[]; /* by unit: the larger of its level (struct server_overload) and the I/O threads' */
};

/* The overload monitor: withholds these overruns from admission. */
void server_planner_withhold(struct server_planner *planner, struct server_planner_levels *levels);

/* What is admitted, for a look at it on a thread of ordinary priority. Decisions wait while it is copied. The
 * asker's; the planner's between server_planner_copy and `copied`. */
struct server_planner_copy {
    struct server_message message; /* first member */
    struct server_mailbox *reply;
    void (*copied)(void *owner, struct server_message *message);
    const struct core_stream_spec *typical;
    uint64_t changes; /* asked: of the last copy. The answer: of this one */
    /* the answer: */
    struct admission *admission; /* the asker's; NULL: nothing has changed, or there is no memory */
    uint32_t streams_max;        /* more streams of the typical contract, as far as limits go */
};

/* Any thread. */
void server_planner_copy(struct server_planner *planner, struct server_planner_copy *copy);

const struct server_planner_load *server_planner_worker_load(const struct server_planner *planner,
                                                             uint32_t worker);
const struct server_planner_load *server_planner_io_load(const struct server_planner *planner, uint32_t io);
const struct server_planner_figures *server_planner_figures(const struct server_planner *planner);

#endif
