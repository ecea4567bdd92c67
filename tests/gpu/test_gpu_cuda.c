/* The CUDA device's host code on a runtime of the test's own, since few machines have a card: which calls are
 * made, in which order, and what becomes of their errors. Work is done at once, but ends are seen late, and
 * every stage must have waited for what it needs. (What a card itself does with it, only a card can show.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#ifdef MILLRACE_HAS_CUDA
#include <dlfcn.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/secret.h"
#include "gpu/aes.h"
#include "gpu/device_cuda.h"
#include "gpu/pipeline.h"
#include "tests/support/gpu_crowd.h"
#include "tests/support/require.h"

/* ---- the runtime ---- */

struct CUstream_st {
    uint64_t waited; /* for everything up to this moment */
};

struct CUevent_st {
    uint64_t moment; /* of its record; 0: never */
    core_ns time_ns;
    uint32_t unseen; /* queries until it is ready */
};

#define PIECES 64

/* What was written to an address of the card, and when. */
struct piece {
    const void *address;
    uint64_t moment;
};

static struct {
    bool driver, card, instance;
    int copy_engines;
    uint32_t calls, fails_at; /* the call that fails; 0: none */
    bool broken;              /* every call fails */
    bool runs_late;           /* no event is seen to be over */
    cudaError_t last;         /* what cudaGetLastError returns */
    uint64_t moment;
    uint64_t seen; /* the latest moment that the device's owner knows to be over */
    struct piece pieces[PIECES];
    int live; /* streams, events, memory, pins */
    uint32_t launched[GPU_KERNEL_FORMS], key_launches;
    uint8_t *card_memory;
    size_t card_bytes;
    bool card_was_wiped;
    struct test_random random;
} fake;

static void see(cudaEvent_t event)
{
    event->unseen = 0;
    if (fake.seen < event->moment)
        fake.seen = event->moment;
}

static void fake_reset(void)
{
    memset(&fake, 0, sizeof fake);
    fake.driver = fake.card = true;
    fake.copy_engines = 2;
    fake.random.state = 5;
}

static bool call_fails(void)
{
    return fake.broken || ++fake.calls == fake.fails_at;
}

#define CALL()                                                                                               \
    do {                                                                                                     \
        if (call_fails())                                                                                    \
            return cudaErrorIllegalAddress;                                                                  \
    } while (0)

static uint64_t *moment_of(const void *address)
{
    for (int i = 0; i < PIECES; i++)
        if (fake.pieces[i].address == address || fake.pieces[i].address == NULL) {
            fake.pieces[i].address = address;
            return &fake.pieces[i].moment;
        }
    abort();
}

/* This stream may read what was last written there only if it has waited for it. */
static void require_waited(cudaStream_t stream, const void *address)
{
    TEST_REQUIRE(stream->waited >= *moment_of(address));
}

void *__wrap_dlopen(const char *name, int flags);
int __wrap_dlclose(void *handle);

void *__wrap_dlopen(const char *name, int flags)
{
    (void)flags;
    TEST_REQUIRE(strcmp(name, "libcuda.so.1") == 0);
    return fake.driver ? &fake : NULL;
}

int __wrap_dlclose(void *handle)
{
    TEST_REQUIRE(handle == &fake);
    return 0;
}

