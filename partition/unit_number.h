/* How units are numbered, everywhere: with W workers, 0 .. W-1 are workers and W + g is GPU g. (In a server
 * with GPUs the number behind the last GPU is the best-effort fallback worker, server/server_internal.h.) */
#ifndef MILLRACE_PARTITION_UNIT_NUMBER_H
#define MILLRACE_PARTITION_UNIT_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

static inline bool partition_unit_is_gpu(uint32_t workers, uint32_t unit)
{
    return unit >= workers;
}

static inline uint32_t partition_unit_of_gpu(uint32_t workers, uint32_t gpu)
{
    return workers + gpu;
}

static inline uint32_t partition_unit_gpu(uint32_t workers, uint32_t unit)
{
    return unit - workers;
}

#endif
