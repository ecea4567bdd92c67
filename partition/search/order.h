/* Private to partition: sorting indices by 64-bit keys. */
#ifndef MILLRACE_PARTITION_SEARCH_ORDER_H
#define MILLRACE_PARTITION_SEARCH_ORDER_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* order becomes the numbers 0 .. count-1 by rising key[number], ties by number. key and scratch_key have room
 * for count, and so has scratch; keys are destroyed. */
void partition_order(uint32_t *order, uint64_t *key, size_t count, uint32_t *scratch, uint64_t *scratch_key);

#endif
