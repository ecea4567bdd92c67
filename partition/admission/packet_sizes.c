#include "partition/admission/packet_sizes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define WORD_BITS 64

core_status partition_sizes_reserve(struct partition_sizes *sizes)
{
    if (sizes->streams == NULL)
        sizes->streams = calloc(PARTITION_SIZES_BLOCKS_MAX + 1, sizeof *sizes->streams);
    return sizes->streams != NULL ? CORE_OK : CORE_NO_MEMORY;
}

core_status partition_sizes_copy(const struct partition_sizes *sizes, struct partition_sizes *copy)
{
    if (sizes->streams == NULL)
        return CORE_OK;
    if (partition_sizes_reserve(copy) != CORE_OK)
        return CORE_NO_MEMORY;
    memcpy(copy->streams, sizes->streams, (PARTITION_SIZES_BLOCKS_MAX + 1) * sizeof *copy->streams);
    memcpy(copy->present, sizes->present, sizeof copy->present);
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
    for (uint32_t word = 0; word <= PARTITION_SIZES_BLOCKS_MAX / WORD_BITS; word++) {
        for (uint64_t left = sizes->present[word]; left != 0; left &= left - 1) {
            divisor = common_divisor(divisor, word * WORD_BITS + (uint32_t)__builtin_ctzll(left));
            if (divisor == 1)
                return 1;
        }
    }
    return divisor;
}

void partition_sizes_add(struct partition_sizes *sizes, uint32_t bytes)
{
    uint32_t blocks = bytes / CORE_BLOCK_BYTES;
    assert(blocks >= 1 && blocks <= PARTITION_SIZES_BLOCKS_MAX);
    if (sizes->streams[blocks]++ > 0)
        return;
    sizes->present[blocks / WORD_BITS] |= UINT64_C(1) << blocks % WORD_BITS;
    sizes->divisor = common_divisor(sizes->divisor, blocks);
}

void partition_sizes_remove(struct partition_sizes *sizes, uint32_t bytes)
{
    uint32_t blocks = bytes / CORE_BLOCK_BYTES;
    assert(sizes->streams[blocks] > 0);
    if (--sizes->streams[blocks] > 0)
        return;
    sizes->present[blocks / WORD_BITS] &= ~(UINT64_C(1) << blocks % WORD_BITS);
    sizes->divisor = divisor_of(sizes);
}

uint32_t partition_sizes_divisor_bytes(const struct partition_sizes *sizes)
{
    return sizes->divisor * CORE_BLOCK_BYTES;
}
