#include "server/stream/pattern.h"

#include "core/secret.h"
#include "server/stream/io_thread.h"

#include <string.h>

/* Runs of a packet, one after the other: encrypted, clear, encrypted, ... */
struct runs {
    uint32_t crypt_bytes, skip_bytes; /* of the pattern */
    uint32_t offset;                  /* in its first cycle */
    uint32_t left;                    /* bytes of the packet */
    uint32_t encrypted_left;          /* those in whole blocks; behind them all is clear */
};

static struct runs runs_of(const struct server_packet *packet)
{
    const struct core_stream_spec *spec = &packet->stream->spec;
    return (struct runs){.crypt_bytes = spec->crypt_blocks * (uint32_t)CORE_BLOCK_BYTES,
                         .skip_bytes = spec->skip_blocks * (uint32_t)CORE_BLOCK_BYTES,
                         .offset = packet->pattern_blocks * (uint32_t)CORE_BLOCK_BYTES,
                         .left = server_packet_plain_bytes(packet),
                         .encrypted_left = packet->cpu.bytes};
}

static uint32_t at_most(uint32_t bytes, uint32_t most)
{
    return bytes < most ? bytes : most;
}

/* The next run; *encrypted: which kind. False: there is none. */
static bool next_run(struct runs *runs, uint32_t *bytes, bool *encrypted)
{
    if (runs->left == 0)
        return false;
    *encrypted = runs->encrypted_left > 0 && runs->offset < runs->crypt_bytes;
    if (*encrypted)
        *bytes = at_most(runs->crypt_bytes - runs->offset, runs->encrypted_left);
    else if (runs->encrypted_left > 0)
        *bytes = runs->crypt_bytes + runs->skip_bytes - runs->offset;
    else
        *bytes = runs->left;
    runs->left -= *bytes;
    runs->encrypted_left -= *encrypted ? *bytes : 0;
    runs->offset = (runs->offset + *bytes) % (runs->crypt_bytes + runs->skip_bytes);
    return true;
}

void server_pattern_sort(struct server_packet *packet)
{
    if (packet->stream->spec.crypt_blocks == 0 || packet->cpu.bytes == 0)
        return;
    uint8_t *slot = server_packet_payload(packet), *scratch = packet->stream->client->io->scratch;
    const uint8_t *from = packet->cpu.data;
    uint8_t *ends[] = {slot + packet->cpu.bytes, slot}; /* of what is clear, and what is encrypted */
    struct runs runs = runs_of(packet);
    const uint32_t copied = from == slot ? runs.left : 0;
    uint32_t bytes;
    bool encrypted;

    if (copied > 0)
        from = memcpy(scratch, slot, copied);
    while (next_run(&runs, &bytes, &encrypted)) {
        memcpy(ends[encrypted], from, bytes);
        ends[encrypted] += bytes;
        from += bytes;
    }
    core_secret_wipe(scratch, copied);
    packet->cpu.data = slot;
    packet->sorted = true;
}

void server_pattern_restore(struct server_packet *packet)
{
    if (!packet->sorted || packet->status != PROTOCOL_RESULT_OK)
        return;
    uint8_t *to = server_packet_payload(packet), *scratch = packet->stream->client->io->scratch;
    const uint8_t *ends[] = {scratch + packet->cpu.bytes, scratch};
    struct runs runs = runs_of(packet);
    const uint32_t copied = runs.left;
    uint32_t bytes;
    bool encrypted;

    memcpy(scratch, to, copied);
    while (next_run(&runs, &bytes, &encrypted)) {
        memcpy(to, ends[encrypted], bytes);
        ends[encrypted] += bytes;
        to += bytes;
    }
    core_secret_wipe(scratch, copied);
    packet->sorted = false;
}
