#include "server/net/io.h"
#include "server/stream/backup.h"

/* What keeps the stream from leaving: packets inside the unit; a key that is at the batcher, which is its
 * place's, and that must not go away under it; packets that its old contract still has to serve; packets of a
 * lost GPU, which only the backup has room for. */
static uint32_t inside(struct server_stream *stream, core_ns now_ns)
{
    const struct server_gpu_stream *gpu = stream->gpu;
    bool owing = stream->order->changes && !server_change_may_switch(stream, now_ns);
    bool asking = gpu != NULL && (gpu->asking || (stream->spare != NULL && stream->spare->asking));
    bool late = server_backup_is_held(stream) && !server_backup_on_time(stream);
    return stream->at_worker + (gpu != NULL ? gpu->inside : 0) + (asking ? 1 : 0) + (owing ? 1 : 0) +
           (late ? 1 : 0);
}

void server_route_give_back(struct server_stream *stream)
{
    struct server_grant *grant = stream->grant;

    grant->holder = NULL;
    grant->worked = stream->worked;
    grant->pauses = stream->pauses;
    if (stream->gpu != NULL) {
        const struct server_gpu_stream *home = server_gpu_stream_at_home(stream);
        const struct server_gpu_stream *backup = server_gpu_stream_at_backup(stream);
        grant->worked = home->newest > 0;
        grant->gpu_batch = home->newest;
        grant->gpu_slot = home->key.slot;
        grant->diverted = stream->worked && server_backup_on_worker(stream);
        if (backup != NULL) {
            grant->spare.batch = backup->newest;
            grant->spare.slot = backup->key.slot;
        }
    }
    stream->grant = NULL;
    server_planner_release(stream->connection->io->server->planner, grant);
}

/* ---- the end of an order ---- */

/* Not before the batcher has returned a key of the place in it. */
static void return_order(struct server_stream *stream)
{
    struct server_order *order = stream->order;

    if (order->outcome != SERVER_ORDER_MOVED && order->place != NULL) {
        if (order->place->asking)
            return;
        order->to->gpu_slot = order->place->key.slot;
        server_gpu_stream_detach(order->place);
    }
    stream->order = NULL;
    *order->io_previous = order->io_next;
    if (order->io_next != NULL)
        order->io_next->io_previous = order->io_previous;
    order->message.run = order->returned;
    server_mailbox_post(server_planner_mailbox(stream->connection->io->server->planner), &order->message);
}

static void end_order(struct server_stream *stream, enum server_order_outcome outcome)
{
    stream->order->outcome = outcome;
    stream->order->ended = true;
    stream->transfer.state = SERVER_TRANSFER_FLOWING;
    return_order(stream);
}

void server_route_forget_change(struct server_stream *stream)
{
    if (stream->order != NULL && stream->order->changes && !stream->order->ended)
        end_order(stream, SERVER_ORDER_GONE);
}

bool server_route_ends(struct server_stream *stream)
{
    if (stream->order != NULL && !stream->order->ended)
        end_order(stream, SERVER_ORDER_GONE);
    return stream->order == NULL && (stream->gpu == NULL || !stream->gpu->asking) &&
           (stream->spare == NULL || !stream->spare->asking);
}

/* ---- the switch ---- */

static core_ns first_waiting_ns(const struct server_stream *stream)
{
    return stream->wait_head != NULL ? stream->wait_head->eligible_ns : CORE_NS_NEVER;
}

/* Packets have waited and may be late: the new unit serves the stream as it was asked to for that. One change
 * at a time: where another one is asked for nothing was held. */
static bool may_be_late(struct server_stream *stream, core_ns now_ns)
{
    return stream->order->catch_up != NULL && stream->change == NULL &&
           !server_pace_caught_up(&stream->pace, false, now_ns);
}

static void serve(struct server_stream *stream, const struct perfmodel_cpu_task *task)
{
    stream->cpu->piece_bytes = task->piece_bytes;
    stream->cpu->piece_deadline_ns = task->deadline_ns;
    stream->pace.spacing_ns = task->spacing_ns;
}

/* Its card went out of service while packets were held for it. */
static bool away(const struct server_stream *stream)
{
    return stream->gpu != NULL && stream->gpu->state == SERVER_GPU_AWAY;
}

