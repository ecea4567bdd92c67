#include "server/stream/modify.h"

#include "server/stream/advance.h"
#include "server/stream/backup.h"
#include "server/stream/io_thread.h"

#include <stdlib.h>

static void take_block(struct server_stream *stream, struct server_modify *modify)
{
    if (modify->memory.block == NULL)
        return;
    if (modify->replaces)
        server_stream_retire(stream);
    server_stream_adopt(stream, modify->memory.block);
    modify->memory.block = NULL;
    modify->memory.bytes = 0;
}

/* ---- the list of those that wait ---- */

static void enlist(struct server_stream_io *io, struct server_modify *modify)
{
    modify->io_next = io->modifies;
    modify->io_previous = &io->modifies;
    if (io->modifies != NULL)
        io->modifies->io_previous = &modify->io_next;
    io->modifies = modify;
}

static void delist(struct server_modify *modify)
{
    if (modify->io_previous == NULL)
        return;
    *modify->io_previous = modify->io_next;
    if (modify->io_next != NULL)
        modify->io_next->io_previous = modify->io_previous;
    modify->io_previous = NULL;
}

/* ---- the end ---- */

/* The request is answered, as far as its connection is concerned. */
static void end_request(struct server_modify *modify)
{
    modify->client->requests--;
    modify->client->io->calls->mark(modify->client);
    modify->client = NULL;
}

/* Back to the planner, with what the old contract's room has to wait for. */
static void give_back(struct server_stream_io *io, struct server_modify *modify)
{
    struct server_stream *stream = modify->stream;

    delist(modify);
    modify->freed_bytes += modify->memory.bytes; /* it was not needed, or could not be made */
    server_planner_wipe(io->server->planner, modify->memory.block);
    modify->memory.block = NULL;
    if (stream != NULL)
        stream->modify = NULL;
    server_planner_modified(io->server->planner, modify);
}

static void note_end(struct server_modify *modify, enum server_modify_outcome outcome)
{
    modify->outcome = outcome;
    modify->waiting = false;
    modify->use = server_migration_use(modify->stream);
}

/* Packets of the old contract are still inside, and nobody will tell when they have left: what the stream is
 * charged for stays the join of both, until it changes again or ends. */
static void never_settles(struct server_modify *modify)
{
    modify->use.used = true;
    modify->use.mark = UINT64_MAX;
}

static void give_up(struct server_modify *modify, enum protocol_refusal code, const char *text)
{
    struct server_stream_io *io = modify->client->io;

    modify->client->io->calls->not_modified(modify, code, text, core_time_now_ns() - modify->received_ns);
    end_request(modify);
    note_end(modify, SERVER_MODIFY_TIMED_OUT);
    if (modify->has_backup) { /* its backup is another one all the same */
        modify->first = modify->stream->queue.accepted - modify->stream->memory.busy;
        server_modify_step(modify->stream, core_time_now_ns());
        return;
    }
    give_back(io, modify);
}

void server_modify_stays(struct server_stream *stream)
{
    stream->modify->placement = stream->modify->stays;
    give_up(stream->modify, PROTOCOL_REFUSED_CAPACITY, NULL);
}

void server_modify_end(struct server_stream *stream)
{
    struct server_modify *modify = stream->modify;
    struct server_stream_io *io = stream->client->io;

    if (modify == NULL)
        return;
    if (modify->client != NULL && !stream->client->abandoned)
        modify->client->io->calls->not_modified(
            modify,
            stream->close_reason == PROTOCOL_CLOSE_DRAINED ? PROTOCOL_REFUSED_DRAINING
                                                           : PROTOCOL_REFUSED_STREAM,
            stream->close_reason == PROTOCOL_CLOSE_DRAINED ? "the server is stopping"
                                                           : "the stream is being closed",
            core_time_now_ns() - modify->received_ns);
    if (modify->client != NULL && !modify->waiting) {
        stream->modify = NULL; /* the planner's answer is still to come */
        modify->stream = NULL;
        return;
    }
    if (modify->waiting) {
        if (modify->client != NULL)
            end_request(modify);
        note_end(modify, SERVER_MODIFY_GONE);
        server_migration_forget_modify(stream);
    } else if (!server_backup_retire(stream, modify->first))
        never_settles(modify);
    give_back(io, modify);
}

/* ---- the change itself ---- */

/* First of the packets that still wait for a token, NULL if none does. */
static struct server_packet *first_policed(const struct server_stream *stream, core_ns now_ns)
{
    struct server_packet *packet = stream->queue.waiting;
    while (packet != NULL && (!packet->policed || packet->eligible_ns <= now_ns))
        packet = packet->next;
    return packet;
}

/* Polices anew what waits: the bucket is put back to before the first of them, and carried over from there.
 */
