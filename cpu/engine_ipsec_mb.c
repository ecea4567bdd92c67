#include "cpu/engine.h"

#include "core/secret.h"

#include <intel-ipsec-mb.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(CPU_BURST_MAX <= IMB_MAX_BURST_SIZE, "a burst must fit one call");

#define ROUND_KEYS_MAX         15 /* AES-256 */
#define AES_128_SCHEDULE_BYTES (11 * CORE_BLOCK_BYTES)
#define LINE_BYTES             64

/* The half of the schedule for its direction; AES-128 uses the first 176 bytes. */
struct key_state {
    alignas(16) uint8_t round_keys[ROUND_KEYS_MAX][CORE_BLOCK_BYTES];
};

struct cpu_engine {
    IMB_MGR *manager;
    size_t manager_bytes;
    uint32_t lanes;
    IMB_JOB jobs[CPU_BURST_MAX]; /* what never changes is set once, in jobs_prepare */
};

static const IMB_KEY_SIZE_BYTES key_sizes[] = {[CORE_CIPHER_AES_128_CBC] = IMB_KEY_128_BYTES,
                                               [CORE_CIPHER_AES_192_CBC] = IMB_KEY_192_BYTES,
                                               [CORE_CIPHER_AES_256_CBC] = IMB_KEY_256_BYTES};

/* The unchecked burst reads source, target, IV, key and length of a job, nothing else; the rest is set so
 * that a job is also valid for the library's checks. */
static void jobs_prepare(struct cpu_engine *engine)
{
    for (uint32_t i = 0; i < CPU_BURST_MAX; i++) {
        engine->jobs[i] = (IMB_JOB){.cipher_mode = IMB_CIPHER_CBC,
                                    .cipher_direction = IMB_DIR_ENCRYPT,
                                    .hash_alg = IMB_AUTH_NULL,
                                    .chain_order = IMB_ORDER_CIPHER_HASH,
                                    .iv_len_in_bytes = CORE_BLOCK_BYTES};
    }
}

/* Streams that the chosen code encrypts side by side: 16 with VAES on 512-bit registers, else 8 with AVX and
 * SSE alike (4 register pairs hide the latency of one round). */
static uint32_t manager_lanes(const IMB_MGR *manager)
{
    bool wide = manager->used_arch == IMB_ARCH_AVX512 && (manager->features & IMB_FEATURE_VAES) != 0;
    return wide ? 16 : 8;
}

/* Also empties the manager's lanes, so it is what to do after a call that failed half-way. */
static bool manager_init(IMB_MGR *manager)
{
    IMB_ARCH arch = IMB_ARCH_NONE;
    init_mb_mgr_auto(manager, &arch);
    return arch >= IMB_ARCH_SSE && imb_get_errno(manager) == 0;
}

static void ipsec_close(struct cpu_engine *engine)
{
    core_secret_wipe(engine->manager, engine->manager_bytes); /* lanes hold copies of round keys */
    free(engine->manager);
    free(engine);
}

static core_status ipsec_open(struct cpu_engine **engine, struct core_error *error)
{
    struct cpu_engine *opened = aligned_alloc(64, (sizeof *opened + 63) & ~(size_t)63);
    size_t bytes = (imb_get_mb_mgr_size() + 63) & ~(size_t)63;
    void *memory = aligned_alloc(64, bytes);
    if (opened == NULL || memory == NULL) {
        free(memory);
        free(opened);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for an IPsec-MB manager (%zu bytes)", bytes);
    }
    memset(opened, 0, sizeof *opened);
    memset(memory, 0, bytes);
    opened->manager = imb_set_pointers_mb_mgr(memory, 0, 1);
    opened->manager_bytes = bytes;
    if (!manager_init(opened->manager)) {
        ipsec_close(opened);
        return core_error_set(error, CORE_UNSUPPORTED,
                              "IPsec-MB finds no AES instructions on this processor: use engine openssl");
    }
    opened->lanes = manager_lanes(opened->manager);
    jobs_prepare(opened);
    *engine = opened;
    return CORE_OK;
}

static uint32_t ipsec_lanes(const struct cpu_engine *engine)
{
    return engine->lanes;
}

static core_status ipsec_key_set(struct cpu_engine *engine, void *key_state, enum core_cipher cipher,
                                 enum core_direction direction, const uint8_t *key)
{
    struct key_state unused; /* the library insists on both schedules */
    void *encryption = direction == CORE_DIRECTION_ENCRYPT ? key_state : &unused;
    void *decryption = direction == CORE_DIRECTION_ENCRYPT ? &unused : key_state;
    switch (cipher) {
    case CORE_CIPHER_AES_128_CBC:
        IMB_AES_KEYEXP_128(engine->manager, key, encryption, decryption);
        break;
    case CORE_CIPHER_AES_192_CBC:
        IMB_AES_KEYEXP_192(engine->manager, key, encryption, decryption);
        break;
    case CORE_CIPHER_AES_256_CBC:
        IMB_AES_KEYEXP_256(engine->manager, key, encryption, decryption);
        break;
    default:
        return CORE_INVALID;
    }
    core_secret_wipe(&unused, sizeof unused);
    return CORE_OK;
}

static void ipsec_key_wipe(void *key_state)
{
    core_secret_wipe(key_state, sizeof(struct key_state));
}

