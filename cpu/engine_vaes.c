/* CBC over 16 streams side by side with 256-bit vector AES (VAES, AVX2): 8 registers of two blocks each hide
 * the latency of a round. IPsec-MB 1.3 has no such code below AVX-512, and everywhere its cost per piece is
 * twice as high, which is what short packets feel. Key schedules are IPsec-MB's own, one definition of the
 * state for both.
 *
 * List scheduling: a lane that ends its piece takes the next one, and works on scratch memory when there is
 * none. While pieces are encrypted, the ones that follow them are asked for, line by line at the same pace:
 * that is what makes thousands of cold streams run at the speed of the cipher. */
#include "cpu/engine.h"

#include "core/secret.h"
#include "cpu/short_pieces.h"

#include <cpuid.h>
#include <immintrin.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LANES          16
#define PAIRS          (LANES / 2)
#define ROUND_KEYS_MAX 15
#define KEPT_MAX       3
#define UNROLL         _Pragma("GCC unroll 16")
#define LINE_BYTES     64
#define SCRATCH_BYTES  1024
#define LONG_BYTES     4096 /* mean of a burst from which on the loop outweighs the rest */
#define RUN_BYTES_MAX  2048 /* what is asked for ahead; inside longer pieces the processor does so itself */

/* Round keys and chains lie as the registers want them: lane 2i and 2i+1 in one vector. */
struct cpu_engine {
    alignas(64) uint8_t round_keys[ROUND_KEYS_MAX][LANES][CORE_BLOCK_BYTES];
    uint8_t chains[LANES][CORE_BLOCK_BYTES];
    const uint8_t *sources[LANES];
    uint8_t *targets[LANES];
    uintptr_t ahead[LANES]; /* payload of the piece after, to be asked for at the same pace */
    uint32_t left_bytes[LANES];
    struct cpu_piece *pieces[LANES]; /* NULL: on scratch memory */
    struct cpu_engine *ipsec_mb;     /* for key expansion, and long pieces if wide */
    bool wide;                       /* IPsec-MB runs 16 lanes: 512-bit VAES */
    alignas(64) uint8_t scratch[SCRATCH_BYTES];
};

/* What is left to do in one call. */
struct queue {
    struct cpu_piece *pieces;
    uint32_t next, count, done;
    int rounds;
};

/* Encrypts the next `bytes` of every lane. `rounds` and `kept` are constants wherever this is inlined, so
 * that all inner loops are unrolled: `kept` first round keys of every lane stay in registers, as many as the
 * target has. */
static inline __attribute__((always_inline, target("avx2,vaes"))) void
lanes_run_with(struct cpu_engine *engine, size_t bytes, int rounds, int kept)
{
    const __m256i(*keys)[PAIRS] = (const __m256i(*)[PAIRS])engine->round_keys;
    __m256i *chains = (__m256i *)engine->chains;
    __m256i block[PAIRS], kept_keys[KEPT_MAX][PAIRS];
    UNROLL for (int i = 0; i < PAIRS; i++)
    {
        block[i] = chains[i];
        UNROLL for (int round = 0; round < kept; round++) kept_keys[round][i] = keys[round][i];
    }
    for (size_t at = 0; at < bytes; at += CORE_BLOCK_BYTES) {
        UNROLL for (int i = 0; i < PAIRS; i++)
        {
            __m128i low = _mm_loadu_si128((const __m128i *)(engine->sources[2 * i] + at));
            __m128i high = _mm_loadu_si128((const __m128i *)(engine->sources[2 * i + 1] + at));
            __m256i plain = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
            __m256i key = kept > 0 ? kept_keys[0][i] : keys[0][i];
            block[i] = _mm256_xor_si256(block[i], _mm256_xor_si256(plain, key));
        }
        /* 4 lines a block: the next line of all 16 payloads every 64 bytes */
        const uintptr_t *ahead = &engine->ahead[at / CORE_BLOCK_BYTES % 4 * 4];
        size_t line = at & ~(size_t)(LINE_BYTES - 1);
        UNROLL for (int i = 0; i < 4; i++) __builtin_prefetch((const void *)(ahead[i] + line), 1);
        UNROLL for (int round = 1; round < rounds; round++)
        {
            UNROLL for (int i = 0; i < PAIRS; i++)
            {
                __m256i key = round < kept ? kept_keys[round][i] : keys[round][i];
                block[i] = _mm256_aesenc_epi128(block[i], key);
            }
        }
        UNROLL for (int i = 0; i < PAIRS; i++)
        {
            block[i] = _mm256_aesenclast_epi128(block[i], keys[rounds][i]);
            __m128i low = _mm256_castsi256_si128(block[i]);
            _mm_storeu_si128((__m128i *)(engine->targets[2 * i] + at), low);
            _mm_storeu_si128((__m128i *)(engine->targets[2 * i + 1] + at),
                             _mm256_extracti128_si256(block[i], 1));
        }
    }
    UNROLL for (int i = 0; i < PAIRS; i++) chains[i] = block[i];
}

