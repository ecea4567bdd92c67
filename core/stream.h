/* The contract of one stream, as its owner declares it.
 *
 * Packets of at most packet_bytes, one every interval_ns in the long run, at most burst_packets at once; each
 * is to be finished within latency_ns of its eligible time. After policing (GCRA), in any window of length D
 * at most N(D) = burst_packets + floor(D / interval_ns) packets are eligible. */
#ifndef MILLRACE_CORE_STREAM_H
#define MILLRACE_CORE_STREAM_H

#include "core/status.h"
#include "core/time.h"

#include <stdbool.h>
#include <stdint.h>

/* A byte each: a stream's contract is kept several times over. */
#define CORE_BYTE __attribute__((packed))

enum core_cipher {
    CORE_CIPHER_AES_128_CBC = 1,
    CORE_CIPHER_AES_192_CBC = 2,
    CORE_CIPHER_AES_256_CBC = 3
} CORE_BYTE;
#define CORE_CIPHER_COUNT 3 /* valid values are 1..CORE_CIPHER_COUNT */

/* What becomes of the end of a unit that is no whole block. CLEAR: whole blocks are encrypted, the rest passes
 * as it is. */
enum core_padding { CORE_PADDING_NONE = 0, CORE_PADDING_PKCS7 = 1, CORE_PADDING_CLEAR = 2 } CORE_BYTE;

/* What is encrypted as one: the whole stream, each packet padded by itself; or a message of one packet or
 * more, padded at its end. */
enum core_unit { CORE_UNIT_STREAM = 0, CORE_UNIT_MESSAGE = 1 } CORE_BYTE;

/* Where the IV of a message comes from: the last ciphertext block of the one before; the same for all; its
 * number, as 16 bytes, big-endian; 16 bytes ahead of its first packet's payload; drawn by the server. */
enum core_iv {
    CORE_IV_CHAIN = 0,
    CORE_IV_CONSTANT = 1,
    CORE_IV_COUNTER = 2,
    CORE_IV_EXPLICIT = 3,
    CORE_IV_RANDOM = 4
} CORE_BYTE;

/* What the server does with the packets. */
enum core_direction { CORE_DIRECTION_ENCRYPT = 0, CORE_DIRECTION_DECRYPT = 1 } CORE_BYTE;

/* What a packet consists of: TS: transport-stream packets (core/transport_stream.h), each of which is encrypted by
 * itself. */
enum core_records { CORE_RECORDS_NONE = 0, CORE_RECORDS_TS = 1 } CORE_BYTE;

/* What is put behind a message, so that who has the key can tell that it is genuine (encrypt, then MAC): HMAC-SHA-256 of
 * an id that the stream's owner chose, the message's number, its IV and its ciphertext, cut to 16 bytes. */
enum core_mac { CORE_MAC_NONE = 0, CORE_MAC_HMAC_SHA_256_128 = 1 } CORE_BYTE;

#define CORE_MAC_BYTES          16 /* of a code, and of its id */
#define CORE_BLOCK_BYTES        16 /* AES block, IV and chaining value */
#define CORE_PATTERN_BLOCKS_MAX 15 /* of each kind in a pattern: four bits in the formats that have one */

/* Hard ranges of version 1; a server may set tighter limits. They keep every product of the model inside
 * int64_t: packet_bytes * burst <= 2^36, and times are at most one hour. */
#define CORE_PACKET_BYTES_MAX (UINT32_C(1) << 20)
#define CORE_BURST_MAX        (UINT32_C(1) << 16)

/* Of packet_bytes with a pattern or a MAC, for which an I/O thread goes over a packet in one go while its other
 * streams wait: 84 us with both, at 0.68 and 0.60 ns a byte (config/profiles/h200.yaml). */
#define CORE_AT_ONCE_BYTES_MAX (UINT32_C(1) << 16)

#define CORE_INTERVAL_NS_MIN CORE_NS_PER_US
#define CORE_INTERVAL_NS_MAX (3600 * CORE_NS_PER_S)
#define CORE_LATENCY_NS_MIN  (10 * CORE_NS_PER_US)
#define CORE_LATENCY_NS_MAX  (3600 * CORE_NS_PER_S)

struct core_stream_spec {
    uint32_t packet_bytes;  /* 1 .. CORE_PACKET_BYTES_MAX, before padding */
    uint32_t burst_packets; /* 1 .. CORE_BURST_MAX */
    core_ns interval_ns;    /* CORE_INTERVAL_NS_MIN .. CORE_INTERVAL_NS_MAX */
    core_ns latency_ns;     /* CORE_LATENCY_NS_MIN .. CORE_LATENCY_NS_MAX */
    enum core_cipher cipher;
    enum core_padding padding;
    bool guaranteed; /* survives the loss of any one GPU; else standard: served then as far as it goes */
    bool by_lane;    /* through a lane, not a socket: its connection's, no part of the contract */
    uint32_t audit_one_in; /* on a GPU one packet in so many is encrypted by CPU as well; 0: none. The
                              server's choice, no part of the contract */
    uint64_t first_unit;   /* number of the first message, with COUNTER or a MAC; else 0 */
    enum core_unit unit;
    enum core_iv iv;
    /* Pattern: of each message so many blocks are encrypted, so many pass as they are, and so on; their chain goes
     * from one encrypted block to the next. 0 and 0: all are encrypted. 1 and 9 is what `cbcs` prescribes for
     * video (ISO 23001-7). */
    uint8_t crypt_blocks, skip_blocks;
    enum core_direction direction;
    enum core_records records; /* TS: every packet is a message, and every record begins with its IV anew */
    enum core_mac mac; /* decryption: every packet is a message, whose code is the end of packet_bytes */
    uint8_t message_packets; /* the most of a message: 1, or 0, any number */
};

