/* AES (FIPS-197) encryption of one block, for a GPU's threads and for the host: the same lines in C, C++ and
 * CUDA. Two forms. Whole: one thread holds the block's four columns. Quad: four threads hold one column each
 * and exchange bytes once a round; where there are no such threads (on the host) one caller holds all four
 * and the exchange moves them about, so that the host runs the quad's very lines too.
 *
 * Columns are little-endian words: byte i of a column is bits 8i .. 8i + 7.
 *
 * Side channels. On a CUDA device the table lies in shared memory once per lane, each copy in that lane's own
 * bank: a look-up takes the same time whatever the byte is and whatever the neighbours look up, there is no
 * cache on its way, and no branch depends on data or key bits. Only the lengths and the key sizes show in a
 * kernel's time. Round keys are in registers while a kernel runs and in device memory from opening to end
 * (whoever may read this process's device memory may read them); power and radiation are not considered. On
 * the host, encryption here looks up a 1 KiB table at secret indices, which the CPU's caches give away to
 * other processes of the machine, and leaves round keys on the stack: the emulated device is for tests and
 * demonstrations. Key expansion touches the whole table for every byte and gives nothing away. */
#ifndef MILLRACE_GPU_AES_H
#define MILLRACE_GPU_AES_H

#include "core/status.h"
#include "gpu/aes_table.h"
#include "gpu/batch_layout.h"

#include <string.h>

#ifdef __CUDACC__
#define GPU_ON_DEVICE
#endif

#if defined(__CUDACC__) || defined(__clang__)
#define GPU_UNROLL _Pragma("unroll")
#else
#define GPU_UNROLL _Pragma("GCC unroll 16")
#endif

#ifdef GPU_ON_DEVICE
#define GPU_FUNCTION          static __device__ __forceinline__
#define GPU_AES_COPIES        32 /* of the table, interleaved: one for each bank of shared memory */
#define GPU_AES_ENTRY_BYTES   (4 * GPU_AES_COPIES)
#define GPU_AES_ENTRY_VECTORS (GPU_AES_COPIES / 4) /* of 16 bytes */
#define GPU_AES_TABLE_VECTORS (GPU_AES_TABLE_ENTRIES * GPU_AES_ENTRY_VECTORS)
#define GPU_COLUMNS_HELD      1 /* of a quad's four, by one thread */
#else
#define GPU_FUNCTION     static inline
#define GPU_COLUMNS_HELD 4
#endif

#define GPU_WARP_LANES     32
#define GPU_ROUNDS_MAX     14
#define GPU_AES_128_ROUNDS 10
#define GPU_AES_192_ROUNDS 12

#ifdef __cplusplus
extern "C" {
#endif

/* The host's table, for the functions below. */
extern const uint32_t gpu_aes_table[GPU_AES_TABLE_ENTRIES];

/* Fills a key slot from a key of 16, 24 or 32 bytes; CORE_INVALID for any other length. */
CORE_CHECKED core_status gpu_key_expand(struct gpu_key *slot, const uint8_t *key, uint32_t key_bytes);

#ifdef __cplusplus
}
#endif

/* The table as one lane sees it. Passed by value: it lives in registers. */
struct gpu_aes_view {
#ifdef GPU_ON_DEVICE
    uint32_t address; /* in shared memory, of the lane's own copy of entry 0 */
#else
    const uint32_t *table;
#endif
};

/* The entry of one byte of a column. On a device it takes one permutation (the byte alone), one multiply-add
 * (its address) and the load; written as an index into an array it takes twice that. */
GPU_FUNCTION uint32_t gpu_aes_look_up(struct gpu_aes_view view, uint32_t column, uint32_t byte)
{
#ifdef GPU_ON_DEVICE
    const uint32_t entry = __byte_perm(column, 0, 0x4440 + byte);
    return *(const uint32_t *)__cvta_shared_to_generic(view.address + entry * GPU_AES_ENTRY_BYTES);
#else
    return view.table[column >> 8 * byte & 0xff];
#endif
}