/* One function for each number of rounds: with 16 registers, and with the 32 of AVX-512VL. */
#define DEFINE_LANES_RUN(name, instructions, rounds, kept)                                                   \
    __attribute__((target(instructions))) static void name(struct cpu_engine *engine, size_t bytes)          \
    {                                                                                                        \
        lanes_run_with(engine, bytes, rounds, kept);                                                         \
    }
DEFINE_LANES_RUN(lanes_run_10, "avx2,vaes", 10, 0)
DEFINE_LANES_RUN(lanes_run_12, "avx2,vaes", 12, 0)
DEFINE_LANES_RUN(lanes_run_14, "avx2,vaes", 14, 0)
DEFINE_LANES_RUN(lanes_run_10_wide, "avx2,vaes,avx512vl", 10, KEPT_MAX)
DEFINE_LANES_RUN(lanes_run_12_wide, "avx2,vaes,avx512vl", 12, KEPT_MAX)
DEFINE_LANES_RUN(lanes_run_14_wide, "avx2,vaes,avx512vl", 14, KEPT_MAX)

typedef void lanes_run(struct cpu_engine *engine, size_t bytes);

static const struct {
    int rounds;
    lanes_run *run, *run_wide;
} ciphers[] = {[CORE_CIPHER_AES_128_CBC] = {10, lanes_run_10, lanes_run_10_wide},
               [CORE_CIPHER_AES_192_CBC] = {12, lanes_run_12, lanes_run_12_wide},
               [CORE_CIPHER_AES_256_CBC] = {14, lanes_run_14, lanes_run_14_wide}};

/* Asks for the key schedule (AES-128 has 3 lines of it, the others 4) and the first payload line of a piece
 * that will start soon. */
static inline __attribute__((always_inline)) void piece_prefetch(const struct cpu_piece *piece, int rounds)
{
    const uint8_t *key = piece->key;
    __builtin_prefetch(key);
    __builtin_prefetch(key + LINE_BYTES);
    __builtin_prefetch(key + 2 * LINE_BYTES);
    if (rounds > 10)
        __builtin_prefetch(key + 3 * LINE_BYTES);
    __builtin_prefetch(piece->source, 1);
}

static inline void lane_start(struct cpu_engine *engine, uint32_t lane, struct queue *queue)
{
    struct cpu_piece *piece = &queue->pieces[queue->next++];
    const uint8_t(*key)[CORE_BLOCK_BYTES] = piece->key;
    engine->pieces[lane] = piece;
    engine->ahead[lane] = (uintptr_t)engine->scratch;
    if (queue->next + LANES - 1 < queue->count) {
        struct cpu_piece *after = &queue->pieces[queue->next + LANES - 1];
        piece_prefetch(after, queue->rounds);
        engine->ahead[lane] = (uintptr_t)after->source;
    }
    engine->sources[lane] = piece->source;
    engine->targets[lane] = piece->target;
    engine->left_bytes[lane] = piece->bytes;
    memcpy(engine->chains[lane], piece->chain, CORE_BLOCK_BYTES);
#pragma GCC unroll 11
    for (int round = 0; round <= 10; round++)
        memcpy(engine->round_keys[round][lane], key[round], CORE_BLOCK_BYTES);
    for (int round = 11; round <= queue->rounds; round++)
        memcpy(engine->round_keys[round][lane], key[round], CORE_BLOCK_BYTES);
}

static void lane_idle(struct cpu_engine *engine, uint32_t lane)
{
    engine->pieces[lane] = NULL;
    engine->ahead[lane] = (uintptr_t)engine->scratch;
    engine->sources[lane] = engine->scratch;
    engine->targets[lane] = engine->scratch;
    engine->left_bytes[lane] = SCRATCH_BYTES;
}

/* Gives every lane that has nothing left its next piece. */
static struct queue lanes_refill(struct cpu_engine *engine, struct queue queue)
{
    for (uint32_t lane = 0; lane < LANES; lane++) {
        if (engine->left_bytes[lane] != 0)
            continue;
        if (engine->pieces[lane] != NULL) {
            memcpy(engine->pieces[lane]->chain, engine->chains[lane], CORE_BLOCK_BYTES);
            queue.done++;
        }
        if (queue.next < queue.count)
            lane_start(engine, lane, &queue);
        else
            lane_idle(engine, lane);
    }
    return queue;
}

