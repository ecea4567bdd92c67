#include "inputgen/replay_payload.h"

#include "core/transport_stream.h"

#include <stdlib.h>
#include <string.h>

#define SLICES      4096 /* different offsets into the pool */
#define SLICE_BYTES 64   /* distance of two offsets: slices begin on a cache line */
#define POOL_BYTES  ((size_t)SLICES * SLICE_BYTES)

uint64_t inputgen_mix(uint64_t value)
{
    value += UINT64_C(0x9E3779B97F4A7C15);
    value = (value ^ (value >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94D049BB133111EB);
    return value ^ (value >> 31);
}

core_status inputgen_payload_init(struct inputgen_payload *payload, uint64_t seed, bool uniform_sizes,
                                  uint32_t packet_bytes_max)
{
    size_t bytes = (POOL_BYTES + packet_bytes_max + SLICE_BYTES - 1) / SLICE_BYTES * SLICE_BYTES;
    *payload = (struct inputgen_payload){.seed = inputgen_mix(seed), .uniform_sizes = uniform_sizes};
    payload->pool = aligned_alloc(SLICE_BYTES, bytes);
    if (!payload->pool)
        return CORE_NO_MEMORY;
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = inputgen_mix(payload->seed + at);
        memcpy(payload->pool + at, &word, sizeof word);
    }
    return CORE_OK;
}

void inputgen_payload_free(struct inputgen_payload *payload)
{
    free(payload->pool);
    payload->pool = NULL;
}

/* The block that makes a packet unique, and the slice that follows it. */
struct recipe {
    uint64_t block[2];
    const uint8_t *slice;
};

static struct recipe recipe_of(const struct inputgen_payload *payload, uint32_t stream, uint32_t sequence)
{
    uint64_t first = inputgen_mix(payload->seed ^ ((uint64_t)stream << 32 | sequence));
    uint64_t second = inputgen_mix(first);
    return (struct recipe){{first, second}, payload->pool + (second % SLICES) * SLICE_BYTES};
}

struct inputgen_part inputgen_payload_part(const struct inputgen_payload *payload,
                                           const struct inputgen_source *source, uint64_t number)
{
    const struct core_stream_spec *spec = &source->spec;
    const uint64_t position = number % source->message_packets;
    struct inputgen_part part = {.number = number,
                                 .message = number / source->message_packets,
                                 .first = position == 0,
                                 .last = position == source->message_packets - 1};
    part.iv_bytes = spec->iv == CORE_IV_EXPLICIT && part.first ? CORE_BLOCK_BYTES : 0;
    uint32_t unit = !part.last || spec->padding == CORE_PADDING_NONE ? CORE_BLOCK_BYTES : 1;
    if (spec->records == CORE_RECORDS_TS)
        unit = CORE_TS_BYTES;
    uint32_t units = (spec->packet_bytes - part.iv_bytes) / unit;
    if (payload->uniform_sizes) {
        uint64_t draw = inputgen_mix(~payload->seed ^ ((uint64_t)source->stream << 32 | (uint32_t)number));
        units = 1 + (uint32_t)(draw % units);
    }
    part.bytes = part.iv_bytes + units * unit;
    return part;
}

/* Of eight records one is not to be scrambled, one has no payload, and two have an adaptation field ahead of it. */
static void record_shape(uint8_t *record)
{
    enum { CLEAR = 0x10, NO_PAYLOAD = 0x20, BOTH = 0x30, PAYLOAD = 0x10 };
    const uint8_t draw = record[2] % 8, parity = (record[2] & 8) ? 0xc0 : 0x80;
    record[0] = 0x47;
    record[3] = draw == 0   ? CLEAR
                : draw == 1 ? parity | NO_PAYLOAD
                : draw < 4  ? parity | BOTH
                            : parity | PAYLOAD;
    if (draw == 1)
        record[4] = CORE_TS_BYTES - 5;
    else if (draw > 1 && draw < 4)
        record[4] %= CORE_TS_BYTES - 5;
}

void inputgen_payload_fill(const struct inputgen_payload *payload, const struct inputgen_source *source,
                           const struct inputgen_part *part, uint8_t *packet)
{
    struct recipe recipe = recipe_of(payload, source->stream, (uint32_t)part->number);
    uint32_t head = part->bytes < sizeof recipe.block ? part->bytes : (uint32_t)sizeof recipe.block;
    memcpy(packet, recipe.block, head);
    memcpy(packet + head, recipe.slice + head, part->bytes - head);
    if (source->spec.records == CORE_RECORDS_TS)
        for (uint32_t at = 0; at < part->bytes; at += CORE_TS_BYTES)
            record_shape(packet + at);
}