static void jobs_set(struct cpu_engine *engine, struct cpu_piece *pieces, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        IMB_JOB *job = &engine->jobs[i];
        const uint8_t *key = pieces[i].key;
        for (uint32_t at = 0; at < AES_128_SCHEDULE_BYTES; at += LINE_BYTES)
            __builtin_prefetch(key + at); /* the library would wait for each in turn */
        __builtin_prefetch(pieces[i].source, 1);
        job->src = pieces[i].source;
        job->dst = pieces[i].target;
        job->msg_len_to_cipher_in_bytes = pieces[i].bytes;
        job->iv = pieces[i].chain;
        job->enc_keys = pieces[i].key;
        job->status = IMB_STATUS_BEING_PROCESSED;
    }
}

static core_status jobs_run(struct cpu_engine *engine, enum core_cipher cipher,
                            IMB_CIPHER_DIRECTION direction, uint32_t count)
{
    uint32_t done = IMB_SUBMIT_CIPHER_BURST_NOCHECK(engine->manager, engine->jobs, count, IMB_CIPHER_CBC,
                                                    direction, key_sizes[cipher]);
    bool all = done == count;
    for (uint32_t i = 0; i < count; i++)
        all &= engine->jobs[i].status == IMB_STATUS_COMPLETED;
    if (all)
        return CORE_OK;
    (void)manager_init(engine->manager);
    return CORE_SYSTEM;
}

static core_status ipsec_encrypt(struct cpu_engine *engine, enum core_cipher cipher, struct cpu_piece *pieces,
                                 uint32_t count)
{
    jobs_set(engine, pieces, count);
    const core_status status = jobs_run(engine, cipher, IMB_DIR_ENCRYPT, count);
    if (status != CORE_OK)
        return status;
    /* The library leaves the IV as it was: the next one is the last block of ciphertext. */
    for (uint32_t i = 0; i < count; i++)
        memcpy(pieces[i].chain, pieces[i].target + pieces[i].bytes - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
    return CORE_OK;
}

/* The library decrypts one piece after the other, faster than memory brings them: so what comes so many bytes later is
 * asked for, across pieces. */
#define AHEAD_BYTES 4096
#define STEP_BYTES  1024

struct ahead {
    const struct cpu_piece *piece, *end;
    uint32_t offset; /* in it */
};

static void ahead_move(struct ahead *ahead, uint32_t bytes)
{
    while (bytes > 0 && ahead->piece < ahead->end) {
        const uint32_t left = ahead->piece->bytes - ahead->offset, taken = bytes < left ? bytes : left;
        for (uint32_t at = 0; at < taken; at += LINE_BYTES)
            __builtin_prefetch(ahead->piece->source + ahead->offset + at, 1);
        ahead->offset += taken;
        bytes -= taken;
        if (ahead->offset < ahead->piece->bytes)
            continue;
        ahead->offset = 0;
        if (++ahead->piece < ahead->end)
            for (uint32_t at = 0; at < AES_128_SCHEDULE_BYTES; at += LINE_BYTES)
                __builtin_prefetch((const uint8_t *)ahead->piece->key + at);
    }
}

/* In place, what the next step chains from is gone when a step is done. */
static core_status decrypt_piece(struct cpu_engine *engine, enum core_cipher cipher, struct cpu_piece *piece,
                                 struct ahead *ahead)
{
    IMB_JOB *job = &engine->jobs[0];
    uint8_t chain[CORE_BLOCK_BYTES];

    job->dec_keys = piece->key;
    job->iv = piece->chain;
    for (uint32_t done = 0; done < piece->bytes; done += STEP_BYTES) {
        const uint32_t left = piece->bytes - done, bytes = left < STEP_BYTES ? left : STEP_BYTES;
        job->src = piece->source + done;
        job->dst = piece->target + done;
        job->msg_len_to_cipher_in_bytes = bytes;
        job->status = IMB_STATUS_BEING_PROCESSED;
        ahead_move(ahead, bytes);
        memcpy(chain, job->src + bytes - CORE_BLOCK_BYTES, CORE_BLOCK_BYTES);
        const core_status status = jobs_run(engine, cipher, IMB_DIR_DECRYPT, 1);
        if (status != CORE_OK)
            return status;
        memcpy(piece->chain, chain, CORE_BLOCK_BYTES);
    }
    return CORE_OK;
}

static core_status ipsec_decrypt(struct cpu_engine *engine, enum core_cipher cipher, struct cpu_piece *pieces,
                                 uint32_t count)
{
    struct ahead ahead = {.piece = pieces, .end = pieces + count};
    core_status status = CORE_OK;

    ahead_move(&ahead, AHEAD_BYTES);
    for (uint32_t i = 0; status == CORE_OK && i < count; i++)
        status = decrypt_piece(engine, cipher, &pieces[i], &ahead);
    return status;
}

const struct cpu_engine_ops cpu_engine_ipsec_mb = {
    .name = "ipsec-mb",
    .key_state_bytes = sizeof(struct key_state),
    .open = ipsec_open,
    .close = ipsec_close,
    .lanes = ipsec_lanes,
    .key_set = ipsec_key_set,
    .key_wipe = ipsec_key_wipe,
    .encrypt = ipsec_encrypt,
    .decrypt = ipsec_decrypt,
};
