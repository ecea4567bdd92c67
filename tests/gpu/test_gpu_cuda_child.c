/* The child process of a real card, on the CUDA runtime without one (support/cuda/fake.h), as the engine sees
 * it: every job right to the byte, whatever order a card works in; every call that fails, every context that
 * breaks is a fault with its reason, and the next child is as good as the first.
 *
 * MILLRACE_FAKE_JOBS=1000000 build/release/tests/test_gpu_cuda_child compares so many jobs on each card. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/gpu_rig.h"
#include "tests/support/require.h"

#define JOBS      2000
#define STREAMS   40
#define BYTES_MAX 1500
#define ARENAS    5

static struct gpu_engine_options options_of(const struct gpu_crowd *crowd)
{
    struct gpu_engine_options options = gpu_crowd_options(crowd, NULL);
    options.program = gpu_crowd_fake_program();
    options.backend = "cuda";
    options.hang_least_ns = 60 * CORE_NS_PER_S; /* the machine may be busy */
    options.silence_ns = 60 * CORE_NS_PER_S;
    options.kill_ns = 60 * CORE_NS_PER_S;
    return options;
}

static struct gpu_crowd *crowd_of(const char *card, uint64_t seed)
{
    TEST_REQUIRE(setenv("MILLRACE_FAKE_CUDA", card, 1) == 0); /* no other thread: an engine has one */
    return gpu_crowd_open(ARENAS, STREAMS, 3 * STREAMS, 1 << 18, seed);
}

static void rig_open(struct gpu_rig *rig, const char *card, uint64_t seed)
{
    struct gpu_crowd *crowd = crowd_of(card, seed);
    const struct gpu_engine_options options = options_of(crowd);
    gpu_rig_open(rig, crowd, NULL, &options);
}

/* Slots change hands meanwhile. */
static void jobs_are_right_to_the_byte(void **state)
{
    static const char *const cards[] = {"late_us=500", "late_us=500 engines=1", "mb_per_s=200",
                                        "sms=132 seed=3"};
    const char *asked = getenv("MILLRACE_FAKE_JOBS");
    const uint64_t jobs = asked == NULL ? JOBS : strtoull(asked, NULL, 10);
    (void)state;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        struct gpu_rig rig;
        rig_open(&rig, cards[i], i);
        while (rig.crowd->jobs < jobs) {
            const uint32_t slot = (uint32_t)gpu_crowd_draw(rig.crowd, STREAMS);
            gpu_rig_go_on(&rig, ARENAS, (uint32_t)gpu_crowd_draw(rig.crowd, STREAMS + 1), BYTES_MAX);
            if (gpu_crowd_draw(rig.crowd, 4) > 0)
                continue;
            gpu_crowd_stream_renew(rig.crowd, slot);
            TEST_REQUIRE(gpu_crowd_key_hand(rig.crowd, rig.engine, slot) == CORE_OK);
        }
        gpu_rig_take_all(&rig);
        print_message("%s: %llu jobs\n", cards[i], (unsigned long long)rig.crowd->jobs);
        gpu_rig_close(&rig);
    }
}

/* Batches until the child tells of the failure; the next one is as good as the first. */
static void fail_in_service(const char *card, const char *words)
{
    struct gpu_rig rig;
    rig_open(&rig, card, 5);
    const struct gpu_fault fault = gpu_rig_fault(&rig, 3, STREAMS, BYTES_MAX);
    if (fault.kind != GPU_FAULT_DEVICE || strstr(fault.text, words) == NULL)
        fail_msg("%s: fault %d without '%s': %s", card, fault.kind, words, fault.text);
    assert_true(fault.gone);
    gpu_rig_start(&rig);
    for (int batch = 0; batch < 3; batch++)
        gpu_rig_go_on(&rig, 2, STREAMS, BYTES_MAX);
    gpu_rig_take_all(&rig);
    gpu_rig_close(&rig);
}

static void calls_that_fail_in_service_are_told(void **state)
{
    static const char *const calls[] = {
        "cudaStreamWaitEvent:60",   "cudaEventRecord:150",       "cudaMemcpyAsync:60",
        "cudaLaunchKernelEx:100",   "cudaLaunchHostFunc:40",     "cudaEventQuery:2000",
        "cudaEventElapsedTime:100", "cudaDeviceGetAttribute:50", "cudaGetDevice:50",
    };
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        char card[80];
        snprintf(card, sizeof card, "fail=%s", calls[i]);
        fail_in_service(card, "cudaErrorUnknown: unknown error");
        snprintf(card, sizeof card, "sticky=1 fail=%s", calls[i]);
        fail_in_service(card, "cudaErrorIllegalAddress: an illegal memory access");
    }
}

