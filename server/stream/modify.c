#include "server/stream/modify.h"

#include "server/net/io.h"
#include "server/stream/backup.h"

#include <stdlib.h>

static void take_block(struct server_stream *stream, struct server_change *change)
{
    if (change->memory.block == NULL)
        return;
    if (change->replaces)
        server_stream_retire(stream);
    server_stream_adopt(stream, change->memory.block);
    change->memory.block = NULL;
    change->memory.bytes = 0;
}

/* ---- the list of those that wait ---- */

static void enlist(struct server_io *io, struct server_change *change)
{
    change->io_next = io->changes;
    change->io_previous = &io->changes;
    if (io->changes != NULL)
        io->changes->io_previous = &change->io_next;
    io->changes = change;
}

static void delist(struct server_change *change)
{
    if (change->io_previous == NULL)
        return;
    *change->io_previous = change->io_next;
    if (change->io_next != NULL)
        change->io_next->io_previous = change->io_previous;
    change->io_previous = NULL;
}

/* ---- the end ---- */

/* The request is answered, as far as its connection is concerned. */
static void end_request(struct server_change *change)
{
    change->connection->requests--;
    server_io_mark(change->connection);
    change->connection = NULL;
}

/* Back to the planner, with what the old contract's room has to wait for. */
static void give_back(struct server_io *io, struct server_change *change)
{
    struct server_stream *stream = change->stream;

    delist(change);
    change->freed_bytes += change->memory.bytes; /* it was not needed, or could not be made */
    server_planner_wipe(io->server->planner, change->memory.block);
    change->memory.block = NULL;
    if (stream != NULL)
        stream->change = NULL;
    server_planner_changed(io->server->planner, change);
}

static void note_room(struct server_change *change, enum server_change_outcome outcome)
{
    const struct server_stream *stream = change->stream;

    change->outcome = outcome;
    change->waiting = false;
    change->worked = stream->worked;
    change->pauses = stream->pauses;
    if (stream->gpu != NULL) {
        const struct server_gpu_stream *home = server_gpu_stream_at_home(stream);
        const struct server_gpu_stream *backup = server_gpu_stream_at_backup(stream);
        change->worked = home->newest > 0;
        change->gpu_batch = home->newest;
        change->diverted = stream->worked && server_backup_on_worker(stream);
        change->spare_batch = backup != NULL ? backup->newest : 0;
    }
}

/* Packets of the old contract are still inside, and nobody will tell when they have left: what the stream is
 * charged for stays the join of both, until it changes again or ends. */
static void never_settles(struct server_change *change)
{
    change->worked = true;
    change->gpu_batch = UINT64_MAX;
}

static void give_up(struct server_change *change, enum protocol_refusal code, const char *text)
{
    struct server_io *io = change->connection->io;

    server_frame_not_modified(change, code, text, core_time_now_ns() - change->received_ns);
    end_request(change);
    note_room(change, SERVER_CHANGE_GIVEN_UP);
    if (change->has_backup) { /* its backup is another one all the same */
        change->first = change->stream->sequence_accepted - change->stream->busy_packets;
        server_change_step(change->stream, core_time_now_ns());
        return;
    }
    give_back(io, change);
}

void server_change_stays(struct server_stream *stream)
{
    stream->change->placement = stream->change->stays;
    give_up(stream->change, PROTOCOL_REFUSED_CAPACITY, NULL);
}

void server_change_end(struct server_stream *stream)
{
    struct server_change *change = stream->change;
    struct server_io *io = stream->connection->io;

    if (change == NULL)
        return;
    if (change->connection != NULL && !stream->connection->abandoned)
        server_frame_not_modified(change,
                                  stream->close_reason == PROTOCOL_CLOSE_DRAINED ? PROTOCOL_REFUSED_DRAINING
                                                                                 : PROTOCOL_REFUSED_STREAM,
                                  stream->close_reason == PROTOCOL_CLOSE_DRAINED
                                      ? "the server is stopping"
                                      : "the stream is being closed",
                                  core_time_now_ns() - change->received_ns);
    if (change->connection != NULL && !change->waiting) {
        stream->change = NULL; /* the planner's answer is still to come */
        change->stream = NULL;
        return;
    }
    if (change->waiting) {
        if (change->connection != NULL)
            end_request(change);
        note_room(change, SERVER_CHANGE_GONE);
        server_route_forget_change(stream);
    } else if (!server_backup_settle(stream, change->first))
        never_settles(change);
    give_back(io, change);
}

/* ---- the change itself ---- */

