/* The kernel's own source on the host, in both forms: the vectors of NIST SP 800-38A (F.2) however they are
 * cut, thousands of random jobs against OpenSSL, chains through many batches, batches run again, and what
 * gpu_batch_check refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/aes.h"
#include "gpu/kernel.h"
#include "perfmodel/gpu.h"
#include "tests/support/gpu_batch.h"
#include "tests/support/require.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
#define RANDOM_BATCHES 2
#else
#define RANDOM_BATCHES 20
#endif
#define RANDOM_JOBS 500

static const enum gpu_kernel_form forms[GPU_KERNEL_FORMS] = {GPU_KERNEL_WHOLE, GPU_KERNEL_QUAD};

static void from_hex(const char *hex, uint8_t *bytes)
{
    for (; *hex != '\0'; hex += 2) {
        const char pair[3] = {hex[0], hex[1], '\0'};
        *bytes++ = (uint8_t)strtoul(pair, NULL, 16);
    }
}

static void run(enum gpu_kernel_form form, const struct gpu_batch *batch)
{
    struct core_error error = {""};
    TEST_REQUIRE(gpu_batch_check(batch, &error) == CORE_OK);
    gpu_kernel_run_host(form, batch, 0, batch->job_count);
}

/* One job of a few blocks, with everything that a batch needs. */
#define SMALL_BLOCKS 64
struct small {
    struct gpu_batch batch;
    struct gpu_key key;
    struct gpu_chain chain;
    struct gpu_job job;
    uint32_t last_segment; /* of the job */
    struct gpu_segment segments[SMALL_BLOCKS];
    alignas(16) uint8_t input[SMALL_BLOCKS * GPU_BLOCK_BYTES];
    alignas(16) uint8_t output[SMALL_BLOCKS * GPU_BLOCK_BYTES];
};

static void small_init(struct small *small, const char *key_hex, uint32_t key_bytes, const char *iv_hex)
{
    uint8_t key[32];
    memset(small, 0, sizeof *small);
    from_hex(key_hex, key);
    assert_int_equal(gpu_key_expand(&small->key, key, key_bytes), CORE_OK);
    from_hex(iv_hex, small->chain.value[0]);
    small->job.first_segment = GPU_SEGMENT_NONE;
    small->batch = (struct gpu_batch){
        .input = small->input,
        .output = small->output,
        .segments = small->segments,
        .jobs = &small->job,
        .keys = &small->key,
        .chains = &small->chain,
        .job_count = 1,
        .segment_count = SMALL_BLOCKS,
        .key_slots = 1,
        .chain_slots = 1,
        .arena_bytes = sizeof small->input,
    };
}

/* Blocks first .. first + count - 1 of the message lie where they are in the message. */
static void small_append(struct small *small, uint32_t index, uint32_t first, uint32_t count)
{
    small->segments[index] = (struct gpu_segment){.offset_bytes = first * GPU_BLOCK_BYTES,
                                                  .length_bytes = count * GPU_BLOCK_BYTES,
                                                  .next = GPU_SEGMENT_NONE};
    if (small->job.first_segment == GPU_SEGMENT_NONE)
        small->job.first_segment = index;
    else
        small->segments[small->last_segment].next = index;
    small->last_segment = index;
    small->job.blocks += count;
}

static const char vector_iv[] = "000102030405060708090a0b0c0d0e0f";
static const char vector_plain[] = "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
                                   "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710";
static const struct {
    uint32_t key_bytes;
    const char *key, *ciphertext;
} vectors[] = {
    {16, "2b7e151628aed2a6abf7158809cf4f3c",
     "7649abac8119b246cee98e9b12e9197d5086cb9b507219ee95db113a917678b2"
     "73bed6b8e3c1743b7116e69e222295163ff1caa1681fac09120eca307586e1a7"},
    {24, "8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b",
     "4f021db243bc633d7178183a9fa071e8b4d9ada9ad7dedf4e5e738763f69145a"
     "571b242012fb7ae07fa9baac3df102e008b0e27988598881d920a9e64f5615cd"},
    {32, "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
     "f58c4c04d6e5f1ba779eabfb5f7bfbd69cfc4e967edb808d679f777bc6702c7d"
     "39f23369a9d9bacfa530e26304231461b2eb05e2c39be9fcda6c19078c6a9d1b"},
};
#define VECTORS (sizeof vectors / sizeof vectors[0])

