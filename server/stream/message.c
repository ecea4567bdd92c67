#include "server/stream/message.h"

#include "core/transport_stream.h"
#include "server/stream/io_thread.h"
#include "server/stream/iv.h"

#include <string.h>

static bool has_messages(const struct server_stream *stream)
{
    return stream->spec.unit == CORE_UNIT_MESSAGE;
}

static bool is_first(const struct server_packet *packet)
{
    return (packet->flags & PROTOCOL_DATA_FIRST) != 0;
}

static bool is_last(const struct server_packet *packet)
{
    return (packet->flags & PROTOCOL_DATA_LAST) != 0;
}

/* What is decrypted is given away behind its code alone. */
static bool must_bring_tag(const struct server_stream *stream)
{
    return stream->spec.mac != CORE_MAC_NONE && stream->spec.direction == CORE_DIRECTION_DECRYPT;
}

const char *server_message_fault(const struct server_stream *stream, uint8_t flags)
{
    const uint8_t whole = PROTOCOL_DATA_FIRST | PROTOCOL_DATA_LAST;
    const bool first = (flags & PROTOCOL_DATA_FIRST) != 0;

    if (!has_messages(stream))
        return flags == 0 ? NULL : "DATA has flags, and a stream without messages has none";
    if (core_stream_has_whole_messages(&stream->spec))
        return (flags & whole) == whole
                   ? NULL
                   : "DATA is a part of a message, and each message of the stream is one packet, as its "
                     "message_packets, records or mac says: send it with FIRST and LAST";
    if (first == stream->message.begun)
        return first ? "DATA has FIRST, and the message before it has had no LAST"
                     : "DATA has no FIRST, and there is no message that it goes on with";
    return NULL;
}

static void put_number(uint8_t iv[CORE_BLOCK_BYTES], uint64_t number)
{
    memset(iv, 0, CORE_BLOCK_BYTES);
    for (uint32_t at = CORE_BLOCK_BYTES; number > 0; number >>= 8)
        iv[--at] = (uint8_t)number;
}

void server_message_first_iv(const struct protocol_open *open, struct server_ivs *ivs,
                             uint8_t iv[CORE_BLOCK_BYTES])
{
    if (open->has_iv)
        memcpy(iv, open->iv, CORE_BLOCK_BYTES);
    else if (open->spec.iv == CORE_IV_CHAIN)
        server_ivs_next(ivs, iv);
    else
        put_number(iv, open->spec.iv == CORE_IV_COUNTER ? open->spec.first_unit : 0);
}

void server_message_receive(struct server_stream *stream, struct server_packet *packet)
{
    packet->brings_iv = packet->brings_tag = false;
    if (!has_messages(stream)) {
        packet->flags = PROTOCOL_DATA_LAST;
        return;
    }
    stream->message.begun = !is_last(packet);
    packet->brings_iv =
        stream->spec.iv == CORE_IV_EXPLICIT && is_first(packet) && packet->bytes >= CORE_BLOCK_BYTES;
    packet->brings_tag =
        must_bring_tag(stream) && packet->bytes >= server_packet_iv_bytes(packet) + CORE_MAC_BYTES;
}

/* Of all records; SIZE_MAX where they are none. */
static size_t record_bytes(const struct server_packet *packet, uint32_t plain_bytes)
{
    size_t bytes = 0;
    uint32_t offset;

    if (plain_bytes == 0 || plain_bytes % CORE_TS_BYTES != 0)
        return SIZE_MAX;
    for (uint32_t at = 0; at < plain_bytes; at += CORE_TS_BYTES) {
        if (!core_ts_is_packet(packet->cpu.data + at))
            return SIZE_MAX;
        bytes += core_ts_scrambled_bytes(packet->cpu.data + at, &offset);
    }
    return bytes;
}

