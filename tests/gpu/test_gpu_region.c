/* The shared region: where its areas lie, and what is taken for one. Two processes, and one that writes where
 * it must not, are in test_gpu_arena.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/proc.h"
#include "gpu/region.h"

static void areas_lie_on_pages_and_apart(void **state)
{
    static const struct gpu_region_shape shape = {
        .arenas = 2, .slots = 100, .segments = 300, .arena_bytes = 5008};
    struct gpu_region region;
    (void)state;
    assert_int_equal(gpu_region_create(&region, &shape, NULL, NULL), CORE_OK);
    const uint8_t *at = region.base;
    uint64_t bytes = 4096; /* the header */
    for (uint32_t arena = 0; arena < 2; arena++) {
        const struct {
            const void *at;
            uint64_t bytes;
        } areas[] = {{gpu_region_input(&region, arena), 5008},
                     {gpu_region_output(&region, arena), 5008},
                     {gpu_region_segments(&region, arena), 300 * sizeof(struct gpu_segment)},
                     {gpu_region_jobs(&region, arena), 300 * sizeof(struct gpu_job)}};
        for (size_t i = 0; i < 4; i++) {
            assert_true((const uint8_t *)areas[i].at >= at + bytes);
            at = areas[i].at;
            bytes = areas[i].bytes;
            assert_int_equal((at - region.base) % GPU_REGION_PAGE_BYTES, 0);
        }
    }
    assert_true(at + bytes <= region.base + region.bytes);
    assert_int_equal(gpu_region_bytes(&shape), region.bytes);
    gpu_region_close(&region);
    assert_null(region.base);
    gpu_region_close(&region);
}

/* So many bytes of the region are mapped by huge pages. */
static uint64_t huge_bytes(const struct gpu_region *region)
{
    FILE *maps = fopen("/proc/self/smaps", "re");
    char line[512];
    unsigned long at = 0, kib = 0, first, last;
    uint64_t sum = 0;
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL)
        if (sscanf(line, "%lx-%lx ", &first, &last) == 2)
            at = first;
        else if (sscanf(line, "ShmemPmdMapped: %lu kB", &kib) == 1 && at >= (uintptr_t)region->base &&
                 at < (uintptr_t)region->base + region->bytes)
            sum += (uint64_t)kib * 1024;
    assert_int_equal(fclose(maps), 0);
    return sum;
}

/* In both processes, wherever the system lets shared memory have them. */
static void large_areas_are_in_huge_pages(void **state)
{
    static const struct gpu_region_shape shape = {
        .arenas = 2, .slots = 8, .segments = 8, .arena_bytes = UINT64_C(16) << 20};
    const struct gpu_room less = {.bytes = UINT64_C(5) << 20, .segments = 8}, room = gpu_room_most(&shape);
    struct gpu_region region, child;
    struct stat file;
    char allowed[128] = "";
    (void)state;
    (void)core_proc_read("/sys/kernel/mm/transparent_hugepage/shmem_enabled", allowed, sizeof allowed);
    if (allowed[0] == '\0' || strstr(allowed, "[never]") != NULL || strstr(allowed, "[deny]") != NULL)
        skip();
    assert_int_equal(gpu_region_create(&region, &shape, NULL, NULL), CORE_OK);
    assert_int_equal(gpu_region_attach(&child, region.descriptor, NULL, NULL), CORE_OK);
    assert_true(huge_bytes(&region) > 0);
    assert_true(huge_bytes(&child) > 0);
    assert_int_equal(fstat(region.descriptor, &file), 0); /* and nothing beside what is there to be used */
    assert_int_equal((uint64_t)file.st_blocks * 512, gpu_region_room_bytes(&shape, &room));
    assert_int_equal(gpu_region_resize(&child, &less, NULL), CORE_OK);
    assert_int_equal(gpu_region_resize(&region, &less, NULL), CORE_OK);
    assert_int_equal(fstat(region.descriptor, &file), 0);
    assert_int_equal((uint64_t)file.st_blocks * 512, gpu_region_room_bytes(&shape, &less));
    gpu_region_close(&child);
    gpu_region_close(&region);
}

/* Nothing but a region of the right size is attached. */
static void attaches_regions_only(void **state)
{
    static const uint64_t sizes[] = {0, 16, 4096, 1 << 20};
    static const struct gpu_region_shape shape = {.arenas = 3, .slots = 8, .segments = 6, .arena_bytes = 256};
    struct gpu_region region, broken;
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int descriptor = memfd_create("test", MFD_CLOEXEC);
        assert_true(descriptor >= 0 && ftruncate(descriptor, (off_t)sizes[i]) == 0);
        assert_int_equal(gpu_region_attach(&region, descriptor, NULL, NULL), CORE_MISMATCH);
        close(descriptor);
    }
    assert_int_equal(gpu_region_attach(&region, -1, NULL, NULL), CORE_SYSTEM);
    assert_int_equal(gpu_region_create(&region, &shape, NULL, NULL), CORE_OK);
    for (size_t i = 1; i < 32; i += 4) { /* magic and shape: 4096 more or less in every word */
        if (i / 4 == 3)
            continue; /* slots: no area has one entry for each */
        region.base[i] ^= 0x10;
        assert_int_equal(gpu_region_attach(&broken, region.descriptor, NULL, NULL), CORE_MISMATCH);
        region.base[i] ^= 0x10;
    }
    assert_int_equal(gpu_region_attach(&broken, region.descriptor, NULL, NULL), CORE_OK);
    assert_ptr_not_equal(broken.base, region.base);
    assert_memory_equal(&broken.shape, &region.shape, sizeof region.shape);
    gpu_region_close(&broken);
    gpu_region_close(&region);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(areas_lie_on_pages_and_apart),
        cmocka_unit_test(large_areas_are_in_huge_pages),
        cmocka_unit_test(attaches_regions_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
