#include "server/stream/advance.h"
#include "server/stream/backup.h"
#include "server/stream/io_thread.h"

/* ---- what the path has to know ---- */

/* A key that is at the batcher is its binding's, which must not go away under it. */
static bool is_asking(const struct server_stream *stream)
{
    return (stream->units.gpu != NULL && stream->units.gpu->asking) ||
           (stream->units.secondary != NULL && stream->units.secondary->asking);
}

/* The old contract still has to serve packets, or the backup has what no other unit has capacity for. */
static bool is_owed(struct server_stream *stream, core_ns now_ns)
{
    return (stream->migration->modifies && !server_modify_may_switch(stream, now_ns)) ||
           (server_backup_is_held(stream) && !server_backup_on_time(stream));
}

static bool is_free(struct server_stream *stream, core_ns now_ns)
{
    return stream->units.at_worker == 0 && (stream->units.gpu == NULL || stream->units.gpu->inside == 0) &&
           !is_asking(stream) && !is_owed(stream, now_ns);
}

/* A change that is asked for meanwhile is refused when the planner comes to it, and nothing is held until
 * then. Nor while packets are at the backup or on the way back from there, or late because of that: what all
 * that takes is not what the old unit keeps. */
static bool may_hold(struct server_stream *stream, core_ns now_ns)
{
    if (now_ns < stream->migration->hold_from_ns || stream->modify != NULL ||
        !server_pacer_caught_up(&stream->pace, false, now_ns))
        return false;
    return stream->units.gpu == NULL || (stream->units.at_worker == 0 && !server_stream_failed_over(stream));
}

unsigned server_migration_facts(struct server_stream *stream, core_ns now_ns)
{
    const struct server_migration *migration = stream->migration;
    bool keyed = migration->place != NULL && server_gpu_binding_is_keyed(migration->place);

    if (migration->ended)
        return 0;
    return SERVER_PATH_MIGRATING | (keyed || migration->place == NULL ? SERVER_PATH_READY : 0) |
           (keyed ? SERVER_PATH_TO_GPU : 0) | (is_free(stream, now_ns) ? SERVER_PATH_FREE : 0) |
           (may_hold(stream, now_ns) ? SERVER_PATH_MAY_HOLD : 0) |
           (now_ns >= migration->until_ns ? SERVER_PATH_OVERDUE : 0);
}

struct partition_planner_use server_migration_use(const struct server_stream *stream)
{
    const struct server_stream_units *units = &stream->units;

    if (units->gpu == NULL)
        return (struct partition_planner_use){.used = units->worked, .mark = units->pauses};
    const struct server_gpu_binding *backup = server_gpu_binding_at_backup(stream);
    uint64_t newest = server_gpu_binding_at_primary(stream)->newest;
    struct partition_planner_use use = {.used = newest > 0, .mark = newest};

    if (backup != NULL) {
        use.backup_used = backup->newest > 0;
        use.backup_mark = backup->newest;
    } else if (server_backup_on_worker(stream)) {
        use.backup_used = units->worked;
        use.backup_mark = units->pauses;
    }
    return use;
}

void server_migration_give_back(struct server_stream *stream)
{
    struct server_reservation *reservation = stream->reservation;
    const struct server_gpu_binding *backup =
        stream->units.gpu != NULL ? server_gpu_binding_at_backup(stream) : NULL;

    reservation->holder = NULL;
    reservation->use = server_migration_use(stream);
    if (stream->units.gpu != NULL)
        reservation->gpu_slot = server_gpu_binding_at_primary(stream)->key.slot;
    if (backup != NULL)
        reservation->secondary.slot = backup->key.slot;
    stream->reservation = NULL;
    server_planner_release(stream->client->io->server->planner, reservation);
}

/* ---- the end of a migration ---- */

void server_migration_return(struct server_stream *stream)
{
    struct server_migration *migration = stream->migration;

    if (!migration->ended)
        return;
    if (migration->outcome != SERVER_MIGRATION_DONE && migration->place != NULL) {
        if (migration->place->asking)
            return;
        migration->to->gpu_slot = migration->place->key.slot;
        server_gpu_binding_detach(migration->place);
    }
    stream->migration = NULL;
    *migration->io_previous = migration->io_next;
    if (migration->io_next != NULL)
        migration->io_next->io_previous = migration->io_previous;
    migration->message.run = migration->returned;
    server_mailbox_post(server_planner_mailbox(stream->client->io->server->planner), &migration->message);
}

static void end_migration(struct server_stream *stream, enum server_migration_outcome outcome)
{
    stream->migration->outcome = outcome;
    stream->migration->ended = true;
    server_migration_return(stream);
}

void server_migration_forget_modify(struct server_stream *stream)
{
    if (stream->migration != NULL && stream->migration->modifies && !stream->migration->ended)
        end_migration(stream, SERVER_MIGRATION_GONE);
}

