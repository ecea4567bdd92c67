/* Renegotiation: another contract for an open stream (MODIFY), from the client through the planner and
 * back.
 *
 *   1. I/O thread: asks the planner.
 *   2. Planner: decides as for an OPEN, in place or on another unit, and answers.
 *   3. I/O thread: puts the contract in force at a gap between packets, sends MODIFIED, returns the change.
 *   4. Planner: keeps the reservation for the old contract until the unit has paused.
 *
 * **When it comes into force.** A worker's stream changes at a gap: none of its packets is inside the
 * worker, and its last packet was released at least a spacing ago. Packets that are eligible by then were
 * served under the old contract; packets that still wait for a token come under the new one. The policer
 * carries its bucket over (server_policer_modify): all packets that it lets through, before and after,
 * conform to the join of both contracts, which the unit has reserved (partition/admission/admission.h). So
 * do the releases: up to the gap they are s apart, behind it s', both at least the join's; and a window
 * that begins r packets into a run that began at e_i holds at most m_old <= (tau - e_i) / s - r of the old,
 * and of the new k' - used + (x - tau) / t' with used >= r + m_old - (tau - e_i) / t, which with s <= t
 * makes no more than k^ + x / t^ in all. A GPU has no spacing; there the contract can change at any time.
 *
 * A stream that has no such gap before the timeout keeps its contract. A stream has at most one change in
 * progress.
 *
 * **On another unit.** Where the stream's own unit, A, refuses, another one, B, may take the new contract:
 * then the planner has admitted the stream there as a new stream, and the change carries a migration
 * (server/stream/migration.h). The new contract comes into force with the switch, when no packet of the
 * stream is inside A, and no eligible packet waits. So A serves all packets under the old contract, and B all
 * packets under the new one, which conform to it from the first on (server_policer_modify). Neither unit
 * serves more than it has reserved: no join is needed (partition/admission/admission.h). A stream that has no
 * such moment before the timeout stays on A with its contract, and the MODIFY is refused for the reason that
 * A gave.
 *
 * **After packets were held.** A stream that migrated to another unit, B, with packets held on the way is
 * served there with a latency bound of d - b_A while packets may be late (server/stream/pace.h,
 * admission_reserve_catch_up). The return to d is a change in place, but no client asked for it, no client is
 * told, and it has no timeout: it takes place at a gap, once the lag is gone for good. The I/O thread rests
 * as for d again when all packets that may be late have left, and B reserves capacity for d alone when it
 * has paused. The migration carries what is needed.
 *
 * **Memory.** The planner sizes the packet memory for the unit that serves the contract, as for an OPEN,
 * refuses what is above the limits, and has a block made for what is missing when all else is granted.
 *
 * Everything here is called on the stream's I/O thread. Nothing is allocated but in server_modify_ask, and no
 * more than the change itself. */
#ifndef MILLRACE_SERVER_STREAM_MODIFY_H
#define MILLRACE_SERVER_STREAM_MODIFY_H

#include "server/planner/planner.h"

#include <stdbool.h>
#include <stdint.h>

struct server_connection;
struct server_io;
struct server_migration;
struct server_stream;

#define SERVER_MODIFY_TIMEOUT_NS (2 * CORE_NS_PER_S) /* timeout for a gap between packets */

enum server_modify_outcome {
    SERVER_MODIFY_IN_FORCE,
    SERVER_MODIFY_TIMED_OUT, /* timed out without a gap; the stream keeps its contract */
    SERVER_MODIFY_GONE       /* the stream is closing */
};

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
    bool elsewhere;                      /* the contract comes into force on another unit */
    struct server_migration
        *migration;                   /* elsewhere: the migration, the stream's once it is begun; else NULL */
    struct admission_placement stays; /* elsewhere: the answer of the stream's own unit */
    struct server_modify *next;       /* the planner's list */
    /* the I/O thread's */
    struct server_connection *connection; /* NULL: no answer is due, or it has been given */
    struct server_stream *stream;         /* NULL: the stream is closing, and its client has been told */
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

/* Asks the planner for another contract of the stream, which has no change under way. The caller has checked
 * spec against the limits. False: there is no memory. */
bool server_modify_ask(struct server_stream *stream, uint32_t request, const struct core_stream_spec *spec,
                       core_ns now_ns);

/* Advances the stream's change: called by server_stream_advance (server/stream/advance.h), before a packet is
 * policed, and whenever something that the change waits for may have happened. */
void server_modify_step(struct server_stream *stream, core_ns now_ns);

/* The stream was migrated with held packets: restores its latency bound once it has caught up. `change` is
 * zeroed but for its reservation, and is given back to the planner. The stream must have no other change. */
void server_modify_catch_up(struct server_stream *stream, struct server_modify *modify);

/* Does no eligible packet wait? Then the contract can change as soon as no packet is inside the unit. */
bool server_modify_may_switch(struct server_stream *stream, core_ns now_ns);

/* The migration that belongs to the change has succeeded; or (stays) has timed out. */
void server_modify_switched(struct server_stream *stream, core_ns now_ns);
void server_modify_stays(struct server_stream *stream);

/* The stream is closing: refuses the change, before CLOSED if the client can still be told. */
void server_modify_end(struct server_stream *stream);

/* Every tick: advances all changes that wait. */
void server_modify_tick(struct server_io *io, core_ns now_ns);

#endif
