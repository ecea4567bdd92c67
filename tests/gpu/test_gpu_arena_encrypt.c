/* From packets to ciphertext: what the arenas' tables make of random streams, run by the kernel on the host,
 * against OpenSSL stream by stream, over many batches, with batches that are lost on the way. Some streams'
 * packets stand alone: under either of two keys, each a job. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/aes.h"
#include "gpu/arena.h"
#include "gpu/kernel.h"
#include "tests/support/random.h"

#define WRITERS      2
#define STREAMS      24
#define PACKETS      60 /* of a batch, at most */
#define PACKET_BYTES 512
#define BATCHES      120

struct stream {
    EVP_CIPHER_CTX *openssl;
    const EVP_CIPHER *cipher;
    uint8_t keys[GPU_SLOT_KEYS][32];
    uint64_t batch;
    uint8_t chain[GPU_BLOCK_BYTES]; /* OpenSSL's last block */
};

struct bench {
    struct gpu_arenas *arenas;
    struct test_random random;
    struct stream streams[STREAMS];
    alignas(16) struct gpu_key keys[GPU_SLOT_KEYS * STREAMS];
    alignas(16) struct gpu_chain chains[STREAMS];
    uint8_t expected[PACKETS][PACKET_BYTES]; /* by cookie */
    uint32_t alone;                          /* packets of the batch */
};

static void random_bytes(struct bench *bench, uint8_t *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)test_random_next(&bench->random);
}

/* Its packets do not go on from one another. */
static bool is_alone(uint32_t slot)
{
    return slot % 4 == 3;
}

static void open_stream(struct bench *bench, uint32_t slot)
{
    const EVP_CIPHER *ciphers[] = {EVP_aes_128_cbc(), EVP_aes_192_cbc(), EVP_aes_256_cbc()};
    struct stream *stream = &bench->streams[slot];
    random_bytes(bench, stream->keys[0], sizeof stream->keys);
    random_bytes(bench, stream->chain, sizeof stream->chain);
    stream->openssl = EVP_CIPHER_CTX_new();
    stream->cipher = ciphers[slot % 3];
    assert_int_equal(
        EVP_EncryptInit_ex(stream->openssl, stream->cipher, NULL, stream->keys[0], stream->chain), 1);
    assert_int_equal(EVP_CIPHER_CTX_set_padding(stream->openssl, 0), 1);
    for (uint32_t key = 0; key < GPU_SLOT_KEYS; key++)
        assert_int_equal(
            gpu_key_expand(&bench->keys[gpu_key_slot(slot, key)], stream->keys[key], 16 + 8 * (slot % 3)),
            CORE_OK);
    if (slot % 2 == 0) /* with its key, as the engine does */
        memcpy(bench->chains[slot].value[0], stream->chain, sizeof stream->chain);
    else
        assert_int_equal(gpu_arena_restart_chain(bench->arenas, slot, stream->chain), CORE_OK);
}

/* One packet of a random stream; OpenSSL encrypts it, too. */
static void append(struct bench *bench, core_ns eligible_ns, uint32_t cookie)
{
    uint32_t slot = (uint32_t)test_random_in(&bench->random, 0, STREAMS - 1);
    struct stream *stream = &bench->streams[slot];
    uint8_t payload[PACKET_BYTES], iv[GPU_BLOCK_BYTES];
    struct gpu_packet packet = {.eligible_ns = eligible_ns,
                                .after_batch = stream->batch,
                                .payload = payload,
                                .bytes = 16 * (uint32_t)test_random_in(&bench->random, 1, PACKET_BYTES / 16),
                                .slot = slot,
                                .cookie = cookie};
    struct gpu_place place;
    int bytes;
    random_bytes(bench, payload, packet.bytes);
    if (is_alone(slot)) {
        random_bytes(bench, iv, sizeof iv);
        packet.key = (uint8_t)test_random_in(&bench->random, 0, 1);
        packet.unit_iv = iv;
        packet.alone = true;
        assert_int_equal(EVP_EncryptInit_ex(stream->openssl, NULL, NULL, stream->keys[packet.key], iv), 1);
        bench->alone++;
    }
    assert_int_equal(gpu_arena_append(bench->arenas, slot % WRITERS, &packet, &place), CORE_OK);
    stream->batch = place.batch;
    assert_int_equal(
        EVP_EncryptUpdate(stream->openssl, bench->expected[cookie], &bytes, payload, (int)packet.bytes), 1);
    memcpy(stream->chain, bench->expected[cookie] + packet.bytes - GPU_BLOCK_BYTES, GPU_BLOCK_BYTES);
}

