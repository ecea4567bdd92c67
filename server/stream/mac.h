/* The codes of a stream with a MAC (core/stream.h): HMAC-SHA-256 of
 *
 *     id (16 bytes, of OPEN), number of the message (8 bytes, big-endian), IV (16 bytes), ciphertext,
 *
 * cut to 16 bytes, under a key that is derived from the stream's (core/hmac.h). The ciphertext is the message as it is
 * on the wire, with what of it passes as it is.
 *
 * An encrypted message gets its code where it is delivered, packet by packet, so that no unit and no move has to know.
 * One that is to be decrypted is judged when it has come, and given away or not where it is delivered: in between it
 * takes the same way, and the same time, whatever the judgement is.
 *
 * On the stream's I/O thread. Nothing is allocated. */
#ifndef MILLRACE_SERVER_STREAM_MAC_H
#define MILLRACE_SERVER_STREAM_MAC_H

#include "core/hmac.h"
#include "core/stream.h"
#include "server/stream/rekey.h"

struct server_packet;
struct server_stream;

/* Secret memory. */
struct server_mac {
    struct core_hmac_key keys[SERVER_STREAM_KEYS]; /* derived from the stream's keys, and gone with them */
    SHA256_CTX code;                               /* of the message that is delivered */
    uint64_t number;                               /* of the next message to be delivered */
    uint8_t id[CORE_MAC_BYTES];
};

/* The stream has its key number `which`, or has it no longer. These do nothing to a stream without a MAC. */
void server_mac_key_set(struct server_stream *stream, uint32_t which);
void server_mac_key_wipe(struct server_stream *stream, uint32_t which);

/* A packet that was received whole and is in order, under its key: judges its code, in decryption. */
void server_mac_judge(struct server_packet *packet);

/* The next packet of the stream to be delivered, in its order: puts the code behind the end of a message, or takes
 * back what was decrypted of one whose code is not right. */
void server_mac_deliver(struct server_packet *packet);

#endif
