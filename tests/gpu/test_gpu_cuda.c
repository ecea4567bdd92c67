/* The CUDA device's host code on a runtime without a card (support/cuda/fake.h): which batches come back, what
 * becomes of the errors of each call, and whether everything is given back. Work is done late and in no order
 * but the one that was asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "core/secret.h"
#include "gpu/aes.h"
#include "gpu/device_cuda.h"
#include "gpu/pipeline.h"
#include "tests/support/cuda/fake.h"
#include "tests/support/gpu_crowd.h"
#include "tests/support/share.h"

#define KERNELS 3                    /* both forms, and the change of keys */
#define STRIDE  (52 / TEST_SHARE(4)) /* between calls of runs that are alike: 13, under a sanitizer 52 */

#define UUID "GPU-3b4c5d6e-7f90-a1b2-c3d4-e5f607182900"

static struct gpu_crowd *crowd_new(void)
{
    return gpu_crowd_open(4, 12, 40, 1 << 14, 31);
}

static struct gpu_device_facts facts;

static core_status device_open(const struct gpu_crowd *crowd, struct gpu_device **device,
                               struct core_error *error)
{
    const struct gpu_device_options options = {.uuid = UUID, .region = &crowd->region};
    const core_status status = gpu_device_cuda.open(device, &options, &facts, error);
    if (status == CORE_OK) {
        assert_string_equal(facts.name, "Fake card");
        assert_string_equal(facts.driver, "CUDA 13.2");
        assert_string_equal(facts.uuid, UUID);
        assert_string_equal(facts.pci, "0000:3b:00.0");
        assert_int_equal(facts.sms, 4);
        assert_true(strcmp(facts.kernel, "whole") == 0 || strcmp(facts.kernel, "quad") == 0);
    }
    return status;
}

/* Retries while the ring of changes is full. */
static core_status key_set(const struct gpu_crowd *crowd, struct gpu_device *device, uint32_t slot,
                           struct core_error *error)
{
    const struct gpu_crowd_stream *stream = &crowd->streams[slot];
    struct gpu_key key;
    core_status status;
    assert_int_equal(gpu_key_expand(&key, stream->key, stream->key_bytes), CORE_OK);
    while ((status = gpu_device_cuda.key_set(device, gpu_key_slot(slot, 0), &key, stream->chain, error)) ==
           CORE_FULL)
        ;
    return status;
}

static core_status run_batches(struct gpu_crowd *crowd, struct gpu_device *device, int count,
                               struct core_error *error)
{
    static struct gpu_pipeline pipeline;
    struct gpu_order orders[4];
    uint64_t submitted = 0, back = 0;
    core_status status = CORE_OK;
    struct pollfd ended = {.fd = gpu_device_cuda.descriptor(device), .events = POLLIN};
    gpu_pipeline_begin(&pipeline, &gpu_device_cuda, device, facts.copy_engines);
    while (status == CORE_OK && back < (uint64_t)count) {
        const struct gpu_pipeline_batch *batch;
        if (submitted < (uint64_t)count && submitted - back < 4) {
            orders[submitted % 4] = gpu_crowd_batch(crowd, submitted == 3 ? 0 : 12, 200);
            status = gpu_pipeline_submit(&pipeline, &orders[submitted++ % 4], error);
        }
        (void)poll(&ended, 1, 1);
        if (status == CORE_OK)
            status = gpu_pipeline_step(&pipeline, error);
        while ((batch = gpu_pipeline_take(&pipeline)) != NULL) {
            assert_int_equal(batch->order.number, orders[back % 4].number);
            assert_true(gpu_crowd_matches(crowd, &orders[back++ % 4]));
            core_ns last_ns = 1;
            for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
                assert_true(batch->times[stage].start_ns >= last_ns);
                assert_true(batch->times[stage].end_ns >= batch->times[stage].start_ns);
                last_ns = batch->times[stage].end_ns;
            }
            assert_true(last_ns <= core_time_now_ns());
        }
    }
    return status;
}

