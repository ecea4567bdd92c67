/* Addresses of which the first part has memory, as much as batches need just now: memory that is there can be
 * touched without a page fault, and the rest can not be touched. Everything is in whole pages
 * (GPU_REGION_PAGE_BYTES). */
#ifndef MILLRACE_GPU_RESERVE_H
#define MILLRACE_GPU_RESERVE_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* Addresses without memory, for munmap; NULL, with errno: there are none. */
uint8_t *gpu_reserve_create(size_t bytes);

/* Zeros. CORE_SYSTEM, with errno: there is no memory, or for a part alone. */
CORE_CHECKED core_status gpu_reserve_open(uint8_t *at, size_t bytes);

/* Addresses again, without memory. What can not be taken back stays, and is found there. */
void gpu_reserve_shut(uint8_t *at, size_t bytes);

#endif