static void contexts_that_break_behind_the_calls_are_told(void **state)
{
    static const char *const cards[] = {"fault=copy:60", "fault=kernel:100", "fault=copy:61 engines=1",
                                        "fault=kernel:101 late_us=2000"};
    (void)state;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        fail_in_service(cards[i], "cudaErrorIllegalAddress: an illegal memory access");
}

/* The fault of a child that does not get ready. */
static struct gpu_fault fail_at_the_start(const char *card, core_ns start_ns)
{
    struct gpu_crowd *crowd = crowd_of(card, 6);
    struct gpu_engine_options options = options_of(crowd);
    struct gpu_engine *engine = NULL;
    struct gpu_event event;
    struct core_error error = {""};
    options.start_ns = start_ns;
    assert_int_equal(gpu_engine_open(&engine, &options, &error), CORE_OK);
    assert_int_equal(gpu_engine_start(engine, core_time_now_ns(), &error), CORE_OK);
    assert_true(gpu_crowd_wait(engine, &event));
    assert_int_equal(event.kind, GPU_EVENT_FAULT);
    gpu_engine_close(engine);
    gpu_crowd_close(crowd);
    return event.fault;
}

static void calls_that_fail_at_the_start_are_told(void **state)
{
    static const char *const calls[] = {
        "cudaGetDeviceCount",
        "cudaGetDeviceProperties",
        "cudaDriverGetVersion",
        "cudaInitDevice",
        "cudaSetDevice",
        "cudaHostRegister",
        "cudaMalloc",
        "cudaMemset",
        "cudaHostAlloc",
        "cudaHostGetDevicePointer",
        "cudaMemcpy",
        "cudaDeviceSynchronize",
        "cudaEventCreateWithFlags",
        "cudaStreamCreateWithFlags",
        "cudaEventSynchronize",
        "cudaLaunchKernelEx",
    };
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        char card[80];
        snprintf(card, sizeof card, "sticky=%zu fail=%s:1", i % 2, calls[i]);
        const struct gpu_fault fault = fail_at_the_start(card, 0);
        if (fault.kind != GPU_FAULT_START || strstr(fault.text, "cudaError") == NULL)
            fail_msg("%s: fault %d: %s", card, fault.kind, fault.text);
    }
    assert_non_null(strstr(fail_at_the_start("memory_mb=1", 0).text, "the batches need"));
    assert_non_null(strstr(fail_at_the_start("driver=0", 0).text, "no NVIDIA driver"));
}

static void slow_contexts_get_their_time_and_no_more(void **state)
{
    struct gpu_rig rig;
    (void)state;
    rig_open(&rig, "open_ms=700 lazy_ms=200", 7);
    gpu_rig_go_on(&rig, 1, STREAMS, BYTES_MAX);
    gpu_rig_take_all(&rig);
    gpu_rig_close(&rig);
    const struct gpu_fault fault = fail_at_the_start("open_ms=60000", 300 * CORE_NS_PER_MS);
    assert_int_equal(fault.kind, GPU_FAULT_START);
    assert_true(fault.gone);
}

static void a_child_that_is_killed_under_load_loses_nothing(void **state)
{
    struct gpu_rig rig;
    (void)state;
    rig_open(&rig, "late_us=1000", 8);
    for (int round = 0; round < 5; round++) {
        for (int batch = 0; batch < 10; batch++)
            gpu_rig_go_on(&rig, ARENAS, STREAMS, BYTES_MAX);
        assert_int_equal(kill(gpu_engine_process(rig.engine), SIGKILL), 0);
        const struct gpu_fault fault = gpu_rig_fault(&rig, ARENAS, STREAMS, BYTES_MAX);
        assert_int_equal(fault.kind, GPU_FAULT_SIGNALLED);
        gpu_rig_start(&rig);
    }
    gpu_rig_take_all(&rig);
    gpu_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_are_right_to_the_byte),
        cmocka_unit_test(calls_that_fail_in_service_are_told),
        cmocka_unit_test(contexts_that_break_behind_the_calls_are_told),
        cmocka_unit_test(calls_that_fail_at_the_start_are_told),
        cmocka_unit_test(slow_contexts_get_their_time_and_no_more),
        cmocka_unit_test(a_child_that_is_killed_under_load_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
