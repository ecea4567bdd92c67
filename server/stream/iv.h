/* Initialization vectors that nobody can foresee, without a lock or a system call: a counter, encrypted with
 * a random key that is used for nothing else (NIST SP 800-38A, appendix C). The random numbers of OpenSSL
 * would now and then wait for its other threads, and for the kernel. One thread at a time. */
#ifndef MILLRACE_SERVER_STREAM_IV_H
#define MILLRACE_SERVER_STREAM_IV_H

#include "core/status.h"
#include "core/stream.h"

#include <openssl/evp.h>
#include <stdint.h>

struct server_ivs {
    EVP_CIPHER_CTX *cipher; /* AES-128, block by block */
    uint64_t count;
};

/* Draws the key. CORE_NO_MEMORY, or CORE_SYSTEM: no random numbers. */
CORE_CHECKED core_status server_ivs_init(struct server_ivs *ivs, struct core_error *error);
void server_ivs_free(struct server_ivs *ivs);

void server_ivs_next(struct server_ivs *ivs, uint8_t iv[CORE_BLOCK_BYTES]);

#endif
