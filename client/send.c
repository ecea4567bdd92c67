/* From the caller into the output buffer, and from there to the socket; or into the lane at once. */
#include "client/connection.h"

#include "client/lane.h"
#include "client/pool.h"
#include "client/translate.h"
#include "core/secret.h"

#include <inttypes.h>
#include <string.h>

/* ---- writing ---- */

/* A server that ends a connection says why before it closes, so a failed write does not end the connection
 * yet: whoever reads next may find the reason. */
static void write_failed(struct millrace *connection, const struct core_error *why)
{
    connection->unwritable = true;
    connection->write_error = *why;
    client_discard(connection);
}

/* As far as there is room now. */
static void send_closes(struct millrace *connection)
{
    const struct client_streams *streams = &connection->streams;
    connection->closes = false;
    for (size_t i = 0; i < streams->capacity; i++)
        if (streams->slots[i].id != 0 && streams->slots[i].to_be_closed)
            client_close_soon(connection, streams->slots[i].id);
}

void client_flush(struct millrace *connection)
{
    struct iovec parts[2];
    struct core_error error;
    int count;
    if (connection->closes)
        send_closes(connection);
    if (connection->pool != NULL)
        client_pool_flush(connection->pool);
    core_lane_ring(&connection->transport.lane);
    if (client_lane_publish(&connection->transport, &error) != CORE_OK && !connection->unwritable)
        write_failed(connection, &error);
    while (!connection->unwritable && (count = client_output_parts(&connection->output, parts)) > 0) {
        size_t written;
        core_status status =
            connection->transport.kind->write(&connection->transport, parts, count, &written, &error);
        if (status == CORE_AGAIN)
            return;
        if (status)
            write_failed(connection, &error);
        else
            client_output_consume(&connection->output, written);
    }
}

millrace_status millrace_flush(struct millrace *connection, char error[MILLRACE_TEXT_BYTES])
{
    client_lock(connection);
    core_status status = client_alive(connection, client_error(error));
    if (status == CORE_OK)
        client_flush(connection);
    if (connection->unwritable && !connection->dead && !connection->receiving)
        status = client_process(connection, 0, client_error(error));
    client_unlock(connection);
    return (millrace_status)status;
}

/* ---- frames ---- */

/* In the lane, where there is one and has room; all that waits for it goes first. */
static core_status append(struct millrace *connection, size_t bytes, uint8_t **room, struct core_error *error)
{
    struct client_transport *transport = &connection->transport;
    if (transport->shares && client_output_waiting(&connection->output) == 0 &&
        (*room = core_lane_reserve(&transport->lane, bytes)) != NULL)
        return CORE_OK;
    core_status status = client_output_append(&connection->output, bytes, room);
    if (status == CORE_FULL)
        return core_error_set(error, status,
                              "the output buffer has no room for %zu bytes until the server reads", bytes);
    if (status)
        return core_error_set(error, status, "no memory for %zu bytes of output", bytes);
    return CORE_OK;
}

/* A frame other than DATA: to the server, or to the pool. */
static core_status put(struct millrace *connection, const uint8_t *frame, size_t bytes,
                       struct core_error *error)
{
    uint8_t *room;
    if (connection->pool != NULL)
        return client_pool_take(connection->pool, frame, error);
    core_status status = append(connection, bytes, &room, error);
    if (status == CORE_OK)
        memcpy(room, frame, bytes);
    return status;
}

static core_status new_request(struct millrace *connection, enum protocol_type type,
                               struct client_request **request, struct core_error *error)
{
    core_status status = client_requests_add(&connection->requests, type, request);
    if (status == CORE_FULL)
        return core_error_set(error, status, "%d requests are unanswered; wait for some answers",
                              CLIENT_REQUESTS_MAX);
    if (status)
        return core_error_set(error, status, "no memory for another request");
    return CORE_OK;
}