/* First of the packets that still wait for a token, NULL if none does. */
static struct server_packet *first_policed(const struct server_stream *stream, core_ns now_ns)
{
    struct server_packet *packet = stream->wait_head;
    while (packet != NULL && (!packet->policed || packet->eligible_ns <= now_ns))
        packet = packet->next;
    return packet;
}

/* Polices anew what waits: the bucket is put back to before the first of them, and carried over from there.
 */
static void police_anew(struct server_stream *stream, struct server_packet *first, core_ns now_ns)
{
    if (first != NULL) /* policed: it is eligible at TAT - (k - 1) t */
        stream->police.theoretical_ns = first->eligible_ns + stream->police.tolerance_ns;
    server_police_change(&stream->police, &stream->spec, 0, now_ns);
    for (struct server_packet *packet = first; packet != NULL; packet = packet->next) {
        struct server_police_times times =
            server_police_unseen(&stream->police, packet->arrival_ns, packet->unseen_ns);
        packet->eligible_ns = times.eligible_ns;
        packet->unseen_ns = times.unseen_ns;
        packet->deadline_ns = packet->eligible_ns - packet->unseen_ns + stream->spec.latency_ns;
        packet->policed = packet->eligible_ns > packet->arrival_ns;
    }
}

static void set_contract(struct server_stream *stream, const struct core_stream_spec *spec)
{
    const struct server_io *io = stream->connection->io;
    struct perfmodel_cpu_task task;

    stream->spec = *spec;
    server_io_count_stream(stream);
    server_pace_init(&stream->pace, spec, 0);
    if (stream->gpu != NULL || perfmodel_cpu_task_from(spec, io->server->profile, &task, NULL) != CORE_OK)
        return; /* a stand-by worker promises nothing: any deadlines will do */
    stream->pace.spacing_ns = task.spacing_ns;
    stream->cpu->piece_bytes = task.piece_bytes;
    stream->cpu->piece_deadline_ns = task.deadline_ns;
}

static void come_into_force(struct server_stream *stream, core_ns now_ns)
{
    struct server_change *change = stream->change;
    struct server_packet *first = first_policed(stream, now_ns);
    uint32_t sequence = first != NULL ? first->sequence : stream->sequence_accepted;

    set_contract(stream, &change->spec);
    police_anew(stream, first, now_ns);
    take_block(stream, change);
    stream->bound_ns = server_backup_bound_ns(&change->placement);
    change->first = sequence;
    if (change->has_backup)
        server_backup_change(stream, &change->backup);
    server_frame_modified(change, sequence);
    end_request(change);
    note_room(change, SERVER_CHANGE_IN_FORCE);
    server_change_step(stream, now_ns);
    server_io_release_stream(stream);
}

void server_change_catch_up(struct server_stream *stream, struct server_change *change)
{
    change->stream = stream;
    change->waiting = true;
    change->until_ns = CORE_NS_NEVER;
    stream->change = change;
    enlist(stream->connection->io, change);
}

/* From the next packet on none is late. */
static void be_on_time(struct server_stream *stream, core_ns now_ns)
{
    const struct core_stream_spec spec = stream->spec;
    struct server_change *change = stream->change;

    change->first = stream->wait_head != NULL ? stream->wait_head->sequence : stream->sequence_accepted;
    set_contract(stream, &spec);
    note_room(change, SERVER_CHANGE_IN_FORCE);
    server_change_step(stream, now_ns);
}

/* Have all left that may be late? */
static bool is_on_time(struct server_stream *stream)
{
    const struct server_packet *oldest = stream->order_head;

    if (stream->late_ns == 0)
        return true;
    if (oldest != NULL && (int32_t)(oldest->sequence - stream->change->first) < 0)
        return false;
    stream->late_ns = 0;
    server_io_count_stream(stream);
    return true;
}

bool server_change_may_switch(struct server_stream *stream, core_ns now_ns)
{
    const struct server_packet *next = stream->wait_head;

    return server_pace_caught_up(&stream->pace, next == NULL, now_ns) &&
           (next == NULL || next->eligible_ns > now_ns);
}

void server_change_switched(struct server_stream *stream, core_ns now_ns)
{
    stream->notice.degraded = false; /* what MODIFIED promises */
    come_into_force(stream, now_ns);
}

/* Nothing of the stream is owed to its unit. */
static bool at_gap(struct server_stream *stream, core_ns now_ns)
{
    const struct server_packet *next = stream->wait_head;

    if (stream->order != NULL || !server_pace_caught_up(&stream->pace, next == NULL, now_ns))
        return false;
    if (stream->gpu != NULL)
        return !server_backup_is_held(stream) ||
               (stream->at_worker == 0 && (stream->gpu->inside == 0 || !server_gpu_stream_is_away(stream)));
    return stream->at_worker == 0 && stream->pace.next_release_ns <= now_ns &&
           (next == NULL || next->eligible_ns > now_ns);
}