/* One batch of all streams, of about as many bytes as 36 segments of this have. */
static void run_one(struct gpu_crowd *crowd, struct gpu_device *device, uint32_t bytes_max)
{
    static struct gpu_pipeline pipeline;
    struct core_error error = {""};
    const struct gpu_pipeline_batch *batch;
    struct pollfd ended = {.fd = gpu_device_cuda.descriptor(device), .events = POLLIN};
    const struct gpu_order order = gpu_crowd_batch(crowd, 12, bytes_max);
    gpu_pipeline_begin(&pipeline, &gpu_device_cuda, device, facts.copy_engines);
    assert_int_equal(gpu_pipeline_submit(&pipeline, &order, &error), CORE_OK);
    while ((batch = gpu_pipeline_take(&pipeline)) == NULL) {
        (void)poll(&ended, 1, 1);
        assert_int_equal(gpu_pipeline_step(&pipeline, &error), CORE_OK);
    }
    assert_true(gpu_crowd_matches(crowd, &order));
}

static core_status whole_life(struct gpu_crowd *crowd, int batches, struct core_error *error)
{
    struct gpu_device *device;
    core_status status = device_open(crowd, &device, error);
    if (status != CORE_OK)
        return status;
    for (uint32_t slot = 0; slot < 12 && status == CORE_OK; slot++)
        status = key_set(crowd, device, slot, error);
    if (status == CORE_OK)
        status = run_batches(crowd, device, batches, error);
    gpu_device_cuda.close(device);
    return status;
}

static void batches_come_back_to_the_byte(void **state)
{
    static const char *const cards[] = {"", "engines=1", "late_us=2000", "engines=1 late_us=2000 seed=7"};
    (void)state;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        struct gpu_crowd *crowd = crowd_new();
        struct core_error error = {""};
        cuda_fake_begin(cards[i]);
        if (whole_life(crowd, 40, &error) != CORE_OK)
            fail_msg("%s: %s", cards[i], error.text);
        assert_int_equal(facts.copy_engines, i % 2 == 0 ? 2 : 1);
        assert_true(cuda_fake_was_wiped());
        assert_int_equal(cuda_fake_live(), 0);
        assert_int_equal(cuda_fake_kernels(), KERNELS);
        gpu_crowd_close(crowd);
    }
}

/* Each call in turn fails: there is a sentence, everything is given back, nothing hangs. */
static void every_error_is_told(void **state)
{
    (void)state;
    uint32_t failed = 0;
    for (uint32_t at = 1;; at++) {
        struct gpu_crowd *crowd = crowd_new();
        struct core_error error = {""};
        char words[32];
        snprintf(words, sizeof words, "fail=any:%u", at);
        cuda_fake_begin(words);
        const core_status status = whole_life(crowd, 3, &error);
        const bool reached = cuda_fake_calls() >= at;
        assert_int_equal(cuda_fake_live(), 0);
        gpu_crowd_close(crowd);
        if (!reached) {
            assert_int_equal(status, CORE_OK);
            break;
        }
        if (status != CORE_OK) { /* what fails while it is closed is not told */
            assert_non_null(strstr(error.text, "cudaErrorUnknown: unknown error"));
            failed++;
        }
    }
    assert_true(failed > 100);
}

static void limits_of_copies_are_measured(void **state)
{
    struct gpu_copy_limits limits[GPU_COPY_PAGES];
    struct core_error error = {""};
    uint32_t count;
    (void)state;
    cuda_fake_begin("late_us=20");
    assert_int_equal(gpu_device_cuda.copies(0, GPU_COPY_BYTES_LEAST, limits, &count, &error), CORE_OK);
    assert_in_range(count, 2, GPU_COPY_PAGES); /* huge pages where the system has them */
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(limits[i].pages, i);
        assert_true(limits[i].up > 1 && limits[i].down > 1 && limits[i].up_beside > 1 &&
                    limits[i].down_beside > 1);
    }
    const uint64_t calls = cuda_fake_calls();
    assert_int_equal(cuda_fake_live(), 0);
    for (uint64_t at = 1; at <= calls; at += at < 30 ? 1 : STRIDE) {
        char words[32];
        snprintf(words, sizeof words, "fail=any:%u", (unsigned)at);
        cuda_fake_begin(words);
        const core_status status = gpu_device_cuda.copies(0, GPU_COPY_BYTES_LEAST, limits, &count, &error);
        assert_int_equal(cuda_fake_live(), 0);
        assert_true(status == CORE_OK || strstr(error.text, "cudaErrorUnknown: unknown error") != NULL);
        assert_true(status != CORE_OK || at > 30);
    }
}

