/* Another contract for an open stream (MODIFY), on its way from the client through the planner and back.
 *
 *   I/O thread --ask--> planner: decided as OPEN is, in place or on another unit --answer--> I/O thread: in
 * force at a gap between packets, MODIFIED --return--> planner: charged for the old contract until the unit
 * has paused
 *
 * **When it comes into force.** A worker's stream changes at a gap: nothing of it is inside the worker, and
 * its last packet was released a spacing ago, so that it owes the worker nothing. What is eligible by then
 * was served under the old contract, what still waits for a token comes under the new one. The policer
 * carries its bucket over (server_police_change): whatever it lets through, before and after, conforms to the
 * join of both contracts, which the unit is charged for (partition/admission/admission.h). So do the
 * releases: up to the gap they are s apart, behind it s', both at least the join's; and a window that begins
 * r packets into a run that began at e_i holds at most m_old <= (tau - e_i) / s - r of the old, and of the
 * new k' - used + (x - tau) / t' with used >= r + m_old - (tau - e_i) / t, which with s <= t makes no more
 * than k^ + x / t^ in all. A GPU has no spacing; there any moment will do.
 *
 * A stream with no such gap in time stays as it is. One change of a stream is under way at a time.
 *
 * **On another unit.** Where the stream's own unit, A, refuses, another one, B, may take the new contract:
 * then the planner has admitted the stream there as if it were a newcomer, and the change brings an order
 * along (server/stream/route.h). The new contract comes into force with the switch, at a moment when nothing
 * of the stream is inside A, and nothing that is eligible waits. So A has had the packets under the old
 * contract, all of them, B gets those under the new one, which conform to it from the first on
 * (server_police_change), and neither is asked for more than it was promised for: no join is needed
 * (partition/admission/admission.h). A stream that has no such moment in time stays on A as it is, and is
 * refused with what A said.
 *
 * **After packets were held.** A stream that has come to another unit, B, with packets held on the way is
 * served there as for d - b_A as long as some may be late (server/stream/transfer.h,
 * partition_standing_hold). How it comes to be served as for d again is a change in place like any other, but
 * that nobody has asked for it and nobody is told, and that it has all the time: at a gap, once the lag is
 * gone for good. The I/O thread rests as for d again when all that may be late has left, and B is charged for
 * d alone when it has paused. The order brings what is needed.
 *
 * **Memory.** The planner sizes the packet memory for the unit that serves the contract, as for an OPEN,
 * refuses what is above the limits, and has a block made for what is missing when all else is granted.
 *
 * Everything here is called on the stream's I/O thread. Nothing is allocated but in server_change_ask, and no
 * more than the change itself. */
#ifndef MILLRACE_SERVER_STREAM_MODIFY_H
#define MILLRACE_SERVER_STREAM_MODIFY_H

#include "server/planner/planner.h"

#include <stdbool.h>
#include <stdint.h>

struct server_connection;
struct server_io;
struct server_order;
struct server_stream;

#define SERVER_CHANGE_PATIENCE_NS (2 * CORE_NS_PER_S) /* for a gap between packets */

enum server_change_outcome {
    SERVER_CHANGE_IN_FORCE,
    SERVER_CHANGE_GIVEN_UP, /* there was no gap; the stream has the contract that it had */
    SERVER_CHANGE_GONE      /* the stream ends */
};

struct server_change {
    struct server_message message; /* first member */
    /* the question; set before it is asked */
    struct server_turn turn;
    struct server_grant *grant; /* of the stream */
    struct core_stream_spec spec;
    uint32_t has_packets; /* records and slots of the stream */
    struct server_mailbox *reply;
    void (*answered)(void *io, struct server_message *message);
    core_ns received_ns;
    /* the answer: the planner's until it is sent */
    enum protocol_refusal refusal; /* 0: accepted */
    const char *refusal_text;      /* unless it is about capacity */
    core_ns decided_ns;            /* from receipt to decision */
    struct partition_standing_placement placement;
    struct core_stream_spec before; /* the contract that it had */
    struct server_backup
        backup;      /* of the join; accepted on a GPU with a backup, or refused late: see below */
    bool has_backup; /* it is the stream's from now on */
    struct server_memory_order memory; /* of packets, charged; its block is made last, to be adopted */
    bool replaces;                     /* that takes the place of all that the stream has */
    bool movable;                      /* as in struct server_grant */
    struct server_planner_plans plans; /* of its GPUs, in place: not before these are in force */
    bool elsewhere;                    /* on another unit: */
    struct server_order *order;        /* the way there, the stream's once it is begun; NULL: in place */
    struct partition_standing_placement stays; /* and what the own unit said */
    struct server_change *next;                /* the planner's list */
    bool settling;                             /* the planner's: it is back, and the unit has to pause */
    /* the I/O thread's */
    struct server_connection *connection; /* NULL: nobody awaits an answer, or it has been given */
    struct server_stream *stream;         /* NULL: it ends, and its client has been told */
    uint32_t request;
    bool waiting;                                 /* accepted, for a gap */
    uint32_t first;                               /* in force: sequence of the first packet under it */
    core_ns until_ns;                             /* waiting: not longer */
    struct server_change *io_next, **io_previous; /* of those that wait, or shed memory */
    /* returned to the planner */
    enum server_change_outcome outcome;
    bool worked, diverted; /* as in struct server_grant */
    uint64_t pauses, gpu_batch;
    uint64_t spare_batch; /* at the GPU of its backup, 0: none */
    uint64_t freed_bytes; /* of packet memory */
};

/* Asks the planner for another contract of the stream, which has no change under way. The caller has checked
 * spec against the limits. False: there is no memory. */
bool server_change_ask(struct server_stream *stream, uint32_t request, const struct core_stream_spec *spec,
                       core_ns now_ns);

/* Something has changed, or a packet is about to be policed: goes on with the stream's change if it has one.
 */
void server_change_step(struct server_stream *stream, core_ns now_ns);

/* The stream has come to its unit late: it is to be served as its contract says when it has caught up.
 * `change` was zeroed, but for its grant; it is given back to the planner. The stream has no other one. */
void server_change_catch_up(struct server_stream *stream, struct server_change *change);

/* Does nothing wait that is eligible, so that the stream may change its contract as soon as its unit has
 * nothing of it? */
bool server_change_may_switch(struct server_stream *stream, core_ns now_ns);

/* The stream is on the other unit that its change was to bring it to; or there was no moment for it. */
void server_change_switched(struct server_stream *stream, core_ns now_ns);
void server_change_stays(struct server_stream *stream);

/* The stream takes no packets any more: its client is told, if it can be, before CLOSED. */
void server_change_end(struct server_stream *stream);

/* Every tick: goes on with all that wait. */
void server_change_tick(struct server_io *io, core_ns now_ns);

#endif
