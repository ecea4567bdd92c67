#include "server/stream/advance.h"

#include "server/stream/backup.h"
#include "server/stream/io_thread.h"

#include <assert.h>

bool server_stream_on_gpu(const struct server_stream *stream)
{
    enum server_path_state state = stream->path;

    return stream->units.gpu != NULL && state != SERVER_PATH_WORKER && state != SERVER_PATH_LEAVING_WORKER &&
           state != SERVER_PATH_HELD_WORKER;
}

bool server_stream_failed_over(const struct server_stream *stream)
{
    return stream->units.gpu != NULL &&
           (!server_stream_on_gpu(stream) || !server_gpu_binding_is_primary(stream->units.gpu));
}

/* ---- facts ---- */

/* What came late to a backup has left it; nobody waits for that where packets are not at the backup. */
static bool may_leave_backup(const struct server_stream *stream)
{
    bool at_fallback = stream->path == SERVER_PATH_WORKER && !server_backup_on_worker(stream);
    return at_fallback || server_backup_on_time(stream);
}

static unsigned fact(bool holds, enum server_path_fact fact)
{
    return holds ? fact : 0;
}

static unsigned gpu_facts(const struct server_stream *stream)
{
    const struct server_gpu_binding *present = stream->units.gpu, *other = stream->units.secondary;
    bool usable = server_gpu_binding_request(stream) == NULL; /* the OPEN is answered first */

    return fact(usable && server_gpu_binding_is_keyed(present), SERVER_PATH_KEYED) |
           fact(usable && other != NULL && server_gpu_binding_is_keyed(other), SERVER_PATH_OTHER) |
           fact(!server_gpu_binding_is_primary(present), SERVER_PATH_AT_BACKUP) |
           fact(present->asking, SERVER_PATH_AWAITED) | fact(present->inside == 0, SERVER_PATH_GPU_EMPTY) |
           fact(may_leave_backup(stream), SERVER_PATH_ON_TIME) | fact(present->lost, SERVER_PATH_LOST);
}

static unsigned facts(struct server_stream *stream, core_ns now_ns)
{
    unsigned gpu = stream->units.gpu != NULL ? gpu_facts(stream) : SERVER_PATH_GPU_EMPTY;
    unsigned migration = stream->migration != NULL ? server_migration_facts(stream, now_ns) : 0;
    return fact(stream->units.at_worker == 0, SERVER_PATH_WORKER_EMPTY) | gpu | migration;
}

/* ---- effects ---- */

static void swap(struct server_stream *stream)
{
    struct server_gpu_binding *left = stream->units.gpu;

    assert(left->inside == 0 && stream->units.secondary->inside == 0);
    stream->units.gpu = stream->units.secondary;
    stream->units.secondary = left;
}

/* Without a backup nothing is promised: what waits, waits for its contract only. */
static void use_worker(struct server_stream *stream, core_ns now_ns)
{
    bool backed = server_backup_on_worker(stream);

    assert(stream->units.gpu->inside == 0);
    if (!backed)
        server_notification(stream, PROTOCOL_NOTICE_DEGRADED);
    else if (!stream->failover.told)
        server_notification(stream, PROTOCOL_NOTICE_MOVED);
    stream->failover.told = backed;
    server_pacer_switch(&stream->pace, 0, CORE_NS_NEVER, false, now_ns);
}

static void use_gpu(struct server_stream *stream, bool paced, core_ns now_ns)
{
    bool at_primary = server_gpu_binding_is_primary(stream->units.gpu);
    core_ns first_ns = stream->queue.waiting != NULL ? stream->queue.waiting->eligible_ns : CORE_NS_NEVER;

    assert(stream->units.at_worker == 0 && server_gpu_binding_is_keyed(stream->units.gpu));
    server_pacer_switch(&stream->pace, 0, first_ns, paced, now_ns);
    stream->units.gpu->fresh = true;
    server_notification(stream, at_primary && !stream->failover.told ? PROTOCOL_NOTICE_RESTORED
                                                                     : PROTOCOL_NOTICE_MOVED);
    stream->failover.told = !at_primary;
}

static void carry_out(struct server_stream *stream, unsigned effects, core_ns now_ns)
{
    bool paced = (effects & SERVER_PATH_PACED) != 0;

    if ((effects & SERVER_PATH_FAIL_OVER) != 0)
        server_backup_begin(stream, now_ns);
    if ((effects & SERVER_PATH_REWIND) != 0)
        server_backup_rewind(stream);
    if ((effects & SERVER_PATH_SWAP) != 0)
        swap(stream);
    if ((effects & SERVER_PATH_SWITCH) != 0)
        server_migration_switch(stream, paced, now_ns);
    if ((effects & SERVER_PATH_GIVE_UP) != 0)
        server_migration_give_up(stream);
    if ((effects & SERVER_PATH_USE_WORKER) != 0)
        use_worker(stream, now_ns);
    if ((effects & SERVER_PATH_USE_GPU) != 0)
        use_gpu(stream, paced, now_ns);
    if ((effects &
         (SERVER_PATH_RELEASE | SERVER_PATH_SWITCH | SERVER_PATH_USE_WORKER | SERVER_PATH_USE_GPU)) != 0)
        stream->client->io->calls->release(stream);
}

void server_stream_advance(struct server_stream *stream, core_ns now_ns)
{
    unsigned effects;

    if (stream->units.gpu != NULL || stream->migration != NULL)
        while (server_path_step(&stream->path, facts(stream, now_ns), &effects))
            carry_out(stream, effects, core_time_now_ns());
    if (stream->migration != NULL)
        server_migration_return(stream);
    if (stream->modify != NULL)
        server_modify_step(stream, now_ns);
}
