/* What each frame of the server means: for the tables, for who waits, for the callbacks. A frame that breaks
 * the protocol ends the connection. */
#include "client/connection.h"

#include "client/lane.h"
#include "client/translate.h"

#include <inttypes.h>
#include <string.h>

static core_status breach(struct millrace *connection, const struct core_error *error)
{
    return client_fail(connection, CORE_INVALID, CLIENT_BREACH "%s", error->text);
}

static core_status on_welcome(struct millrace *connection, const struct protocol_header *header,
                              const uint8_t *body)
{
    struct protocol_welcome welcome;
    struct core_error error;
    if (connection->welcomed)
        return client_fail(connection, CORE_INVALID, CLIENT_BREACH "a second WELCOME");
    if (protocol_welcome_read(body, header->body_bytes, &welcome, &error))
        return breach(connection, &error);
    if (welcome.version < PROTOCOL_VERSION_MIN || welcome.version > connection->version_max)
        return client_fail(connection, CORE_INVALID, CLIENT_BREACH "version %u, which was not offered",
                           welcome.version);
    connection->welcome = client_show_welcome(&welcome);
    connection->welcomed = true;
    return CORE_OK;
}

/* The first frame that comes through the lane is the next one. */
static core_status on_laned(struct millrace *connection, const struct protocol_header *header,
                            const uint8_t *body)
{
    char text[PROTOCOL_CONTROL_BYTES_MAX];
    struct core_error error;
    uint32_t ring_bytes;
    if (!connection->awaits_lane)
        return client_fail(connection, CORE_INVALID, CLIENT_BREACH "LANED without LANE");
    if (protocol_laned_read(body, header->body_bytes, &ring_bytes, text, sizeof text, &error))
        return breach(connection, &error);
    connection->awaits_lane = false;
    if (ring_bytes > 0)
        connection->input.end = connection->input.begin; /* what is behind it only wakes */
    return client_lane_begin(&connection->transport, ring_bytes, &error) ? breach(connection, &error)
                                                                         : CORE_OK;
}

#define OF(type) (1u << (type))

/* Takes the request that the frame answers, which must be OF one of these types, off the table. */
static core_status take_request(struct millrace *connection, const struct protocol_header *header,
                                unsigned types, struct client_request *taken)
{
    struct client_request *request = client_requests_find(&connection->requests, header->id);
    if (request == NULL || (types & OF(request->type)) == 0)
        return client_fail(connection, CORE_INVALID,
                           CLIENT_BREACH "an answer to request %" PRIu32 ", which was not made", header->id);
    *taken = *request;
    client_requests_remove(&connection->requests, request);
    connection->opening -= taken->type == PROTOCOL_OPEN;
    return CORE_OK;
}

/* Enters a stream. One whose opener has given up waiting is closed at once, for nobody knows its id. */
static core_status enter_stream(struct millrace *connection, const struct client_request *request,
                                const struct protocol_opened *opened)
{
    uint32_t id = opened->stream;
    struct client_stream *stream = client_streams_insert(&connection->streams, id);
    if (stream == NULL)
        return client_fail(connection, CORE_INVALID,
                           CLIENT_BREACH "stream id %" PRIu32 " in OPENED is zero or taken", id);
    stream->padded_bytes_max = request->padded_bytes_max;
    stream->more_bytes = request->more_bytes;
    stream->has_messages = request->has_messages;
    stream->has_whole_ones = request->has_whole_ones;
    stream->has_ivs = request->has_ivs;
    stream->unwanted = request->abandoned;
    memcpy(stream->chain, opened->iv, CORE_BLOCK_BYTES);
    if (request->abandoned)
        client_close_soon(connection, id);
    return CORE_OK;
}

static core_status on_opened(struct millrace *connection, const struct protocol_header *header,
                             const uint8_t *body)
{
    struct protocol_opened opened;
    struct client_request request;
    struct core_error error;
    core_status status;
    if (protocol_opened_read(connection->welcome.version, body, header->body_bytes, &opened, &error))
        return breach(connection, &error);
    if ((status = take_request(connection, header, OF(PROTOCOL_OPEN) | OF(PROTOCOL_QUERY), &request)))
        return status;
    if (request.type == PROTOCOL_QUERY && opened.stream != 0)
        return client_fail(connection, CORE_INVALID, CLIENT_BREACH "it opened a stream for a QUERY");
    if (request.type == PROTOCOL_OPEN && (status = enter_stream(connection, &request, &opened)))
        return status;
    struct millrace_opened shown = client_show_opened(&opened);
    shown.asked = connection->asked;
    struct client_waiter *waiter = client_waiter_find(connection, PROTOCOL_OPENED, header->id, 0);
    if (waiter != NULL) {
        waiter->opened = shown;
        client_waiter_done(connection, waiter, CORE_OK);
    } else if (connection->callbacks.on_opened != NULL && !request.abandoned) {
        connection->callbacks.on_opened(connection->callbacks.argument, header->id, &shown);
    }
    return CORE_OK;
}

