/* Is this result right? An independent decryption of what a stream's server returns.
 *
 * One OpenSSL context a stream decrypts the ciphertext of everything that comes back, in the order it comes: the
 * server's, or, where the server is to decrypt, what was sent. It carries the CBC chain from packet to packet, begins
 * messages and records with their IVs and passes over what a pattern or a clear end leaves, as docs/protocol.md,
 * section 4 says, and compares every byte with the other side: the payload that was sent (replay_payload.h) and its
 * padding, or the server's result. No code is shared with the server's engines.
 *
 * After a gap in the sequence the chaining value is unknown until a message begins with an IV of its own: of the next
 * packet all is compared but the first block that was encrypted. One thread a checker. */
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
    const struct inputgen_source *source; /* the caller's */
    uint8_t iv[CORE_BLOCK_BYTES];         /* of every message and record, with iv constant */
    uint64_t next;                        /* number of the next result, if nothing is lost or out of order */
    bool lost;                            /* the chaining value is unknown */
    uint32_t pattern_blocks;              /* of the message, that went before the next packet */
};

struct inputgen_check_result {
    struct inputgen_part part; /* of which packet it is */
    const uint8_t *bytes;      /* NULL: the server did not encrypt it (its status says why) */
    uint32_t count;            /* of these */
    const uint8_t *iv;         /* that the server told; else NULL */
};

struct inputgen_check_verdict {
    bool in_order; /* the sequence is the one that had to come */
    bool right;    /* length, IV, padding and every byte that could be compared; true without a result */
};

/* Of what is tried on a packet of at most so many bytes. */
#define INPUTGEN_CHECK_SCRATCH_BYTES(packet_bytes) (2 * ((size_t)(packet_bytes) + CORE_BLOCK_BYTES))

/* iv: that the chain begins with, or the constant one. The source stays where it is. */
CORE_CHECKED core_status inputgen_checker_init(struct inputgen_checker *checker,
                                               const struct inputgen_source *source, const uint8_t *key,
                                               const uint8_t iv[CORE_BLOCK_BYTES]);
void inputgen_checker_free(struct inputgen_checker *checker);

/* scratch: INPUTGEN_CHECK_SCRATCH_BYTES of the longest packet. What the result has may be anything. */
struct inputgen_check_verdict inputgen_checker_take(struct inputgen_checker *checker,
                                                    const struct inputgen_payload *payload,
                                                    const struct inputgen_check_result *result,
                                                    uint8_t *scratch);

#endif
