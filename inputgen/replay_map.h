/* From the numbers of the wire (stream ids, request ids) to the objects they stand for: an open-addressing
 * table of fixed size, at most half full. One thread at a time. */
#ifndef MILLRACE_INPUTGEN_REPLAY_MAP_H
#define MILLRACE_INPUTGEN_REPLAY_MAP_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

struct inputgen_map_slot {
    void *item; /* NULL: free */
    uint32_t key;
};

struct inputgen_map {
    struct inputgen_map_slot *slots;
    uint32_t mask;
};

CORE_CHECKED core_status inputgen_map_init(struct inputgen_map *map, size_t capacity);
void inputgen_map_free(struct inputgen_map *map);

/* At most `capacity` items; putting a key that is there replaces its item. item must not be NULL. */
void inputgen_map_put(struct inputgen_map *map, uint32_t key, void *item);
void *inputgen_map_get(const struct inputgen_map *map, uint32_t key); /* NULL: not there */
void *inputgen_map_remove(struct inputgen_map *map, uint32_t key);    /* what was there, or NULL */

#endif