GPU_FUNCTION uint32_t gpu_rotate_bytes(uint32_t column, uint32_t bytes) /* bytes 1 .. 3, towards the top */
{
#ifdef GPU_ON_DEVICE
    return __byte_perm(column, 0, bytes == 1 ? 0x2103 : bytes == 2 ? 0x1032 : 0x0321);
#else
    return column << 8 * bytes | column >> (32 - 8 * bytes);
#endif
}

/* One column of SubBytes, ShiftRows and MixColumns: byte i comes from column s_i. */
GPU_FUNCTION uint32_t gpu_aes_mix(struct gpu_aes_view view, uint32_t s0, uint32_t s1, uint32_t s2,
                                  uint32_t s3)
{
    return gpu_aes_look_up(view, s0, 0) ^ gpu_rotate_bytes(gpu_aes_look_up(view, s1, 1), 1) ^
           gpu_rotate_bytes(gpu_aes_look_up(view, s2, 2), 2) ^
           gpu_rotate_bytes(gpu_aes_look_up(view, s3, 3), 3);
}

/* The same without MixColumns, for the last round: the S-box is the second and the third byte of an entry. */
GPU_FUNCTION uint32_t gpu_aes_substitute(struct gpu_aes_view view, uint32_t s0, uint32_t s1, uint32_t s2,
                                         uint32_t s3)
{
    return (gpu_aes_look_up(view, s0, 0) >> 8 & 0xff) | (gpu_aes_look_up(view, s1, 1) & 0xff00) |
           (gpu_aes_look_up(view, s2, 2) & 0xff0000) | (gpu_aes_look_up(view, s3, 3) << 8 & 0xff000000);
}

/* The whole form. */

struct gpu_block {
    uint32_t column[4];
};

struct gpu_block_key {
    struct gpu_block round[GPU_ROUNDS_MAX];
    struct gpu_block last;
    uint32_t rounds;
};

GPU_FUNCTION struct gpu_block gpu_block_load(const void *bytes) /* at a multiple of 16 */
{
    struct gpu_block block;
#ifdef GPU_ON_DEVICE
    const uint4 words = *(const uint4 *)bytes;
    block.column[0] = words.x;
    block.column[1] = words.y;
    block.column[2] = words.z;
    block.column[3] = words.w;
#else
    memcpy(&block, bytes, sizeof block);
#endif
    return block;
}

GPU_FUNCTION void gpu_block_store(void *bytes, struct gpu_block block)
{
#ifdef GPU_ON_DEVICE
    *(uint4 *)bytes = make_uint4(block.column[0], block.column[1], block.column[2], block.column[3]);
#else
    memcpy(bytes, &block, sizeof block);
#endif
}

#ifdef GPU_ON_DEVICE
/* Fills the table of a block of `threads` threads (multiple of 32), which all call it: entry a, 32 times, is
 * row a across the 32 banks. entries: at a multiple of 16.
 *
 * A load brings four entries, so 64 threads need one each, and a block of 32 threads two. A thread stores a
 * row beginning at its lane's place, so that the lanes of a store are in banks of their own. */
GPU_FUNCTION void gpu_aes_table_fill(uint4 *table, const uint32_t *entries, uint32_t threads)
{
    for (uint32_t first = 4 * threadIdx.x; first < GPU_AES_TABLE_ENTRIES; first += 4 * threads) {
        const struct gpu_block four = gpu_block_load(entries + first);
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            uint4 *row = table + (first + i) * GPU_AES_ENTRY_VECTORS;
            const uint32_t entry = four.column[i];
            GPU_UNROLL
            for (uint32_t j = 0; j < GPU_AES_ENTRY_VECTORS; j++)
                row[(threadIdx.x + j) % GPU_AES_ENTRY_VECTORS] = make_uint4(entry, entry, entry, entry);
        }
    }
}
#endif