/* What of the region is there, the device too: larger batches come back to the byte, copied piece by piece. */
static void resize(struct gpu_crowd *crowd, struct gpu_device *device, const struct gpu_room *room)
{
    const struct gpu_room from = crowd->region.room;
    const bool grows = gpu_room_holds(room, &from);
    struct core_error error = {""};
    if (grows)
        assert_int_equal(gpu_region_resize(&crowd->region, room, &error), CORE_OK);
    assert_int_equal(gpu_device_cuda.resize(device, &from, room, &error), CORE_OK);
    gpu_device_cuda.set_room(device, room);
    if (!grows)
        assert_int_equal(gpu_region_resize(&crowd->region, room, &error), CORE_OK);
}

static void memory_is_pinned_as_it_comes(void **state)
{
    static const struct gpu_room rooms[] = {
        {8192, 40, 0}, {8192, 300, 0}, {40960, 300, 0}, {40960, 600, 0}, {65536, 700, 0}};
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(4, 12, 700, 1 << 16, 32);
    struct core_error error = {""};
    struct gpu_device *device;
    cuda_fake_begin("");
    assert_int_equal(gpu_region_resize(&crowd->region, &rooms[0], NULL), CORE_OK);
    assert_int_equal(device_open(crowd, &device, &error), CORE_OK);
    const int64_t live = cuda_fake_live();
    for (uint32_t slot = 0; slot < 12; slot++)
        assert_int_equal(key_set(crowd, device, slot, &error), CORE_OK);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 1; i < 5; i++) {
            resize(crowd, device, &rooms[i]);
            assert_true(cuda_fake_live() > live);
            for (int batch = 0; batch < 2; batch++)
                run_one(crowd, device, (uint32_t)(rooms[i].bytes / 40));
        }
        resize(crowd, device, &rooms[round]);
        run_one(crowd, device, (uint32_t)(rooms[round].bytes / 40));
        resize(crowd, device, &rooms[0]);
        assert_int_equal(cuda_fake_live(), live);
    }
    const struct gpu_room between = {8192, 39, 0};
    assert_int_equal(gpu_device_cuda.resize(device, &rooms[0], &between, &error), CORE_INVALID);
    gpu_device_cuda.close(device);
    assert_int_equal(cuda_fake_live(), 0);
    gpu_crowd_close(crowd);
}

/* Opens and grows, and the registration of this number fails, from the first one of all: nothing more is pinned
 * than was. Whether there was one. */
static bool growth_fails(uint32_t at)
{
    const struct gpu_room little = {4096, 12, 0}, much = {16384, 40, 0};
    struct gpu_crowd *crowd = crowd_new();
    struct core_error error = {""};
    struct gpu_device *device;
    char words[40];
    snprintf(words, sizeof words, "fail=cudaHostRegister:%u", at);
    cuda_fake_begin(words);
    assert_int_equal(gpu_region_resize(&crowd->region, &little, NULL), CORE_OK);
    core_status status = device_open(crowd, &device, &error);
    if (status == CORE_OK) {
        const int64_t live = cuda_fake_live();
        assert_int_equal(gpu_region_resize(&crowd->region, &much, NULL), CORE_OK);
        status = gpu_device_cuda.resize(device, &little, &much, &error);
        if (status == CORE_OK)
            gpu_device_cuda.set_room(device, &much);
        else
            assert_int_equal(cuda_fake_live(), live);
        gpu_device_cuda.close(device);
    }
    if (status != CORE_OK) {
        assert_int_equal(status, CORE_SYSTEM);
        assert_non_null(strstr(error.text, "can not pin"));
    }
    assert_int_equal(cuda_fake_live(), 0);
    gpu_crowd_close(crowd);
    return status != CORE_OK;
}

static void what_can_not_be_pinned_is_told(void **state)
{
    uint32_t at = 1;
    (void)state;
    while (growth_fails(at))
        at++;
    assert_true(at > 4 * GPU_REGION_AREAS + 8); /* those of the start, and of what came then */
}

