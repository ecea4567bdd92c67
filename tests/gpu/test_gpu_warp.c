/* The lines of the kernel that only a device compiles, run without one: 32 threads are a warp's lanes, a
 * barrier makes their exchanges one step, and every look-up in shared memory must be in the lane's own bank.
 * What nvcc makes of them only a card can show. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/require.h"

#define LANES 32

/* CUDA's names, for the kernel's headers. */
#define GPU_WARP_EMULATED
#define __device__
#define __forceinline__ inline

typedef struct {
    uint32_t x, y, z, w;
} uint4;

static _Thread_local struct {
    uint32_t x;
} threadIdx;

static _Alignas(16) uint32_t shared[256 * LANES];
static uint32_t posted[2][LANES]; /* by turns: a lane may be one exchange ahead of others */
static _Thread_local uint32_t turn;
static pthread_barrier_t step;

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return (uint4){x, y, z, w};
}

static inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector)
{
    const uint64_t both = (uint64_t)high << 32 | low;
    uint32_t result = 0;
    for (uint32_t i = 0; i < 4; i++)
        result |= (uint32_t)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}

static inline const void *__cvta_shared_to_generic(size_t address)
{
    TEST_REQUIRE(address < sizeof shared);
    TEST_REQUIRE(address / sizeof(uint32_t) % LANES == threadIdx.x % LANES);
    return (const char *)shared + address;
}

/* All lanes' values, once all have come. */
static const uint32_t *post(uint32_t mask, uint32_t value)
{
    TEST_REQUIRE(mask == 0xffffffff);
    uint32_t *values = posted[turn++ % 2];
    values[threadIdx.x % LANES] = value;
    pthread_barrier_wait(&step);
    return values;
}

static inline uint32_t __shfl_sync(uint32_t mask, uint32_t value, int source, int width)
{
    const uint32_t lane = threadIdx.x % LANES, group = (uint32_t)width;
    return post(mask, value)[lane / group * group + (uint32_t)source % group];
}

static inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value)
{
    const uint32_t *values = post(mask, value);
    uint32_t most = 0;
    for (uint32_t i = 0; i < LANES; i++)
        most = values[i] > most ? values[i] : most;
    return most;
}

#include "gpu/kernel.h"
#include "gpu/kernel_thread.h"
#include "tests/support/gpu_batch.h"

static struct gpu_aes_view lane_start(uint32_t thread)
{
    threadIdx.x = thread;
    turn = 0;
    return (struct gpu_aes_view){thread % LANES * (uint32_t)sizeof(uint32_t)};
}

/* By the threads of a block, one after another: nothing passes between them. */
static void table_fill(uint32_t threads)
{
    memset(shared, 0, sizeof shared);
    for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++)
        gpu_aes_table_fill((uint4 *)shared, gpu_aes_table, threads);
}

static void test_table(void **state)
{
    (void)state;
    for (uint32_t threads = LANES; threads <= GPU_KERNEL_BLOCK_THREADS_MAX; threads += LANES) {
        table_fill(threads);
        for (uint32_t i = 0; i < GPU_AES_TABLE_ENTRIES * LANES; i++)
            TEST_REQUIRE(shared[i] == gpu_aes_table[i / LANES]);
    }
}

struct lane {
    const struct gpu_batch *batch;
    uint32_t thread; /* of its block */
    uint32_t job;
};

static void *lane_run(void *argument)
{
    const struct lane *lane = argument;
    const struct gpu_aes_view view = lane_start(lane->thread);
    gpu_thread_quad(lane->batch, view, lane->job);
    return NULL;
}

static void warp_run(const struct gpu_batch *batch, uint32_t sms, uint32_t block, uint32_t warp)
{
    const struct gpu_kernel_shape shape = gpu_kernel_shape(GPU_KERNEL_QUAD, batch->job_count, sms);
    pthread_t threads[LANES];
    struct lane lanes[LANES];
    for (uint32_t i = 0; i < LANES; i++) {
        const uint32_t thread = warp * LANES + i;
        lanes[i] =
            (struct lane){batch, thread, gpu_kernel_job(sms, shape.block_threads / 4, block, thread / 4)};
        TEST_REQUIRE(pthread_create(&threads[i], NULL, lane_run, &lanes[i]) == 0);
    }
    for (uint32_t i = 0; i < LANES; i++)
        TEST_REQUIRE(pthread_join(threads[i], NULL) == 0);
}

static void launch_quad(const struct gpu_batch *batch, uint32_t sms)
{
    const struct gpu_kernel_shape shape = gpu_kernel_shape(GPU_KERNEL_QUAD, batch->job_count, sms);
    for (uint32_t block = 0; block < shape.blocks; block++)
        for (uint32_t warp = 0; warp < shape.block_threads / LANES; warp++)
            warp_run(batch, sms, block, warp);
}

/* Jobs of different lengths and key sizes in a warp, some without blocks; most warps have quads to spare. */
static void test_quad(void **state)
{
    (void)state;
    table_fill(LANES);
    TEST_REQUIRE(pthread_barrier_init(&step, NULL, LANES) == 0);
    struct test_gpu_batch *test = test_gpu_batch_new(30, 1);
    for (uint32_t jobs = 1; jobs <= 30; jobs += 7) {
        test_gpu_batch_draw(test, jobs, 12);
        launch_quad(&test->batch, 1 + jobs / 8);
        test_gpu_batch_require(test);
    }
    test_gpu_batch_free(test);
    pthread_barrier_destroy(&step);
}

/* One lane after another: nothing passes between them in this form. */
static void test_whole(void **state)
{
    (void)state;
    table_fill(3 * LANES);
    struct test_gpu_batch *test = test_gpu_batch_new(100, 2);
    for (uint32_t round = 0; round < 10; round++) {
        test_gpu_batch_draw(test, 100, 200);
        for (uint32_t thread = 0; thread < test->batch.job_count; thread++)
            gpu_thread_whole(&test->batch, lane_start(thread), thread);
        test_gpu_batch_require(test);
    }
    test_gpu_batch_free(test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_quad),
        cmocka_unit_test(test_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
