#include "inputgen/replay_map.h"

#include <stdlib.h>

core_status inputgen_map_init(struct inputgen_map *map, size_t capacity)
{
    size_t slots = 16;
    while (slots < 2 * capacity)
        slots *= 2;
    map->slots = calloc(slots, sizeof *map->slots);
    map->mask = (uint32_t)(slots - 1);
    return map->slots ? CORE_OK : CORE_NO_MEMORY;
}

void inputgen_map_free(struct inputgen_map *map)
{
    free(map->slots);
    *map = (struct inputgen_map){0};
}

/* Where the key belongs: Fibonacci hashing spreads runs of ids and strides. */
static uint32_t home_of(const struct inputgen_map *map, uint32_t key)
{
    uint32_t at = key * UINT32_C(0x9E3779B1);
    return (at ^ at >> 15) & map->mask;
}

/* The key's slot, or the free one behind its home. */
static struct inputgen_map_slot *slot_of(const struct inputgen_map *map, uint32_t key)
{
    uint32_t at = home_of(map, key);
    while (map->slots[at & map->mask].item && map->slots[at & map->mask].key != key)
        at++;
    return &map->slots[at & map->mask];
}

void inputgen_map_put(struct inputgen_map *map, uint32_t key, void *item)
{
    *slot_of(map, key) = (struct inputgen_map_slot){item, key};
}

void *inputgen_map_get(const struct inputgen_map *map, uint32_t key)
{
    return map->slots ? slot_of(map, key)->item : NULL;
}

void *inputgen_map_remove(struct inputgen_map *map, uint32_t key)
{
    struct inputgen_map_slot *hole = map->slots ? slot_of(map, key) : NULL;
    void *item = hole ? hole->item : NULL;
    if (!item)
        return NULL;
    /* Whoever stands behind the hole because its home was taken moves up, so that a search finds it. */
    uint32_t at = (uint32_t)(hole - map->slots);
    for (uint32_t next = (at + 1) & map->mask; map->slots[next].item; next = (next + 1) & map->mask) {
        uint32_t home = home_of(map, map->slots[next].key);
        if (((next - home) & map->mask) < ((next - at) & map->mask))
            continue;
        map->slots[at] = map->slots[next];
        at = next;
    }
    map->slots[at] = (struct inputgen_map_slot){0};
    return item;
}
