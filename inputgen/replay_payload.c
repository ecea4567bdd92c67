#include "inputgen/replay_payload.h"

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

uint32_t inputgen_payload_bytes(const struct inputgen_payload *payload, const struct core_stream_spec *spec,
                                uint32_t stream, uint32_t sequence)
{
    if (!payload->uniform_sizes)
        return spec->packet_bytes;
    uint64_t draw = inputgen_mix(~payload->seed ^ ((uint64_t)stream << 32 | sequence));
    uint32_t unit = spec->padding == CORE_PADDING_NONE ? CORE_BLOCK_BYTES : 1;
    return unit * (1 + (uint32_t)(draw % (spec->packet_bytes / unit)));
}

void inputgen_payload_fill(const struct inputgen_payload *payload, uint32_t stream, uint32_t sequence,
                           uint8_t *packet, uint32_t bytes)
{
    struct recipe recipe = recipe_of(payload, stream, sequence);
    uint32_t head = bytes < sizeof recipe.block ? bytes : (uint32_t)sizeof recipe.block;
    memcpy(packet, recipe.block, head);
    memcpy(packet + head, recipe.slice + head, bytes - head);
}

bool inputgen_payload_equal(const struct inputgen_payload *payload, uint32_t stream, uint32_t sequence,
                            const uint8_t *packet, uint32_t bytes, uint32_t from)
{
    struct recipe recipe = recipe_of(payload, stream, sequence);
    uint32_t head = bytes < sizeof recipe.block ? bytes : (uint32_t)sizeof recipe.block;
    if (from < head && memcmp(packet + from, (const uint8_t *)recipe.block + from, head - from) != 0)
        return false;
    uint32_t rest = from > head ? from : head;
    return rest >= bytes || memcmp(packet + rest, recipe.slice + rest, bytes - rest) == 0;
}
