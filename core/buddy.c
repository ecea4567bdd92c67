#include "core/buddy.h"

#include <stdbool.h>
#include <stdlib.h>

core_status core_buddy_init(struct core_buddy *buddy, uint32_t orders)
{
    buddy->orders = orders;
    buddy->longest = malloc((size_t)2 << orders);
    if (buddy->longest == NULL)
        return CORE_NO_MEMORY;
    for (uint32_t depth = 0; depth <= orders; depth++)
        for (size_t node = (size_t)1 << depth; node < (size_t)2 << depth; node++)
            buddy->longest[node] = (uint8_t)(orders - depth + 1);
    return CORE_OK;
}

void core_buddy_free(struct core_buddy *buddy)
{
    free(buddy->longest);
    buddy->longest = NULL;
}

/* The node's children, which are of this order, have changed, and so do those above it. */
static void update_above(struct core_buddy *buddy, size_t node, uint32_t order)
{
    for (; node > 1; node /= 2, order++) {
        uint8_t left = buddy->longest[node & ~(size_t)1], right = buddy->longest[node | 1];
        bool whole = left == order + 1 && right == order + 1;
        buddy->longest[node / 2] = whole ? (uint8_t)(order + 2) : left > right ? left : right;
    }
}

size_t core_buddy_take(struct core_buddy *buddy, uint32_t order)
{
    size_t node = 1;
    if (order > buddy->orders || buddy->longest[1] <= order)
        return CORE_BUDDY_NONE;
    for (uint32_t at = buddy->orders; at > order; at--)
        node = 2 * node + (buddy->longest[2 * node] <= order);
    buddy->longest[node] = 0;
    update_above(buddy, node, order);
    return (node << order) - ((size_t)1 << buddy->orders);
}

void core_buddy_give(struct core_buddy *buddy, size_t place, uint32_t order)
{
    size_t node = (place + ((size_t)1 << buddy->orders)) >> order;
    buddy->longest[node] = (uint8_t)(order + 1);
    update_above(buddy, node, order);
}