/* Its frame, which is wiped here, since it may have a key. */
static core_status put_request(struct millrace *connection, struct client_request *request, uint8_t *frame,
                               size_t bytes, uint32_t *request_id, struct core_error *error)
{
    core_status status = put(connection, frame, bytes, error);
    core_secret_wipe(frame, bytes);
    if (status)
        client_requests_remove(&connection->requests, request);
    else if (request_id != NULL)
        *request_id = request->id;
    return status;
}

static core_status check_key(enum protocol_key_kind kind, const uint8_t *key, uint32_t bytes,
                             struct core_error *error)
{
    bool fits = false;
    if (kind == PROTOCOL_KEY_NONE)
        fits = bytes == 0;
    else if (kind == PROTOCOL_KEY_INLINE)
        fits = key != NULL && (bytes == 16 || bytes == 24 || bytes == 32);
    else if (kind == PROTOCOL_KEY_NAMED)
        fits = key != NULL && bytes >= 1 && bytes <= PROTOCOL_KEY_NAME_MAX && memchr(key, 0, bytes) == NULL;
    if (fits)
        return CORE_OK;
    return core_error_set(error, CORE_INVALID,
                          "a key is none, 16, 24 or 32 bytes, or a name of 1 to %d; not %" PRIu32
                          " bytes of kind %d",
                          PROTOCOL_KEY_NAME_MAX, bytes, (int)kind);
}

/* Has it what goes with messages alone? */
static bool is_of_messages(const struct core_stream_spec *spec)
{
    return spec->iv != CORE_IV_CHAIN || spec->first_unit != 0 || spec->crypt_blocks != 0 ||
           spec->skip_blocks != 0 || spec->records != CORE_RECORDS_NONE || spec->mac != CORE_MAC_NONE ||
           spec->message_packets != 0;
}

/* What would break the frame's format, and with it the connection, is refused here; the contract itself is
 * for the server to judge. */
core_status client_send_open(struct millrace *connection, enum protocol_type type,
                             const struct protocol_open *open, uint32_t *request_id, struct core_error *error)
{
    core_status status;
    struct client_request *request;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    if ((status = client_alive(connection, error)) ||
        (status = check_key(open->key_kind, open->key, open->key_bytes, error)))
        return status;
    if (open->spec.guaranteed && connection->welcome.version < 2)
        return core_error_set(error, CORE_UNSUPPORTED,
                              "the server speaks version 1 of the protocol: it has no guaranteed streams");
    const bool messages = open->spec.unit != CORE_UNIT_STREAM || is_of_messages(&open->spec);
    if ((messages || open->spec.direction != CORE_DIRECTION_ENCRYPT) && connection->welcome.version < 3)
        return core_error_set(error, CORE_UNSUPPORTED,
                              "the server speaks version %u of the protocol: it has no %s",
                              connection->welcome.version, messages ? "messages" : "decryption");
    /* Room for the stream now, so that an answer never comes too late to be refused. */
    if (client_streams_reserve(&connection->streams, connection->streams.count + connection->opening + 1))
        return core_error_set(error, CORE_NO_MEMORY, "no memory for another stream");
    if ((status = new_request(connection, type, &request, error)))
        return status;
    uint32_t bytes = protocol_open_write(connection->welcome.version, frame, type, request->id, open);
    request->has_messages = open->spec.unit == CORE_UNIT_MESSAGE;
    request->has_whole_ones = core_stream_has_whole_messages(&open->spec);
    request->has_ivs = open->spec.iv == CORE_IV_RANDOM;
    const uint32_t beside = (request->has_ivs ? CORE_BLOCK_BYTES : 0) + core_stream_tag_bytes(&open->spec);
    request->padded_bytes_max =
        core_stream_padded_bytes(open->spec.padding, open->spec.packet_bytes) + beside;
    request->more_bytes = CORE_BLOCK_BYTES + beside; /* a block of padding */
    connection->output.secret |= open->key_kind == PROTOCOL_KEY_INLINE;
    status = put_request(connection, request, frame, bytes, request_id, error);
    connection->opening += status == CORE_OK && type == PROTOCOL_OPEN;
    return status;
}