static void policer_restart(struct server_stream *stream, struct server_packet *first, core_ns now_ns)
{
    if (first != NULL) /* policed: it is eligible at TAT - (k - 1) t */
        stream->policer.theoretical_ns = first->eligible_ns + stream->policer.tolerance_ns;
    server_policer_modify(&stream->policer, &stream->spec, 0, now_ns);
    for (struct server_packet *packet = first; packet != NULL; packet = packet->next) {
        struct server_policer_times times =
            server_policer_unseen(&stream->policer, packet->arrival_ns, packet->unseen_ns);
        packet->eligible_ns = times.eligible_ns;
        packet->unseen_ns = times.unseen_ns;
        packet->deadline_ns = packet->eligible_ns - packet->unseen_ns + stream->spec.latency_ns;
        packet->policed = packet->eligible_ns > packet->arrival_ns;
    }
}

static void set_contract(struct server_stream *stream, const struct core_stream_spec *spec)
{
    const struct server_stream_io *io = stream->client->io;
    struct perfmodel_cpu_task task;

    stream->spec = *spec;
    stream->client->io->calls->count(stream);
    server_pacer_init(&stream->pace, spec, 0);
    if (stream->units.gpu != NULL ||
        perfmodel_cpu_task_from(spec, io->server->profile, &task, NULL) != CORE_OK)
        return; /* a fallback worker promises nothing: any deadlines will do */
    stream->pace.spacing_ns = task.spacing_ns;
    stream->cpu->piece_bytes = task.piece_bytes;
    stream->cpu->piece_deadline_ns = task.deadline_ns;
}

static void come_into_force(struct server_stream *stream, core_ns now_ns)
{
    struct server_modify *modify = stream->modify;
    struct server_packet *first = first_policed(stream, now_ns);
    uint32_t sequence = first != NULL ? first->sequence : stream->queue.accepted;

    set_contract(stream, &modify->spec);
    policer_restart(stream, first, now_ns);
    take_block(stream, modify);
    stream->bounds.promised_ns = server_backup_bound_ns(&modify->placement);
    modify->first = sequence;
    if (modify->has_backup)
        server_backup_modify(stream, &modify->backup);
    modify->client->io->calls->modified(modify, sequence);
    end_request(modify);
    note_end(modify, SERVER_MODIFY_IN_FORCE);
    server_modify_step(stream, now_ns);
    stream->client->io->calls->release(stream);
}

void server_modify_catch_up(struct server_stream *stream, struct server_modify *modify)
{
    modify->stream = stream;
    modify->waiting = true;
    modify->until_ns = CORE_NS_NEVER;
    stream->modify = modify;
    enlist(stream->client->io, modify);
}

/* From the next packet on none is late. */
static void be_on_time(struct server_stream *stream, core_ns now_ns)
{
    const struct core_stream_spec spec = stream->spec;
    struct server_modify *modify = stream->modify;

    modify->first = stream->queue.waiting != NULL ? stream->queue.waiting->sequence : stream->queue.accepted;
    set_contract(stream, &spec);
    note_end(modify, SERVER_MODIFY_IN_FORCE);
    server_modify_step(stream, now_ns);
}

/* Have all left that may be late? */
static bool is_on_time(struct server_stream *stream)
{
    const struct server_packet *oldest = stream->queue.head;

    if (stream->bounds.late_ns == 0)
        return true;
    if (oldest != NULL && (int32_t)(oldest->sequence - stream->modify->first) < 0)
        return false;
    stream->bounds.late_ns = 0;
    stream->client->io->calls->count(stream);
    return true;
}

bool server_modify_may_switch(struct server_stream *stream, core_ns now_ns)
{
    const struct server_packet *next = stream->queue.waiting;

    return server_pacer_caught_up(&stream->pace, next == NULL, now_ns) &&
           (next == NULL || next->eligible_ns > now_ns);
}

void server_modify_switched(struct server_stream *stream, core_ns now_ns)
{
    stream->notice.degraded = false; /* what MODIFIED promises */
    come_into_force(stream, now_ns);
}

/* Nothing of the stream is owed to its unit. */
static bool at_gap(struct server_stream *stream, core_ns now_ns)
{
    const struct server_packet *next = stream->queue.waiting;

    if (stream->migration != NULL || !server_pacer_caught_up(&stream->pace, next == NULL, now_ns))
        return false;
    if (stream->units.gpu != NULL)
        return !server_backup_is_held(stream) ||
               (stream->units.at_worker == 0 &&
                (stream->units.gpu->inside == 0 || !server_stream_failed_over(stream)));
    return stream->units.at_worker == 0 && stream->pace.next_release_ns <= now_ns &&
           (next == NULL || next->eligible_ns > now_ns);
}

