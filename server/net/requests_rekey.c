/* REKEY and its answers. */
#include "server/net/io.h"

#include "core/secret.h"

static void refuse_with(struct server_connection *connection, uint32_t request, enum protocol_refusal code,
                        const char *text, core_ns received_ns)
{
    struct protocol_refused refused = {.code = code, .decided_ns = core_time_now_ns() - received_ns};
    snprintf(refused.text, sizeof refused.text, "%s", text);
    server_frame_refuse(connection, SERVER_ASKED_REKEY, request, &refused);
}

void server_frame_rekeyed(struct server_stream *stream, enum protocol_refusal refusal, const char *text)
{
    struct server_connection *connection = server_connection_of(stream);
    const struct server_rekey *rekey = &stream->rekey;
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];

    if (connection->client.abandoned)
        return;
    if (refusal != 0) {
        refuse_with(connection, rekey->request, refusal, text, rekey->received_ns);
        return;
    }
    const struct protocol_rekeyed rekeyed = {
        .stream = stream->id, .first = rekey->first, .in_force_ns = core_time_now_ns() - rekey->received_ns};
    server_stats_add(&connection->io->stats.rekeyed, 1);
    server_output_control(connection, frame, protocol_rekeyed_write(frame, rekey->request, &rekeyed));
}

/* What the stream allows: 0, or the refusal with its reason in error. */
static enum protocol_refusal check(const struct server_stream *stream, struct core_error *error)
{
    if (stream == NULL || stream->state != SERVER_STREAM_OPEN) {
        (void)core_error_set(error, CORE_NOT_FOUND, "REKEY for a stream that is not open on this connection");
        return PROTOCOL_REFUSED_STREAM;
    }
    if (stream->spec.unit != CORE_UNIT_MESSAGE) {
        (void)core_error_set(error, CORE_INVALID,
                             "the stream is one unit, under one key: open it with messages, or open another");
        return PROTOCOL_REFUSED_SPEC;
    }
    if (server_rekey_room(stream) == NULL) {
        (void)core_error_set(
            error, CORE_AGAIN,
            "the stream has two keys as it is: ask again when packets of the newer one, and no "
            "more of the older one, have come back");
        return PROTOCOL_REFUSED_BUSY;
    }
    return 0;
}

/* Does the client choose an IV under the new key? That of message `first` is, with iv 0, the block before it: its own
 * at the beginning, and under a key that it knows any that it likes. */
static bool gives_iv(const struct server_stream *stream, uint64_t first)
{
    const bool knows_key = (stream->keys.inlines >> stream->keys.current & 1) != 0;
    const bool begins = stream->message.given_iv && first == stream->spec.first_unit;

    return stream->spec.iv == CORE_IV_CONSTANT || (stream->spec.iv == CORE_IV_CHAIN && (knows_key || begins));
}

/* Puts the key into its room. What depends on the key but is the stream's since its OPEN must not change. */
static enum protocol_refusal fetch(struct server_connection *connection, const struct server_stream *stream,
                                   const struct protocol_rekey *rekey, struct core_error *error)
{
    struct protocol_open open = {.spec = stream->spec,
                                 .key_kind = rekey->key_kind,
                                 .has_iv = gives_iv(stream, rekey->first),
                                 .key = rekey->key,
                                 .key_bytes = rekey->key_bytes};
    if (open.has_iv && rekey->key_kind == PROTOCOL_KEY_NAMED && !connection->io->server->config->client_iv) {
        (void)core_error_set(error, CORE_DENIED, "a client-given IV is not allowed here (client_iv)");
        return PROTOCOL_REFUSED_IV;
    }
    enum protocol_refusal refusal =
        server_frame_fetch_key(connection, &open, false, server_rekey_room(stream), error);

    if (refusal == 0 && open.spec.audit_one_in != stream->spec.audit_one_in) {
        core_secret_wipe(server_rekey_room(stream), SERVER_KEY_BYTES);
        (void)core_error_set(error, CORE_INVALID,
                             "the keyring has 'audit' behind one of the two keys only, and the stream was "
                             "admitted with the other: open another stream");
        return PROTOCOL_REFUSED_KEY;
    }
    return refusal;
}

void server_frame_rekey(struct server_connection *connection, const struct protocol_header *header,
                        const uint8_t *body, core_ns now_ns)
{
    struct core_error error = {""};
    struct protocol_rekey rekey;

    if (protocol_rekey_read(body, header->body_bytes, &rekey, &error) != CORE_OK) {
        server_connection_fail(connection, 0, PROTOCOL_ERROR_MALFORMED, error.text);
        return;
    }
    if (connection->client.requests >= SERVER_REQUESTS_MAX) {
        server_connection_fail(connection, 0, PROTOCOL_ERROR_LIMIT, "too many unanswered requests");
        return;
    }
    struct server_stream *stream = server_connection_find_stream(connection, rekey.stream);
    enum protocol_refusal refusal = check(stream, &error);
    if (refusal == 0)
        refusal = fetch(connection, stream, &rekey, &error);
    if (refusal == 0) {
        const uint8_t other = (uint8_t)(1u << (1 - stream->keys.current));
        stream->keys.inlines =
            (uint8_t)((stream->keys.inlines & ~other) | (rekey.key_kind == PROTOCOL_KEY_INLINE ? other : 0));
    }
    if (refusal != 0)
        refuse_with(connection, header->id, refusal, error.text, now_ns);
    else if (server_rekey_begin(stream, rekey.first, header->id, now_ns) != CORE_OK)
        refuse_with(connection, header->id, PROTOCOL_REFUSED_INTERNAL, "the engine does not take the key",
                    now_ns);
}
