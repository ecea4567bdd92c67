#include "gpu/reserve.h"

#include <stdbool.h>
#include <sys/mman.h>

#define WITHOUT_MEMORY (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

uint8_t *gpu_reserve_create(size_t bytes)
{
    void *addresses = mmap(NULL, bytes, PROT_NONE, WITHOUT_MEMORY, -1, 0);
    return addresses != MAP_FAILED ? addresses : NULL;
}

core_status gpu_reserve_open(uint8_t *at, size_t bytes)
{
    const bool there =
        mprotect(at, bytes, PROT_READ | PROT_WRITE) == 0 && madvise(at, bytes, MADV_POPULATE_WRITE) == 0;
    return there ? CORE_OK : CORE_SYSTEM;
}

void gpu_reserve_shut(uint8_t *at, size_t bytes)
{
    (void)mmap(at, bytes, PROT_NONE, WITHOUT_MEMORY | MAP_FIXED, -1, 0);
}
