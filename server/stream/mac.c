#include "server/stream/mac.h"

#include "core/secret.h"
#include "server/stream/io_thread.h"

#include <openssl/crypto.h>
#include <string.h>

#define KEY_INFO "millrace mac" /* docs/protocol.md, section 4 */

void server_mac_key_set(struct server_stream *stream, uint32_t which)
{
    uint8_t key[CORE_HMAC_BYTES];

    if (stream->mac == NULL)
        return;
    core_hmac_derive(server_stream_key(stream, which), core_cipher_key_bytes(stream->spec.cipher), KEY_INFO,
                     key);
    core_hmac_key_set(&stream->mac->keys[which], key, sizeof key);
    core_secret_wipe(key, sizeof key);
}

void server_mac_key_wipe(struct server_stream *stream, uint32_t which)
{
    if (stream->mac != NULL)
        core_secret_wipe(&stream->mac->keys[which], sizeof stream->mac->keys[which]);
}

static void begin(struct server_mac *mac, const struct server_packet *packet, SHA256_CTX *code,
                  uint64_t number, const uint8_t *iv)
{
    uint8_t big_endian[sizeof number];

    for (size_t at = sizeof big_endian; at > 0; number >>= 8)
        big_endian[--at] = (uint8_t)number;
    core_hmac_begin(code, &mac->keys[packet->cpu.key]);
    core_hmac_add(code, mac->id, sizeof mac->id);
    core_hmac_add(code, big_endian, sizeof big_endian);
    core_hmac_add(code, iv, CORE_BLOCK_BYTES);
}

void server_mac_judge(struct server_packet *packet)
{
    struct server_mac *mac = packet->stream->mac;
    const uint32_t bytes = server_packet_plain_bytes(packet);
    uint8_t tag[CORE_HMAC_BYTES];

    if (!packet->brings_tag)
        return;
    begin(mac, packet, &mac->code, packet->stream->message.number - 1,
          server_packet_payload(packet) - CORE_BLOCK_BYTES);
    core_hmac_add(&mac->code, packet->cpu.data, bytes);
    core_hmac_end(&mac->code, &mac->keys[packet->cpu.key], tag);
    packet->forged = CRYPTO_memcmp(tag, packet->cpu.data + bytes, CORE_MAC_BYTES) != 0;
    core_secret_wipe(tag, sizeof tag); /* of a forged message it would be the right one */
}

static void append_tag(struct server_packet *packet, uint32_t bytes)
{
    struct server_mac *mac = packet->stream->mac;
    uint8_t tag[CORE_HMAC_BYTES];

    core_hmac_end(&mac->code, &mac->keys[packet->cpu.key], tag);
    server_packet_keep(packet);
    memcpy(server_packet_payload(packet) + bytes, tag, CORE_MAC_BYTES);
    core_secret_wipe(tag, sizeof tag);
    packet->tagged = true;
}

static void reject(struct server_packet *packet)
{
    struct server_stats *stats = packet->stream->client->io->stats;

    packet->status = PROTOCOL_RESULT_FORGED;
    server_stats_add(&stats->rejected, 1);
    server_stats_add(&stats->forged, 1);
}

void server_mac_deliver(struct server_packet *packet)
{
    struct server_mac *mac = packet->stream->mac;
    const uint32_t bytes = packet->cpu.bytes + server_packet_clear_bytes(packet);

    if (packet->forged && packet->status == PROTOCOL_RESULT_OK)
        reject(packet);
    if (mac == NULL || packet->stream->spec.direction != CORE_DIRECTION_ENCRYPT)
        return;
    const uint64_t number = mac->number;
    mac->number += (packet->flags & PROTOCOL_DATA_FIRST) != 0;
    if (packet->status != PROTOCOL_RESULT_OK)
        return; /* so are all later ones of its message */
    if (packet->cpu.begins_unit)
        begin(mac, packet, &mac->code, number, server_packet_payload(packet) - CORE_BLOCK_BYTES);
    core_hmac_add(&mac->code, packet->output.payload, bytes);
    if ((packet->flags & PROTOCOL_DATA_LAST) != 0)
        append_tag(packet, bytes);
}
