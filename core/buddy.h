/* A buddy allocator of places, 2^orders of them in a row: runs of 2^order places, each at a multiple of its
 * length. Knuth, The Art of Computer Programming, volume 1, section 2.5. It touches nothing but its own
 * table, so that what lies at the places can be memory of any kind.
 *
 * Taking and giving back take `orders` steps. One thread at a time. */
#ifndef MILLRACE_CORE_BUDDY_H
#define MILLRACE_CORE_BUDDY_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

struct core_buddy {
    uint32_t orders;
    uint8_t *longest; /* of each node of the tree, from 1: order of the longest free run below it, plus 1; 0:
                         none */
};

/* All places are free. orders: at most 40. CORE_NO_MEMORY. */
CORE_CHECKED core_status core_buddy_init(struct core_buddy *buddy, uint32_t orders);
void core_buddy_free(struct core_buddy *buddy);

#define CORE_BUDDY_NONE SIZE_MAX

/* The first place of a run of 2^order, or CORE_BUDDY_NONE. */
size_t core_buddy_take(struct core_buddy *buddy, uint32_t order);

/* The run that was taken with this order and begins there. */
void core_buddy_give(struct core_buddy *buddy, size_t place, uint32_t order);

#endif