GPU_FUNCTION void gpu_block_add(struct gpu_block *block, struct gpu_block other)
{
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        block->column[i] ^= other.column[i];
}

GPU_FUNCTION void gpu_block_key_load(struct gpu_block_key *key, const struct gpu_key *slot)
{
    key->rounds = slot->rounds;
    GPU_UNROLL
    for (int r = 0; r < GPU_ROUNDS_MAX; r++)
        key->round[r] = gpu_block_load(slot->round_words + 4 * r);
    key->last = gpu_block_load(slot->round_words + 4 * key->rounds);
}

GPU_FUNCTION void gpu_block_round(struct gpu_aes_view view, struct gpu_block *block, struct gpu_block key)
{
    const struct gpu_block s = *block;
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        block->column[i] = gpu_aes_mix(view, s.column[i], s.column[(i + 1) % 4], s.column[(i + 2) % 4],
                                       s.column[(i + 3) % 4]);
    }
    gpu_block_add(block, key);
}

GPU_FUNCTION void gpu_block_round_last(struct gpu_aes_view view, struct gpu_block *block,
                                       struct gpu_block key)
{
    const struct gpu_block s = *block;
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        block->column[i] = gpu_aes_substitute(view, s.column[i], s.column[(i + 1) % 4], s.column[(i + 2) % 4],
                                              s.column[(i + 3) % 4]);
    }
    gpu_block_add(block, key);
}

GPU_FUNCTION void gpu_block_encrypt(struct gpu_aes_view view, const struct gpu_block_key *key,
                                    struct gpu_block *block)
{
    gpu_block_add(block, key->round[0]);
    GPU_UNROLL
    for (int r = 1; r < GPU_AES_128_ROUNDS; r++)
        gpu_block_round(view, block, key->round[r]);
    if (key->rounds > GPU_AES_128_ROUNDS) {
        gpu_block_round(view, block, key->round[10]);
        gpu_block_round(view, block, key->round[11]);
    }
    if (key->rounds > GPU_AES_192_ROUNDS) {
        gpu_block_round(view, block, key->round[12]);
        gpu_block_round(view, block, key->round[13]);
    }
    gpu_block_round_last(view, block, key->last);
}

/* The quad form. On a device all lanes of the warp call together, whether they have work or not. */

struct gpu_columns {
    uint32_t held[GPU_COLUMNS_HELD]; /* a device's lane: column lane % 4; the host: columns 0 .. 3 */
};

struct gpu_columns_key {
    struct gpu_columns round[GPU_ROUNDS_MAX];
    struct gpu_columns last;
    uint32_t rounds;
    uint32_t rounds_most; /* over all lanes of the warp */
};

GPU_FUNCTION uint32_t gpu_columns_first(void) /* index of held[0] in its block */
{
#ifdef GPU_ON_DEVICE
    return threadIdx.x % 4;
#else
    return 0;
#endif
}

GPU_FUNCTION uint32_t gpu_warp_most(uint32_t value) /* the largest of all lanes */
{
#ifdef GPU_ON_DEVICE
    return __reduce_max_sync(0xffffffff, value);
#else
    return value;
#endif
}

GPU_FUNCTION struct gpu_columns gpu_columns_load(const void *block_bytes)
{
    struct gpu_columns columns;
#ifdef GPU_ON_DEVICE
    columns.held[0] = ((const uint32_t *)block_bytes)[gpu_columns_first()];
#else
    memcpy(&columns, block_bytes, sizeof columns);
#endif
    return columns;
}

GPU_FUNCTION void gpu_columns_store(void *block_bytes, struct gpu_columns columns)
{
#ifdef GPU_ON_DEVICE
    ((uint32_t *)block_bytes)[gpu_columns_first()] = columns.held[0];
#else
    memcpy(block_bytes, &columns, sizeof columns);
#endif
}

