/* Random batches for tests of the kernel, with what OpenSSL says must come out of them.
 *
 * One test_gpu_batch holds a set of streams with random keys of all sizes. Each test_gpu_batch_draw lays out
 * the next batch of some of them: packets scattered over the arenas with gaps between, segments in any
 * order, jobs without blocks, jobs with an IV of their own, segments under the key beside their job's. Afterwards `expected` is what the whole output
 * arena must hold once the batch has run, gaps included, and `expected_chains` what the chain slots must. */
#ifndef MILLRACE_TESTS_GPU_BATCH_H
#define MILLRACE_TESTS_GPU_BATCH_H

#include "gpu/batch_layout.h"
#include "tests/support/random.h"

struct test_gpu_stream {
    uint8_t key[32];
    uint32_t key_bytes;
    uint32_t chain_from;
};

struct test_gpu_batch {
    struct gpu_batch batch; /* host addresses; output starts as all TEST_GPU_UNTOUCHED */
    struct gpu_chain *expected_chains;
    uint8_t *expected; /* batch.arena_bytes of it */
    struct test_gpu_stream *streams;
    uint32_t stream_count;
    struct test_random random;

    uint8_t *input; /* the same memory as in batch, to be written */
    struct gpu_segment *segments;
    struct gpu_job *jobs;
    struct gpu_key *keys;
};
#define TEST_GPU_UNTOUCHED 0xa5

/* Stream s has key slot s and chain slot streams - 1 - s; those of 2 n and 2 n + 1 are of one cipher. */
struct test_gpu_batch *test_gpu_batch_new(uint32_t streams, uint64_t seed);
void test_gpu_batch_free(struct test_gpu_batch *test);

/* The next batch: `jobs` (at most the number of streams) of up to blocks_most blocks each, sorted. */
void test_gpu_batch_draw(struct test_gpu_batch *test, uint32_t jobs, uint32_t blocks_most);

/* Fails the running test where output or chains are not what is expected. */
void test_gpu_batch_require(const struct test_gpu_batch *test);

#endif
