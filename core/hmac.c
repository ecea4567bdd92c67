#define OPENSSL_SUPPRESS_DEPRECATED /* SHA256_Init and the like: nothing that is not deprecated does without memory */
#include "core/hmac.h"

#include "core/secret.h"

#include <string.h>

/* Behind one block. */
static void go_on(SHA256_CTX *code, const SHA_LONG state[8])
{
    (void)SHA256_Init(code);
    memcpy(code->h, state, sizeof code->h);
    code->Nl = 8 * SHA256_CBLOCK; /* bits so far */
}

void core_hmac_begin(SHA256_CTX *code, const struct core_hmac_key *key)
{
    go_on(code, key->inner);
}

void core_hmac_add(SHA256_CTX *code, const void *bytes, size_t count)
{
    (void)SHA256_Update(code, bytes, count); /* can not fail */
}

void core_hmac_end(SHA256_CTX *code, const struct core_hmac_key *key, uint8_t tag[CORE_HMAC_BYTES])
{
    uint8_t inner[CORE_HMAC_BYTES];

    (void)SHA256_Final(inner, code);
    go_on(code, key->outer);
    core_hmac_add(code, inner, sizeof inner);
    (void)SHA256_Final(tag, code);
    core_secret_wipe(inner, sizeof inner);
}

static void state_of(SHA_LONG state[8], const uint8_t block[SHA256_CBLOCK], uint8_t pad)
{
    uint8_t padded[SHA256_CBLOCK];
    SHA256_CTX code;

    for (size_t i = 0; i < sizeof padded; i++)
        padded[i] = block[i] ^ pad;
    (void)SHA256_Init(&code);
    core_hmac_add(&code, padded, sizeof padded);
    memcpy(state, code.h, sizeof code.h);
    core_secret_wipe(padded, sizeof padded);
    core_secret_wipe(&code, sizeof code);
}

void core_hmac_key_set(struct core_hmac_key *key, const uint8_t *bytes, size_t count)
{
    uint8_t block[SHA256_CBLOCK] = {0};

    if (count > sizeof block) {
        SHA256_CTX code;
        (void)SHA256_Init(&code);
        core_hmac_add(&code, bytes, count);
        (void)SHA256_Final(block, &code);
    } else {
        memcpy(block, bytes, count);
    }
    state_of(key->inner, block, 0x36);
    state_of(key->outer, block, 0x5C);
    core_secret_wipe(block, sizeof block);
}

static void hmac(const uint8_t *key, size_t key_bytes, const void *bytes, size_t count, uint8_t *tag)
{
    struct core_hmac_key states;
    SHA256_CTX code;

    core_hmac_key_set(&states, key, key_bytes);
    core_hmac_begin(&code, &states);
    core_hmac_add(&code, bytes, count);
    core_hmac_end(&code, &states, tag);
    core_secret_wipe(&states, sizeof states);
    core_secret_wipe(&code, sizeof code);
}

void core_hmac_derive(const uint8_t *secret, size_t count, const char *info, uint8_t derived[CORE_HMAC_BYTES])
{
    static const uint8_t salt[CORE_HMAC_BYTES];
    const size_t info_bytes = strlen(info);
    uint8_t expand[CORE_HMAC_BYTES];

    hmac(salt, sizeof salt, secret, count, expand);
    struct core_hmac_key key;
    SHA256_CTX code;
    core_hmac_key_set(&key, expand, sizeof expand);
    core_hmac_begin(&code, &key);
    core_hmac_add(&code, info, info_bytes);
    core_hmac_add(&code, "\x01", 1);
    core_hmac_end(&code, &key, derived);
    core_secret_wipe(expand, sizeof expand);
    core_secret_wipe(&key, sizeof key);
    core_secret_wipe(&code, sizeof code);
}
