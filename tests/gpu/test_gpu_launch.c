/* The kernels on a CUDA device against OpenSSL, and what they take of it. Skipped without a device, or where
 * the CUDA backend is not built. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define SKIPPED 77

#ifdef MILLRACE_HAS_CUDA
#include <cuda_runtime_api.h>

#include "gpu/kernel.h"
#include "tests/support/gpu_batch.h"
#include "tests/support/require.h"

#define CUDA(call)   TEST_REQUIRE((call) == cudaSuccess)
#define STREAMS      1000
#define BLOCKS_SHORT 20
#ifndef BLOCKS_MAX
#define BLOCKS_MAX 2000 /* of a job */
#define SET_UP()   0
#endif

static uint32_t blocks_max = BLOCKS_MAX;

static void *to_device(const void *from, size_t bytes)
{
    void *memory = NULL;
    CUDA(cudaMalloc(&memory, bytes + 1)); /* a table without entries is one too */
    CUDA(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice));
    return memory;
}

/* Runs the drawn batch with the slots that are on the device, `times` times, and brings back what it left. */
static void run(enum gpu_kernel_form form, struct test_gpu_batch *test, struct gpu_key *keys,
                struct gpu_chain *chains, int64_t times)
{
    struct gpu_batch *host = &test->batch, device = *host;
    uint8_t *input = to_device(host->input, host->arena_bytes);
    struct gpu_segment *segments = to_device(host->segments, host->segment_count * sizeof *segments);
    struct gpu_job *jobs = to_device(host->jobs, host->job_count * sizeof *jobs);
    device.input = input;
    device.output = to_device(host->output, host->arena_bytes);
    device.segments = segments;
    device.jobs = jobs;
    device.keys = keys;
    device.chains = chains;
    for (; times > 0; times--)
        CUDA(gpu_kernel_launch(form, &device, NULL));
    CUDA(cudaMemcpy(host->output, device.output, host->arena_bytes, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(host->chains, chains, STREAMS * sizeof *chains, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(input));
    CUDA(cudaFree(segments));
    CUDA(cudaFree(jobs));
    CUDA(cudaFree(device.output));
}

static void test_random_batches(void **state)
{
    (void)state;
    for (unsigned form = 0; form < GPU_KERNEL_FORMS; form++) {
        struct test_gpu_batch *test = test_gpu_batch_new(STREAMS, 1 + form);
        struct gpu_key *keys = to_device(test->keys, STREAMS * sizeof *keys);
        struct gpu_chain *chains = to_device(test->batch.chains, STREAMS * sizeof *chains);
        for (int round = 0; round < 20; round++) {
            test_gpu_batch_draw(test, (uint32_t)test_random_log(&test->random, 1, STREAMS), blocks_max);
            run((enum gpu_kernel_form)form, test, keys, chains, test_random_in(&test->random, 1, 3));
            test_gpu_batch_require(test);
        }
        CUDA(cudaFree(keys));
        CUDA(cudaFree(chains));
        test_gpu_batch_free(test);
    }
}

/* Blocks of 32 to 256 threads, as far as there are streams for that on this device. */
static void test_every_size_of_block(void **state)
{
    (void)state;
    for (unsigned form = 0; form < GPU_KERNEL_FORMS; form++) {
        struct gpu_kernel_figures figures;
        CUDA(gpu_kernel_figures((enum gpu_kernel_form)form, &figures));
        const uint32_t warp_jobs = 32 / gpu_kernel_job_threads((enum gpu_kernel_form)form);
        struct test_gpu_batch *test = test_gpu_batch_new(STREAMS, 3 + form);
        struct gpu_key *keys = to_device(test->keys, STREAMS * sizeof *keys);
        struct gpu_chain *chains = to_device(test->batch.chains, STREAMS * sizeof *chains);
        for (uint32_t warps = 1; warps <= 8 && warps * warp_jobs * figures.sms <= STREAMS; warps++) {
            test_gpu_batch_draw(test, warps * warp_jobs * figures.sms, 4);
            run((enum gpu_kernel_form)form, test, keys, chains, 1);
            test_gpu_batch_require(test);
        }
        CUDA(cudaFree(keys));
        CUDA(cudaFree(chains));
        test_gpu_batch_free(test);
    }
}

static void test_no_jobs(void **state)
{
    (void)state;
    const struct gpu_batch batch = {.job_count = 0};
    CUDA(gpu_kernel_launch(GPU_KERNEL_WHOLE, &batch, NULL));
    CUDA(cudaDeviceSynchronize());
}

static void test_figures(void **state)
{
    (void)state;
    for (unsigned form = 0; form < GPU_KERNEL_FORMS; form++) {
        struct gpu_kernel_figures figures;
        CUDA(gpu_kernel_figures((enum gpu_kernel_form)form, &figures));
        print_message("%s: %u registers, %u bytes shared, %u jobs on each of %u SMs\n",
                      gpu_kernel_form_name((enum gpu_kernel_form)form), figures.registers,
                      figures.shared_bytes, figures.jobs_per_sm, figures.sms);
        assert_int_equal(figures.local_bytes, 0);
        assert_true(figures.jobs_per_sm >= figures.jobs_per_block && figures.sms > 0);
    }
}

static int devices(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

/* --short: jobs of few blocks, for tools that make a kernel hundreds of times slower. Else they are long. */
int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_batches),
        cmocka_unit_test(test_every_size_of_block),
        cmocka_unit_test(test_no_jobs),
        cmocka_unit_test(test_figures),
    };
    if (count > 1 && strcmp(arguments[1], "--short") == 0)
        blocks_max = BLOCKS_SHORT;
    if (SET_UP() != 0 || devices() == 0) {
        print_message("no CUDA device here\n");
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    print_message("built without CUDA\n");
    return SKIPPED;
}
#endif
