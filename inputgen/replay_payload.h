/* Payloads that need not be remembered: packet n of a stream is a pure function of (seed, stream, n).
 *
 * A payload is a 16-byte block that no other packet of the run has (with iv explicit it is the IV of the message that
 * begins), followed by a slice of a pool of random bytes at a pseudo-random offset. With records ts there are headers
 * of transport-stream packets in it: most to be scrambled, with and without adaptation field, some not. To check a result, the same bytes are found again; nothing is stored per
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
    bool uniform_sizes; /* lengths drawn uniformly, up to what a packet may have; else as long as it may be */
};

/* packet_bytes_max: the longest packet that will be asked for. */
CORE_CHECKED core_status inputgen_payload_init(struct inputgen_payload *payload, uint64_t seed,
                                               bool uniform_sizes, uint32_t packet_bytes_max);
void inputgen_payload_free(struct inputgen_payload *payload);

/* A stream of the run and the messages that it sends. */
struct inputgen_source {
    struct core_stream_spec spec;
    uint32_t message_packets; /* 1: each packet is a message, or there are none */
    uint32_t stream;          /* its part in payloads */
};

/* Packet n of a stream: its place in a message, and its length. */
struct inputgen_part {
    uint64_t number;   /* n */
    uint64_t message;  /* its message, from 0 on */
    bool first, last;  /* of that message; without messages every packet is both */
    uint32_t iv_bytes; /* of these the IV, which the server does not give back */
    uint32_t bytes;    /* all that is sent, at least 1 beside the IV */
};

struct inputgen_part inputgen_payload_part(const struct inputgen_payload *payload,
                                           const struct inputgen_source *source, uint64_t number);

/* Writes what is sent. */
void inputgen_payload_fill(const struct inputgen_payload *payload, const struct inputgen_source *source,
                           const struct inputgen_part *part, uint8_t *packet);

/* A bijective mixer of 64 bits (the finaliser of SplitMix64). */
uint64_t inputgen_mix(uint64_t value);

#endif
