#include "tests/support/gpu_crowd.h"

#include "tests/support/require.h"

#include <openssl/evp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t gpu_crowd_draw(struct gpu_crowd *crowd, uint64_t below)
{
    return test_random_next(&crowd->random) % below;
}

static void draw_bytes(struct gpu_crowd *crowd, uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)gpu_crowd_draw(crowd, 256);
}

void gpu_crowd_stream_renew(struct gpu_crowd *crowd, uint32_t slot)
{
    static const uint32_t sizes[] = {16, 24, 32};
    struct gpu_crowd_stream *stream = &crowd->streams[slot];
    stream->key_bytes = sizes[gpu_crowd_draw(crowd, 3)];
    draw_bytes(crowd, stream->key, stream->key_bytes);
    draw_bytes(crowd, stream->chain, sizeof stream->chain);
}

struct gpu_crowd *gpu_crowd_open(uint32_t arenas, uint32_t slots, uint32_t segments, uint64_t arena_bytes,
                                 uint64_t seed)
{
    const struct gpu_region_shape shape = {
        .arenas = arenas, .slots = slots, .segments = segments, .arena_bytes = arena_bytes};
    struct core_error error = {""};
    struct gpu_crowd *crowd = calloc(1, sizeof *crowd);
    TEST_REQUIRE(crowd != NULL);
    crowd->random.state = seed;
    if (gpu_region_create(&crowd->region, &shape, NULL, &error) != CORE_OK)
        fprintf(stderr, "%s\n", error.text);
    TEST_REQUIRE(crowd->region.base != NULL);
    crowd->streams = calloc(slots, sizeof *crowd->streams);
    TEST_REQUIRE(crowd->streams != NULL);
    for (uint32_t slot = 0; slot < slots; slot++)
        gpu_crowd_stream_renew(crowd, slot);
    for (uint32_t i = 0; i < arenas; i++)
        TEST_REQUIRE((crowd->expected[i] = malloc(arena_bytes)) != NULL);
    return crowd;
}

void gpu_crowd_close(struct gpu_crowd *crowd)
{
    for (uint32_t i = 0; i < crowd->region.shape.arenas; i++)
        free(crowd->expected[i]);
    gpu_region_close(&crowd->region);
    free(crowd->streams);
    free(crowd);
}

/* ---- batches ---- */

/* Encrypts one run of blocks, chained, by OpenSSL; the chain moves on. */
static void reference_encrypt(struct gpu_crowd_stream *stream, const uint8_t *source, uint8_t *target,
                              uint32_t bytes)
{
    const EVP_CIPHER *cipher = stream->key_bytes == 16   ? EVP_aes_128_cbc()
                               : stream->key_bytes == 24 ? EVP_aes_192_cbc()
                                                         : EVP_aes_256_cbc();
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    int written = 0;
    TEST_REQUIRE(EVP_EncryptInit_ex(context, cipher, NULL, stream->key, stream->chain) == 1);
    TEST_REQUIRE(EVP_EncryptUpdate(context, target, &written, source, (int)bytes) == 1);
    TEST_REQUIRE((uint32_t)written == bytes);
    memcpy(stream->chain, target + bytes - 16, 16);
    EVP_CIPHER_CTX_free(context);
}

static int by_falling_blocks(const void *a, const void *b)
{
    const struct gpu_job *left = a, *right = b;
    return (left->blocks < right->blocks) - (left->blocks > right->blocks);
}

/* What is filled so far. */
struct filling {
    struct gpu_crowd *crowd;
    struct gpu_order order;
    uint8_t *input, *expected;
    struct gpu_segment *segments;
};

/* One segment of the stream, if there is room; returns its index, or GPU_SEGMENT_NONE. */
static uint32_t segment_add(struct filling *filling, struct gpu_crowd_stream *stream, uint32_t bytes_max)
{
    struct gpu_crowd *crowd = filling->crowd;
    const uint32_t bytes = 16 * (1 + (uint32_t)gpu_crowd_draw(crowd, bytes_max / 16));
    const uint64_t at = filling->order.used_bytes;
    if (filling->order.segment_count == crowd->region.shape.segments ||
        at + bytes > crowd->region.shape.arena_bytes)
        return GPU_SEGMENT_NONE;
    const uint32_t index = filling->order.segment_count++;
    filling->order.used_bytes += bytes;
    draw_bytes(crowd, filling->input + at, bytes);
    reference_encrypt(stream, filling->input + at, filling->expected + at, bytes);
    filling->segments[index] =
        (struct gpu_segment){.offset_bytes = (uint32_t)at, .length_bytes = bytes, .next = GPU_SEGMENT_NONE};
    return index;
}

static struct gpu_job job_make(struct filling *filling, uint32_t slot, uint32_t bytes_max)
{
    struct gpu_crowd_stream *stream = &filling->crowd->streams[slot];
    struct gpu_job job = {.key_slot = gpu_key_slot(slot, 0),
                          .chain_slot = slot,
                          .first_segment = GPU_SEGMENT_NONE,
                          .chain_from = stream->chain_from};
    uint32_t last = GPU_SEGMENT_NONE;
    for (uint64_t left = 1 + gpu_crowd_draw(filling->crowd, 3); left > 0; left--) {
        const uint32_t index = segment_add(filling, stream, bytes_max);
        if (index == GPU_SEGMENT_NONE)
            break;
        if (last == GPU_SEGMENT_NONE)
            job.first_segment = index;
        else
            filling->segments[last].next = index;
        job.blocks += filling->segments[index].length_bytes / 16;
        last = index;
    }
    stream->chain_from ^= 1;
    return job;
}