bool server_migration_ends(struct server_stream *stream)
{
    if (stream->migration != NULL && !stream->migration->ended)
        end_migration(stream, SERVER_MIGRATION_GONE);
    return stream->migration == NULL && (stream->units.gpu == NULL || !stream->units.gpu->asking) &&
           (stream->units.secondary == NULL || !stream->units.secondary->asking);
}

/* ---- the switch ---- */

static core_ns first_waiting_ns(const struct server_stream *stream)
{
    return stream->queue.waiting != NULL ? stream->queue.waiting->eligible_ns : CORE_NS_NEVER;
}

/* Packets have waited and may be late: the new unit serves the stream as it was asked to for that. One change
 * at a time: where another one is asked for nothing was held. */
static bool may_be_late(struct server_stream *stream, core_ns now_ns)
{
    return stream->migration->catch_up != NULL && stream->modify == NULL &&
           !server_pacer_caught_up(&stream->pace, false, now_ns);
}

static void serve(struct server_stream *stream, const struct perfmodel_cpu_task *task)
{
    stream->cpu->piece_bytes = task->piece_bytes;
    stream->cpu->piece_deadline_ns = task->deadline_ns;
    stream->pace.spacing_ns = task->spacing_ns;
}

void server_migration_switch(struct server_stream *stream, bool held, core_ns now_ns)
{
    struct server_migration *migration = stream->migration;
    struct server_gpu_binding *old = stream->units.gpu;
    core_ns first_ns = first_waiting_ns(stream);
    bool modifies = migration->modifies;

    migration->held_ns = held && first_ns < now_ns ? now_ns - first_ns : 0;
    server_migration_give_back(stream);
    if (old != NULL)
        server_gpu_binding_detach(old);
    if (stream->units.secondary != NULL)
        server_gpu_binding_detach(stream->units.secondary);
    migration->secondary = stream->units.secondary;
    stream->units.secondary = NULL;
    stream->failover = (struct server_failover){.told = false};
    stream->reservation = migration->to;
    stream->reservation->holder = stream;
    stream->units.worker = server_backup_worker(stream->client->io->server, migration->to);
    stream->units.gpu = migration->place;
    migration->place = old;
    stream->units.worked = false;
    server_pacer_switch(&stream->pace, migration->task.spacing_ns, first_ns, held, now_ns);
    migration->late = may_be_late(stream, now_ns);
    serve(stream, migration->late ? &migration->late_task : &migration->task);
    stream->bounds.late_ns = migration->late ? migration->hold_ns : 0;
    struct server_modify *catch_up = migration->late ? migration->catch_up : NULL;
    end_migration(stream, SERVER_MIGRATION_DONE);
    stream->client->io->calls->count(stream);
    if (stream->units.gpu != NULL)
        server_gpu_binding_arrive(stream->units.gpu);
    if (catch_up != NULL)
        server_modify_catch_up(stream, catch_up);
    if (modifies)
        server_modify_switched(stream, now_ns);
    else
        server_notification(stream, stream->units.gpu != NULL && stream->path == SERVER_PATH_WORKER
                                        ? PROTOCOL_NOTICE_DEGRADED
                                        : PROTOCOL_NOTICE_MOVED);
}

void server_migration_give_up(struct server_stream *stream)
{
    bool modifies = stream->migration->modifies;

    end_migration(stream, SERVER_MIGRATION_TIMED_OUT);
    if (modifies)
        server_modify_stays(stream);
}

/* ---- the beginning ---- */

void server_migration_begin(struct server_stream *stream, struct server_migration *migration)
{
    struct server_stream_io *io = stream->client->io;

    stream->migration = migration;
    migration->stream = stream;
    migration->connection = stream->client->number;
    migration->number = stream->id;
    migration->io_next = io->migrations;
    migration->io_previous = &io->migrations;
    if (io->migrations != NULL)
        io->migrations->io_previous = &migration->io_next;
    io->migrations = migration;
    if (migration->place != NULL)
        server_gpu_binding_attach(io, migration->place, stream, migration->to->gpu, migration->until_ns);
    server_stream_advance(stream, core_time_now_ns());
}

void server_migration_drop(struct server_stream_io *io, struct server_migration *migration)
{
    migration->outcome = SERVER_MIGRATION_GONE;
    migration->message.run = migration->returned;
    server_mailbox_post(server_planner_mailbox(io->server->planner), &migration->message);
}

void server_migration_receive(void *owner, struct server_message *message)
{
    struct server_stream_io *io = owner;
    struct server_migration *migration = (struct server_migration *)message;
    struct server_stream *stream = migration->from->holder;

    if (stream != NULL && stream->state == SERVER_STREAM_OPEN && !stream->client->abandoned)
        server_migration_begin(stream, migration);
    else
        server_migration_drop(io, migration);
}