core_status client_send_ping(struct millrace *connection, const void *payload, uint32_t bytes,
                             uint32_t *request_id, struct core_error *error)
{
    core_status status = client_alive(connection, error);
    struct client_request *request;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_PING_BYTES_MAX];
    if (status)
        return status;
    if (bytes > PROTOCOL_PING_BYTES_MAX)
        return core_error_set(error, CORE_INVALID, "a PING carries at most %d bytes, not %" PRIu32,
                              PROTOCOL_PING_BYTES_MAX, bytes);
    if ((status = new_request(connection, PROTOCOL_PING, &request, error)))
        return status;
    protocol_ping_write(frame, PROTOCOL_PING, request->id, payload, bytes);
    return put_request(connection, request, frame, PROTOCOL_HEADER_BYTES + bytes, request_id, error);
}

static core_status find_open_stream(struct millrace *connection, uint32_t id, struct client_stream **stream,
                                    struct core_error *error)
{
    core_status status = client_alive(connection, error);
    if (status)
        return status;
    *stream = client_streams_find(&connection->streams, id);
    if (*stream == NULL || (*stream)->closing)
        return core_error_set(error, CORE_NOT_FOUND, "stream %" PRIu32 " is not open on this connection", id);
    return CORE_OK;
}

core_status client_send_modify(struct millrace *connection, const struct protocol_modify *modify,
                               uint32_t *request_id, struct core_error *error)
{
    struct client_stream *stream;
    struct client_request *request;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_MODIFY_BYTES];
    core_status status = find_open_stream(connection, modify->stream, &stream, error);
    if (status)
        return status;
    if (connection->welcome.version < 2)
        return core_error_set(error, CORE_UNSUPPORTED,
                              "the server speaks version 1 of the protocol: it can not change contracts");
    if ((status = new_request(connection, PROTOCOL_MODIFY, &request, error)))
        return status;
    protocol_modify_write(frame, request->id, modify);
    request->stream = modify->stream;
    return put_request(connection, request, frame, sizeof frame, request_id, error);
}

static core_status check_rekey(const struct millrace *connection, const struct protocol_rekey *rekey,
                               struct core_error *error)
{
    if (connection->welcome.version < 3)
        return core_error_set(error, CORE_UNSUPPORTED,
                              "the server speaks version %u of the protocol: it can not change keys",
                              connection->welcome.version);
    if (rekey->key_kind == PROTOCOL_KEY_NONE)
        return core_error_set(error, CORE_INVALID, "REKEY without a key");
    return check_key(rekey->key_kind, rekey->key, rekey->key_bytes, error);
}

core_status client_send_rekey(struct millrace *connection, const struct protocol_rekey *rekey,
                              uint32_t *request_id, struct core_error *error)
{
    struct client_stream *stream;
    struct client_request *request;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    core_status status = find_open_stream(connection, rekey->stream, &stream, error);
    if (status || (status = check_rekey(connection, rekey, error)) ||
        (status = new_request(connection, PROTOCOL_REKEY, &request, error)))
        return status;
    protocol_rekey_write(frame, request->id, rekey);
    connection->output.secret |= rekey->key_kind == PROTOCOL_KEY_INLINE;
    request->stream = rekey->stream;
    return put_request(connection, request, frame,
                       PROTOCOL_HEADER_BYTES + PROTOCOL_REKEY_BYTES + rekey->key_bytes, request_id, error);
}

core_status client_send_close(struct millrace *connection, uint32_t id, struct core_error *error)
{
    struct client_stream *stream;
    uint8_t frame[PROTOCOL_HEADER_BYTES];
    core_status status = find_open_stream(connection, id, &stream, error);
    if (status)
        return status;
    protocol_close_write(frame, id);
    if ((status = put(connection, frame, sizeof frame, error)))
        return status;
    stream->closing = true;
    return CORE_OK;
}

