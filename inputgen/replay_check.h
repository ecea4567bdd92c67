/* Is this ciphertext right? An independent decryption of what a stream's server returns.
 *
 * One OpenSSL context a stream decrypts everything that comes back, in the order it comes, carrying the CBC
 * chain from packet to packet as docs/protocol.md, section 4 says, removes the padding and compares every
 * byte with the payload that was sent (replay_payload.h). No code is shared with the server's engines.
 *
 * After a gap in the sequence the chaining value is unknown: then all but the packet's first block is
 * compared. One thread a checker. */
#ifndef MILLRACE_INPUTGEN_REPLAY_CHECK_H
#define MILLRACE_INPUTGEN_REPLAY_CHECK_H

#include "core/status.h"
#include "core/stream.h"
#include "inputgen/replay_payload.h"

#include <openssl/types.h>
#include <stdbool.h>
#include <stdint.h>

struct inputgen_checker {
    EVP_CIPHER_CTX *context;
    enum core_padding padding;
    uint32_t next_sequence; /* of the next result, if nothing is lost or out of order */
};

struct inputgen_check_packet {
    uint32_t stream, sequence; /* as given to inputgen_payload_fill */
    uint32_t sent_bytes;
    const uint8_t *ciphertext; /* NULL: the server did not encrypt it (its status says why) */
    uint32_t bytes;
};

struct inputgen_check_verdict {
    bool in_order; /* the sequence is the one that had to come */
    bool right;    /* length, padding and every byte that could be compared; true without a ciphertext */
};

CORE_CHECKED core_status inputgen_checker_init(struct inputgen_checker *checker, enum core_cipher cipher,
                                               enum core_padding padding, const uint8_t *key,
                                               const uint8_t iv[CORE_BLOCK_BYTES]);
void inputgen_checker_free(struct inputgen_checker *checker);

/* scratch: room for the packet that was sent, padded. packet->bytes may be anything. */
struct inputgen_check_verdict inputgen_checker_take(struct inputgen_checker *checker,
                                                    const struct inputgen_payload *payload,
                                                    const struct inputgen_check_packet *packet,
                                                    uint8_t *scratch);

#endif
