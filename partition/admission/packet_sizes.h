/* Private to partition: which padded packet sizes a changing set of streams has, and their greatest common
 * divisor (perfmodel/flow.h: unit_bytes). A stream more costs a division or two; one less only where it was
 * the last of its size a walk over the sizes, which ends where their divisor is a single block. */
#ifndef MILLRACE_PARTITION_ADMISSION_PACKET_SIZES_H
#define MILLRACE_PARTITION_ADMISSION_PACKET_SIZES_H

#include "core/stream.h"

/* Blocks of a packet (core_stream_packet_bytes): up to CORE_PACKET_BYTES_MAX, one of padding and an IV. */
#define PARTITION_SIZES_BLOCKS_MAX (CORE_PACKET_BYTES_MAX / CORE_BLOCK_BYTES + 2)

/* Zeroed: no streams. */
struct partition_sizes {
    uint32_t *streams; /* by blocks; NULL until reserved */
    uint64_t present[PARTITION_SIZES_BLOCKS_MAX / 64 + 1];
    uint32_t divisor; /* in blocks; 0 without streams */
};

CORE_CHECKED core_status partition_sizes_reserve(struct partition_sizes *sizes);
CORE_CHECKED core_status partition_sizes_copy(const struct partition_sizes *sizes,
                                              struct partition_sizes *copy);
void partition_sizes_free(struct partition_sizes *sizes);

/* Of padded packets of so many bytes. */
void partition_sizes_add(struct partition_sizes *sizes, uint32_t bytes);
void partition_sizes_remove(struct partition_sizes *sizes, uint32_t bytes);

/* 0 without streams. */
uint32_t partition_sizes_divisor_bytes(const struct partition_sizes *sizes);

#endif