static core_status on_refused(struct millrace *connection, const struct protocol_header *header,
                              const uint8_t *body)
{
    struct protocol_refused refused;
    struct client_request request;
    struct core_error error;
    if (protocol_refused_read(connection->welcome.version, body, header->body_bytes, &refused, &error))
        return breach(connection, &error);
    core_status status = take_request(
        connection, header,
        OF(PROTOCOL_OPEN) | OF(PROTOCOL_QUERY) | OF(PROTOCOL_MODIFY) | OF(PROTOCOL_REKEY) |
            (connection->pool != NULL ? OF(PROTOCOL_PING) : 0), /* by a pool, that has nobody to ask */
        &request);
    if (status)
        return status;
    uint8_t granted = request.type == PROTOCOL_MODIFY  ? PROTOCOL_MODIFIED
                      : request.type == PROTOCOL_REKEY ? PROTOCOL_REKEYED
                      : request.type == PROTOCOL_PING  ? PROTOCOL_PONG
                                                       : PROTOCOL_OPENED;
    struct millrace_refused shown = client_show_refused(&refused);
    shown.asked = connection->asked;
    struct client_waiter *waiter = client_waiter_find(connection, granted, header->id, 0);
    if (waiter != NULL) {
        waiter->refused = shown;
        core_error_set(&waiter->error, CORE_REFUSED, "refused (%s): %s", protocol_refusal_name(refused.code),
                       refused.text);
        client_waiter_done(connection, waiter, CORE_REFUSED);
    } else if (connection->callbacks.on_refused != NULL && !request.abandoned) {
        connection->callbacks.on_refused(connection->callbacks.argument, header->id, &shown);
    }
    return CORE_OK;
}

/* Is what has changed the open stream that the request was about? */
static core_status check_stream(struct millrace *connection, const char *answer, uint32_t stream,
                                const struct client_request *request)
{
    if (stream == request->stream && client_streams_find(&connection->streams, stream) != NULL)
        return CORE_OK;
    return client_fail(connection, CORE_INVALID,
                       CLIENT_BREACH "%s for stream %" PRIu32 ", where stream %" PRIu32 " was meant", answer,
                       stream, request->stream);
}

static core_status on_modified(struct millrace *connection, const struct protocol_header *header,
                               const uint8_t *body)
{
    struct protocol_modified modified;
    struct client_request request;
    struct core_error error;
    if (protocol_modified_read(body, header->body_bytes, &modified, &error))
        return breach(connection, &error);
    core_status status = take_request(connection, header, OF(PROTOCOL_MODIFY), &request);
    if (status)
        return status;
    if ((status = check_stream(connection, "MODIFIED", modified.stream, &request)))
        return status;
    const struct millrace_modified shown = client_show_modified(&modified);
    struct client_waiter *waiter = client_waiter_find(connection, PROTOCOL_MODIFIED, header->id, 0);
    if (waiter != NULL) {
        waiter->modified = shown;
        client_waiter_done(connection, waiter, CORE_OK);
    } else if (connection->callbacks.on_modified != NULL) {
        connection->callbacks.on_modified(connection->callbacks.argument, header->id, &shown);
    }
    return CORE_OK;
}

static core_status on_notice(struct millrace *connection, const struct protocol_header *header,
                             const uint8_t *body)
{
    struct protocol_notice notice;
    struct core_error error;
    if (protocol_notice_read(body, header->body_bytes, &notice, &error))
        return breach(connection, &error);
    const bool leaving = notice.kind == PROTOCOL_NOTICE_LEAVING;
    if (leaving && (header->id != 0 || connection->welcome.version < 4))
        return client_fail(connection, CORE_INVALID, CLIENT_BREACH "NOTICE leaving, which can not be here");
    const struct client_stream *stream = client_streams_find(&connection->streams, header->id);
    if (stream == NULL && !leaving)
        return client_fail(connection, CORE_INVALID,
                           CLIENT_BREACH "NOTICE of stream %" PRIu32 ", which is not open", header->id);
    connection->leaving |= leaving;
    const struct millrace_notice shown = client_show_notice(&notice);
    connection->told_leaving |= leaving && connection->callbacks.on_notice != NULL;
    if (connection->callbacks.on_notice != NULL && (leaving || !stream->unwanted))
        connection->callbacks.on_notice(connection->callbacks.argument, header->id, &shown);
    return CORE_OK;
}

/* The codec knows what a version can have; this, what a stream can. */
static bool fits(const struct client_stream *stream, const struct millrace_result *result)
{
    if (result->status != MILLRACE_RESULT_OK || stream->has_messages)
        return result->iv == NULL || stream->has_ivs;
    return result->iv == NULL && result->bytes > 0 && result->bytes % CORE_BLOCK_BYTES == 0;
}

