/* For tests that are linked with --wrap=gpu_arena_release: a writer's part of a batch's plaintext is gone with
 * its release, as where the next batch is quick. */
#include <string.h>

#include "gpu/arena.h"

core_status __real_gpu_arena_release(struct gpu_arenas *arenas, uint32_t holder, uint64_t batch);
core_status __wrap_gpu_arena_release(struct gpu_arenas *arenas, uint32_t holder, uint64_t batch);

core_status __wrap_gpu_arena_release(struct gpu_arenas *arenas, uint32_t holder, uint64_t batch)
{
    const struct gpu_region *region = gpu_arenas_region(arenas);
    uint8_t *input = gpu_region_input(region, (uint32_t)(batch % region->shape.arenas));
    struct gpu_record_list list = {0};

    if (holder != GPU_ARENA_BATCHER)
        list = gpu_arena_records(arenas, holder, batch);
    for (const struct gpu_record *record; (record = gpu_record_next(&list)) != NULL;)
        memset(input + record->offset_bytes, 0x5a, record->bytes);
    return __real_gpu_arena_release(arenas, holder, batch);
}
