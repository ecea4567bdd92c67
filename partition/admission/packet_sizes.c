#include "partition/admission/packet_sizes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define WORD_BITS 64
#define WORDS     (PARTITION_SIZES_BLOCKS_MAX / WORD_BITS + 1)

core_status partition_sizes_reserve(struct partition_sizes *sizes)
{
    if (sizes->streams == NULL)
        sizes->streams = malloc((PARTITION_SIZES_BLOCKS_MAX + 1) * sizeof *sizes->streams);
    return sizes->streams != NULL ? CORE_OK : CORE_NO_MEMORY;
}

core_status partition_sizes_copy(const struct partition_sizes *sizes, struct partition_sizes *copy)
{
    if (sizes->streams == NULL)
        return CORE_OK;
    if (partition_sizes_reserve(copy) != CORE_OK)
        return CORE_NO_MEMORY;
    memcpy(copy->present, sizes->present, sizeof copy->present);
    for (uint32_t word = 0; word < WORDS; word++)
        for (uint64_t left = sizes->present[word]; left != 0; left &= left - 1) {
            const uint32_t blocks = word * WORD_BITS + (uint32_t)__builtin_ctzll(left);
            copy->streams[blocks] = sizes->streams[blocks];
        }
    copy->divisor = sizes->divisor;
    return CORE_OK;
}

void partition_sizes_free(struct partition_sizes *sizes)
{
    free(sizes->streams);
    *sizes = (struct partition_sizes){0};
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    while (b != 0) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static uint32_t divisor_of(const struct partition_sizes *sizes)
{
    uint32_t divisor = 0;
    for (uint32_t word = 0; word < WORDS; word++) {
        for (uint64_t left = sizes->present[word]; left != 0; left &= left - 1) {
            divisor = common_divisor(divisor, word * WORD_BITS + (uint32_t)__builtin_ctzll(left));
            if (divisor == 1)
                return 1;
        }
    }
    return divisor;
}

static uint64_t bit_of(uint32_t blocks)
{
    return UINT64_C(1) << blocks % WORD_BITS;
}

void partition_sizes_add(struct partition_sizes *sizes, uint32_t bytes)
{
    uint32_t blocks = bytes / CORE_BLOCK_BYTES;
    assert(blocks >= 1 && blocks <= PARTITION_SIZES_BLOCKS_MAX);
    if ((sizes->present[blocks / WORD_BITS] & bit_of(blocks)) != 0) {
        sizes->streams[blocks]++;
        return;
    }
    sizes->streams[blocks] = 1;
    sizes->present[blocks / WORD_BITS] |= bit_of(blocks);
    sizes->divisor = common_divisor(sizes->divisor, blocks);
}

void partition_sizes_remove(struct partition_sizes *sizes, uint32_t bytes)
{
    uint32_t blocks = bytes / CORE_BLOCK_BYTES;
    assert((sizes->present[blocks / WORD_BITS] & bit_of(blocks)) != 0);
    if (--sizes->streams[blocks] > 0)
        return;
    sizes->present[blocks / WORD_BITS] &= ~bit_of(blocks);
    sizes->divisor = divisor_of(sizes);
}

uint32_t partition_sizes_divisor_bytes(const struct partition_sizes *sizes)
{
    return sizes->divisor * CORE_BLOCK_BYTES;
}