void client_close_soon(struct millrace *connection, uint32_t id)
{
    struct core_error error;
    const core_status status = client_send_close(connection, id, &error);
    const bool later = status == CORE_FULL || status == CORE_NO_MEMORY;
    struct client_stream *stream = client_streams_find(&connection->streams, id);
    if (stream != NULL)
        stream->to_be_closed = later;
    connection->closes |= later;
}

static core_status check_flags(const struct client_stream *stream, unsigned flags, struct core_error *error)
{
    if (!stream->has_messages && flags != 0)
        return core_error_set(error, CORE_INVALID,
                              "stream %" PRIu32 " has no messages, and its packets no flags", stream->id);
    if (stream->has_whole_ones && flags != (PROTOCOL_DATA_FIRST | PROTOCOL_DATA_LAST))
        return core_error_set(error, CORE_INVALID,
                              "each message of stream %" PRIu32
                              " is one packet, by its message_packets, records or MAC",
                              stream->id);
    if (stream->has_messages && ((flags & PROTOCOL_DATA_FIRST) != 0) == stream->begun)
        return core_error_set(error, CORE_INVALID,
                              stream->begun ? "a message of stream %" PRIu32 " has begun, and has not ended"
                                            : "no message of stream %" PRIu32 " has begun",
                              stream->id);
    return CORE_OK;
}

/* Room for a packet, behind its header or, in a pool, among those that are kept. */
static core_status reserve(struct millrace *connection, const struct protocol_header *header,
                           uint8_t **packet, struct core_error *error)
{
    uint8_t *room;
    if (connection->pool != NULL)
        return client_pool_take_data(connection->pool, header, packet, error);
    core_status status = append(connection, PROTOCOL_HEADER_BYTES + (size_t)header->body_bytes, &room, error);
    if (status)
        return status;
    protocol_header_write(room, header);
    *packet = room + PROTOCOL_HEADER_BYTES;
    return CORE_OK;
}

core_status client_send_data(struct millrace *connection, uint32_t id, uint32_t bytes, unsigned flags,
                             uint8_t **packet, uint32_t *sequence, struct core_error *error)
{
    struct client_stream *stream;
    core_status status = find_open_stream(connection, id, &stream, error);
    if (status)
        return status;
    if (bytes > connection->welcome.packet_bytes_max)
        return core_error_set(error, CORE_INVALID,
                              "a packet of %" PRIu32 " bytes; this server takes at most %" PRIu32, bytes,
                              connection->welcome.packet_bytes_max);
    if (flags == CLIENT_WHOLE)
        flags = stream->has_messages ? PROTOCOL_DATA_FIRST | PROTOCOL_DATA_LAST : 0;
    if ((status = check_flags(stream, flags, error)))
        return status;
    const struct protocol_header header = {.body_bytes = bytes,
                                           .type = PROTOCOL_DATA,
                                           .flags = (uint8_t)flags,
                                           .id = id,
                                           .sequence = stream->next};
    if ((status = reserve(connection, &header, packet, error)))
        return status;
    stream->begun = stream->has_messages && (flags & PROTOCOL_DATA_LAST) == 0;
    if (sequence != NULL)
        *sequence = stream->next;
    stream->next++;
    return CORE_OK;
}

/* ---- the same for everybody: with the lock ---- */

static millrace_status send_open(struct millrace *connection, enum protocol_type type,
                                 const struct millrace_open *given, uint32_t *request,
                                 struct core_error *error)
{
    struct protocol_open open;
    core_status status = client_read_open(given, &open, error);
    if (status)
        return (millrace_status)status;
    client_lock(connection);
    status = client_send_open(connection, type, &open, request, error);
    client_unlock(connection);
    return (millrace_status)status;
}

