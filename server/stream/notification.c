#include "server/stream/notification.h"

#include "server/stream/advance.h"
#include "server/stream/backup.h"
#include "server/stream/io_thread.h"

#include <stdio.h>

static struct protocol_notice describe(const struct server_stream *stream, enum protocol_notice_kind kind)
{
    uint32_t gpu = stream->reservation->gpu;
    bool on_card = server_stream_on_gpu(stream);
    bool away = server_stream_failed_over(stream);
    const struct server_backup *backup = server_backup_is_held(stream) ? &stream->reservation->backup : NULL;
    struct protocol_notice notice = {
        .kind = kind,
        .unit = on_card ? PROTOCOL_UNIT_GPU : PROTOCOL_UNIT_CPU,
        .unit_index = (uint16_t)(on_card ? server_gpu_binding_gpu(stream->units.gpu) : stream->units.worker)};

    switch (kind) {
    case PROTOCOL_NOTICE_DEGRADED:
        snprintf(notice.text, SERVER_NOTIFICATION_TEXT_BYTES,
                 "GPU %u failed; served without a guarantee until it is back", gpu);
        break;
    case PROTOCOL_NOTICE_RESTORED:
        notice.bound_ns = stream->bounds.promised_ns;
        snprintf(notice.text, SERVER_NOTIFICATION_TEXT_BYTES, "GPU %u is back", gpu);
        break;
    case PROTOCOL_NOTICE_MOVED:
        notice.bound_ns = stream->spec.latency_ns; /* what every unit has been asked for, but */
        if (backup != NULL)
            notice.bound_ns = away ? backup->bound_ns : backup->gpu_bound_ns;
        snprintf(notice.text, SERVER_NOTIFICATION_TEXT_BYTES, "now on %s %u", on_card ? "GPU" : "CPU worker",
                 notice.unit_index);
        break;
    case PROTOCOL_NOTICE_LEAVING: /* the connection's */
        break;
    }
    return notice;
}

/* What a write has begun must be written to its end. */
static bool is_begun(const struct server_stream *stream)
{
    return stream->notice.output.counted;
}

static bool is_listening(const struct server_stream *stream)
{
    return stream->version >= 2 && stream->state == SERVER_STREAM_OPEN;
}

static void tell(struct server_stream *stream, enum protocol_notice_kind kind)
{
    struct server_stream_notice *own = &stream->notice;
    const struct protocol_notice notice = describe(stream, kind);

    own->kind = kind;
    own->output.frame = own->frame;
    own->output.frame_bytes = (uint16_t)protocol_notice_write(own->frame, stream->id, &notice);
    own->output.is_notification = true;
    own->output.counted = false;
    own->queued = own->queued || stream->client->io->calls->append(stream, &own->output);
}

/* A write that has begun is written to its end; and that nothing is promised is told before that it is again.
 */
static bool is_to_be_told_first(const struct server_stream *stream, enum protocol_notice_kind next)
{
    const struct server_stream_notice *own = &stream->notice;
    bool degraded = own->kind == PROTOCOL_NOTICE_DEGRADED && next != PROTOCOL_NOTICE_DEGRADED;
    return own->queued && (degraded || is_begun(stream));
}

void server_notification(struct server_stream *stream, enum protocol_notice_kind kind)
{
    struct server_stream_notice *own = &stream->notice;

    if (kind == PROTOCOL_NOTICE_RESTORED && !own->degraded)
        return;
    own->degraded = kind == PROTOCOL_NOTICE_DEGRADED;
    if (!is_listening(stream))
        return;
    own->next = is_to_be_told_first(stream, kind) ? kind : 0;
    if (own->next == 0)
        tell(stream, kind);
}

void server_notification_left(struct server_output *output)
{
    struct server_stream *stream =
        (struct server_stream *)((char *)output - offsetof(struct server_stream, notice.output));
    struct server_stream_notice *own = &stream->notice;
    enum protocol_notice_kind next = own->next;

    own->queued = false;
    own->next = 0;
    if (next != 0 && is_listening(stream))
        tell(stream, next);
    stream->client->io->calls->settle(stream);
}