/* A sticky error: every call fails from then on. */
static void a_broken_context_is_found_by_asking(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = crowd_new();
    struct core_error error = {""};
    struct gpu_device *device;
    struct gpu_stage_end end;
    cuda_fake_begin("");
    assert_int_equal(device_open(crowd, &device, &error), CORE_OK);
    assert_int_equal(gpu_device_cuda.poll(device, &end, &error), CORE_AGAIN);
    const struct gpu_order order = gpu_crowd_batch(crowd, 0, 16);
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
        assert_int_equal(gpu_device_cuda.launch(device, (enum gpu_stage)stage, &order, &error), CORE_OK);
    cuda_fake_break();
    assert_int_equal(gpu_device_cuda.poll(device, &end, &error), CORE_SYSTEM);
    assert_non_null(strstr(error.text, "batch 1: end of a stage: cudaErrorIllegalAddress"));
    gpu_device_cuda.close(device);
    assert_int_equal(cuda_fake_live(), 0);
    gpu_crowd_close(crowd);
}

/* All of them have been made. */
static void keys_are_made(struct gpu_device *device)
{
    struct core_error error;
    core_status status;
    while ((status = gpu_device_cuda.keys_start(device, &error)) == CORE_AGAIN)
        ;
    assert_int_equal(status, CORE_OK);
}

/* Keys are written to the card, and do not stay in the host's memory. */
static void keys_are_changed_and_wiped(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = crowd_new();
    struct core_error error = {""};
    struct gpu_device *device;
    struct gpu_key key;
    static const uint8_t zeros[sizeof(struct gpu_key)];
    cuda_fake_begin("late_us=100");
    assert_int_equal(device_open(crowd, &device, &error), CORE_OK);
    for (uint32_t round = 0; device->keys.put < 3 * GPU_KEY_CHANGES; round++) {
        assert_int_equal(key_set(crowd, device, round % 12, &error), CORE_OK);
        if (round % 5 == 0)
            (void)!gpu_device_cuda.keys_start(device, &error);
    }
    keys_are_made(device);
    assert_int_equal(gpu_key_expand(&key, crowd->streams[7].key, crowd->streams[7].key_bytes), CORE_OK);
    assert_memory_equal(&device->card.keys[gpu_key_slot(7, 0)], &key, sizeof key);
    assert_memory_equal(device->card.chains[7].value[1], crowd->streams[7].chain, 16);
    assert_int_equal(gpu_device_cuda.key_clear(device, gpu_key_slot(7, 0), &error), CORE_OK);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_memory_equal(&device->card.keys[gpu_key_slot(7, 0)], &key, sizeof key); /* it waits */
    keys_are_made(device);
    assert_memory_equal(&device->card.keys[gpu_key_slot(7, 0)], zeros, sizeof key);
    assert_int_equal(gpu_device_cuda.key_clear(device, gpu_key_slot(12, 0), &error), CORE_INVALID);
    for (int i = 0; i < GPU_KEY_CHANGES; i++)
        assert_memory_equal(&device->keys.ring[i].key, zeros, sizeof key);
    gpu_device_cuda.close(device);
    gpu_crowd_close(crowd);
}

/* As many changes as there is room for are one launch, whatever slots they name, and the last one of a slot
 * counts; a kernel waits for no more than two launches behind the kernel before it. */
static void changes_of_keys_go_together(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(4, 300, 40, 1 << 14, 31);
    struct core_error error = {""};
    struct gpu_device *device;
    struct gpu_key key;
    cuda_fake_begin("");
    assert_int_equal(device_open(crowd, &device, &error), CORE_OK);
    const uint64_t before = cuda_fake_launches();
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t slot = 0; slot < GPU_KEY_CHANGES; slot++)
            assert_int_equal(gpu_device_cuda.key_clear(device, gpu_key_slot(slot, 0), &error), CORE_OK);
    for (uint32_t slot = 0; slot < GPU_KEY_CHANGES; slot++)
        assert_int_equal(key_set(crowd, device, slot, &error), CORE_OK);
    assert_int_equal(gpu_device_cuda.key_clear(device, gpu_key_slot(GPU_KEY_CHANGES, 0), &error), CORE_FULL);
    assert_int_equal(cuda_fake_launches(), before);
    keys_are_made(device);
    assert_int_equal(cuda_fake_launches(), before + 1);
    for (uint32_t slot = 0; slot < GPU_KEY_CHANGES; slot++) {
        const struct gpu_crowd_stream *stream = &crowd->streams[slot];
        assert_int_equal(gpu_key_expand(&key, stream->key, stream->key_bytes), CORE_OK);
        assert_memory_equal(&device->card.keys[gpu_key_slot(slot, 0)], &key, sizeof key);
    }
    cuda_fake_hold(true);
    for (uint32_t slot = 0; slot < 100; slot++) { /* each is to start at once, but one is under way */
        assert_int_equal(gpu_device_cuda.key_clear(device, gpu_key_slot(slot, 0), &error), CORE_OK);
        assert_int_equal(gpu_device_cuda.keys_start(device, &error), CORE_AGAIN);
    }
    const struct gpu_order order = gpu_crowd_batch(crowd, 0, 16);
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
        assert_int_equal(gpu_device_cuda.launch(device, (enum gpu_stage)stage, &order, &error), CORE_OK);
    assert_int_equal(cuda_fake_launches(), before + 3); /* of keys: the batch has no jobs */
    cuda_fake_hold(false);
    keys_are_made(device);
    gpu_device_cuda.close(device);
    assert_int_equal(cuda_fake_live(), 0);
    gpu_crowd_close(crowd);
}