/* Every cut of the four blocks: bit b of `cuts` ends a segment behind block b, bit b of `turns` a batch. */
static void vector_run(enum gpu_kernel_form form, size_t v, uint32_t cuts, uint32_t turns)
{
    struct small small;
    uint8_t expected[64];
    small_init(&small, vectors[v].key, vectors[v].key_bytes, vector_iv);
    from_hex(vector_plain, small.input);
    from_hex(vectors[v].ciphertext, expected);
    uint32_t start = 0;
    for (uint32_t block = 0; block < 4; block++) {
        if (((cuts | turns | 8) >> block & 1) == 0)
            continue;
        small_append(&small, block, start, block + 1 - start);
        start = block + 1;
        if (((turns | 8) >> block & 1) != 0) {
            run(form, &small.batch);
            small.job =
                (struct gpu_job){.first_segment = GPU_SEGMENT_NONE, .chain_from = 1 - small.job.chain_from};
        }
    }
    assert_memory_equal(small.output, expected, sizeof expected);
    assert_memory_equal(small.chain.value[small.job.chain_from], expected + 48, GPU_BLOCK_BYTES);
}

static void test_vectors(void **state)
{
    (void)state;
    for (size_t f = 0; f < GPU_KERNEL_FORMS; f++)
        for (size_t v = 0; v < VECTORS; v++)
            for (uint32_t cuts = 0; cuts < 8; cuts++)
                for (uint32_t turns = 0; turns < 8; turns++)
                    vector_run(forms[f], v, cuts, turns);
}

/* A message of SMALL_BLOCKS, cut in two at each point, comes out as uncut and as in one block each. */
static void test_every_split(void **state)
{
    (void)state;
    for (size_t f = 0; f < GPU_KERNEL_FORMS; f++) {
        uint8_t uncut[SMALL_BLOCKS * GPU_BLOCK_BYTES];
        for (uint32_t split = 0; split <= SMALL_BLOCKS; split++) {
            struct small small;
            small_init(&small, vectors[2].key, 32, vector_iv);
            for (size_t i = 0; i < sizeof small.input; i++)
                small.input[i] = (uint8_t)(i * 7);
            for (uint32_t i = 0; split == SMALL_BLOCKS && i < SMALL_BLOCKS; i++)
                small_append(&small, SMALL_BLOCKS - 1 - i, i, 1);
            if (split < SMALL_BLOCKS && split > 0)
                small_append(&small, 1, 0, split);
            if (split < SMALL_BLOCKS)
                small_append(&small, 0, split, SMALL_BLOCKS - split);
            run(forms[f], &small.batch);
            if (split == 0)
                memcpy(uncut, small.output, sizeof uncut);
            assert_memory_equal(small.output, uncut, sizeof uncut);
        }
    }
}

static void test_random_jobs(void **state)
{
    (void)state;
    struct test_gpu_batch *test = test_gpu_batch_new(RANDOM_JOBS + 100, 1);
    struct gpu_chain *before = calloc(test->stream_count, sizeof *before);
    const size_t chains_bytes = test->stream_count * sizeof *before;
    for (int round = 0; round < RANDOM_BATCHES; round++) {
        test_gpu_batch_draw(test, RANDOM_JOBS, 4000);
        memcpy(before, test->batch.chains, chains_bytes);
        for (size_t f = 0; f < GPU_KERNEL_FORMS; f++) {
            memcpy(test->batch.chains, before, chains_bytes);
            memset(test->batch.output, TEST_GPU_UNTOUCHED, test->batch.arena_bytes);
            run(forms[f], &test->batch);
            test_gpu_batch_require(test);
        }
    }
    free(before);
    test_gpu_batch_free(test);
}

/* Streams that are in some batches and not in others, and each batch run one to three times over. */
static void test_chains_and_reruns(void **state)
{
    (void)state;
    for (size_t f = 0; f < GPU_KERNEL_FORMS; f++) {
        struct test_gpu_batch *test = test_gpu_batch_new(40, 2 + f);
        for (int round = 0; round < 100; round++) {
            test_gpu_batch_draw(test, (uint32_t)test_random_in(&test->random, 1, 40), 20);
            for (int64_t again = test_random_in(&test->random, 0, 2); again >= 0; again--) {
                run(forms[f], &test->batch);
                test_gpu_batch_require(test);
            }
        }
        test_gpu_batch_free(test);
    }
}

