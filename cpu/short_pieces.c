#include "cpu/short_pieces.h"

#include <immintrin.h>

#define SLOTS      8
#define LINE_BYTES 64
#define UNROLL     _Pragma("GCC unroll 16")
#define AES        __attribute__((target("avx2,aes")))

/* Encrypts the next `bytes` of all slots. Two slots may be the same piece: all loads of a block come before
 * its stores, so both do the same. `rounds` is a constant wherever this is inlined. */
AES static inline __attribute__((always_inline)) void slots_run_rounds(const struct cpu_piece slots[SLOTS],
                                                                       size_t bytes, int rounds)
{
    const __m128i *keys[SLOTS];
    __m128i block[SLOTS];
    UNROLL for (int i = 0; i < SLOTS; i++)
    {
        keys[i] = slots[i].key;
        block[i] = _mm_loadu_si128((const __m128i *)slots[i].chain);
    }
    for (size_t at = 0; at < bytes; at += CORE_BLOCK_BYTES) {
        UNROLL for (int i = 0; i < SLOTS; i++)
        {
            __m128i plain = _mm_loadu_si128((const __m128i *)(slots[i].source + at));
            block[i] = _mm_xor_si128(block[i], _mm_xor_si128(plain, keys[i][0]));
        }
        UNROLL for (int round = 1; round < rounds; round++)
        {
            UNROLL for (int i = 0; i < SLOTS; i++) block[i] = _mm_aesenc_si128(block[i], keys[i][round]);
        }
        UNROLL for (int i = 0; i < SLOTS; i++)
        {
            block[i] = _mm_aesenclast_si128(block[i], keys[i][rounds]);
            _mm_storeu_si128((__m128i *)(slots[i].target + at), block[i]);
        }
    }
    UNROLL for (int i = 0; i < SLOTS; i++) _mm_storeu_si128((__m128i *)slots[i].chain, block[i]);
}

AES static void slots_run(const struct cpu_piece slots[SLOTS], size_t bytes, int rounds)
{
    switch (rounds) {
    case 10:
        slots_run_rounds(slots, bytes, 10);
        break;
    case 12:
        slots_run_rounds(slots, bytes, 12);
        break;
    default:
        slots_run_rounds(slots, bytes, 14);
        break;
    }
}

/* Moves the slots on and drops those that ended; returns how many are left, in front. */
static uint32_t slots_advance(struct cpu_piece slots[SLOTS], uint32_t held, uint32_t bytes)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < held; i++) {
        if (slots[i].bytes > bytes) {
            slots[left] = slots[i];
            slots[left].source += bytes;
            slots[left].target += bytes;
            slots[left].bytes -= bytes;
            left++;
        }
    }
    return left;
}

static inline __attribute__((always_inline)) void piece_prefetch(const struct cpu_piece *piece)
{
    const uint8_t *key = piece->key;
    __builtin_prefetch(key);
    __builtin_prefetch(key + LINE_BYTES);
    __builtin_prefetch(key + 2 * LINE_BYTES);
    __builtin_prefetch(piece->source, 1);
}

void short_pieces_encrypt(const struct cpu_piece *pieces, uint32_t count, int rounds)
{
    struct cpu_piece slots[SLOTS];
    uint32_t held = 0;
    for (uint32_t next = 0; next < count || held > 0;) {
        uint32_t bytes = SHORT_PIECE_BYTES;
        for (; held < SLOTS && next < count; next++) {
            slots[held++] = pieces[next];
            if (next + 2 * SLOTS < count)
                piece_prefetch(&pieces[next + 2 * SLOTS]);
        }
        for (uint32_t i = 0; i < held; i++)
            bytes = slots[i].bytes < bytes ? slots[i].bytes : bytes;
        for (uint32_t i = held; i < SLOTS; i++)
            slots[i] = slots[0];
        slots_run(slots, bytes, rounds);
        held = slots_advance(slots, held, bytes);
    }
}