GPU_FUNCTION void gpu_columns_add(struct gpu_columns *columns, struct gpu_columns other)
{
    GPU_UNROLL
    for (int i = 0; i < GPU_COLUMNS_HELD; i++)
        columns->held[i] ^= other.held[i];
}

/* Every column gets that of the neighbour `distance` further on, round the quad. */
GPU_FUNCTION struct gpu_columns gpu_columns_of_neighbours(struct gpu_columns columns, uint32_t distance)
{
    struct gpu_columns neighbours;
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_COLUMNS_HELD; i++) {
#ifdef GPU_ON_DEVICE
        neighbours.held[i] = __shfl_sync(0xffffffff, columns.held[i], (int)(threadIdx.x + distance), 4);
#else
        neighbours.held[i] = columns.held[(i + distance) % 4];
#endif
    }
    return neighbours;
}

GPU_FUNCTION void gpu_columns_key_load(struct gpu_columns_key *key, const struct gpu_key *slot)
{
    key->rounds = slot->rounds;
    GPU_UNROLL
    for (int r = 0; r < GPU_ROUNDS_MAX; r++)
        key->round[r] = gpu_columns_load(slot->round_words + 4 * r);
    key->last = gpu_columns_load(slot->round_words + 4 * key->rounds);
}

/* ShiftRows takes byte b of a column from the column b further on: in three exchanges that wait for nothing.
 * Two would do, byte 3 going one column and then two, but the second would wait for the first. */
GPU_FUNCTION void gpu_columns_round(struct gpu_aes_view view, struct gpu_columns *columns,
                                    struct gpu_columns key)
{
    const struct gpu_columns first = gpu_columns_of_neighbours(*columns, 1);
    const struct gpu_columns second = gpu_columns_of_neighbours(*columns, 2);
    const struct gpu_columns third = gpu_columns_of_neighbours(*columns, 3);
    GPU_UNROLL
    for (int i = 0; i < GPU_COLUMNS_HELD; i++)
        columns->held[i] = gpu_aes_mix(view, columns->held[i], first.held[i], second.held[i], third.held[i]);
    gpu_columns_add(columns, key);
}

GPU_FUNCTION void gpu_columns_round_last(struct gpu_aes_view view, struct gpu_columns *columns,
                                         struct gpu_columns key)
{
    const struct gpu_columns first = gpu_columns_of_neighbours(*columns, 1);
    const struct gpu_columns second = gpu_columns_of_neighbours(*columns, 2);
    const struct gpu_columns third = gpu_columns_of_neighbours(*columns, 3);
    GPU_UNROLL
    for (int i = 0; i < GPU_COLUMNS_HELD; i++)
        columns->held[i] =
            gpu_aes_substitute(view, columns->held[i], first.held[i], second.held[i], third.held[i]);
    gpu_columns_add(columns, key);
}

/* Rounds r and r + 1, if any lane of the warp has them; lanes without throw theirs away. */
GPU_FUNCTION void gpu_columns_rounds_more(struct gpu_aes_view view, const struct gpu_columns_key *key,
                                          struct gpu_columns *columns, uint32_t r)
{
    if (key->rounds_most <= r)
        return;
    struct gpu_columns further = *columns;
    gpu_columns_round(view, &further, key->round[r]);
    gpu_columns_round(view, &further, key->round[r + 1]);
    if (key->rounds > r)
        *columns = further;
}

GPU_FUNCTION void gpu_columns_encrypt(struct gpu_aes_view view, const struct gpu_columns_key *key,
                                      struct gpu_columns *columns)
{
    gpu_columns_add(columns, key->round[0]);
    GPU_UNROLL
    for (int r = 1; r < GPU_AES_128_ROUNDS; r++)
        gpu_columns_round(view, columns, key->round[r]);
    gpu_columns_rounds_more(view, key, columns, GPU_AES_128_ROUNDS);
    gpu_columns_rounds_more(view, key, columns, GPU_AES_192_ROUNDS);
    gpu_columns_round_last(view, columns, key->last);
}

#endif
