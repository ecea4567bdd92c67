#include "tests/support/gpu_batch.h"

#include "gpu/aes.h"
#include "tests/support/require.h"

#include <openssl/evp.h>
#include <stdbool.h>
#include <stdlib.h>

#define PACKET_BLOCKS_MAX 96
#define UNITS             3
#define GAP_BLOCKS_MAX    2

static void *allocate(size_t bytes) /* zeroed */
{
    const size_t rounded = (bytes + 63) / 64 * 64 + 64;
    void *memory = aligned_alloc(64, rounded);
    TEST_REQUIRE(memory != NULL);
    memset(memory, 0, rounded);
    return memory;
}

static void fill(struct test_random *random, uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i += sizeof(uint64_t)) {
        const uint64_t drawn = test_random_next(random);
        memcpy(bytes + i, &drawn, count - i < sizeof drawn ? count - i : sizeof drawn);
    }
}

struct test_gpu_batch *test_gpu_batch_new(uint32_t streams, uint64_t seed)
{
    struct test_gpu_batch *test = allocate(sizeof *test);
    test->random.state = seed;
    test->stream_count = streams;
    test->streams = allocate(streams * sizeof test->streams[0]);
    test->keys = allocate(streams * sizeof test->keys[0]);
    test->expected_chains = allocate(streams * sizeof test->expected_chains[0]);
    test->batch.chains = allocate(streams * sizeof test->batch.chains[0]);
    for (uint32_t i = 0; i < streams; i++) {
        struct test_gpu_stream *stream = test->streams + i;
        stream->key_bytes = i % GPU_SLOT_KEYS > 0 ? stream[-1].key_bytes
                                                  : 16 + 8 * (uint32_t)test_random_in(&test->random, 0, 2);
        fill(&test->random, stream->key, stream->key_bytes);
        TEST_REQUIRE(gpu_key_expand(test->keys + i, stream->key, stream->key_bytes) == CORE_OK);
    }
    fill(&test->random, (uint8_t *)test->batch.chains, streams * sizeof test->batch.chains[0]);
    memcpy(test->expected_chains, test->batch.chains, streams * sizeof test->batch.chains[0]);
    test->batch.keys = test->keys;
    test->batch.key_slots = test->batch.chain_slots = streams;
    return test;
}

static void batch_clear(struct test_gpu_batch *test)
{
    free(test->input);
    free(test->batch.output);
    free(test->expected);
    free(test->segments);
    free(test->jobs);
}

void test_gpu_batch_free(struct test_gpu_batch *test)
{
    batch_clear(test);
    free(test->streams);
    free(test->keys);
    free(test->expected_chains);
    free(test->batch.chains);
    free(test);
}

static int longer_first(const void *a, const void *b)
{
    const struct gpu_job *left = a, *right = b;
    return (left->blocks < right->blocks) - (left->blocks > right->blocks);
}

static void draw_jobs(struct test_gpu_batch *test, uint32_t jobs, uint32_t blocks_most)
{
    struct test_random *random = &test->random;
    test->jobs = allocate(jobs * sizeof test->jobs[0]);
    const uint32_t first = (uint32_t)test_random_in(random, 0, test->stream_count - 1);
    for (uint32_t i = 0; i < jobs; i++) {
        struct gpu_job *job = test->jobs + i;
        job->key_slot = (first + i) % test->stream_count;
        job->chain_slot = test->stream_count - 1 - job->key_slot;
        job->first_segment = GPU_SEGMENT_NONE;
        job->blocks = test_random_chance(random, 5) ? 0 : (uint32_t)test_random_log(random, 1, blocks_most);
        job->chain_from = test->streams[job->key_slot].chain_from;
        job->flags = test_random_chance(random, 25) ? GPU_JOB_HAS_IV : 0;
        fill(random, job->iv, sizeof job->iv);
        if (job->blocks > 0 && test_random_chance(random, 20))
            job->flags = GPU_JOB_ALONE;
        else
            test->streams[job->key_slot].chain_from = 1 - job->chain_from;
    }
    qsort(test->jobs, jobs, sizeof test->jobs[0], longer_first);
    test->batch.jobs = test->jobs;
    test->batch.job_count = jobs;
}

/* How many of 100 packets begin a unit: of one job in so many. */
static const int units[UNITS] = {0, 25, 100};

static uint32_t draw_flags(struct test_gpu_batch *test, uint32_t job)
{
    const bool has_other = (test->jobs[job].key_slot ^ 1) < test->batch.key_slots;
    const bool alone = (test->jobs[job].flags & GPU_JOB_ALONE) != 0;
    const uint32_t flags =
        alone || test_random_chance(&test->random, units[job % UNITS]) ? GPU_SEGMENT_HAS_IV : 0;
    return flags | (has_other && test_random_chance(&test->random, 20) ? GPU_SEGMENT_OTHER_KEY : 0);
}

/* Packets of every job, as segments that know their length alone; and whose each is. Returns how many. Some
 * begin a unit, whose IV the layout puts ahead of them. */
static uint32_t draw_packets(struct test_gpu_batch *test, uint32_t **job_of)
{
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < test->batch.job_count; i++)
        blocks += test->jobs[i].blocks;
    test->segments = allocate(blocks * sizeof test->segments[0]);
    *job_of = allocate(blocks * sizeof **job_of);
    uint32_t count = 0;
    for (uint32_t i = 0; i < test->batch.job_count; i++) {
        for (uint32_t left = test->jobs[i].blocks; left > 0; count++) {
            const int64_t most = left < PACKET_BLOCKS_MAX ? left : PACKET_BLOCKS_MAX;
            const uint32_t packet = (uint32_t)test_random_in(&test->random, 1, most);
            (*job_of)[count] = i;
            test->segments[count].length_bytes = packet * GPU_BLOCK_BYTES;
            test->segments[count].flags = draw_flags(test, i);
            left -= packet;
        }
    }
    return count;
}

