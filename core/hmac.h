/* HMAC-SHA-256 (RFC 2104, FIPS 180-4) over what comes piece by piece, without allocation or lock, for threads with
 * deadlines, and HKDF (RFC 5869) made of it. OpenSSL's compression function; its EVP interface allocates for every
 * message. Pure; any thread. Keys and states are secret: who has them wipes them (core/secret.h). */
#ifndef MILLRACE_CORE_HMAC_H
#define MILLRACE_CORE_HMAC_H

#include <openssl/sha.h>
#include <stddef.h>
#include <stdint.h>

#define CORE_HMAC_BYTES SHA256_DIGEST_LENGTH

/* A key, as what the two blocks lead to that are made of it. */
struct core_hmac_key {
    SHA_LONG inner[8], outer[8];
};

/* Of any length. */
void core_hmac_key_set(struct core_hmac_key *key, const uint8_t *bytes, size_t count);

/* A code in the making: begun, then added to, then ended once. */
void core_hmac_begin(SHA256_CTX *code, const struct core_hmac_key *key);
void core_hmac_add(SHA256_CTX *code, const void *bytes, size_t count);
void core_hmac_end(SHA256_CTX *code, const struct core_hmac_key *key, uint8_t tag[CORE_HMAC_BYTES]);

/* The first 32 bytes of HKDF without a salt: the key for one use, named by info, out of a secret. */
void core_hmac_derive(const uint8_t *secret, size_t count, const char *info,
                      uint8_t derived[CORE_HMAC_BYTES]);

#endif
