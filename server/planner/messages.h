/* What the planner and the I/O thread of an open stream send each other: other contracts, and migrations to
 * other units. server/stream/modify.h and server/stream/migration.h tell what the I/O thread does. */
#ifndef MILLRACE_SERVER_PLANNER_MESSAGES_H
#define MILLRACE_SERVER_PLANNER_MESSAGES_H

#include "server/planner/planner.h"

struct server_migration;
struct server_stream_client;

/* ---- another contract ---- */

#define SERVER_MODIFY_TIMEOUT_NS (2 * CORE_NS_PER_S) /* timeout for a gap between packets */

enum server_modify_outcome {
    SERVER_MODIFY_IN_FORCE,
    SERVER_MODIFY_TIMED_OUT, /* timed out without a gap; the stream keeps its contract */
    SERVER_MODIFY_GONE       /* the stream is closing */
};

/* Another contract of a stream on its way to the planner, back, and to the planner again. Question, answer
 * and outcome are in one struct so that nothing has to be allocated on the way. */
struct server_modify {
    struct server_message message; /* first member */
    /* the question; set before it is asked */
    struct server_turn turn;
    struct server_reservation *reservation; /* of the stream */
    struct core_stream_spec spec;
    uint32_t has_packets; /* records and slots of the stream */
    struct server_mailbox *reply;
    void (*answered)(void *io, struct server_message *message);
    core_ns received_ns;
    /* the answer: the planner's until it is sent */
    enum protocol_refusal refusal; /* 0: accepted */
    const char *refusal_text;      /* unless it is about capacity */
    core_ns decided_ns;            /* from receipt to decision */
    struct admission_placement placement;
    struct server_backup backup;         /* of the join; valid with has_backup */
    bool has_backup;                     /* the stream has `backup` from now on */
    struct server_memory_request memory; /* packet memory, charged; its block is made last, to be adopted */
    bool replaces;                       /* `memory` replaces all packet memory of the stream */
    bool movable;                        /* as in struct server_reservation */
    bool agreed;                         /* the planner's: nothing is waited for any more before the answer */
    bool lacking;                        /* granted, but its GPU gets no memory for the batches it needs */
    bool elsewhere;                      /* the contract comes into force on another unit */
    struct server_migration
        *migration;                   /* elsewhere: the migration, the stream's once it is begun; else NULL */
    struct admission_placement stays; /* elsewhere: the answer of the stream's own unit */
    struct server_modify *next;       /* the planner's list */
    /* the I/O thread's */
    struct server_stream_client *client; /* NULL: no answer is due, or it has been given */
    struct server_stream *stream;        /* NULL: the stream is closing, and its client has been told */
    uint32_t request;
    bool waiting;                                 /* accepted, waits for a gap */
    uint32_t first;                               /* in force: sequence of the first packet under it */
    core_ns until_ns;                             /* waiting: timeout */
    struct server_modify *io_next, **io_previous; /* list of the changes that wait, or shed memory */
    /* returned to the planner */
    enum server_modify_outcome outcome;
    struct partition_planner_use use; /* what was served until then */
    uint64_t freed_bytes;             /* of packet memory */
};

/* ---- another unit ---- */

enum server_migration_outcome {
    SERVER_MIGRATION_DONE,      /* the stream has reservation `to`; `from` was sent to the planner */
    SERVER_MIGRATION_TIMED_OUT, /* timed out: the stream never drained and stays on its unit */
    SERVER_MIGRATION_GONE,      /* the stream is closing, or closed */
};

/* A migration. Owned by the planner; by the I/O thread between the post and the return. It has all that the
 * I/O thread needs for it, and the answer, so that nothing has to be allocated on the way. */
struct server_migration {
    struct server_message message; /* first member */
    void (*returned)(void *planner, struct server_message *message);
    struct server_migration *next;                   /* the planner's list */
    struct server_migration *io_next, **io_previous; /* the I/O thread's */
    struct server_stream *stream;                    /* the I/O thread's */
    uint64_t connection; /* of that stream, for the log; set by the I/O thread, read from the answer */
    uint32_t number;     /* its number there */
    struct server_reservation *from, *to;
    /* task for the new worker, or for the fallback worker of the new GPU */
    struct perfmodel_cpu_task task;
    /* task instead of `task` while packets may be late because they were held */
    struct perfmodel_cpu_task late_task;
    /* to a GPU: the binding there (server/stream/gpu_binding.h); returned: the stream's old one, or NULL */
    struct server_gpu_binding *place;
    /* returned: the old binding to the backup's GPU, or NULL */
    struct server_gpu_binding *secondary;
    bool modifies;        /* the contract changes with the switch (server/stream/modify.h) */
    core_ns hold_ns;      /* b_A: `to` reserves capacity for a latency bound shorter by this */
    core_ns hold_from_ns; /* packets may be held from then on (server/stream/pace.h); NEVER: never */
    core_ns until_ns;     /* timeout */
    /* change that restores the full bound once the backlog is gone; NULL: holding is not allowed */
    struct server_modify *catch_up;
    /* the answer */
    enum server_migration_outcome outcome;
    bool ended;      /* the I/O thread's: the outcome is set, but a key is still at the batcher */
    bool late;       /* migrated: packets may be late, and the stream owns catch_up */
    core_ns held_ns; /* migrated: how long packets could go to no unit */
    void *owner;     /* the planner's: passed on to `returned` */
};

#endif
