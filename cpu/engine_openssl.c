#include "cpu/engine.h"

#include "core/secret.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* OpenSSL keeps the expanded key inside the context, in its own heap; it wipes both when they are freed. */
struct key_state {
    EVP_CIPHER_CTX *context;
    uint8_t
        chain[CORE_BLOCK_BYTES]; /* what the context will chain from: a piece that agrees needs no new IV */
};

struct cpu_engine {
    char unused; /* everything lives in the key states */
};

static pthread_once_t fetch_once = PTHREAD_ONCE_INIT;
static EVP_CIPHER *ciphers[CORE_CIPHER_COUNT + 1]; /* set by fetch_ciphers, never freed: one per process */

static void fetch_ciphers(void)
{
    static const char *const names[] = {[CORE_CIPHER_AES_128_CBC] = "AES-128-CBC",
                                        [CORE_CIPHER_AES_192_CBC] = "AES-192-CBC",
                                        [CORE_CIPHER_AES_256_CBC] = "AES-256-CBC"};
    for (int cipher = 1; cipher <= CORE_CIPHER_COUNT; cipher++)
        ciphers[cipher] = EVP_CIPHER_fetch(NULL, names[cipher], NULL);
}

static core_status openssl_open(struct cpu_engine **engine, struct core_error *error)
{
    pthread_once(&fetch_once, fetch_ciphers);
    for (int cipher = 1; cipher <= CORE_CIPHER_COUNT; cipher++) {
        if (ciphers[cipher] == NULL) {
            return core_error_set(error, CORE_UNSUPPORTED, "OpenSSL offers no %s: check openssl.cnf",
                                  core_cipher_name((enum core_cipher)cipher));
        }
    }
    struct cpu_engine *opened = calloc(1, sizeof *opened);
    if (opened == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for an OpenSSL engine");
    *engine = opened;
    return CORE_OK;
}

static void openssl_close(struct cpu_engine *engine)
{
    free(engine);
}

static uint32_t openssl_lanes(const struct cpu_engine *engine)
{
    (void)engine;
    return 1;
}

static core_status openssl_key_set(struct cpu_engine *engine, void *key_state, enum core_cipher cipher,
                                   enum core_direction direction, const uint8_t *key)
{
    (void)engine;
    struct key_state *state = key_state;
    static const uint8_t zero[CORE_BLOCK_BYTES];
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    if (context == NULL)
        return CORE_NO_MEMORY;
    if (EVP_CipherInit_ex2(context, ciphers[cipher], key, zero, direction == CORE_DIRECTION_ENCRYPT, NULL) !=
            1 ||
        EVP_CIPHER_CTX_set_padding(context, 0) != 1) {
        EVP_CIPHER_CTX_free(context);
        return CORE_SYSTEM;
    }
    state->context = context;
    memcpy(state->chain, zero, sizeof zero);
    return CORE_OK;
}

static void openssl_key_wipe(void *key_state)
{
    struct key_state *state = key_state;
    EVP_CIPHER_CTX_free(state->context);
    core_secret_wipe(state, sizeof *state);
}

/* The chain moves on to the last block of ciphertext, which in place is there before or afterwards. */
static core_status cipher_piece(struct cpu_piece *piece, bool decrypts)
{
    struct key_state *state = piece->key;
    const uint32_t last = piece->bytes - CORE_BLOCK_BYTES;
    uint8_t chain[CORE_BLOCK_BYTES];
    int written = 0;

    if (memcmp(state->chain, piece->chain, CORE_BLOCK_BYTES) != 0 &&
        EVP_CipherInit_ex2(state->context, NULL, NULL, piece->chain, -1, NULL) != 1)
        return CORE_SYSTEM;
    memcpy(chain, piece->source + last, CORE_BLOCK_BYTES);
    if (EVP_CipherUpdate(state->context, piece->target, &written, piece->source, (int)piece->bytes) != 1 ||
        (uint32_t)written != piece->bytes)
        return CORE_SYSTEM;
    memcpy(state->chain, decrypts ? chain : piece->target + last, CORE_BLOCK_BYTES);
    return CORE_OK;
}

static core_status cipher_pieces(struct cpu_piece *pieces, uint32_t count, bool decrypts)
{
    for (uint32_t i = 0; i < count; i++)
        if (cipher_piece(&pieces[i], decrypts) != CORE_OK)
            return CORE_SYSTEM;
    for (uint32_t i = 0; i < count; i++)
        memcpy(pieces[i].chain, ((struct key_state *)pieces[i].key)->chain, CORE_BLOCK_BYTES);
    return CORE_OK;
}

static core_status openssl_encrypt(struct cpu_engine *engine, enum core_cipher cipher,
                                   struct cpu_piece *pieces, uint32_t count)
{
    (void)engine;
    (void)cipher;
    return cipher_pieces(pieces, count, false);
}

static core_status openssl_decrypt(struct cpu_engine *engine, enum core_cipher cipher,
                                   struct cpu_piece *pieces, uint32_t count)
{
    (void)engine;
    (void)cipher;
    return cipher_pieces(pieces, count, true);
}

const struct cpu_engine_ops cpu_engine_openssl = {
    .name = "openssl",
    .key_state_bytes = sizeof(struct key_state),
    .open = openssl_open,
    .close = openssl_close,
    .lanes = openssl_lanes,
    .key_set = openssl_key_set,
    .key_wipe = openssl_key_wipe,
    .encrypt = openssl_encrypt,
    .decrypt = openssl_decrypt,
};
