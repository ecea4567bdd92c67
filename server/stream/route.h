/* Which unit a stream's packets go to, and how they come to go to another one. On the stream's I/O thread,
 * except where said.
 *
 * A stream is on one unit at a time: a worker, or a GPU (server/stream/gpu_stream.h), whose way round in need
 * is the stand-by worker. cpu->chain is the truth of its chaining value. The planner decides that it is to go
 * to another one, takes room there, and sends an order; the I/O thread carries it out as
 * server/stream/transfer.h says, gives back the grant of the old unit, and returns the order with what became
 * of it. Nothing is allocated, locked or logged here: an order brings all that is needed.
 *
 *   planner --order--> I/O thread: key to the card; an idle moment, or packets held --order--> planner
 *                                                      \--old grant--> (batcher: the slot) --> planner
 */
#ifndef MILLRACE_SERVER_STREAM_ROUTE_H
#define MILLRACE_SERVER_STREAM_ROUTE_H

#include "perfmodel/cpu.h"
#include "server/mailbox.h"

#include <stdbool.h>
#include <stdint.h>

struct server_change;
struct server_grant;
struct server_gpu_stream;
struct server_io;
struct server_order;
struct server_stream;

enum server_order_outcome {
    SERVER_ORDER_MOVED, /* packets go to the new unit; `from` is on its way to the planner, `to` the stream's
                         */
    SERVER_ORDER_GIVEN_UP, /* there was no moment for it in time; the stream is where it was */
    SERVER_ORDER_GONE,     /* the stream ends, or has ended */
};

/* The planner's; the I/O thread's between server_route_order and the return. */
struct server_order {
    struct server_message message; /* first member */
    void (*returned)(void *planner, struct server_message *message);
    struct server_order *next;                   /* the planner's list */
    struct server_order *io_next, **io_previous; /* the I/O thread's */
    struct server_stream *stream;                /* the I/O thread's */
    uint64_t connection; /* of that stream, for the log; set by the I/O thread, read from the answer */
    uint32_t number;     /* its number there */
    struct server_grant *from, *to;
    struct perfmodel_cpu_task task; /* that the worker, or on a GPU the stand-by worker, is to schedule; */
    struct perfmodel_cpu_task late_task; /* and as long as packets may be late from being held */
    struct server_gpu_stream *place; /* to a GPU: the stream's place there, made by server_gpu_stream_create;
                                        returned: the one it has left, or NULL, */
    struct server_gpu_stream *spare; /* and the one at its backup's GPU */
    bool changes;                    /* the stream's contract, too, with the switch: server/stream/modify.h */
    core_ns hold_ns; /* b_A: `to` is charged for so much less than the stream's latency bound, and */
    core_ns
        hold_from_ns; /* packets may be held from then on (server/stream/transfer.h); NEVER: they may not */
    core_ns until_ns; /* gives up then */
    struct server_change
        *catch_up; /* what is made of being late: server/stream/modify.h; NULL: none may be */
    /* the answer */
    enum server_order_outcome outcome;
    bool ended;      /* the I/O thread's: the outcome is set, and only a key at the batcher is awaited */
    bool late;       /* moved: packets may be late, and catch_up is the stream's */
    core_ns held_ns; /* moved: for so long packets could not go anywhere */
    void *owner;     /* the planner's: on whose behalf */
};

/* Planner: sends the order to the I/O thread of its stream, which is order->from's. */
void server_route_order(struct server_mailbox *io, struct server_order *order);

/* Begins with an order that came to the I/O thread otherwise; or returns it, as its stream has ended. */
void server_route_begin(struct server_stream *stream, struct server_order *order);
void server_route_drop(struct server_io *io, struct server_order *order);

/* The change that the stream's order was for will not be made: nor is the order. */
void server_route_forget_change(struct server_stream *stream);

/* Something has changed: goes on with the stream's transfer, if one is under way. */
void server_route_step(struct server_stream *stream, core_ns now_ns);

/* A packet that a worker had is back. */
void server_route_returned(struct server_stream *stream);

/* The place that the stream is to go to has its key, or has none any more. */
void server_route_keyed(struct server_stream *stream, bool keyed);

/* The stream will not take packets any more. True: nothing of it is at a batcher, and it may end. */
bool server_route_ends(struct server_stream *stream);

/* Gives back the grant of the unit that the stream is on, with what its room has to wait for. */
void server_route_give_back(struct server_stream *stream);

#endif