static void encrypt(struct bench *bench, const struct gpu_arena_batch *batch)
{
    const struct gpu_region *region = gpu_arenas_region(bench->arenas);
    const struct gpu_batch run = {.input = gpu_region_input(region, batch->arena),
                                  .output = gpu_region_output(region, batch->arena),
                                  .segments = gpu_region_segments(region, batch->arena),
                                  .jobs = gpu_region_jobs(region, batch->arena),
                                  .keys = bench->keys,
                                  .chains = bench->chains,
                                  .job_count = batch->job_count,
                                  .segment_count = batch->segment_count,
                                  .key_slots = GPU_SLOT_KEYS * STREAMS,
                                  .chain_slots = STREAMS,
                                  .arena_bytes = batch->used_bytes};
    struct core_error error = {""};
    assert_int_equal(gpu_batch_check(&run, &error), CORE_OK);
    gpu_kernel_run_host(GPU_KERNEL_WHOLE, &run, 0, run.job_count);
    gpu_kernel_run_host(GPU_KERNEL_WHOLE, &run, 0, run.job_count); /* again, as after a fault */
}

/* A job for each stream, and one for each packet that stands alone. */
static void check_jobs(const struct bench *bench, const struct gpu_arena_batch *batch)
{
    const struct gpu_job *jobs = gpu_region_jobs(gpu_arenas_region(bench->arenas), batch->arena);
    bool seen[STREAMS] = {false};
    uint32_t alone = 0;
    for (uint32_t i = 0; i < batch->job_count; i++) {
        const uint32_t slot = jobs[i].chain_slot;
        assert_int_equal((jobs[i].flags & GPU_JOB_ALONE) != 0, is_alone(slot));
        assert_true(is_alone(slot) || !seen[slot]);
        seen[slot] = true;
        alone += is_alone(slot);
    }
    assert_int_equal(alone, bench->alone);
}

static void check_records(const struct bench *bench, const struct gpu_arena_batch *batch)
{
    const uint8_t *output = gpu_arena_output(bench->arenas, batch->number);
    for (uint32_t writer = 0; writer < WRITERS; writer++) {
        struct gpu_record_list records = gpu_arena_records(bench->arenas, writer, batch->number);
        for (const struct gpu_record *record; (record = gpu_record_next(&records)) != NULL;)
            assert_memory_equal(output + record->offset_bytes, bench->expected[record->cookie],
                                record->bytes);
    }
}

/* The batch never ran: its streams go on from what the CPU, in its stead, has come to. */
static void lose(struct bench *bench, bool with_keys)
{
    for (uint32_t slot = 0; slot < STREAMS; slot++) {
        const uint8_t *chain = bench->streams[slot].chain;
        memset(&bench->chains[slot], 0xdd, sizeof bench->chains[slot]);
        if (!with_keys)
            assert_int_equal(gpu_arena_restart_chain(bench->arenas, slot, chain), CORE_OK);
        else
            for (int i = 0; i < 2; i++)
                memcpy(bench->chains[slot].value[i], chain, GPU_BLOCK_BYTES);
    }
}

static void one_batch(struct bench *bench, uint64_t number)
{
    struct gpu_arena_batch batch;
    uint32_t packets = (uint32_t)test_random_in(&bench->random, 0, PACKETS);
    assert_int_equal(gpu_arena_open(bench->arenas, (core_ns)number * 1000), CORE_OK);
    bench->alone = 0;
    for (uint32_t i = 0; i < packets; i++)
        append(bench, (core_ns)number * 1000 - test_random_in(&bench->random, 0, 999), i);
    assert_int_equal(gpu_arena_close(bench->arenas, &batch), CORE_OK);
    assert_int_equal(batch.segment_count, packets);
    check_jobs(bench, &batch);
    if (number % 7 == 0)
        lose(bench, number % 2 == 0);
    else {
        encrypt(bench, &batch);
        check_records(bench, &batch);
    }
    for (uint32_t holder = 0; holder < WRITERS; holder++)
        if ((batch.writers >> holder & 1) != 0)
            assert_int_equal(gpu_arena_release(bench->arenas, holder, number), CORE_OK);
    assert_int_equal(gpu_arena_release(bench->arenas, GPU_ARENA_BATCHER, number), CORE_OK);
}

static void streams_come_out_as_of_openssl(void **state)
{
    static const struct gpu_arena_options options = {
        .shape = {.arenas = 3,
                  .slots = STREAMS,
                  .segments = PACKETS,
                  .arena_bytes = PACKETS * (PACKET_BYTES + GPU_BLOCK_BYTES)},
        .writers = WRITERS};
    struct bench *bench = aligned_alloc(16, (sizeof *bench + 15) / 16 * 16);
    (void)state;
    assert_non_null(bench);
    memset(bench, 0, sizeof *bench);
    bench->random.state = 5;
    assert_int_equal(gpu_arenas_create(&bench->arenas, &options, NULL), CORE_OK);
    for (uint32_t slot = 0; slot < STREAMS; slot++)
        open_stream(bench, slot);
    for (uint64_t number = 1; number <= BATCHES; number++)
        one_batch(bench, number);
    for (uint32_t slot = 0; slot < STREAMS; slot++)
        EVP_CIPHER_CTX_free(bench->streams[slot].openssl);
    gpu_arenas_destroy(bench->arenas);
    free(bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_come_out_as_of_openssl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