/* Nothing is inside the old unit. */
static void switch_over(struct server_stream *stream, bool held, core_ns now_ns)
{
    struct server_order *order = stream->order;
    struct server_gpu_stream *old = stream->gpu;
    core_ns first_ns = first_waiting_ns(stream);
    bool changes = order->changes;

    order->held_ns = held && first_ns < now_ns ? now_ns - first_ns : 0;
    server_route_give_back(stream);
    if (old != NULL)
        server_gpu_stream_detach(old);
    if (stream->spare != NULL)
        server_gpu_stream_detach(stream->spare);
    order->spare = stream->spare;
    stream->spare = NULL;
    stream->refuge = (struct server_refuge){.told = false};
    stream->grant = order->to;
    stream->grant->holder = stream;
    stream->worker = server_backup_worker(stream->connection->io->server, order->to);
    stream->gpu = order->place;
    order->place = old;
    stream->worked = false;
    server_pace_switch(&stream->pace, order->task.spacing_ns, first_ns, held, now_ns);
    order->late = may_be_late(stream, now_ns);
    serve(stream, order->late ? &order->late_task : &order->task);
    stream->late_ns = order->late ? order->hold_ns : 0;
    struct server_change *catch_up = order->late ? order->catch_up : NULL;
    end_order(stream, SERVER_ORDER_MOVED);
    server_io_count_stream(stream);
    if (stream->gpu != NULL)
        server_gpu_stream_arrive(stream->gpu);
    if (catch_up != NULL)
        server_change_catch_up(stream, catch_up);
    if (changes)
        server_change_switched(stream, now_ns);
    else
        server_notice(stream, away(stream) ? PROTOCOL_NOTICE_DEGRADED : PROTOCOL_NOTICE_MOVED);
    server_io_release_stream(stream);
}

static void give_up(struct server_stream *stream)
{
    bool changes = stream->order->changes;

    end_order(stream, SERVER_ORDER_GIVEN_UP);
    if (changes)
        server_change_stays(stream);
}

/* A change that is asked for meanwhile is refused when the planner comes to it, and nothing is held until
 * then. Nor while packets are at the backup or on the way back from there, or late because of that: what all
 * that takes is not what the old unit keeps. */
static bool may_hold(struct server_stream *stream, core_ns now_ns)
{
    if (stream->change != NULL || !server_pace_caught_up(&stream->pace, false, now_ns))
        return false;
    return stream->gpu == NULL || (stream->gpu->state == SERVER_GPU_RIDING && stream->at_worker == 0 &&
                                   !server_gpu_stream_is_away(stream));
}

void server_route_step(struct server_stream *stream, core_ns now_ns)
{
    bool held = stream->transfer.state == SERVER_TRANSFER_HELD;

    if (stream->order == NULL)
        return;
    if (stream->order->ended) {
        return_order(stream);
        return;
    }
    stream->transfer.hold_from_ns = may_hold(stream, now_ns) ? stream->order->hold_from_ns : CORE_NS_NEVER;
    switch (server_transfer_next(&stream->transfer, inside(stream, now_ns), now_ns)) {
    case SERVER_TRANSFER_SWITCH:
        switch_over(stream, held, now_ns);
        break;
    case SERVER_TRANSFER_GIVE_UP:
        give_up(stream);
        break;
    default:
        break;
    }
}

void server_route_returned(struct server_stream *stream)
{
    if (--stream->at_worker > 0)
        return;
    if (stream->gpu != NULL)
        server_gpu_stream_returned(stream);
    if (stream->change != NULL)
        server_change_step(stream, core_time_now_ns());
    if (stream->order != NULL)
        server_route_step(stream, core_time_now_ns());
}

void server_route_keyed(struct server_stream *stream, bool keyed)
{
    server_transfer_set_ready(&stream->transfer, keyed);
    server_route_step(stream, core_time_now_ns());
}

/* ---- the beginning ---- */

void server_route_begin(struct server_stream *stream, struct server_order *order)
{
    struct server_io *io = stream->connection->io;

    stream->order = order;
    order->stream = stream;
    order->connection = stream->connection->number;
    order->number = stream->id;
    order->io_next = io->orders;
    order->io_previous = &io->orders;
    if (io->orders != NULL)
        io->orders->io_previous = &order->io_next;
    io->orders = order;
    server_transfer_begin(&stream->transfer, order->hold_from_ns, order->until_ns);
    if (order->place != NULL)
        server_gpu_stream_attach(io, order->place, stream, order->to->gpu, order->until_ns);
    else
        server_route_keyed(stream, true);
}

void server_route_drop(struct server_io *io, struct server_order *order)
{
    order->outcome = SERVER_ORDER_GONE;
    order->message.run = order->returned;
    server_mailbox_post(server_planner_mailbox(io->server->planner), &order->message);
}

static void take_order(void *owner, struct server_message *message)
{
    struct server_io *io = owner;
    struct server_order *order = (struct server_order *)message;
    struct server_stream *stream = order->from->holder;

    if (stream != NULL && stream->state == SERVER_STREAM_OPEN && !stream->connection->abandoned)
        server_route_begin(stream, order);
    else
        server_route_drop(io, order);
}

void server_route_order(struct server_mailbox *io, struct server_order *order)
{
    order->message.run = take_order;
    server_mailbox_post(io, &order->message);
}
