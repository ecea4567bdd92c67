#include "partition/admission/max_heap.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

core_status partition_heap_reserve(struct partition_heap *heap)
{
    if (heap->count < heap->capacity)
        return CORE_OK;
    uint32_t capacity = heap->capacity < 16 ? 16 : 2 * heap->capacity;
    struct partition_heap_item *item = realloc(heap->item, capacity * sizeof *item);
    if (item == NULL)
        return CORE_NO_MEMORY;
    heap->item = item;
    heap->capacity = capacity;
    return CORE_OK;
}

core_status partition_heap_copy(const struct partition_heap *heap, struct partition_heap *copy)
{
    if (heap->count == 0)
        return CORE_OK;
    copy->item = malloc(heap->capacity * sizeof *copy->item);
    if (copy->item == NULL)
        return CORE_NO_MEMORY;
    memcpy(copy->item, heap->item, heap->count * sizeof *copy->item);
    copy->count = heap->count;
    copy->capacity = heap->capacity;
    return CORE_OK;
}

void partition_heap_free(struct partition_heap *heap)
{
    free(heap->item);
    *heap = (struct partition_heap){0};
}

static void put(struct partition_heap *heap, uint32_t *place, uint32_t at, struct partition_heap_item item)
{
    heap->item[at] = item;
    place[item.stream] = at;
}

/* Moves the hole at `at` towards the root until the item may stay in it. */
static void rise(struct partition_heap *heap, uint32_t *place, uint32_t at, struct partition_heap_item item)
{
    while (at > 0 && heap->item[(at - 1) / 2].key < item.key) {
        put(heap, place, at, heap->item[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(heap, place, at, item);
}

static void sink(struct partition_heap *heap, uint32_t *place, uint32_t at, struct partition_heap_item item)
{
    uint32_t below;
    while ((below = 2 * at + 1) < heap->count) {
        if (below + 1 < heap->count && heap->item[below + 1].key > heap->item[below].key)
            below++;
        if (heap->item[below].key <= item.key)
            break;
        put(heap, place, at, heap->item[below]);
        at = below;
    }
    put(heap, place, at, item);
}

void partition_heap_push(struct partition_heap *heap, uint32_t *place, uint32_t stream, uint64_t key)
{
    assert(heap->count < heap->capacity);
    heap->count++;
    rise(heap, place, heap->count - 1, (struct partition_heap_item){.key = key, .stream = stream});
}

void partition_heap_remove(struct partition_heap *heap, uint32_t *place, uint32_t stream)
{
    uint32_t at = place[stream];
    assert(at < heap->count && heap->item[at].stream == stream);
    struct partition_heap_item last = heap->item[--heap->count];
    if (at == heap->count)
        return;
    if (at > 0 && heap->item[(at - 1) / 2].key < last.key)
        rise(heap, place, at, last);
    else
        sink(heap, place, at, last);
}

uint64_t partition_heap_greatest(const struct partition_heap *heap)
{
    return heap->count > 0 ? heap->item[0].key : 0;
}
