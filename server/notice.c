#include "server/notice.h"

#include "server/backup.h"
#include "server/io.h"

#include <stdio.h>

static struct protocol_notice describe(const struct server_stream *stream, enum protocol_notice_kind kind)
{
    uint32_t gpu = stream->grant->gpu;
    bool on_card = stream->gpu != NULL && stream->gpu->state != SERVER_GPU_AWAY;
    bool away = server_gpu_stream_is_away(stream);
    const struct server_backup *backup = server_backup_is_held(stream) ? &stream->grant->backup : NULL;
    struct protocol_notice notice = {
        .kind = kind,
        .unit = on_card ? PROTOCOL_UNIT_GPU : PROTOCOL_UNIT_CPU,
        .unit_index = (uint16_t)(on_card ? server_gpu_stream_card(stream->gpu) : stream->worker)};

    switch (kind) {
    case PROTOCOL_NOTICE_DEGRADED:
        snprintf(notice.text, SERVER_NOTICE_TEXT_BYTES, "GPU %u is lost; served as far as it goes", gpu);
        break;
    case PROTOCOL_NOTICE_RESTORED:
        notice.bound_ns = stream->bound_ns;
        snprintf(notice.text, SERVER_NOTICE_TEXT_BYTES, "GPU %u is back", gpu);
        break;
    case PROTOCOL_NOTICE_MOVED:
        notice.bound_ns = stream->spec.latency_ns; /* what every unit has been asked for, but */
        if (backup != NULL)
            notice.bound_ns = away ? backup->bound_ns : backup->gpu_bound_ns;
        snprintf(notice.text, SERVER_NOTICE_TEXT_BYTES, "now on %s %u", on_card ? "GPU" : "CPU worker",
                 notice.unit_index);
        break;
    }
    return notice;
}

/* What a write has begun must be written to its end. */
static bool is_begun(const struct server_stream *stream)
{
    const struct server_connection *connection = stream->connection;
    return connection->output_head == &stream->notice.output && connection->output_done > 0;
}

void server_notice(struct server_stream *stream, enum protocol_notice_kind kind)
{
    struct server_stream_notice *own = &stream->notice;

    if (kind == PROTOCOL_NOTICE_RESTORED && !own->degraded)
        return;
    own->degraded = kind == PROTOCOL_NOTICE_DEGRADED;
    if (stream->version < 2 || stream->state != SERVER_STREAM_OPEN || stream->connection->abandoned)
        return;
    own->next = own->queued && is_begun(stream) ? kind : 0;
    if (own->next != 0)
        return;
    const struct protocol_notice notice = describe(stream, kind);
    own->output.frame = own->frame;
    own->output.frame_bytes = protocol_notice_write(own->frame, stream->id, &notice);
    own->output.is_notice = true;
    if (!own->queued)
        server_output_append(stream->connection, &own->output);
    own->queued = true;
}

void server_notice_left(struct server_output *output)
{
    struct server_stream *stream =
        (struct server_stream *)((char *)output - offsetof(struct server_stream, notice.output));
    struct server_stream_notice *own = &stream->notice;

    own->queued = false;
    if (own->next != 0)
        server_notice(stream, own->next);
    server_connection_settle_stream(stream);
}