static void test_no_blocks(void **state)
{
    (void)state;
    for (size_t f = 0; f < GPU_KERNEL_FORMS; f++) {
        struct small small;
        uint8_t iv[GPU_BLOCK_BYTES];
        from_hex(vector_iv, iv);
        small_init(&small, vectors[0].key, 16, vector_iv);
        run(forms[f], &small.batch);
        assert_memory_equal(small.chain.value[0], iv, sizeof iv);
        assert_memory_equal(small.chain.value[1], iv, sizeof iv);
        small.job.flags = GPU_JOB_HAS_IV;
        small.job.chain_from = 1;
        memset(small.job.iv, 7, sizeof small.job.iv);
        run(forms[f], &small.batch);
        assert_memory_equal(small.chain.value[0], small.job.iv, sizeof iv);
        assert_memory_equal(small.chain.value[1], iv, sizeof iv);
        small.batch.job_count = 0;
        run(forms[f], &small.batch);
        assert_memory_equal(small.chain.value[1], iv, sizeof iv);
        static const uint8_t nothing[sizeof small.output];
        assert_memory_equal(small.output, nothing, sizeof nothing);
    }
}

struct part {
    const struct test_gpu_batch *test;
    enum gpu_kernel_form form;
    uint32_t first, count;
};

static void *part_run(void *argument)
{
    const struct part *part = argument;
    gpu_kernel_run_host(part->form, &part->test->batch, part->first, part->count);
    return NULL;
}

static void test_threads_share_a_batch(void **state)
{
    (void)state;
    struct test_gpu_batch *test = test_gpu_batch_new(90, 5);
    for (size_t f = 0; f < GPU_KERNEL_FORMS; f++) {
        test_gpu_batch_draw(test, 90, 200);
        pthread_t threads[3];
        struct part parts[3];
        for (uint32_t i = 0; i < 3; i++) {
            parts[i] = (struct part){test, forms[f], i * 30, 30};
            assert_int_equal(pthread_create(&threads[i], NULL, part_run, &parts[i]), 0);
        }
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        test_gpu_batch_require(test);
    }
    test_gpu_batch_free(test);
}

/* A sound job of seven blocks in segments 0 and 1, with one field (32 bits of a struct small) set wrong. */
#define FIELD(field) offsetof(struct small, field)
static const struct {
    const char *complaint;
    size_t field;
    uint32_t value;
} breaks[] = {
    {"job 0: key slot 1 of 1", FIELD(job.key_slot), 1},
    {"chain slot 1 of 1", FIELD(job.chain_slot), 1},
    {"chain_from 2", FIELD(job.chain_from), 2},
    {"flags 4", FIELD(job.flags), 4},
    {"is alone, and does not begin with an IV", FIELD(job.flags), GPU_JOB_ALONE},
    {"is alone, and does not begin with an IV", FIELD(job.flags), GPU_JOB_ALONE | GPU_JOB_HAS_IV},
    {"segment 64 of a batch with 64", FIELD(job.first_segment), SMALL_BLOCKS},
    {"segment 70 of a batch with 64", FIELD(segments[1].next), 70},
    {"hold more", FIELD(segments[1].next), 0},
    {"not made of whole blocks", FIELD(segments[1].offset_bytes), 168},
    {"not made of whole blocks", FIELD(segments[1].length_bytes), 49},
    {"not made of whole blocks", FIELD(segments[1].length_bytes), 0},
    {"outside the arena of 1024", FIELD(segments[1].offset_bytes), 1024 - 32},
    {"outside the arena of 1024", FIELD(segments[1].offset_bytes), UINT32_MAX - 15},
    {"outside the arena of 1024", FIELD(segments[1].length_bytes), UINT32_MAX - 15},
    {"has flags 4", FIELD(segments[1].flags), 4},
    {"there is no such IV or key", FIELD(segments[1].flags), GPU_SEGMENT_OTHER_KEY},
    {"there is no such IV or key", FIELD(segments[0].flags), GPU_SEGMENT_HAS_IV},
    {"hold less than its 8", FIELD(job.blocks), 8},
    {"hold more than its 6", FIELD(job.blocks), 6},
    {"hold more than its 0", FIELD(job.blocks), 0},
    {"hold less than its 7", FIELD(job.first_segment), GPU_SEGMENT_NONE},
    {"hold less than its 7", FIELD(segments[0].next), GPU_SEGMENT_NONE},
    {"over 4 GiB", FIELD(batch.arena_bytes) + 4, 1},
};

