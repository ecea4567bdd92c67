#include "server/stream/backup.h"

#include "server/stream/io_thread.h"

/* ---- what is told ---- */

core_ns server_backup_bound_ns(const struct admission_placement *placement)
{
    return placement->backup_unit != ADMISSION_NONE ? placement->gpu_bound_ns : placement->bound_ns;
}

struct protocol_backup server_backup_report(const struct server *server,
                                            const struct admission_placement *placement)
{
    uint32_t unit = placement->backup_unit;
    bool gpu = partition_unit_is_gpu(server->worker_count, unit);

    if (unit != ADMISSION_NONE)
        return (struct protocol_backup){.unit = gpu ? PROTOCOL_UNIT_GPU : PROTOCOL_UNIT_CPU,
                                        .unit_index = (uint16_t)(gpu ? server_unit_gpu(server, unit) : unit),
                                        .reserved_ppb = placement->reserved_ppb < UINT32_MAX
                                                            ? (uint32_t)placement->reserved_ppb
                                                            : UINT32_MAX,
                                        .bound_ns = placement->backup_bound_ns};
    if (!partition_unit_is_gpu(server->worker_count, placement->unit))
        return (struct protocol_backup){.bound_ns = placement->bound_ns};
    return (struct protocol_backup){.unit = PROTOCOL_UNIT_NONE};
}

/* ---- where ---- */

static bool has_backup(const struct server_reservation *reservation)
{
    return reservation->gpu != SERVER_NO_GPU && reservation->backup.unit != ADMISSION_NONE;
}

uint32_t server_backup_worker(const struct server *server, const struct server_reservation *reservation)
{
    if (reservation->gpu == SERVER_NO_GPU)
        return reservation->unit;
    return has_backup(reservation) && !server_unit_is_gpu(server, reservation->backup.unit)
               ? reservation->backup.unit
               : server->worker_count;
}

bool server_backup_is_held(const struct server_stream *stream)
{
    return stream->units.gpu != NULL && has_backup(stream->reservation);
}

bool server_backup_on_worker(const struct server_stream *stream)
{
    return server_backup_is_held(stream) &&
           !server_unit_is_gpu(stream->client->io->server, stream->reservation->backup.unit);
}

core_ns server_backup_shortest_ns(const struct server_stream *stream)
{
    const struct server_backup *backup = &stream->reservation->backup;
    core_ns latency_ns = stream->spec.latency_ns;

    if (!has_backup(stream->reservation))
        return latency_ns;
    return core_time_min(backup->gpu_bound_ns, latency_ns - backup->gpu_bound_ns - backup->detection_ns);
}

/* ---- when ---- */

void server_backup_rewind(struct server_stream *stream)
{
    struct server_packet *packet = stream->queue.head;

    while (packet != NULL && packet->ready)
        packet = packet->next;
    stream->queue.waiting = packet;
    stream->units.gpu->lost = false;
}

void server_backup_begin(struct server_stream *stream, core_ns now_ns)
{
    if (!server_backup_is_held(stream))
        return;
    stream->failover.lost_ns = now_ns;
    stream->failover.release_ns = core_time_max(stream->failover.release_ns, now_ns);
}

core_ns server_backup_release_ns(struct server_stream *stream, core_ns ready_ns)
{
    core_ns release_ns = core_time_max(ready_ns, stream->failover.release_ns);

    stream->failover.release_ns = release_ns + stream->reservation->backup.task.spacing_ns;
    return release_ns + stream->in_ns;
}

/* ---- another contract ---- */

static struct core_stream_spec contract_of(const struct core_stream_spec *spec,
                                           const struct server_backup *backup)
{
    core_ns away_ns = backup->gpu_bound_ns + backup->detection_ns;
    struct core_stream_spec contract = *spec;

    contract.burst_packets += (uint32_t)((away_ns + spec->interval_ns - 1) / spec->interval_ns);
    contract.latency_ns -= away_ns;
    return contract;
}

static void serve_as(struct server_stream *stream, const struct perfmodel_cpu_task *task)
{
    stream->reservation->backup.task = *task;
    stream->cpu->piece_bytes = task->piece_bytes;
    stream->cpu->piece_deadline_ns = task->deadline_ns;
}

void server_backup_modify(struct server_stream *stream, const struct server_backup *backup)
{
    if (!server_backup_is_held(stream))
        return;
    stream->reservation->backup = *backup;
    if (server_backup_on_worker(stream))
        serve_as(stream, &backup->task);
    stream->client->io->calls->count(stream);
}

bool server_backup_retire(struct server_stream *stream, uint32_t first)
{
    const struct server_packet *oldest = stream->queue.head;
    struct core_stream_spec contract;
    struct perfmodel_cpu_task task;

    if (!server_backup_is_held(stream))
        return true;
    if (stream->units.at_worker > 0 || (oldest != NULL && (int32_t)(oldest->sequence - first) < 0))
        return false;
    if (!server_backup_on_worker(stream))
        return true;
    contract = contract_of(&stream->spec, &stream->reservation->backup);
    if (perfmodel_cpu_task_from(&contract, stream->client->io->server->profile, &task, NULL) == CORE_OK)
        serve_as(stream, &task);
    return true;
}

bool server_backup_on_time(const struct server_stream *stream)
{
    return stream->queue.head == NULL || stream->queue.head->eligible_ns >= stream->failover.lost_ns;
}
