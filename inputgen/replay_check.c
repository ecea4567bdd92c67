#include "inputgen/replay_check.h"

#include <openssl/evp.h>

core_status inputgen_checker_init(struct inputgen_checker *checker, enum core_cipher cipher,
                                  enum core_padding padding, const uint8_t *key,
                                  const uint8_t iv[CORE_BLOCK_BYTES])
{
    *checker = (struct inputgen_checker){.padding = padding, .context = EVP_CIPHER_CTX_new()};
    if (!checker->context)
        return CORE_NO_MEMORY;
    EVP_CIPHER *method = EVP_CIPHER_fetch(NULL, core_cipher_name(cipher), NULL);
    int done = method && EVP_DecryptInit_ex2(checker->context, method, key, iv, NULL) == 1 &&
               EVP_CIPHER_CTX_set_padding(checker->context, 0) == 1;
    EVP_CIPHER_free(method); /* the context keeps its own reference */
    if (done)
        return CORE_OK;
    inputgen_checker_free(checker);
    return CORE_UNSUPPORTED;
}

void inputgen_checker_free(struct inputgen_checker *checker)
{
    EVP_CIPHER_CTX_free(checker->context); /* wipes the key schedule */
    checker->context = NULL;
}

/* RFC 5652, section 6.3: n bytes of value n behind `bytes` of content, up to the next multiple of 16. */
static bool padding_right(const uint8_t *plain, uint32_t bytes, uint32_t padded_bytes)
{
    for (uint32_t at = bytes; at < padded_bytes; at++)
        if (plain[at] != padded_bytes - bytes)
            return false;
    return true;
}

/* A ciphertext of a wrong length: only its last block matters, to whatever follows it. */
static void chain_on(struct inputgen_checker *checker, const struct inputgen_check_packet *packet)
{
    uint8_t ignored[CORE_BLOCK_BYTES * 2];
    int bytes = 0;
    if (packet->bytes >= CORE_BLOCK_BYTES && packet->bytes % CORE_BLOCK_BYTES == 0)
        (void)EVP_DecryptUpdate(checker->context, ignored, &bytes,
                                packet->ciphertext + packet->bytes - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
}

static bool content_right(struct inputgen_checker *checker, const struct inputgen_payload *payload,
                          const struct inputgen_check_packet *packet, uint32_t from, uint8_t *scratch)
{
    uint32_t padded_bytes = core_stream_padded_bytes(checker->padding, packet->sent_bytes);
    if (packet->bytes != padded_bytes) {
        chain_on(checker, packet);
        return false;
    }
    int plain_bytes = 0;
    if (EVP_DecryptUpdate(checker->context, scratch, &plain_bytes, packet->ciphertext, (int)packet->bytes) !=
            1 ||
        (uint32_t)plain_bytes != packet->bytes)
        return false;
    if (!inputgen_payload_equal(payload, packet->stream, packet->sequence, scratch, packet->sent_bytes, from))
        return false;
    /* A block of which nothing can be compared after a gap has no padding to compare either. */
    return packet->sent_bytes < from || padding_right(scratch, packet->sent_bytes, padded_bytes);
}

struct inputgen_check_verdict inputgen_checker_take(struct inputgen_checker *checker,
                                                    const struct inputgen_payload *payload,
                                                    const struct inputgen_check_packet *packet,
                                                    uint8_t *scratch)
{
    struct inputgen_check_verdict verdict = {.in_order = packet->sequence == checker->next_sequence,
                                             .right = true};
    checker->next_sequence = packet->sequence + 1;
    if (packet->ciphertext)
        verdict.right =
            content_right(checker, payload, packet, verdict.in_order ? 0 : CORE_BLOCK_BYTES, scratch);
    return verdict;
}