static void test_check(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof breaks / sizeof breaks[0]; i++) {
        struct small small;
        struct core_error error = {""};
        small_init(&small, vectors[0].key, 16, vector_iv);
        small_append(&small, 0, 0, 4);
        small_append(&small, 1, 10, 3);
        assert_int_equal(gpu_batch_check(&small.batch, &error), CORE_OK);
        memcpy((uint8_t *)&small + breaks[i].field, &breaks[i].value, sizeof breaks[i].value);
        assert_int_equal(gpu_batch_check(&small.batch, &error), CORE_INVALID);
        if (strstr(error.text, breaks[i].complaint) == NULL)
            fail_msg("row %zu draws '%s'", i, error.text);
        assert_int_equal(gpu_batch_check(&small.batch, NULL), CORE_INVALID);
    }
}

static void test_forms(void **state)
{
    (void)state;
    for (size_t f = 0; f < GPU_KERNEL_FORMS; f++) {
        enum gpu_kernel_form form = (enum gpu_kernel_form)(GPU_KERNEL_FORMS - 1 - f);
        assert_int_equal(gpu_kernel_form_parse(gpu_kernel_form_name(forms[f]), &form), CORE_OK);
        assert_int_equal(form, forms[f]);
    }
    enum gpu_kernel_form form = GPU_KERNEL_QUAD;
    assert_int_equal(gpu_kernel_form_parse("half", &form), CORE_NOT_FOUND);
    assert_int_equal(form, GPU_KERNEL_QUAD);
    assert_null(gpu_kernel_form_name((enum gpu_kernel_form)GPU_KERNEL_FORMS));
}

static void test_shape(void **state)
{
    (void)state;
    struct test_random random = {3};
    for (int round = 0; round < 20000; round++) {
        const enum gpu_kernel_form form = forms[round % 2];
        const uint32_t jobs = (uint32_t)test_random_log(&random, 1, round < 100 ? INT64_C(1) << 31 : 200000);
        const uint32_t sms = (uint32_t)test_random_log(&random, 1, 160);
        const struct gpu_kernel_shape shape = gpu_kernel_shape(form, jobs, sms);
        const uint64_t share = ((uint64_t)jobs + sms - 1) / sms * gpu_kernel_job_threads(form);
        const uint64_t passes = (shape.blocks + (uint64_t)sms - 1) / sms;
        assert_int_equal(shape.block_threads % 32, 0);
        assert_in_range(shape.block_threads, 32, GPU_KERNEL_BLOCK_THREADS_MAX);
        assert_int_equal(passes, (share + GPU_KERNEL_BLOCK_THREADS_MAX - 1) / GPU_KERNEL_BLOCK_THREADS_MAX);
        assert_true(passes * shape.block_threads >= share);
        assert_true(passes * shape.block_threads < share + 32 * passes);
    }
}

#define DEALT_MAX 20000

/* Every job once, and where the performance model has it: on the same SM, in the same turn. */
static void deal(enum gpu_kernel_form form, uint32_t jobs, uint32_t sms)
{
    static bool has_thread[DEALT_MAX];
    const struct gpu_kernel_shape shape = gpu_kernel_shape(form, jobs, sms);
    const uint32_t block_jobs = shape.block_threads / gpu_kernel_job_threads(form);
    uint32_t dealt = 0;
    memset(has_thread, 0, sizeof has_thread);
    for (uint32_t block = 0; block < shape.blocks; block++) {
        assert_true(gpu_kernel_job(sms, block_jobs, block, 0) < jobs);
        for (uint32_t place = 0; place < block_jobs; place++) {
            const uint32_t job = gpu_kernel_job(sms, block_jobs, block, place);
            if (job >= jobs)
                continue;
            assert_int_equal(job, perfmodel_kernel_dealt(sms, block % sms, block / sms * block_jobs + place));
            assert_false(has_thread[job]);
            has_thread[job] = true;
            dealt++;
        }
    }
    assert_int_equal(dealt, jobs);
}

static void test_dealing(void **state)
{
    (void)state;
    struct test_random random = {4};
    for (int round = 0; round < 2000; round++)
        deal(forms[round % 2], (uint32_t)test_random_log(&random, 1, DEALT_MAX),
             (uint32_t)test_random_log(&random, 1, 160));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),     cmocka_unit_test(test_every_split),
        cmocka_unit_test(test_random_jobs), cmocka_unit_test(test_chains_and_reruns),
        cmocka_unit_test(test_no_blocks),   cmocka_unit_test(test_threads_share_a_batch),
        cmocka_unit_test(test_check),       cmocka_unit_test(test_forms),
        cmocka_unit_test(test_shape),       cmocka_unit_test(test_dealing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
