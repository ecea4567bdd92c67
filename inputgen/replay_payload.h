/* Payloads that need not be remembered: packet n of a stream is a pure function of (seed, stream, n).
 *
 * A payload is a 16-byte block that no other packet of the run has, followed by a slice of a pool of random
 * bytes at a pseudo-random offset. To check a result, the same bytes are found again; nothing is stored per
 * packet. Set up once, then read by any number of threads. */
#ifndef MILLRACE_INPUTGEN_REPLAY_PAYLOAD_H
#define MILLRACE_INPUTGEN_REPLAY_PAYLOAD_H

#include "core/status.h"
#include "core/stream.h"

#include <stdbool.h>
#include <stdint.h>

struct inputgen_payload {
    uint8_t *pool;
    uint64_t seed;
    bool uniform_sizes; /* lengths uniform in 1..packet_bytes (whole blocks for padding none), else
                           packet_bytes */
};

/* packet_bytes_max: the longest packet that will be asked for. */
CORE_CHECKED core_status inputgen_payload_init(struct inputgen_payload *payload, uint64_t seed,
                                               bool uniform_sizes, uint32_t packet_bytes_max);
void inputgen_payload_free(struct inputgen_payload *payload);

/* Length of packet `sequence` of stream `stream`, at least 1. */
uint32_t inputgen_payload_bytes(const struct inputgen_payload *payload, const struct core_stream_spec *spec,
                                uint32_t stream, uint32_t sequence);

void inputgen_payload_fill(const struct inputgen_payload *payload, uint32_t stream, uint32_t sequence,
                           uint8_t *packet, uint32_t bytes);

/* Is `packet` from byte `from` on what inputgen_payload_fill writes? */
bool inputgen_payload_equal(const struct inputgen_payload *payload, uint32_t stream, uint32_t sequence,
                            const uint8_t *packet, uint32_t bytes, uint32_t from);

/* A bijective mixer of 64 bits (the finaliser of SplitMix64). */
uint64_t inputgen_mix(uint64_t value);

#endif
