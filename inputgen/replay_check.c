#include "inputgen/replay_check.h"

#include "core/transport_stream.h"

#include <openssl/evp.h>
#include <string.h>

core_status inputgen_checker_init(struct inputgen_checker *checker, const struct inputgen_source *source,
                                  const uint8_t *key, const uint8_t iv[CORE_BLOCK_BYTES])
{
    *checker = (struct inputgen_checker){.source = source, .context = EVP_CIPHER_CTX_new()};
    memcpy(checker->iv, iv, CORE_BLOCK_BYTES);
    if (!checker->context)
        return CORE_NO_MEMORY;
    EVP_CIPHER *method = EVP_CIPHER_fetch(NULL, core_cipher_name(source->spec.cipher), NULL);
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

/* ---- the chain ---- */

static void chain_set(struct inputgen_checker *checker, const uint8_t iv[CORE_BLOCK_BYTES])
{
    (void)EVP_DecryptInit_ex2(checker->context, NULL, NULL, iv, NULL);
    checker->lost = false;
}

/* Where a message begins: with the IV that it must have. False: there is none, or one that must not be. */
static bool chain_begin(struct inputgen_checker *checker, const struct inputgen_check_result *result,
                        const uint8_t *sent)
{
    const struct core_stream_spec *spec = &checker->source->spec;
    const bool needs_iv = spec->iv == CORE_IV_RANDOM && result->part.first;
    uint8_t counter[CORE_BLOCK_BYTES] = {0};

    if (needs_iv != (result->iv != NULL))
        return false;
    if (!result->part.first)
        return true;
    checker->pattern_blocks = 0;
    switch (spec->iv) {
    case CORE_IV_CHAIN:
        break;
    case CORE_IV_CONSTANT:
        chain_set(checker, checker->iv);
        break;
    case CORE_IV_COUNTER:
        for (int byte = 0; byte < 8; byte++)
            counter[15 - byte] = (uint8_t)((spec->first_unit + result->part.message) >> 8 * byte);
        chain_set(checker, counter);
        break;
    case CORE_IV_EXPLICIT:
        chain_set(checker, sent);
        break;
    case CORE_IV_RANDOM:
        chain_set(checker, result->iv);
        break;
    }
    return true;
}

/* ---- a packet ---- */

/* A packet while it is checked. */
struct trial {
    struct inputgen_checker *checker;
    uint8_t *bytes; /* ciphertext, which becomes what was encrypted */
    uint32_t count;
    uint32_t unknown; /* where the one block is that can not be told; count: there is none */
    bool failed;
};

/* Whole blocks, in place. */
static void blocks_decrypt(struct trial *trial, uint32_t from, uint32_t bytes)
{
    int done = 0;

    if (bytes == 0)
        return;
    if (trial->checker->lost)
        trial->unknown = from;
    trial->checker->lost = false;
    trial->failed |= EVP_DecryptUpdate(trial->checker->context, trial->bytes + from, &done,
                                       trial->bytes + from, (int)bytes) != 1 ||
                     (uint32_t)done != bytes;
}

/* The blocks at the pattern's turn; the chain goes from one to the next. */
static void pattern_decrypt(struct trial *trial)
{
    const struct core_stream_spec *spec = &trial->checker->source->spec;
    const uint32_t cycle = spec->crypt_blocks + spec->skip_blocks;

    for (uint32_t from = 0; from + CORE_BLOCK_BYTES <= trial->count; from += CORE_BLOCK_BYTES)
        if (trial->checker->pattern_blocks++ % cycle < spec->crypt_blocks)
            blocks_decrypt(trial, from, CORE_BLOCK_BYTES);
}

/* ISO/IEC 13818-1, 2.4.3.2: a payload is behind four bytes, and behind the adaptation field if there is one. */
static void record_decrypt(struct trial *trial, uint32_t from)
{
    const uint8_t *record = trial->bytes + from;
    const bool scrambled = record[3] >> 7 != 0, field = (record[3] & 0x20) != 0, payload = record[3] & 0x10;
    const uint32_t head = field ? 5u + record[4] : 4;

    if (!scrambled || !payload || head >= CORE_TS_BYTES)
        return;
    chain_set(trial->checker, trial->checker->iv);
    blocks_decrypt(trial, from + head, (CORE_TS_BYTES - head) / CORE_BLOCK_BYTES * CORE_BLOCK_BYTES);
}

static void trial_decrypt(struct trial *trial)
{
    const struct core_stream_spec *spec = &trial->checker->source->spec;

    if (spec->records == CORE_RECORDS_TS)
        for (uint32_t from = 0; from + CORE_TS_BYTES <= trial->count; from += CORE_TS_BYTES)
            record_decrypt(trial, from);
    else if (spec->crypt_blocks > 0)
        pattern_decrypt(trial);
    else
        blocks_decrypt(trial, 0, trial->count / CORE_BLOCK_BYTES * CORE_BLOCK_BYTES);
}

static bool trial_equals(const struct trial *trial, const uint8_t *expected)
{
    const uint32_t behind = trial->unknown + CORE_BLOCK_BYTES;

    return !trial->failed && memcmp(trial->bytes, expected, trial->unknown) == 0 &&
           (behind >= trial->count ||
            memcmp(trial->bytes + behind, expected + behind, trial->count - behind) == 0);
}

/* Of a ciphertext of a wrong length only the last block matters, to whatever follows it. */
static void chain_on(struct inputgen_checker *checker, const struct inputgen_check_result *result)
{
    uint8_t ignored[CORE_BLOCK_BYTES * 2];
    int done = 0;

    if (result->count >= CORE_BLOCK_BYTES && result->count % CORE_BLOCK_BYTES == 0)
        checker->lost =
            EVP_DecryptUpdate(checker->context, ignored, &done,
                              result->bytes + result->count - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES) != 1;
}

/* RFC 5652, section 6.3: n bytes of value n, up to the next multiple of 16; `count` of them are. */
static uint32_t pad(uint8_t *plain, uint32_t count)
{
    const uint32_t padding = CORE_BLOCK_BYTES - count % CORE_BLOCK_BYTES;

    memset(plain + count, (int)padding, padding);
    return count + padding;
}

static bool content_right(struct inputgen_checker *checker, const struct inputgen_payload *payload,
                          const struct inputgen_check_result *result, uint8_t *scratch)
{
    const struct core_stream_spec *spec = &checker->source->spec;
    const bool decrypts = spec->direction == CORE_DIRECTION_DECRYPT;
    const uint32_t iv_bytes = result->part.iv_bytes;
    uint8_t *sent = scratch, *content = sent + iv_bytes;
    struct trial trial = {.checker = checker, .bytes = scratch + result->part.bytes + CORE_BLOCK_BYTES};

    inputgen_payload_fill(payload, checker->source, &result->part, sent);
    if (!chain_begin(checker, result, sent))
        return false;
    trial.count = trial.unknown = result->part.bytes - iv_bytes;
    if (spec->padding == CORE_PADDING_PKCS7 && result->part.last)
        trial.count = trial.unknown = pad(content, trial.count);
    const bool whole = result->count == trial.count;
    if (!whole && !decrypts) {
        chain_on(checker, result);
        return false;
    }
    memcpy(trial.bytes, decrypts ? content : result->bytes, trial.count);
    trial_decrypt(&trial);
    return whole && trial_equals(&trial, decrypts ? result->bytes : content);
}

/* Behind a gap: where in its message's pattern the packet begins. */
static void pattern_find(struct inputgen_checker *checker, const struct inputgen_payload *payload,
                         const struct inputgen_part *part)
{
    checker->pattern_blocks = 0;
    for (uint64_t n = part->message * checker->source->message_packets; n < part->number; n++) {
        const struct inputgen_part before = inputgen_payload_part(payload, checker->source, n);
        checker->pattern_blocks += (before.bytes - before.iv_bytes) / CORE_BLOCK_BYTES;
    }
}

struct inputgen_check_verdict inputgen_checker_take(struct inputgen_checker *checker,
                                                    const struct inputgen_payload *payload,
                                                    const struct inputgen_check_result *result,
                                                    uint8_t *scratch)
{
    struct inputgen_check_verdict verdict = {.in_order = result->part.number == checker->next, .right = true};

    checker->next = result->part.number + 1;
    if (!verdict.in_order) {
        checker->lost = true;
        if (checker->source->spec.crypt_blocks > 0)
            pattern_find(checker, payload, &result->part);
    }
    if (result->bytes)
        verdict.right = content_right(checker, payload, result, scratch);
    return verdict;
}