cudaError_t CUDARTAPI cudaGetDeviceCount(int *count)
{
    CALL();
    if (!fake.card)
        return cudaErrorNoDevice;
    *count = 1;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    CALL();
    TEST_REQUIRE(device == 0);
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "a card of the test");
    properties->totalGlobalMem = (size_t)1 << 30;
    properties->multiProcessorCount = 4;
    properties->asyncEngineCount = fake.copy_engines;
    if (fake.instance)
        strcpy(properties->name, "a card of the test MIG 1g.10gb");
    for (int i = 0; i < 16; i++)
        properties->uuid.bytes[i] = (char)(0x3b + 0x11 * i);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    CALL();
    TEST_REQUIRE(device == 0 && size >= 13);
    strcpy(text, "0000:3B:00.0");
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDriverGetVersion(int *version)
{
    CALL();
    *version = 13020;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaInitDevice(int device, unsigned flags, unsigned how)
{
    CALL();
    TEST_REQUIRE(device == 0 && flags == cudaDeviceScheduleBlockingSync &&
                 how == cudaInitDeviceFlagsAreValid);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaSetDevice(int device)
{
    CALL();
    TEST_REQUIRE(device == 0);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceSynchronize(void)
{
    CALL();
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    CALL();
    (void)flags;
    TEST_REQUIRE(memory != NULL && bytes > 0);
    fake.live++;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaHostUnregister(void *memory)
{
    (void)memory;
    fake.live--;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMalloc(void **memory, size_t bytes)
{
    CALL();
    *memory = aligned_alloc(256, bytes);
    TEST_REQUIRE(*memory != NULL);
    memset(*memory, 0xcc, bytes);
    fake.card_memory = *memory;
    fake.card_bytes = bytes;
    fake.live++;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaFree(void *memory)
{
    fake.card_was_wiped = true;
    for (size_t i = 0; i < fake.card_bytes; i++)
        fake.card_was_wiped &= fake.card_memory[i] == 0;
    free(memory);
    fake.live--;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemset(void *memory, int value, size_t bytes)
{
    CALL();
    memset(memory, value, bytes);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    CALL();
    TEST_REQUIRE(flags == cudaHostAllocMapped);
    *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    TEST_REQUIRE(*memory != NULL);
    fake.live++;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaFreeHost(void *memory)
{
    free(memory);
    fake.live--;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaHostGetDevicePointer(void **on_card, void *memory, unsigned flags)
{
    CALL();
    TEST_REQUIRE(flags == 0);
    *on_card = memory;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    CALL();
    TEST_REQUIRE(flags == cudaStreamNonBlocking);
    *stream = calloc(1, sizeof **stream);
    fake.live++;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream)
{
    free(stream);
    fake.live--;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    CALL();
    TEST_REQUIRE(flags == cudaEventWaitDefault && event->moment > 0);
    if (stream->waited < event->moment)
        stream->waited = event->moment;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    CALL();
    (void)flags;
    *event = calloc(1, sizeof **event);
    fake.live++;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    fake.live--;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    CALL();
    TEST_REQUIRE(stream != NULL);
    event->moment = ++fake.moment;
    event->time_ns = core_time_now_ns();
    event->unseen = (uint32_t)test_random_in(&fake.random, 0, 3);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event)
{
    CALL();
    if (event->unseen > 0 || fake.runs_late) {
        event->unseen -= event->unseen > 0;
        return fake.last = cudaErrorNotReady; /* as the real one does */
    }
    see(event);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event)
{
    CALL();
    see(event);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    CALL();
    TEST_REQUIRE(from->moment > 0 && to->moment >= from->moment && to->moment <= fake.seen);
    *ms = (float)((double)(to->time_ns - from->time_ns) / 1e6);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    CALL();
    TEST_REQUIRE(kind == cudaMemcpyHostToDevice);
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                      cudaStream_t stream)
{
    CALL();
    TEST_REQUIRE(bytes > 0);
    if (kind == cudaMemcpyDeviceToHost)
        require_waited(stream, from);
    memcpy(to, from, bytes);
    if (kind == cudaMemcpyHostToDevice)
        *moment_of(to) = ++fake.moment;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    CALL();
    TEST_REQUIRE(stream != NULL);
    function(argument);
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetLastError(void)
{
    const cudaError_t last = fake.last;
    fake.last = cudaSuccess;
    return last;
}

const char *CUDARTAPI cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "other";
}

const char *CUDARTAPI cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "other";
}

int gpu_kernel_launch(enum gpu_kernel_form form, const struct gpu_batch *batch, struct CUstream_st *stream)
{
    if (call_fails())
        return cudaErrorIllegalAddress;
    TEST_REQUIRE((unsigned)form < GPU_KERNEL_FORMS);
    fake.launched[form]++;
    require_waited(stream, batch->input);
    require_waited(stream, batch->jobs);
    require_waited(stream, batch->segments);
    TEST_REQUIRE(gpu_batch_check(batch, NULL) == CORE_OK);
    gpu_kernel_run_host(form, batch, 0, batch->job_count);
    *moment_of(batch->output) = ++fake.moment;
    return (int)cudaGetLastError();
}

int gpu_key_change_launch(const struct gpu_key_changes *changes, struct gpu_key *keys,
                          struct gpu_chain *chains, struct CUstream_st *stream)
{
    if (call_fails())
        return cudaErrorIllegalAddress;
    TEST_REQUIRE(stream != NULL && changes->count > 0 && changes->count <= GPU_KEY_CHANGES);
    for (uint32_t i = 0; i < changes->count; i++) {
        const struct gpu_key_change *change = &changes->ring[(changes->first + i) % GPU_KEY_CHANGES];
        for (uint32_t j = 0; j < i; j++) /* they are made in any order */
            TEST_REQUIRE(changes->ring[(changes->first + j) % GPU_KEY_CHANGES].slot != change->slot);
        keys[change->slot] = change->key;
        chains[change->slot] = change->chain;
    }
    fake.key_launches++;
    return (int)cudaGetLastError();
}

/* ---- tests ---- */

#define UUID "GPU-3b4c5d6e-7f90-a1b2-c3d4-e5f60718293a"

static struct gpu_crowd *crowd_new(void)
{
    return gpu_crowd_open(4, 12, 40, 1 << 14, 31);
}

static core_status device_open(const struct gpu_crowd *crowd, struct gpu_device **device,
                               struct core_error *error)
{
    const struct gpu_device_options options = {.uuid = UUID, .region = &crowd->region};
    struct gpu_device_facts facts;
    const core_status status = gpu_device_cuda.open(device, &options, &facts, error);
    if (status == CORE_OK) {
        assert_string_equal(facts.name, "a card of the test");
        assert_string_equal(facts.driver, "CUDA 13.2");
        assert_string_equal(facts.uuid, UUID);
        assert_string_equal(facts.pci, "0000:3b:00.0");
        assert_int_equal(facts.sms, 4);
        assert_int_equal((int)facts.copy_engines, fake.copy_engines);
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
    while ((status = gpu_device_cuda.key_set(device, slot, &key, stream->chain, error)) == CORE_FULL)
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
    gpu_pipeline_begin(&pipeline, &gpu_device_cuda, device, (uint32_t)fake.copy_engines);
    while (status == CORE_OK && back < (uint64_t)count) {
        const struct gpu_pipeline_batch *batch;
        if (submitted < (uint64_t)count && submitted - back < 4) {
            orders[submitted % 4] = gpu_crowd_batch(crowd, submitted == 3 ? 0 : 12, 200);
            status = gpu_pipeline_submit(&pipeline, &orders[submitted++ % 4], error);
        }
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
    (void)state;
    for (int engines = 1; engines <= 2; engines++) {
        struct gpu_crowd *crowd = crowd_new();
        struct core_error error = {""};
        fake_reset();
        fake.copy_engines = engines;
        if (whole_life(crowd, 40, &error) != CORE_OK)
            fail_msg("%s", error.text);
        assert_true(fake.card_was_wiped);
        assert_int_equal(fake.live, 0);
        assert_true(fake.launched[GPU_KERNEL_WHOLE] > 0 && fake.launched[GPU_KERNEL_QUAD] > 0);
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
        fake_reset();
        fake.fails_at = at;
        const core_status status = whole_life(crowd, 3, &error);
        const bool reached = fake.calls >= at;
        assert_int_equal(fake.live, 0);
        gpu_crowd_close(crowd);
        if (!reached) {
            assert_int_equal(status, CORE_OK);
            break;
        }
        if (status != CORE_OK) { /* what fails while it is closed is not told */
            assert_non_null(strstr(error.text, "cudaErrorIllegalAddress: an illegal memory access"));
            failed++;
        }
    }
    assert_true(failed > 100);
}

/* A sticky error: every call fails from then on. */
static void a_broken_context_is_found_by_asking(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = crowd_new();
    struct core_error error = {""};
    struct gpu_device *device;
    struct gpu_stage_end end;
    fake_reset();
    assert_int_equal(device_open(crowd, &device, &error), CORE_OK);
    assert_int_equal(gpu_device_cuda.poll(device, &end, &error), CORE_AGAIN);
    const struct gpu_order order = gpu_crowd_batch(crowd, 0, 16);
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
        assert_int_equal(gpu_device_cuda.launch(device, (enum gpu_stage)stage, &order, &error), CORE_OK);
    fake.broken = true;
    assert_int_equal(gpu_device_cuda.poll(device, &end, &error), CORE_SYSTEM);
    assert_non_null(strstr(error.text, "batch 1: end of a stage: cudaErrorIllegalAddress"));
    gpu_device_cuda.close(device);
    assert_int_equal(fake.live, 0);
    gpu_crowd_close(crowd);
}

static void keys_are_started(struct gpu_device *device)
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
    fake_reset();
    assert_int_equal(device_open(crowd, &device, &error), CORE_OK);
    for (int round = 0; round < 3 * GPU_KEY_CHANGES; round++) {
        assert_int_equal(key_set(crowd, device, (uint32_t)round % 12, &error), CORE_OK);
        if (round % 5 == 0)
            (void)!gpu_device_cuda.keys_start(device, &error);
    }
    keys_are_started(device);
    assert_int_equal(gpu_key_expand(&key, crowd->streams[7].key, crowd->streams[7].key_bytes), CORE_OK);
    assert_memory_equal(&device->card.keys[7], &key, sizeof key);
    assert_memory_equal(device->card.chains[7].value[1], crowd->streams[7].chain, 16);
    assert_int_equal(gpu_device_cuda.key_clear(device, 7, &error), CORE_OK);
    assert_memory_equal(&device->card.keys[7], &key, sizeof key); /* it waits */
    keys_are_started(device);
    assert_memory_equal(&device->card.keys[7], zeros, sizeof key);
    assert_int_equal(gpu_device_cuda.key_clear(device, 12, &error), CORE_INVALID);
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
    fake_reset();
    assert_int_equal(device_open(crowd, &device, &error), CORE_OK);
    const uint32_t before = fake.key_launches;
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t slot = 0; slot < GPU_KEY_CHANGES; slot++)
            assert_int_equal(gpu_device_cuda.key_clear(device, slot, &error), CORE_OK);
    for (uint32_t slot = 0; slot < GPU_KEY_CHANGES; slot++)
        assert_int_equal(key_set(crowd, device, slot, &error), CORE_OK);
    assert_int_equal(gpu_device_cuda.key_clear(device, GPU_KEY_CHANGES, &error), CORE_FULL);
    assert_int_equal(fake.key_launches, before);
    keys_are_started(device);
    assert_int_equal(fake.key_launches, before + 1);
    for (uint32_t slot = 0; slot < GPU_KEY_CHANGES; slot++) {
        const struct gpu_crowd_stream *stream = &crowd->streams[slot];
        assert_int_equal(gpu_key_expand(&key, stream->key, stream->key_bytes), CORE_OK);
        assert_memory_equal(&device->card.keys[slot], &key, sizeof key);
    }
    fake.runs_late = true;
    for (uint32_t slot = 0; slot < 100; slot++) { /* each is to start at once, but one is under way */
        assert_int_equal(gpu_device_cuda.key_clear(device, slot, &error), CORE_OK);
        assert_int_equal(gpu_device_cuda.keys_start(device, &error), CORE_AGAIN);
    }
    const struct gpu_order order = gpu_crowd_batch(crowd, 0, 16);
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
        assert_int_equal(gpu_device_cuda.launch(device, (enum gpu_stage)stage, &order, &error), CORE_OK);
    assert_int_equal(fake.key_launches, before + 3);
    fake.runs_late = false;
    keys_are_started(device);
    gpu_device_cuda.close(device);
    gpu_crowd_close(crowd);
}

static void what_is_missing_is_named(void **state)
{
    (void)state;
    struct core_error error = {""};
    uint32_t count;
    fake_reset();
    assert_int_equal(gpu_device_cuda.count(&count, &error), CORE_OK);
    assert_int_equal(count, 1);
    fake.card = false;
    assert_int_equal(gpu_device_cuda.count(&count, &error), CORE_UNSUPPORTED);
    assert_non_null(strstr(error.text, "shows no card"));
    fake.driver = false;
    assert_int_equal(gpu_device_cuda.count(&count, &error), CORE_UNSUPPORTED);
    assert_non_null(strstr(error.text, "no NVIDIA driver (libcuda.so.1 is missing)"));
    fake_reset();
    struct gpu_crowd *crowd = crowd_new();
    struct gpu_device *device;
    struct gpu_device_facts facts;
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
    struct gpu_device_facts facts;
    struct gpu_device_options options = {.uuid = "GPU-3b4c5d6e-7f90-a1b2-c3d4-e5f60718293b",
                                         .region = &crowd->region};
    fake_reset();
    assert_int_equal(gpu_device_cuda.open(&device, &options, &facts, &error), CORE_MISMATCH);
    assert_string_equal(error.text, "GPU-3b4c5d6e-7f90-a1b2-c3d4-e5f60718293b: the driver shows " UUID
                                    ", a card of the test, in its place");
    assert_int_equal(fake.live, 0);
    fake.card = false; /* it has fallen off its bus, and the others are not shown to us */
    assert_int_equal(gpu_device_cuda.open(&device, &options, &facts, &error), CORE_UNSUPPORTED);
    assert_string_equal(error.text,
                        "GPU-3b4c5d6e-7f90-a1b2-c3d4-e5f60718293b: the NVIDIA driver shows no card");
    gpu_crowd_close(crowd);
}

static void an_instance_is_known_by_its_own_uuid(void **state)
{
    (void)state;
    struct core_error error = {""};
    struct gpu_device_facts facts;
    fake_reset();
    fake.instance = true;
    assert_int_equal(gpu_device_cuda.describe(0, &facts, &error), CORE_OK);
    assert_string_equal(facts.uuid, "MIG-3b4c5d6e-7f90-a1b2-c3d4-e5f60718293a");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_card_is_not_taken),
        cmocka_unit_test(an_instance_is_known_by_its_own_uuid),
        cmocka_unit_test(batches_come_back_to_the_byte),
        cmocka_unit_test(every_error_is_told),
        cmocka_unit_test(a_broken_context_is_found_by_asking),
        cmocka_unit_test(keys_are_changed_and_wiped),
        cmocka_unit_test(changes_of_keys_go_together),
        cmocka_unit_test(what_is_missing_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    print_message("this build has no CUDA\n");
    return 77;
}

#endif