static core_status check_result(struct millrace *connection, const struct protocol_header *header,
                                const struct millrace_result *result)
{
    struct client_stream *stream = client_streams_find(&connection->streams, header->id);
    if (stream == NULL)
        return client_fail(connection, CORE_INVALID,
                           CLIENT_BREACH "RESULT for stream %" PRIu32 ", which is not open", header->id);
    if (header->sequence != stream->answered || stream->answered == stream->next)
        return client_fail(connection, CORE_INVALID,
                           CLIENT_BREACH "RESULT %" PRIu32 " of stream %" PRIu32 ", expected is %" PRIu32
                                         " of %" PRIu32,
                           header->sequence, header->id, stream->answered, stream->next);
    if (header->body_bytes > PROTOCOL_RESULT_BYTES + stream->padded_bytes_max)
        return client_fail(connection, CORE_INVALID,
                           CLIENT_BREACH "RESULT of %" PRIu32
                                         " bytes, longer than a packet of stream %" PRIu32,
                           header->body_bytes, header->id);
    if (!fits(stream, result))
        return client_fail(connection, CORE_INVALID,
                           CLIENT_BREACH "RESULT with %" PRIu32
                                         " bytes of ciphertext and flags %u, which stream %" PRIu32
                                         " can not have",
                           result->bytes, result->flags, header->id);
    stream->answered++;
    const uint32_t whole_bytes = result->bytes / CORE_BLOCK_BYTES * CORE_BLOCK_BYTES;
    if (whole_bytes > 0)
        memcpy(stream->chain, result->ciphertext + whole_bytes - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
    return CORE_OK;
}

static void give_result(struct millrace *connection, struct client_waiter *waiter,
                        const struct millrace_result *result)
{
    const uint32_t iv_bytes = result->iv != NULL ? CORE_BLOCK_BYTES : 0;
    waiter->ciphertext_bytes = iv_bytes + result->bytes;
    const uint8_t *const bytes = result->iv != NULL ? result->iv : result->ciphertext; /* side by side */
    memcpy(waiter->ciphertext, bytes, waiter->ciphertext_bytes);
    waiter->result = *result;
    waiter->result.iv = iv_bytes > 0 ? waiter->ciphertext : NULL;
    waiter->result.ciphertext = waiter->ciphertext + iv_bytes;
    bool encrypted = result->status == MILLRACE_RESULT_OK;
    if (!encrypted)
        core_error_set(&waiter->error, CORE_INVALID,
                       "packet %" PRIu32 " of stream %" PRIu32 " was not encrypted: %s", result->sequence,
                       result->stream, millrace_result_name(result->status));
    client_waiter_done(connection, waiter, encrypted ? CORE_OK : CORE_INVALID);
}

static core_status on_result(struct millrace *connection, const struct protocol_header *header,
                             const uint8_t *body)
{
    struct protocol_result decoded;
    struct core_error error;
    if (protocol_result_read(connection->welcome.version, body, header->body_bytes, &decoded, &error))
        return breach(connection, &error);
    const struct millrace_result result = client_show_result(header, &decoded, body);
    core_status status = check_result(connection, header, &result);
    if (status)
        return status;
    struct client_waiter *waiter =
        client_waiter_find(connection, PROTOCOL_RESULT, header->id, header->sequence);
    if (waiter != NULL && header->body_bytes - PROTOCOL_RESULT_BYTES > waiter->room_bytes)
        return client_fail(connection, CORE_INVALID,
                           CLIENT_BREACH "RESULT %" PRIu32 " of stream %" PRIu32 " has %" PRIu32
                                         " bytes, more than its packet can become",
                           header->sequence, header->id, header->body_bytes - PROTOCOL_RESULT_BYTES);
    if (waiter != NULL)
        give_result(connection, waiter, &result);
    else if (connection->callbacks.on_result != NULL)
        connection->callbacks.on_result(connection->callbacks.argument, &result);
    return CORE_OK;
}

/* Packets that crossed the CLOSED on the wire are never answered; who waits for one is told. */
static void drop_waiting_packets(struct millrace *connection, uint32_t stream)
{
    for (struct client_waiter *waiter = connection->waiters; waiter != NULL; waiter = waiter->next) {
        if (waiter->done || waiter->answer != PROTOCOL_RESULT || waiter->id != stream)
            continue;
        core_error_set(&waiter->error, CORE_CLOSED, "stream %" PRIu32 " was closed before packet %" PRIu32,
                       stream, waiter->sequence);
        client_waiter_done(connection, waiter, CORE_CLOSED);
    }
}

void client_take_closed(struct millrace *connection, uint32_t id, const struct millrace_closed *closed)
{
    struct client_stream *stream = client_streams_find(&connection->streams, id);
    bool unwanted = stream->unwanted;
    stream->closing = true;
    drop_waiting_packets(connection, id);
    struct client_waiter *waiter = client_waiter_find(connection, PROTOCOL_CLOSED, id, 0);
    if (waiter != NULL) {
        waiter->closed = *closed;
        client_waiter_done(connection, waiter, CORE_OK);
    } else if (connection->callbacks.on_closed != NULL && !unwanted) {
        connection->callbacks.on_closed(connection->callbacks.argument, id, closed);
    }
    client_streams_remove(&connection->streams, client_streams_find(&connection->streams, id));
}

static core_status on_closed(struct millrace *connection, const struct protocol_header *header,
                             const uint8_t *body)
{
    struct protocol_closed closed;
    struct core_error error;
    if (protocol_closed_read(body, header->body_bytes, &closed, &error))
        return breach(connection, &error);
    if (client_streams_find(&connection->streams, header->id) == NULL)
        return client_fail(connection, CORE_INVALID,
                           CLIENT_BREACH "CLOSED for stream %" PRIu32 ", which is not open", header->id);
    const struct millrace_closed shown = client_show_closed(&closed);
    client_take_closed(connection, header->id, &shown);
    return CORE_OK;
}

static core_status on_error(struct millrace *connection, const struct protocol_header *header,
                            const uint8_t *body)
{
    enum protocol_error code;
    bool fatal;
    char text[PROTOCOL_CONTROL_BYTES_MAX];
    struct core_error error;
    if (protocol_error_read(body, header->body_bytes, &code, &fatal, text, sizeof text, &error))
        return breach(connection, &error);
    if (connection->callbacks.on_error != NULL)
        connection->callbacks.on_error(connection->callbacks.argument, header->id, (enum millrace_error)code,
                                       fatal, text);
    if (!fatal)
        return CORE_OK;
    connection->fatal = code;
    return client_fail(connection, CORE_CLOSED, "the server ended the connection (%s): %s",
                       protocol_error_name(code), text);
}

static core_status on_pong(struct millrace *connection, const struct protocol_header *header,
                           const uint8_t *body)
{
    struct client_request request;
    core_status status = take_request(connection, header, OF(PROTOCOL_PING), &request);
    if (status)
        return status;
    struct client_waiter *waiter = client_waiter_find(connection, PROTOCOL_PONG, header->id, 0);
    if (waiter != NULL)
        client_waiter_done(connection, waiter, CORE_OK);
    else if (connection->callbacks.on_pong != NULL && !request.abandoned)
        connection->callbacks.on_pong(connection->callbacks.argument, header->id, body, header->body_bytes);
    return CORE_OK;
}

static core_status on_rekeyed(struct millrace *connection, const struct protocol_header *header,
                              const uint8_t *body)
{
    struct protocol_rekeyed rekeyed;
    struct client_request request;
    struct core_error error;
    if (protocol_rekeyed_read(body, header->body_bytes, &rekeyed, &error))
        return breach(connection, &error);
    core_status status = take_request(connection, header, OF(PROTOCOL_REKEY), &request);
    if (status || (status = check_stream(connection, "REKEYED", rekeyed.stream, &request)))
        return status;
    const struct millrace_rekeyed shown = client_show_rekeyed(&rekeyed);
    struct client_waiter *waiter = client_waiter_find(connection, PROTOCOL_REKEYED, header->id, 0);
    if (waiter != NULL) {
        waiter->rekeyed = shown;
        client_waiter_done(connection, waiter, CORE_OK);
    } else if (connection->callbacks.on_rekeyed != NULL) {
        connection->callbacks.on_rekeyed(connection->callbacks.argument, header->id, &shown);
    }
    return CORE_OK;
}

/* ---- the table ---- */

static client_frame_handler *const handlers[] = {
    [PROTOCOL_WELCOME] = on_welcome, [PROTOCOL_OPENED] = on_opened,     [PROTOCOL_REFUSED] = on_refused,
    [PROTOCOL_RESULT] = on_result,   [PROTOCOL_CLOSED] = on_closed,     [PROTOCOL_ERROR] = on_error,
    [PROTOCOL_PONG] = on_pong,       [PROTOCOL_MODIFIED] = on_modified, [PROTOCOL_NOTICE] = on_notice,
    [PROTOCOL_REKEYED] = on_rekeyed, [PROTOCOL_LANED] = on_laned,
};

client_frame_handler *client_frame_handler_of(uint16_t version, uint8_t type)
{
    if ((version < 2 && type > PROTOCOL_PONG) || (version < 3 && type > PROTOCOL_NOTICE))
        return NULL;
    return type < sizeof handlers / sizeof handlers[0] ? handlers[type] : NULL;
}