/* Before the job's first packet or behind its last: neighbours in a chain lie either way round. */
static void chain_packet(struct test_gpu_batch *test, uint32_t index, uint32_t owner, uint32_t *last_segment)
{
    struct gpu_segment *segment = test->segments + index;
    struct gpu_job *job = test->jobs + owner;
    segment->next = GPU_SEGMENT_NONE;
    if (job->first_segment == GPU_SEGMENT_NONE) {
        job->first_segment = last_segment[owner] = index;
    } else if (test_random_chance(&test->random, 50)) {
        segment->next = job->first_segment;
        job->first_segment = index;
    } else {
        test->segments[last_segment[owner]].next = index;
        last_segment[owner] = index;
    }
}

/* Shuffles the packets, gives each its place, and chains each job's. */
static void lay_out(struct test_gpu_batch *test, uint32_t *job_of, uint32_t count)
{
    uint32_t *last_segment = allocate(test->batch.job_count * sizeof *last_segment);
    uint64_t offset_bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct gpu_segment *segment = test->segments + i;
        const uint32_t with = (uint32_t)test_random_in(&test->random, i, count - 1), owner = job_of[with];
        const struct gpu_segment drawn = test->segments[with];
        test->segments[with] = *segment;
        *segment = drawn;
        job_of[with] = job_of[i];
        job_of[i] = owner;
        offset_bytes += (uint64_t)test_random_in(&test->random, 0, GAP_BLOCKS_MAX) * GPU_BLOCK_BYTES;
        offset_bytes += (segment->flags & GPU_SEGMENT_HAS_IV) != 0 ? GPU_BLOCK_BYTES : 0;
        segment->offset_bytes = (uint32_t)offset_bytes;
        offset_bytes += segment->length_bytes;
    }
    for (uint32_t i = 0; i < count; i++)
        chain_packet(test, i, job_of[i], last_segment);
    free(last_segment);
    test->batch.segments = test->segments;
    test->batch.segment_count = count;
    test->batch.arena_bytes = offset_bytes + GAP_BLOCKS_MAX * (uint64_t)GPU_BLOCK_BYTES;
}

static void expect_job(struct test_gpu_batch *test, EVP_CIPHER_CTX *context, const struct gpu_job *job)
{
    const EVP_CIPHER *const ciphers[] = {EVP_aes_128_cbc(), EVP_aes_192_cbc(), EVP_aes_256_cbc()};
    const struct test_gpu_stream *stream = test->streams + job->key_slot;
    struct gpu_chain *chain = test->expected_chains + job->chain_slot;
    const uint8_t *last = (job->flags & GPU_JOB_HAS_IV) != 0 ? job->iv : chain->value[job->chain_from];
    TEST_REQUIRE(EVP_EncryptInit_ex(context, ciphers[stream->key_bytes / 8 - 2], NULL, stream->key, last) ==
                 1);
    for (uint32_t i = job->first_segment; i != GPU_SEGMENT_NONE; i = test->segments[i].next) {
        const struct gpu_segment *segment = test->segments + i;
        uint8_t *target = test->expected + segment->offset_bytes;
        int written = 0;
        if ((segment->flags & GPU_SEGMENT_HAS_IV) != 0)
            last = test->input + segment->offset_bytes - GPU_BLOCK_BYTES;
        const uint32_t other = (segment->flags & GPU_SEGMENT_OTHER_KEY) != 0 ? 1 : 0;
        TEST_REQUIRE(
            EVP_EncryptInit_ex(context, NULL, NULL, test->streams[job->key_slot ^ other].key, last) == 1);
        TEST_REQUIRE(EVP_EncryptUpdate(context, target, &written, test->input + segment->offset_bytes,
                                       (int)segment->length_bytes) == 1);
        TEST_REQUIRE((uint32_t)written == segment->length_bytes);
        last = target + segment->length_bytes - GPU_BLOCK_BYTES;
    }
    if ((job->flags & GPU_JOB_ALONE) == 0)
        memcpy(chain->value[1 - job->chain_from], last, GPU_BLOCK_BYTES);
}

void test_gpu_batch_draw(struct test_gpu_batch *test, uint32_t jobs, uint32_t blocks_most)
{
    batch_clear(test);
    draw_jobs(test, jobs, blocks_most);
    uint32_t *job_of, count = draw_packets(test, &job_of);
    lay_out(test, job_of, count);
    free(job_of);
    test->input = allocate(test->batch.arena_bytes);
    fill(&test->random, test->input, test->batch.arena_bytes);
    test->batch.input = test->input;
    test->batch.output = allocate(test->batch.arena_bytes);
    test->expected = allocate(test->batch.arena_bytes);
    memset(test->batch.output, TEST_GPU_UNTOUCHED, test->batch.arena_bytes);
    memset(test->expected, TEST_GPU_UNTOUCHED, test->batch.arena_bytes);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    TEST_REQUIRE(context != NULL);
    for (uint32_t i = 0; i < jobs; i++)
        expect_job(test, context, test->jobs + i);
    EVP_CIPHER_CTX_free(context);
}

void test_gpu_batch_require(const struct test_gpu_batch *test)
{
    TEST_REQUIRE(memcmp(test->batch.output, test->expected, test->batch.arena_bytes) == 0);
    TEST_REQUIRE(memcmp(test->batch.chains, test->expected_chains,
                        test->stream_count * sizeof test->expected_chains[0]) == 0);
}