/* Where only the spacing of what has been released is in the way, its end is known. */
static void await_gap(struct server_stream *stream, core_ns now_ns)
{
    struct server_stream_io *io = stream->client->io;
    if (stream->queue.waiting != NULL || stream->units.at_worker > 0 ||
        stream->pace.next_release_ns <= now_ns)
        return;
    server_eligible_queue_remove(io->waiting, &stream->waiter);
    server_eligible_queue_add(io->waiting, &stream->waiter,
                              stream->pace.next_release_ns + PERFMODEL_CPU_EARLY_NS);
}

static void shed(struct server_stream *stream, struct server_modify *modify)
{
    struct server_block *blocks = server_stream_shed(stream);

    modify->freed_bytes += server_blocks_bytes(blocks);
    server_planner_wipe(stream->client->io->server->planner, blocks);
}

void server_modify_step(struct server_stream *stream, core_ns now_ns)
{
    struct server_modify *modify = stream->modify;

    if (modify->waiting && modify->elsewhere)
        return; /* comes into force with the migration */
    if (modify->waiting) {
        if (at_gap(stream, now_ns))
            (modify->client != NULL ? come_into_force : be_on_time)(stream, now_ns);
        else if (now_ns >= modify->until_ns)
            give_up(modify, PROTOCOL_REFUSED_BUSY,
                    "the stream was never idle, so that its contract could not change; retry later");
        else
            await_gap(stream, now_ns);
        return;
    }
    if (modify->client != NULL)
        return; /* at the planner */
    if (!is_on_time(stream) || !server_backup_retire(stream, modify->first))
        return;
    if (modify->has_backup)
        note_end(modify, modify->outcome);
    shed(stream, modify);
    if (!server_stream_sheds(stream))
        give_back(stream->client->io, modify);
}

void server_modify_tick(struct server_stream_io *io, core_ns now_ns)
{
    struct server_modify *modify = io->modifies, *next;
    for (; modify != NULL; modify = next) {
        next = modify->io_next;
        server_stream_advance(modify->stream, now_ns);
    }
}

/* ---- to the planner and back ---- */

/* It was granted, and there is no memory after all: of the system, or for the batches of the GPU. */
static void give_up_without_memory(struct server_stream_io *io, struct server_modify *modify)
{
    if (modify->elsewhere)
        server_migration_drop(io, modify->migration);
    if (modify->lacking)
        give_up(modify, PROTOCOL_REFUSED_BUSY,
                "the GPU has no memory for the batches that the stream needs (log: gpu.memory); retry later");
    else
        give_up(modify, PROTOCOL_REFUSED_INTERNAL, "the server is out of memory");
}

static void answered(void *owner, struct server_message *message)
{
    struct server_stream_io *io = owner;
    struct server_modify *modify = (struct server_modify *)message;
    struct server_stream *stream = modify->stream;

    core_histogram_record(&io->stats->admission, modify->decided_ns);
    if (modify->refusal != 0) {
        if (stream != NULL) {
            modify->client->io->calls->not_modified(modify, modify->refusal, modify->refusal_text,
                                                    modify->decided_ns);
            stream->modify = NULL;
        }
        end_request(modify);
        free(modify);
        return;
    }
    if (stream == NULL) {
        end_request(modify);
        if (modify->elsewhere)
            server_migration_drop(io, modify->migration);
        modify->outcome = SERVER_MODIFY_GONE;
        give_back(io, modify);
        return;
    }
    core_ns now_ns = core_time_now_ns();
    modify->waiting = true;
    modify->until_ns = now_ns + SERVER_MODIFY_TIMEOUT_NS;
    enlist(io, modify);
    if (modify->lacking || (modify->memory.packets > 0 && modify->memory.block == NULL))
        give_up_without_memory(io, modify);
    else if (modify->elsewhere)
        server_migration_begin(stream, modify->migration);
    else
        server_modify_step(stream, now_ns);
}

bool server_modify_ask(struct server_stream *stream, uint32_t request, const struct core_stream_spec *spec,
                       core_ns now_ns)
{
    struct server_stream_client *client = stream->client;
    struct server_modify *modify = calloc(1, sizeof *modify);

    if (modify == NULL)
        return false;
    *modify = (struct server_modify){.turn.asker = &client->asker,
                                     .reservation = stream->reservation,
                                     .spec = *spec,
                                     .has_packets = stream->memory.packets,
                                     .memory.stagger = client->io->stagger++,
                                     .reply = client->io->mailbox,
                                     .received_ns = now_ns,
                                     .client = client,
                                     .stream = stream,
                                     .request = request};
    modify->answered = answered;
    stream->modify = modify;
    client->requests++;
    server_planner_modify(client->io->server->planner, modify);
    return true;
}
