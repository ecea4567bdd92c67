/* MODIFY and its answers. */
#include "server/net/io.h"
#include "server/stream/backup.h"

static void refuse_with(struct server_connection *connection, uint32_t request, enum protocol_refusal code,
                        const char *text, core_ns received_ns)
{
    struct protocol_refused refused = {.code = code, .decided_ns = core_time_now_ns() - received_ns};
    snprintf(refused.text, sizeof refused.text, "%s", text);
    server_frame_refuse(connection, SERVER_ASKED_MODIFY, request, &refused);
}

void server_frame_not_modified(const struct server_modify *modify, enum protocol_refusal code,
                               const char *text, core_ns decided_ns)
{
    const struct admission_placement *placement = &modify->placement;
    struct protocol_refused refused = {.code = code, .decided_ns = decided_ns};

    if (code == PROTOCOL_REFUSED_CAPACITY) {
        refused.constraint = server_frame_limit(placement->constraint);
        refused.offer_interval_ns = placement->offer.interval_ns;
        refused.offer_latency_ns = placement->offer.latency_ns;
        text = placement->reason;
    }
    snprintf(refused.text, sizeof refused.text, "%s", text);
    server_frame_refuse(server_connection_of(modify->stream), SERVER_ASKED_MODIFY, modify->request, &refused);
}

void server_frame_modified(const struct server_modify *modify, uint32_t first)
{
    const struct server_stream *stream = modify->stream;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    struct protocol_modified modified = {
        .stream = stream->id,
        .unit = stream->units.gpu != NULL ? PROTOCOL_UNIT_GPU : PROTOCOL_UNIT_CPU,
        .unit_index = (uint16_t)(stream->units.gpu != NULL ? stream->reservation->gpu : stream->units.worker),
        .bound_ns = server_backup_bound_ns(&modify->placement),
        .decided_ns = modify->decided_ns,
        .in_force_ns = core_time_now_ns() - modify->received_ns,
        .first = first,
        .queue_packets = stream->memory.packets,
        .backup = server_backup_report(modify->stream->client->io->server, &modify->placement)};
    core_histogram_record(&modify->stream->client->io->stats->in_force, modified.in_force_ns);
    server_stats_add(&modify->stream->client->io->stats->modified, 1);
    server_output_control(server_connection_of(modify->stream), frame,
                          protocol_modified_write(frame, modify->request, &modified));
}

/* The contract that is asked for: 0, or the refusal with its reason in error. */
static enum protocol_refusal check(const struct server_connection *connection,
                                   const struct server_stream *stream, const struct core_stream_spec *spec,
                                   struct core_error *error)
{
    if (stream == NULL || stream->state != SERVER_STREAM_OPEN) {
        (void)core_error_set(error, CORE_NOT_FOUND,
                             "MODIFY for a stream that is not open on this connection");
        return PROTOCOL_REFUSED_STREAM;
    }
    if (core_stream_spec_check(spec, error) != CORE_OK)
        return PROTOCOL_REFUSED_SPEC;
    if (!server_frame_within_limits(connection, spec, connection->stream_count, error))
        return PROTOCOL_REFUSED_LIMIT;
    return 0;
}

void server_frame_modify(struct server_connection *connection, const struct protocol_header *header,
                         const uint8_t *body, core_ns now_ns)
{
    struct core_error error = {""};
    struct core_stream_spec spec = {0};
    struct protocol_modify modify;

    if (protocol_modify_read(body, header->body_bytes, &modify, &error) != CORE_OK) {
        server_connection_fail(connection, 0, PROTOCOL_ERROR_MALFORMED, error.text);
        return;
    }
    if (connection->client.requests >= SERVER_REQUESTS_MAX) {
        server_connection_fail(connection, 0, PROTOCOL_ERROR_LIMIT, "too many unanswered requests");
        return;
    }
    struct server_stream *stream = server_connection_find_stream(connection, modify.stream);
    if (stream != NULL)
        spec = stream->spec;
    spec.burst_packets = modify.burst_packets;
    spec.interval_ns = modify.interval_ns;
    spec.latency_ns = modify.latency_ns;
    enum protocol_refusal refusal = check(connection, stream, &spec, &error);
    if (refusal != 0) {
        refuse_with(connection, header->id, refusal, error.text, now_ns);
        return;
    }
    if (stream->modify != NULL && stream->modify->client != NULL) {
        refuse_with(connection, header->id, PROTOCOL_REFUSED_BUSY,
                    "another MODIFY of this stream is in progress; wait for its answer", now_ns);
        return;
    }
    if (stream->migration != NULL || stream->bounds.late_ns > 0) {
        refuse_with(connection, header->id, PROTOCOL_REFUSED_BUSY,
                    stream->migration != NULL
                        ? "the stream is migrating to another unit; retry"
                        : "the stream is still catching up after a migration; retry later",
                    now_ns);
        return;
    }
    if (stream->modify != NULL)
        server_modify_end(stream); /* in force; what memory it has yet to free is freed with this one */
    if (!server_modify_ask(stream, header->id, &spec, now_ns))
        refuse_with(connection, header->id, PROTOCOL_REFUSED_INTERNAL, "the server is out of memory", now_ns);
}