/* With the padding; SIZE_MAX where the bytes are not what may come. */
static size_t encrypted_bytes(const struct server_stream *stream, const struct server_packet *packet)
{
    const uint32_t plain_bytes = server_packet_plain_bytes(packet);
    const bool pads = is_last(packet) && stream->spec.padding != CORE_PADDING_NONE;

    if (stream->spec.records != CORE_RECORDS_NONE)
        return packet->bytes > stream->spec.packet_bytes ? 0 : record_bytes(packet, plain_bytes);
    if (pads && stream->spec.padding == CORE_PADDING_PKCS7)
        return core_stream_padded_bytes(CORE_PADDING_PKCS7, plain_bytes);
    if (!pads && (plain_bytes == 0 || plain_bytes % CORE_BLOCK_BYTES != 0))
        return SIZE_MAX;
    return core_stream_encrypted_bytes(&stream->spec, packet->pattern_blocks, plain_bytes);
}

static enum protocol_result_status judge(const struct server_stream *stream,
                                         const struct server_packet *packet, size_t bytes,
                                         uint64_t bytes_per_key)
{
    const bool lacks_iv = stream->spec.iv == CORE_IV_EXPLICIT && is_first(packet) && !packet->brings_iv;
    const bool lacks_tag = must_bring_tag(stream) && !packet->brings_tag;

    if (stream->message.broken)
        return PROTOCOL_RESULT_BROKEN;
    if (packet->bytes > stream->spec.packet_bytes)
        return PROTOCOL_RESULT_TOO_LONG;
    if (bytes == SIZE_MAX || lacks_iv || lacks_tag)
        return PROTOCOL_RESULT_NOT_BLOCKS;
    if (stream->account.key_bytes + bytes > bytes_per_key)
        return PROTOCOL_RESULT_KEY_SPENT;
    return PROTOCOL_RESULT_OK;
}

/* What the sender brings is there, or is still where it was read. */
static void begin(struct server_stream *stream, struct server_packet *packet)
{
    uint8_t *iv = server_packet_payload(packet) - CORE_BLOCK_BYTES;

    switch (stream->spec.iv) {
    case CORE_IV_CHAIN:
        return;
    case CORE_IV_CONSTANT:
        memcpy(iv, stream->message.iv, CORE_BLOCK_BYTES);
        break;
    case CORE_IV_COUNTER:
        put_number(iv, stream->message.number);
        break;
    case CORE_IV_EXPLICIT:
        if (packet->cpu.data != server_packet_payload(packet))
            memcpy(iv, packet->cpu.data - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
        break;
    case CORE_IV_RANDOM:
        server_ivs_next(stream->client->io->ivs, iv);
        break;
    }
    packet->cpu.begins_unit = true;
}

enum protocol_result_status server_message_accept(struct server_stream *stream, struct server_packet *packet,
                                                  uint64_t bytes_per_key)
{
    struct server_message_state *message = &stream->message;
    const bool first = has_messages(stream) && is_first(packet);

    packet->pattern_blocks = first ? 0 : message->pattern_blocks;
    const size_t bytes = encrypted_bytes(stream, packet);

    if (first)
        server_rekey_message(stream, message->number);
    const enum protocol_result_status status = judge(stream, packet, bytes, bytes_per_key);
    message->broken = has_messages(stream) && status != PROTOCOL_RESULT_OK && !is_last(packet);
    if (stream->spec.crypt_blocks > 0)
        message->pattern_blocks =
            (uint8_t)((packet->pattern_blocks + server_packet_plain_bytes(packet) / CORE_BLOCK_BYTES) %
                      (stream->spec.crypt_blocks + (uint32_t)stream->spec.skip_blocks));
    packet->cpu.begins_unit = false;
    packet->cpu.bytes = status == PROTOCOL_RESULT_OK ? (uint32_t)bytes : 0;
    if (first && status == PROTOCOL_RESULT_OK)
        begin(stream, packet);
    message->number += first;
    return status;
}
