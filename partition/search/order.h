/* Private to partition: sorting indices by 64-bit keys. */
#ifndef MILLRACE_PARTITION_SEARCH_ORDER_H
#define MILLRACE_PARTITION_SEARCH_ORDER_H

#include <stddef.h>
#include <stdint.h>

/* Fills order with the numbers 0 .. count-1 by rising key[number], ties by number. key, scratch and
 * scratch_key have count entries each; key is overwritten. */
void partition_order(uint32_t *order, uint64_t *key, size_t count, uint32_t *scratch, uint64_t *scratch_key);

#endif
