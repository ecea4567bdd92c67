/* Messages of a stream whose unit is one (core/stream.h): where its sender is in them, what of a packet is
 * encrypted, and the IV of each. A stream of the other kind has no messages: each of its packets stands for
 * itself, and is as the last of one.
 *
 * A message of which a packet is not encrypted is broken: none of its later packets is encrypted, because what
 * came out would not be the encryption of anything. The next message begins anew; with CORE_IV_CHAIN from the
 * last block that was encrypted.
 *
 * On the stream's I/O thread. Nothing is allocated. */
#ifndef MILLRACE_SERVER_STREAM_MESSAGE_H
#define MILLRACE_SERVER_STREAM_MESSAGE_H

#include "core/protocol.h"

#include <stdbool.h>
#include <stdint.h>

struct server_ivs;
struct server_packet;
struct server_stream;

/* Where the sender is. */
struct server_message_state {
    bool begun;                   /* the next packet goes on with one */
    bool broken;                  /* a packet of the present one is not encrypted */
    uint8_t pattern_blocks;       /* of the pattern's cycle, before the next packet */
    bool given_iv;                /* the client has chosen the IV of the first one */
    uint64_t number;              /* of the next one */
    uint8_t iv[CORE_BLOCK_BYTES]; /* of each, with CORE_IV_CONSTANT */
};

/* NULL, or what is wrong with the flags of a DATA frame behind those before it: a message begins with FIRST where
 * the one before ended with LAST, and nowhere else, and one that may have a single packet ends with it; a stream
 * without messages has no flags. */
const char *server_message_fault(const struct server_stream *stream, uint8_t flags);

/* The IV that OPENED tells of a new stream, whose client gives one or not: the one in force, or that of the first
 * message; zeros where each message has its own. */
void server_message_first_iv(const struct protocol_open *open, struct server_ivs *ivs,
                             uint8_t iv[CORE_BLOCK_BYTES]);

/* A packet, whose bytes and flags are there, is the next one: sets how many of its bytes are the IV and the code of its
 * message, before they are received. */
void server_message_receive(struct server_stream *stream, struct server_packet *packet);

/* The packet has been received. Sets cpu.bytes, what of it is encrypted, padded: 0 where none is; and puts the IV of
 * a message that it begins ahead of its place in the slot. Returns its status. */
enum protocol_result_status server_message_accept(struct server_stream *stream, struct server_packet *packet,
                                                  uint64_t bytes_per_key);

#endif