/* Moves all lanes on as far as the shortest goes. */
static void lanes_advance(struct cpu_engine *engine, lanes_run *run)
{
    uint32_t bytes = RUN_BYTES_MAX;
    for (uint32_t lane = 0; lane < LANES; lane++)
        bytes = engine->left_bytes[lane] < bytes ? engine->left_bytes[lane] : bytes;
    run(engine, bytes);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        engine->left_bytes[lane] -= bytes;
        engine->sources[lane] += bytes;
        engine->targets[lane] += bytes;
        engine->ahead[lane] = (uintptr_t)engine->scratch;
    }
}

/* What a burst is like, to choose its code by. */
struct shape {
    uint64_t bytes;
    uint32_t longest_bytes;
};

static struct shape burst_shape(const struct cpu_piece *pieces, uint32_t count)
{
    struct shape shape = {0};
    for (uint32_t i = 0; i < count; i++) {
        shape.bytes += pieces[i].bytes;
        shape.longest_bytes = pieces[i].bytes > shape.longest_bytes ? pieces[i].bytes : shape.longest_bytes;
    }
    return shape;
}

static core_status vaes_encrypt(struct cpu_engine *engine, enum core_cipher cipher, struct cpu_piece *pieces,
                                uint32_t count)
{
    struct shape shape = burst_shape(pieces, count);
    if (shape.longest_bytes <= SHORT_PIECE_BYTES) {
        short_pieces_encrypt(pieces, count, ciphers[cipher].rounds);
        return CORE_OK;
    }
    if (engine->wide && shape.bytes >= (uint64_t)count * LONG_BYTES)
        return cpu_engine_ipsec_mb.encrypt(engine->ipsec_mb, cipher, pieces, count);
    struct queue queue = {.pieces = pieces, .count = count, .rounds = ciphers[cipher].rounds};
    lanes_run *run = engine->wide ? ciphers[cipher].run_wide : ciphers[cipher].run;
    for (uint32_t i = 0; i < LANES && i < count; i++)
        piece_prefetch(&pieces[i], queue.rounds);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        engine->pieces[lane] = NULL;
        engine->left_bytes[lane] = 0;
    }
    queue = lanes_refill(engine, queue);
    while (queue.done < count) {
        lanes_advance(engine, run);
        queue = lanes_refill(engine, queue);
    }
    return CORE_OK;
}

/* Compilers know the name of AVX2, whose test asks the system too, but not all know that of VAES. */
static bool processor_has_vaes(void)
{
    unsigned eax, ebx, ecx, edx;
    return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 &&
           (ecx & bit_VAES) != 0;
}

static core_status vaes_open(struct cpu_engine **engine, struct core_error *error)
{
    __builtin_cpu_init();
    if (!processor_has_vaes()) {
        return core_error_set(error, CORE_UNSUPPORTED,
                              "this processor has no VAES: use engine ipsec-mb or openssl");
    }
    struct cpu_engine *opened = aligned_alloc(64, sizeof *opened);
    if (opened == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a VAES engine");
    memset(opened, 0, sizeof *opened);
    core_status status = cpu_engine_ipsec_mb.open(&opened->ipsec_mb, error);
    if (status != CORE_OK) {
        free(opened);
        return status;
    }
    opened->wide = cpu_engine_ipsec_mb.lanes(opened->ipsec_mb) == LANES;
    *engine = opened;
    return CORE_OK;
}

static void vaes_close(struct cpu_engine *engine)
{
    cpu_engine_ipsec_mb.close(engine->ipsec_mb);
    core_secret_wipe(engine, sizeof *engine); /* the lanes hold round keys */
    free(engine);
}

static uint32_t vaes_lanes(const struct cpu_engine *engine)
{
    (void)engine;
    return LANES;
}

static core_status vaes_key_set(struct cpu_engine *engine, void *key_state, enum core_cipher cipher,
                                enum core_direction direction, const uint8_t *key)
{
    return cpu_engine_ipsec_mb.key_set(engine->ipsec_mb, key_state, cipher, direction, key);
}

/* The blocks of a piece do not wait for each other, so that there are lanes enough in each. */
static core_status vaes_decrypt(struct cpu_engine *engine, enum core_cipher cipher, struct cpu_piece *pieces,
                                uint32_t count)
{
    return cpu_engine_ipsec_mb.decrypt(engine->ipsec_mb, cipher, pieces, count);
}

static void vaes_key_wipe(void *key_state)
{
    cpu_engine_ipsec_mb.key_wipe(key_state);
}

const struct cpu_engine_ops cpu_engine_vaes = {
    .name = "vaes",
    .key_state_bytes = ROUND_KEYS_MAX * CORE_BLOCK_BYTES,
    .open = vaes_open,
    .close = vaes_close,
    .lanes = vaes_lanes,
    .key_set = vaes_key_set,
    .key_wipe = vaes_key_wipe,
    .encrypt = vaes_encrypt,
    .decrypt = vaes_decrypt,
};