/* CORE_OK, or CORE_INVALID with the field, its value and its range, or what does not go together, in error.
 * With padding none, packet_bytes must be a multiple of 16: a longest packet that could never be sent is a
 * mistake. */
CORE_CHECKED core_status core_stream_spec_check(const struct core_stream_spec *spec,
                                                struct core_error *error);

/* Bytes of a packet of `bytes` after padding: the next multiple of 16 (PKCS#7 always adds 1..16 bytes;
 * without padding the length is rounded up only for sizing). */
uint32_t core_stream_padded_bytes(enum core_padding padding, uint32_t bytes);

/* Of so many bytes of a message, of which pattern_blocks blocks of the pattern went before: those that are encrypted,
 * in whole blocks. */
uint32_t core_stream_encrypted_bytes(const struct core_stream_spec *spec, uint32_t pattern_blocks,
                                     uint32_t bytes);

/* Can workers alone serve it? GPUs know nothing of decryption and records (docs/model.md). */
bool core_stream_needs_worker(const struct core_stream_spec *spec);

/* Does none of its packets wait for another, each being a message whose IV does not depend on the one before? */
bool core_stream_packets_alone(const struct core_stream_spec *spec);

/* Is each of its messages one packet, as message_packets says, or records or a code that is checked require? */
bool core_stream_has_whole_messages(const struct core_stream_spec *spec);

/* Chains of a packet, which are encrypted one by one, of at most so many bytes each; 1, but with records. */
uint32_t core_stream_packet_chains(const struct core_stream_spec *spec, uint32_t *chain_bytes);

/* Bytes that the server has of the longest packet: padded, with the IV that it puts ahead of it, and the code that
 * it puts behind. */
uint32_t core_stream_held_bytes(const struct core_stream_spec *spec);

/* Bytes that the server puts behind a message. */
uint32_t core_stream_tag_bytes(const struct core_stream_spec *spec);

/* Bytes that a unit of the server, a worker or a GPU, has of it: the same without the code, but of a pattern only
 * what is encrypted, wherever in the pattern the packet begins. */
uint32_t core_stream_packet_bytes(const struct core_stream_spec *spec);

/* Long-run rate of the payload in bits per second, for people. */
double core_stream_rate_bits_per_s(const struct core_stream_spec *spec);

/* 16, 24 or 32; 0 for a value that is no cipher. */
uint32_t core_cipher_key_bytes(enum core_cipher cipher);

/* "aes-128-cbc" ...; NULL for a value that is no cipher. And back: CORE_NOT_FOUND for an unknown name. */
const char *core_cipher_name(enum core_cipher cipher);
CORE_CHECKED core_status core_cipher_parse(const char *name, enum core_cipher *cipher);

/* The words for what a stream is made of: "none", "pkcs7", "clear"; "stream", "message"; "chain", "constant",
 * "counter", "explicit", "random"; "encrypt", "decrypt"; "none", "ts". NULL for a value that is none. And back:
 * CORE_NOT_FOUND for an unknown word. */
const char *core_padding_name(enum core_padding padding);
const char *core_unit_name(enum core_unit unit);
const char *core_iv_name(enum core_iv iv);
const char *core_direction_name(enum core_direction direction);
const char *core_records_name(enum core_records records);
CORE_CHECKED core_status core_padding_parse(const char *name, enum core_padding *padding);
CORE_CHECKED core_status core_unit_parse(const char *name, enum core_unit *unit);
CORE_CHECKED core_status core_iv_parse(const char *name, enum core_iv *iv);
CORE_CHECKED core_status core_direction_parse(const char *name, enum core_direction *direction);
CORE_CHECKED core_status core_records_parse(const char *name, enum core_records *records);

/* The pattern as "1:9": blocks that are encrypted, and that pass; "none" without one. What is returned may be in
 * text. And back into the spec: CORE_INVALID unless it is "none" or two numbers of 1 to CORE_PATTERN_BLOCKS_MAX. */
enum { CORE_PATTERN_TEXT_BYTES = 8 };
const char *core_pattern_format(const struct core_stream_spec *spec, char text[CORE_PATTERN_TEXT_BYTES]);
CORE_CHECKED core_status core_pattern_parse(const char *text, struct core_stream_spec *spec);

#endif
