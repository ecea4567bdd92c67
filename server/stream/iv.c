#include "server/stream/iv.h"

#include "core/secret.h"

#include <assert.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <string.h>

core_status server_ivs_init(struct server_ivs *ivs, struct core_error *error)
{
    uint8_t key[16];

    ivs->count = 0;
    ivs->cipher = EVP_CIPHER_CTX_new();
    if (RAND_bytes(key, sizeof key) != 1) {
        ERR_clear_error();
        return core_error_set(error, CORE_SYSTEM, "the system has no random numbers");
    }
    bool good = ivs->cipher != NULL &&
                EVP_EncryptInit_ex2(ivs->cipher, EVP_aes_128_ecb(), key, NULL, NULL) == 1 &&
                EVP_CIPHER_CTX_set_padding(ivs->cipher, 0) == 1;
    core_secret_wipe(key, sizeof key);
    ERR_clear_error();
    return good ? CORE_OK : core_error_set(error, CORE_NO_MEMORY, "no memory for the source of IVs");
}

void server_ivs_free(struct server_ivs *ivs)
{
    EVP_CIPHER_CTX_free(ivs->cipher);
    ivs->cipher = NULL;
}

void server_ivs_next(struct server_ivs *ivs, uint8_t iv[CORE_BLOCK_BYTES])
{
    uint8_t block[CORE_BLOCK_BYTES] = {0};
    int made = 0;

    memcpy(block, &ivs->count, sizeof ivs->count);
    ivs->count++;
    int good = EVP_EncryptUpdate(ivs->cipher, iv, &made, block, sizeof block);
    assert(good == 1 && made == CORE_BLOCK_BYTES); /* of one whole block it can not fail */
    (void)good;
}
