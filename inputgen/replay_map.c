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

/* The key's slot, or the free one where it belongs. */
static struct inputgen_map_slot *slot_of(const struct inputgen_map *map, uint32_t key)
{
    uint32_t at = key * UINT32_C(0x9E3779B1); /* Fibonacci hashing spreads runs of ids and strides */
    at ^= at >> 15;
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