millrace_status millrace_send_open(struct millrace *connection, const struct millrace_open *open,
                                   uint32_t *request, char error[MILLRACE_TEXT_BYTES])
{
    return send_open(connection, PROTOCOL_OPEN, open, request, client_error(error));
}

millrace_status millrace_send_query(struct millrace *connection, const struct millrace_open *open,
                                    uint32_t *request, char error[MILLRACE_TEXT_BYTES])
{
    return send_open(connection, PROTOCOL_QUERY, open, request, client_error(error));
}

millrace_status millrace_send_modify(struct millrace *connection, const struct millrace_modify *given,
                                     uint32_t *request, char error[MILLRACE_TEXT_BYTES])
{
    struct protocol_modify modify;
    core_status status = client_read_modify(given, &modify, client_error(error));
    if (status)
        return (millrace_status)status;
    client_lock(connection);
    status = client_send_modify(connection, &modify, request, client_error(error));
    client_unlock(connection);
    return (millrace_status)status;
}

millrace_status millrace_send_rekey(struct millrace *connection, const struct millrace_rekey *given,
                                    uint32_t *request, char error[MILLRACE_TEXT_BYTES])
{
    struct protocol_rekey rekey;
    core_status status = client_read_rekey(given, &rekey, client_error(error));
    if (status)
        return (millrace_status)status;
    client_lock(connection);
    status = client_send_rekey(connection, &rekey, request, client_error(error));
    client_unlock(connection);
    return (millrace_status)status;
}

millrace_status millrace_send_ping(struct millrace *connection, const void *payload, uint32_t bytes,
                                   uint32_t *request, char error[MILLRACE_TEXT_BYTES])
{
    client_lock(connection);
    core_status status = client_send_ping(connection, payload, bytes, request, client_error(error));
    client_unlock(connection);
    return (millrace_status)status;
}

millrace_status millrace_send_close(struct millrace *connection, uint32_t stream,
                                    char error[MILLRACE_TEXT_BYTES])
{
    client_lock(connection);
    core_status status = client_send_close(connection, stream, client_error(error));
    client_unlock(connection);
    return (millrace_status)status;
}

static millrace_status send_part(struct millrace *connection, uint32_t stream, const void *packet,
                                 uint32_t bytes, unsigned flags, uint32_t *sequence, struct core_error *error)
{
    uint8_t *room;
    client_lock(connection);
    core_status status = client_send_data(connection, stream, bytes, flags, &room, sequence, error);
    if (status == CORE_OK && bytes > 0)
        memcpy(room, packet, bytes);
    client_unlock(connection);
    return (millrace_status)status;
}

millrace_status millrace_data(struct millrace *connection, uint32_t stream, const void *packet,
                              uint32_t bytes, uint32_t *sequence, char error[MILLRACE_TEXT_BYTES])
{
    return send_part(connection, stream, packet, bytes, CLIENT_WHOLE, sequence, client_error(error));
}

millrace_status millrace_data_part(struct millrace *connection, uint32_t stream, const void *packet,
                                   uint32_t bytes, unsigned flags, uint32_t *sequence,
                                   char error[MILLRACE_TEXT_BYTES])
{
    if (flags > (PROTOCOL_DATA_FIRST | PROTOCOL_DATA_LAST)) {
        core_error_set(client_error(error), CORE_INVALID, "flags of a packet are %u, must be 0 to 3", flags);
        return MILLRACE_INVALID;
    }
    return send_part(connection, stream, packet, bytes, flags, sequence, client_error(error));
}

millrace_status millrace_data_reserve(struct millrace *connection, uint32_t stream, uint32_t bytes,
                                      uint8_t **packet, uint32_t *sequence, char error[MILLRACE_TEXT_BYTES])
{
    client_lock(connection);
    core_status status =
        client_send_data(connection, stream, bytes, CLIENT_WHOLE, packet, sequence, client_error(error));
    client_unlock(connection);
    return (millrace_status)status;
}