/* Where only the spacing of what has been released is in the way, its end is known. */
static void await_gap(struct server_stream *stream, core_ns now_ns)
{
    struct server_io *io = stream->connection->io;
    if (stream->wait_head != NULL || stream->at_worker > 0 || stream->pace.next_release_ns <= now_ns)
        return;
    server_waiting_remove(&io->waiting, &stream->waiter);
    server_waiting_add(&io->waiting, &stream->waiter, stream->pace.next_release_ns + PERFMODEL_CPU_EARLY_NS);
}

static void shed(struct server_stream *stream, struct server_change *change)
{
    struct server_block *blocks = server_stream_shed(stream);

    for (const struct server_block *block = blocks; block != NULL; block = block->next)
        change->freed_bytes += block->bytes;
    server_planner_wipe(stream->connection->io->server->planner, blocks);
}

void server_change_step(struct server_stream *stream, core_ns now_ns)
{
    struct server_change *change = stream->change;

    if (change == NULL)
        return;
    if (change->waiting && change->elsewhere) {
        server_route_step(stream, now_ns);
        return;
    }
    if (change->waiting) {
        if (at_gap(stream, now_ns))
            (change->connection != NULL ? come_into_force : be_on_time)(stream, now_ns);
        else if (now_ns >= change->until_ns)
            give_up(change, PROTOCOL_REFUSED_BUSY,
                    "the stream was never idle, so that its contract could not change; retry later");
        else
            await_gap(stream, now_ns);
        return;
    }
    if (change->connection != NULL)
        return; /* at the planner */
    if (!is_on_time(stream) || !server_backup_settle(stream, change->first))
        return;
    if (change->has_backup)
        note_room(change, change->outcome);
    shed(stream, change);
    if (!server_stream_sheds(stream))
        give_back(stream->connection->io, change);
}

void server_change_tick(struct server_io *io, core_ns now_ns)
{
    struct server_change *change = io->changes, *next;
    for (; change != NULL; change = next) {
        next = change->io_next;
        server_change_step(change->stream, now_ns);
    }
}

/* ---- to the planner and back ---- */

/* It was granted, and the system has no memory after all. */
static void give_up_without_memory(struct server_io *io, struct server_change *change)
{
    if (change->elsewhere)
        server_route_drop(io, change->order);
    give_up(change, PROTOCOL_REFUSED_INTERNAL, "the server is out of memory");
}

static void answered(void *owner, struct server_message *message)
{
    struct server_io *io = owner;
    struct server_change *change = (struct server_change *)message;
    struct server_stream *stream = change->stream;

    core_histogram_record(&io->stats.admission, change->decided_ns);
    if (change->refusal != 0) {
        if (stream != NULL) {
            server_frame_not_modified(change, change->refusal, change->refusal_text, change->decided_ns);
            stream->change = NULL;
            if (change->has_backup && stream->at_worker == 0) {
                server_backup_change(stream, &change->backup);
                (void)server_backup_settle(stream, stream->sequence_accepted - stream->busy_packets);
            }
        }
        end_request(change);
        free(change);
        return;
    }
    if (stream == NULL) {
        end_request(change);
        if (change->elsewhere)
            server_route_drop(io, change->order);
        change->outcome = SERVER_CHANGE_GONE;
        give_back(io, change);
        return;
    }
    core_ns now_ns = core_time_now_ns();
    change->waiting = true;
    change->until_ns = now_ns + SERVER_CHANGE_PATIENCE_NS;
    enlist(io, change);
    if (change->memory.packets > 0 && change->memory.block == NULL)
        give_up_without_memory(io, change);
    else if (change->elsewhere)
        server_route_begin(stream, change->order);
    else
        server_change_step(stream, now_ns);
}

bool server_change_ask(struct server_stream *stream, uint32_t request, const struct core_stream_spec *spec,
                       core_ns now_ns)
{
    struct server_connection *connection = stream->connection;
    struct server_change *change = calloc(1, sizeof *change);

    if (change == NULL)
        return false;
    *change = (struct server_change){.turn.asker = &connection->asker,
                                     .grant = stream->grant,
                                     .spec = *spec,
                                     .has_packets = stream->queue_packets,
                                     .memory.stagger = connection->io->stagger++,
                                     .reply = &connection->io->mailbox,
                                     .received_ns = now_ns,
                                     .connection = connection,
                                     .stream = stream,
                                     .request = request};
    change->answered = answered;
    stream->change = change;
    connection->requests++;
    server_planner_change(connection->io->server->planner, change);
    return true;
}