static void what_is_missing_is_named(void **state)
{
    (void)state;
    struct core_error error = {""};
    uint32_t count;
    cuda_fake_begin("");
    assert_int_equal(gpu_device_cuda.count(&count, &error), CORE_OK);
    assert_int_equal(count, 1);
    cuda_fake_begin("cards=0");
    assert_int_equal(gpu_device_cuda.count(&count, &error), CORE_UNSUPPORTED);
    assert_non_null(strstr(error.text, "shows no card"));
    cuda_fake_begin("driver=0");
    assert_int_equal(gpu_device_cuda.count(&count, &error), CORE_UNSUPPORTED);
    assert_non_null(strstr(error.text, "no NVIDIA driver (libcuda.so.1 is missing)"));
    cuda_fake_begin("");
    struct gpu_crowd *crowd = crowd_new();
    struct gpu_device *device;
    const struct gpu_device_options options = {.index = 1, .region = &crowd->region};
    assert_int_equal(gpu_device_cuda.open(&device, &options, &facts, &error), CORE_NOT_FOUND);
    gpu_crowd_close(crowd);
}

/* What the driver shows at a place may have been another card when it was listed. */
static void another_card_is_not_taken(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = crowd_new();
    struct core_error error = {""};
    struct gpu_device *device;
    struct gpu_device_options options = {.uuid = "GPU-3b4c5d6e-7f90-a1b2-c3d4-e5f607182901",
                                         .region = &crowd->region};
    cuda_fake_begin("");
    assert_int_equal(gpu_device_cuda.open(&device, &options, &facts, &error), CORE_MISMATCH);
    assert_string_equal(error.text, "GPU-3b4c5d6e-7f90-a1b2-c3d4-e5f607182901: the driver shows " UUID
                                    ", Fake card, in its place");
    assert_int_equal(cuda_fake_live(), 0);
    cuda_fake_begin("cards=0"); /* it has fallen off its bus, and the others are not shown to us */
    assert_int_equal(gpu_device_cuda.open(&device, &options, &facts, &error), CORE_UNSUPPORTED);
    assert_string_equal(error.text,
                        "GPU-3b4c5d6e-7f90-a1b2-c3d4-e5f607182901: the NVIDIA driver shows no card");
    gpu_crowd_close(crowd);
}

static void an_instance_is_known_by_its_own_uuid(void **state)
{
    (void)state;
    struct core_error error = {""};
    cuda_fake_begin("mig=1");
    assert_int_equal(gpu_device_cuda.describe(0, &facts, &error), CORE_OK);
    assert_string_equal(facts.uuid, "MIG-3b4c5d6e-7f90-a1b2-c3d4-e5f607182900");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_come_back_to_the_byte),
        cmocka_unit_test(every_error_is_told),
        cmocka_unit_test(limits_of_copies_are_measured),
        cmocka_unit_test(a_broken_context_is_found_by_asking),
        cmocka_unit_test(keys_are_changed_and_wiped),
        cmocka_unit_test(changes_of_keys_go_together),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(another_card_is_not_taken),
        cmocka_unit_test(an_instance_is_known_by_its_own_uuid),
        cmocka_unit_test(memory_is_pinned_as_it_comes),
        cmocka_unit_test(what_can_not_be_pinned_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
