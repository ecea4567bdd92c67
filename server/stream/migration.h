/* Which unit a stream's packets go to, and how a stream migrates to another unit. On the stream's I/O
 * thread, except where said.
 *
 * A stream is on one unit at a time: a worker, or a GPU (server/stream/gpu_binding.h) with the best-effort
 * fallback worker behind it. cpu->chain is the authoritative chaining value. The planner decides on a
 * migration, reserves capacity at the new unit, and sends a message; the I/O thread carries it out as
 * server/stream/path.h says, gives back the reservation of the old unit, and returns the message with
 * the outcome. Nothing is allocated, locked or logged here: the message carries all that is needed.
 *
 *   planner --migration--> I/O thread: key to the GPU; an idle moment, or packets held --migration--> planner
 *                                             \--old reservation--> (batcher: the slot) --> planner
 */
#ifndef MILLRACE_SERVER_STREAM_MIGRATION_H
#define MILLRACE_SERVER_STREAM_MIGRATION_H

#include "partition/planner/planner.h"
#include "perfmodel/cpu.h"
#include "server/mailbox.h"

#include <stdbool.h>
#include <stdint.h>

struct server_modify;
struct server_reservation;
struct server_gpu_binding;
struct server_io;
struct server_migration;
struct server_stream;

enum server_migration_outcome {
    SERVER_MIGRATION_DONE,      /* the stream has reservation `to`; `from` was sent to the planner */
    SERVER_MIGRATION_TIMED_OUT, /* timed out: the stream never drained and stays on its unit */
    SERVER_MIGRATION_GONE,      /* the stream is closing, or closed */
};

/* A migration. Owned by the planner; by the I/O thread between server_migration_send and the return. */
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
    /* to a GPU: the stream's binding there (server_gpu_binding_create); returned: its old binding, or NULL */
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

/* Planner: sends the migration to the I/O thread of its stream, which is migration->from's. */
void server_migration_send(struct server_mailbox *io, struct server_migration *migration);

/* On the stream's I/O thread: begins a migration; or returns it, if its stream has closed (drop). */
void server_migration_begin(struct server_stream *stream, struct server_migration *migration);
void server_migration_drop(struct server_io *io, struct server_migration *migration);

/* Cancels the migration that belongs to a cancelled MODIFY. */
void server_migration_forget_modify(struct server_stream *stream);

/* The facts about the stream's migration (server/stream/path.h). */
unsigned server_migration_facts(struct server_stream *stream, core_ns now_ns);

/* Nothing is inside the old unit: the stream is on the new one from now on. held: its packets waited for
 * that. */
void server_migration_switch(struct server_stream *stream, bool held, core_ns now_ns);

/* The migration has timed out: the stream stays on its unit. */
void server_migration_give_up(struct server_stream *stream);

/* Returns the stream's migration to the planner if it has ended, unless a key of its binding is still at the
 * batcher. */
void server_migration_return(struct server_stream *stream);

/* The stream is closing and takes no more packets. True: no key of it is at a batcher, so it can be freed. */
bool server_migration_ends(struct server_stream *stream);

/* What was served under the stream's present reservation. */
struct partition_planner_use server_migration_use(const struct server_stream *stream);

/* Gives back the reservation of the unit that the stream is on, with the pause that its release has to wait
 * for. */
void server_migration_give_back(struct server_stream *stream);

#endif
