/* Private to partition: the greatest key of a changing set of streams.
 *
 * A binary heap that knows where each of its streams is, so that any of them can leave in O(log n). The
 * places of all streams are kept by the caller, in one array for all heaps of which a stream is in at most
 * one. */
#ifndef MILLRACE_PARTITION_ADMISSION_MAX_HEAP_H
#define MILLRACE_PARTITION_ADMISSION_MAX_HEAP_H

#include "core/status.h"

#include <stdint.h>

struct partition_heap_item {
    uint64_t key;
    uint32_t stream;
};

/* Zeroed: empty. */
struct partition_heap {
    struct partition_heap_item *item;
    uint32_t count, capacity;
};

/* Room for one more, so that the next push can not fail. */
CORE_CHECKED core_status partition_heap_reserve(struct partition_heap *heap);
/* `copy` is empty, and gets the same items; the places are the same too. */
CORE_CHECKED core_status partition_heap_copy(const struct partition_heap *heap, struct partition_heap *copy);
void partition_heap_free(struct partition_heap *heap);

/* place: by stream. */
void partition_heap_push(struct partition_heap *heap, uint32_t *place, uint32_t stream, uint64_t key);
void partition_heap_remove(struct partition_heap *heap, uint32_t *place, uint32_t stream);

/* 0 while empty. */
uint64_t partition_heap_greatest(const struct partition_heap *heap);

#endif