struct gpu_order gpu_crowd_batch(struct gpu_crowd *crowd, uint32_t jobs, uint32_t bytes_max)
{
    const struct gpu_region *region = &crowd->region;
    const uint64_t number = ++crowd->batches;
    const uint32_t arena = (uint32_t)(number % region->shape.arenas);
    struct filling filling = {
        .crowd = crowd,
        .order = {.number = number, .arena = arena},
        .input = gpu_region_input(region, arena),
        .expected = crowd->expected[arena],
        .segments = gpu_region_segments(region, arena),
    };
    struct gpu_job *table = gpu_region_jobs(region, arena);
    for (uint32_t slot = 0; slot < region->shape.slots; slot++)
        if (gpu_crowd_draw(crowd, region->shape.slots) < jobs)
            table[filling.order.job_count++] = job_make(&filling, slot, bytes_max);
    qsort(table, filling.order.job_count, sizeof *table, by_falling_blocks);
    memset(gpu_region_output(region, arena), 0xee, filling.order.used_bytes);
    crowd->jobs += filling.order.job_count;
    return filling.order;
}

bool gpu_crowd_matches(const struct gpu_crowd *crowd, const struct gpu_order *order)
{
    const uint8_t *output = gpu_region_output(&crowd->region, order->arena);
    const uint8_t *expected = crowd->expected[order->arena];
    for (uint64_t i = 0; i < order->used_bytes; i++)
        if (output[i] != expected[i]) {
            fprintf(stderr, "batch %llu differs at byte %llu of %llu\n", (unsigned long long)order->number,
                    (unsigned long long)i, (unsigned long long)order->used_bytes);
            return false;
        }
    return true;
}

void gpu_crowd_stand_in(struct gpu_crowd *crowd, const struct gpu_order *order)
{
    memcpy(gpu_region_output(&crowd->region, order->arena), crowd->expected[order->arena], order->used_bytes);
}

/* ---- engines ---- */

core_status gpu_crowd_key_hand(const struct gpu_crowd *crowd, struct gpu_engine *engine, uint32_t slot)
{
    const struct gpu_crowd_stream *stream = &crowd->streams[slot];
    return gpu_engine_key_set(engine, gpu_key_slot(slot, 0), stream->key, stream->key_bytes, stream->chain);
}

void gpu_crowd_hand_keys(struct gpu_crowd *crowd, struct gpu_engine *engine)
{
    for (uint32_t slot = 0; slot < crowd->region.shape.slots; slot++) {
        struct gpu_event event;
        core_status status;
        while ((status = gpu_crowd_key_hand(crowd, engine, slot)) == CORE_FULL) {
            TEST_REQUIRE(gpu_engine_poll(engine, core_time_now_ns(), &event) == CORE_AGAIN);
            (void)poll(NULL, 0, 1);
        }
        TEST_REQUIRE(status == CORE_OK);
    }
}

bool gpu_crowd_wait(struct gpu_engine *engine, struct gpu_event *event)
{
    const core_ns until_ns = core_time_now_ns() + 60 * CORE_NS_PER_S;
    core_ns now_ns;
    while ((now_ns = core_time_now_ns()) < until_ns) {
        struct pollfd ready = {.fd = gpu_engine_descriptor(engine), .events = POLLIN};
        if (gpu_engine_poll(engine, now_ns, event) == CORE_OK)
            return true;
        const core_ns wake_ns = gpu_engine_wake_ns(engine) - now_ns;
        (void)poll(&ready, 1, wake_ns < 0 ? 0 : (int)(wake_ns / CORE_NS_PER_MS) + 1);
    }
    return false;
}

struct gpu_emulation gpu_crowd_card(uint32_t copy_engines)
{
    static const struct gpu_emulation_copy copies[] = {
        {.bytes = 4096, .up_ns = 20000, .down_ns = 22000, .up_busy_ns = 25000, .down_busy_ns = 28000},
        {.bytes = 1 << 20, .up_ns = 300000, .down_ns = 350000, .up_busy_ns = 400000, .down_busy_ns = 450000},
    };
    static const struct gpu_emulation_share shares[] = {
        {1, 10000}, {32, 200000}, {128, 600000}, {512, 1000000}};
    return (struct gpu_emulation){
        .name = "a card of the tests",
        .memory_bytes = UINT64_C(1) << 30,
        .sms = 4,
        .copy_engines = copy_engines,
        .sm_bytes_per_s = 2000000000,
        .launch_ns = 10000,
        .copies = copies,
        .copy_count = 2,
        .shares = shares,
        .share_count = 4,
    };
}

const char *gpu_crowd_program(void)
{
    return MILLRACE_GPU_PROGRAM;
}

const char *gpu_crowd_fake_program(void)
{
    return MILLRACE_GPU_FAKE_PROGRAM;
}

struct gpu_engine_options gpu_crowd_options(const struct gpu_crowd *crowd,
                                            const struct gpu_emulation *emulation)
{
    return (struct gpu_engine_options){
        .program = gpu_crowd_program(),
        .backend = "emulated",
        .region = &crowd->region,
        .emulation = emulation,
        .hang_periods = 8,
        .hang_least_ns = 20 * CORE_NS_PER_S,
        .silence_ns = 20 * CORE_NS_PER_S,
        .kill_ns = 20 * CORE_NS_PER_S,
        .restart_first_ns = CORE_NS_PER_MS,
        .restart_max_ns = 8 * CORE_NS_PER_MS,
    };
}
