/* Messages among the streams of a random set: their IVs go with them through workers and GPUs. */
#ifndef MILLRACE_TESTS_UNITS_H
#define MILLRACE_TESTS_UNITS_H

#include "core/stream.h"
#include "core/transport_stream.h"
#include "tests/support/random.h"

/* Numbers beside those of `random`, which stay as they would be without. */
static inline struct test_random test_units_beside(const struct test_random *random)
{
    return (struct test_random){random->state ^ UINT64_C(0x6d65737361676573)};
}

/* Makes it a stream of messages with any of the IVs, some of one packet each, some with a pattern, some that
 * decrypt, and some of transport-stream packets. */
static inline void test_units_message(struct core_stream_spec *spec, struct test_random *random)
{
    spec->unit = CORE_UNIT_MESSAGE;
    spec->message_packets = random->state >> 62 != 0; /* no draw: the rest is as it would be without */
    if (test_random_chance(random, 5)) {
        spec->records = CORE_RECORDS_TS;
        spec->iv = CORE_IV_CONSTANT;
        spec->padding = CORE_PADDING_CLEAR;
        spec->packet_bytes = (spec->packet_bytes / CORE_TS_BYTES + 1) * CORE_TS_BYTES;
        return;
    }
    spec->iv = (enum core_iv)test_random_in(random, CORE_IV_CHAIN, CORE_IV_RANDOM);
    const bool is_short = spec->packet_bytes <= CORE_AT_ONCE_BYTES_MAX - 2 * CORE_BLOCK_BYTES;
    if (spec->iv != CORE_IV_CHAIN && test_random_chance(random, 10) && is_short)
        spec->mac = CORE_MAC_HMAC_SHA_256_128;
    if (spec->iv == CORE_IV_EXPLICIT && spec->packet_bytes <= CORE_BLOCK_BYTES)
        spec->packet_bytes += CORE_BLOCK_BYTES;
    if (spec->padding != CORE_PADDING_PKCS7 && spec->iv != CORE_IV_RANDOM && test_random_chance(random, 5))
        spec->direction = CORE_DIRECTION_DECRYPT;
    if (spec->mac != CORE_MAC_NONE && spec->direction == CORE_DIRECTION_DECRYPT)
        spec->packet_bytes += CORE_MAC_BYTES;
    if (spec->padding == CORE_PADDING_PKCS7 || !test_random_chance(random, 30) || !is_short)
        return;
    spec->crypt_blocks = (uint8_t)test_random_in(random, 1, CORE_PATTERN_BLOCKS_MAX);
    spec->skip_blocks = (uint8_t)test_random_in(random, 1, CORE_PATTERN_BLOCKS_MAX);
}

/* With so many percent: its packets stand alone. */
static inline void test_units_stand_alone(struct core_stream_spec *spec, struct test_random *random,
                                          int percent)
{
    if (!test_random_chance(random, percent))
        return;
    spec->unit = CORE_UNIT_MESSAGE;
    spec->iv = CORE_IV_EXPLICIT;
    spec->message_packets = 1;
}

#endif
