/* What copies between the host's memory and a card reach, by the kind of the memory's pages, as `millrace-gpu
 * --copies` measures it: the limit beside which one sees how near the copies of batches come. A line of words,
 * then one for each kind:
 *
 *   PAGES \t UP \t DOWN \t UP BESIDE DOWN \t DOWN BESIDE UP (bytes per second) \t PINNING (ns for a MiB)
 *
 * Best of some copies of equal size: what is possible, where a profile has what is usual. */
#ifndef MILLRACE_GPU_COPY_LIMITS_H
#define MILLRACE_GPU_COPY_LIMITS_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* DRIVER: memory that the driver takes and pins itself. SMALL and HUGE: shared memory as that of batches,
 * pinned afterwards, in pages of 4 KiB, and where the system lets shared memory have pages of 2 MiB, asked for
 * those (it may have none free). */
enum gpu_copy_pages { GPU_COPY_DRIVER, GPU_COPY_SMALL, GPU_COPY_HUGE, GPU_COPY_PAGES };

#define GPU_COPY_BYTES_LEAST (UINT64_C(4) << 20)
#define GPU_COPY_BYTES_MOST  (UINT64_C(1) << 30)

struct gpu_copy_limits {
    enum gpu_copy_pages pages;
    int64_t up, down;               /* bytes per second, nothing else being copied; more than 0 */
    int64_t up_beside, down_beside; /* both directions at once */
    int64_t pin_ns;                 /* of a MiB; 0: not known */
};

/* "driver", "small", "huge". */
const char *gpu_copy_pages_name(enum gpu_copy_pages pages);

/* Runs `program --backend BACKEND --device INDEX --copies BYTES`, for 60 s at most: so many bytes are copied at
 * once, GPU_COPY_BYTES_LEAST .. _MOST. *count: of how many kinds; 0: such a card has no limits that could be
 * measured. Errors as of gpu_ask. */
CORE_CHECKED core_status gpu_copy_limits_run(const char *program, const char *backend, uint32_t index,
                                             uint64_t bytes, struct gpu_copy_limits limits[GPU_COPY_PAGES],
                                             uint32_t *count, struct core_error *error);

/* Reads a line, up to its end or that of the text. False: it is not of a kind. Pure. */
bool gpu_copy_limits_parse(const char *line, struct gpu_copy_limits *limits);

/* Writes them all. */
void gpu_copy_limits_print(const struct gpu_copy_limits *limits, uint32_t count, FILE *to);

#endif
