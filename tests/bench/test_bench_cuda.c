/* The programs as they drive a real card, on the CUDA runtime without one (support/cuda/fake.h): the real
 * backend, its kernels, the child and millrace-bench. A million jobs, byte for byte, is
 *
 *   MILLRACE_FAKE_CUDA='late_us=300' build/release/bench/millrace-bench kernel \
 *     --gpu-program build/release/tests/millrace-gpu-fake --check 1000000
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/gpu/measurer.h"
#include "config/profile.h"
#include "server/gpu/batcher.h"
#include "tests/support/command.h"

#define GPU   MILLRACE_BINARY_DIR "/tests/millrace-gpu-fake "
#define BENCH MILLRACE_BINARY_DIR "/bench/millrace-bench "
#define CARD  "--gpu-program " GPU

static char text[65536];

/* With a card like this. */
static void expect(const char *card, const char *line, int status, const char *words)
{
    if (setenv("MILLRACE_FAKE_CUDA", card, 1) != 0)
        fail();
    const int got = test_command(line, text, sizeof text);
    if (got != status || strstr(text, words) == NULL)
        fail_msg("%s: %s: status %d, not %d with '%s': %s", card, line, got, status, words, text);
}

static void cards_are_listed_with_what_they_are(void **state)
{
    (void)state;
    expect("cards=2 engines=1 memory_mb=3", GPU "--list", 0,
           "1\tFake card\t3145728 bytes\t4 SMs\t1 copy engines\tdriver CUDA 13.2\t"
           "GPU-3b4c5d6e-7f90-a1b2-c3d4-e5f607182901\t0000:3c:00.0\n");
    expect("driver=0", GPU "--list", 0, "none\n");
    expect("cards=0", GPU "--list", 0, "the NVIDIA driver shows no card");
    expect("version=11040", GPU "--list", 0, "older than CUDA 13.0 asks for");
    expect("fail=cudaGetDeviceProperties:1", GPU "--list", 4, "cudaErrorUnknown");
}

static void random_jobs_are_right_to_the_byte(void **state)
{
    static const char *const cards[] = {"late_us=200", "late_us=200 engines=1 seed=2"};
    (void)state;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        expect(cards[i], BENCH "kernel --jobs 16 --bytes 1024 --batches 2 --check 200 --copies 0 " CARD, 0,
               "every byte right");
}

static void limits_of_copies_are_told_by_kind_of_pages(void **state)
{
    (void)state;
    expect("late_us=20", GPU "--copies 4M", 0, "\nsmall\t");
    expect("late_us=20", BENCH "kernel --jobs 1 --bytes 16 --batches 1 --check 0 --copies 4M " CARD, 0,
           "pages: driver");
    expect("", BENCH "kernel --json --jobs 1 --bytes 16 --batches 1 --check 0 --copies 0 " CARD, 0,
           "\"copies\": {}");
    expect("cards=1", GPU "--copies 4M --device 1", 4,
           "millrace-gpu: cudaInitDevice: cudaErrorInvalidDevice");
    expect("memory_mb=7", GPU "--copies 4M", 4,
           "memory, streams and events for copies: cudaErrorMemoryAllocation");
    /* A little more than 385 MiB for the comparison; the verdict is told, and the error */
    expect("memory_mb=386", BENCH "kernel --jobs 1 --bytes 16 --batches 1 --check 20 --copies 256M " CARD, 1,
           "every byte right");
    assert_non_null(strstr(text, "cudaErrorMemoryAllocation"));
    expect("", BENCH "kernel --copies 1M " CARD, 2, "--copies: 0, or 4M to 1G");
    expect("", GPU "--copies 4M --backend emulated", 0, "none\n");
}

static void a_profile_is_measured(void **state)
{
    char path[] = "/tmp/millrace-test-XXXXXX", line[1024];
    struct config_profile *profile;
    struct core_error error = {""};
    (void)state;
    assert_int_equal(close(mkstemp(path)), 0);
    snprintf(line, sizeof line,
             BENCH "calibrate -o %s --gpu-cipher aes-128-cbc --gpu-arena-bytes 65536 --gpu-seconds 0.1 "
                   "--rounds 1 --seconds 0.5 --no-realtime " CARD,
             path);
    expect("engines=1 sms=1", line, 0, "x Fake card, driver CUDA 13.2");
    if (config_profile_load(path, &profile, &error) != CORE_OK)
        fail_msg("%s", error.text);
    const char *io = strstr(text, "packets of GPUs cost an I/O thread ");
    assert_non_null(io);
    assert_true(profile->io.per_packet_ns >= strtoll(strpbrk(io, "0123456789"), NULL, 10));
    assert_string_equal(profile->gpus[0].name, "Fake card");
    assert_int_equal(profile->gpus[0].sms, 1);
    assert_int_equal(profile->gpus[0].copy_engines, 1);
    config_profile_free(profile);
    assert_int_equal(unlink(path), 0);
}

/* Copies of a batch of this shape up, by the pieces of a server that has grown to it: its payload lies in all of
 * them, its tables in one. */
static uint32_t copies_of_a_server(const struct gpu_region_shape *shape)
{
    const struct gpu_room most = gpu_room_most(shape);
    struct gpu_room room = server_gpu_room_limits(shape).least;
    uint32_t copies = 3;
    for (; !gpu_room_holds(&room, &most); copies++)
        room = server_gpu_room_next(shape, &room);
    return copies;
}

/* What is said to standard error meanwhile is in `text`. */
static void batch_measure(const struct bench_gpu_machine_options *options)
{
    const struct bench_gpu_way alone = {0};
    const struct bench_gpu_shape shape = {.bytes = options->arena_bytes, .jobs = 1};
    struct bench_gpu_machine *machine;
    struct bench_gpu_timing timing;
    struct core_error error = {""}, why = {""};
    FILE *said = tmpfile();
    const int before = dup(STDERR_FILENO);
    assert_true(said != NULL && before >= 0 && dup2(fileno(said), STDERR_FILENO) >= 0);
    core_status status = bench_gpu_machine_open(&machine, options, &why, &error);
    if (status == CORE_OK && machine != NULL) {
        const struct bench_gpu_measurer measurer = bench_gpu_machine_measurer(machine, 0);
        status = measurer.measure(measurer.argument, 0, &shape, &alone, 1, &timing, &error);
        bench_gpu_machine_close(machine);
    }
    assert_int_equal(dup2(before, STDERR_FILENO), STDERR_FILENO);
    rewind(said);
    text[fread(text, 1, sizeof text - 1, said)] = '\0';
    (void)fclose(said);
    (void)close(before);
    if (status != CORE_OK)
        fail_msg("%s", error.text);
    if (machine == NULL)
        fail_msg("no card: %s", why.text);
}

static void a_batch_is_copied_in_as_many_pieces_as_a_servers(void **state)
{
    const struct bench_gpu_machine_options options = {
        .program = {.path = MILLRACE_BINARY_DIR "/tests/millrace-gpu-fake",
                    .backend = "cuda",
                    .kernel_forms = 1},
        .arena_bytes = UINT64_C(24) << 20,
        .cipher = CORE_CIPHER_AES_128_CBC};
    const struct gpu_region_shape shape = {
        .arenas = 4, .slots = 1024, .segments = 1024, .arena_bytes = options.arena_bytes};
    const uint32_t copies = copies_of_a_server(&shape);
    char words[64];
    (void)state;
    assert_int_equal(setenv("MILLRACE_FAKE_CUDA", "sms=1 tell=1", 1), 0);
    batch_measure(&options);
    snprintf(words, sizeof words, "fake card: %u copies\n", copies);
    if (copies < 10 || strstr(text, words) == NULL)
        fail_msg("a server copies a batch in %u pieces: %s", copies, text);
    snprintf(words, sizeof words, "fake card: %u copies\n", copies + 1);
    assert_null(strstr(text, words));
}

/* How long it takes is not looked at, and is told by the exit status. */
static void packets_of_a_plan_are_right_to_the_byte(void **state)
{
    static const char *const cards[] = {"late_us=300", "late_us=300 engines=1"};
    (void)state;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        assert_int_equal(setenv("MILLRACE_FAKE_CUDA", cards[i], 1), 0);
        const int status =
            test_command(BENCH "pipeline --json --profile emulated-small --backend cuda --gpus-alone "
                               "--deadline 400 --streams 24 --rate 200k --seconds 1 --no-realtime "
                               "--in-us 1000 --out-us 1000 --compare 24 " CARD,
                         text, sizeof text);
        const char *document = strstr(text, "{\n"); /* warnings come first */
        json_t *told = json_loads(document == NULL ? "" : document, 0, NULL);
        const json_t *gpu = json_object_get(told, "gpu");
        const json_int_t packets = json_integer_value(json_object_get(gpu, "packets"));
        if ((status != 0 && status != 1) || packets < 24 * 17 ||
            json_integer_value(json_object_get(gpu, "compared")) != packets ||
            json_integer_value(json_object_get(gpu, "wrong")) != 0)
            fail_msg("%s: status %d: %s", cards[i], status, text);
        json_decref(told);
    }
}

/* The library is the fake one's (support/libraries/nvml.c). */
static void a_pipeline_tells_the_cards_clock(void **state)
{
    char path[] = "/tmp/millrace-test-XXXXXX";
    FILE *told = fdopen(mkstemp(path), "w");
    (void)state;
    assert_true(told != NULL && fputs("1320 1980 44 83 0", told) >= 0 && fclose(told) == 0);
    assert_int_equal(setenv("FAKE_NVML", path, 1), 0);
    assert_int_equal(setenv("LD_LIBRARY_PATH", MILLRACE_BINARY_DIR "/tests/libraries", 1), 0);
    for (int json = 0; json < 2; json++) {
        snprintf(text, sizeof text,
                 BENCH "pipeline %s --profile emulated-small --backend cuda --gpus-alone --deadline 400 "
                       "--streams 8 --rate 100k --seconds 0.3 --no-realtime --in-us 1000 --out-us 1000 " CARD,
                 json ? "--json" : "");
        (void)test_command(strdupa(text), text, sizeof text);
        if (strstr(text, json ? "\"sm_mhz\": 1320"
                              : "clock of the SMs 1320 of 1980 MHz, 83 C, held down by: "
                                "power limit, heat (card)") == NULL)
            fail_msg("no clock: %s", text);
    }
    assert_int_equal(unsetenv("LD_LIBRARY_PATH"), 0);
    assert_int_equal(unsetenv("FAKE_NVML"), 0);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cards_are_listed_with_what_they_are),
        cmocka_unit_test(random_jobs_are_right_to_the_byte),
        cmocka_unit_test(limits_of_copies_are_told_by_kind_of_pages),
        cmocka_unit_test(a_batch_is_copied_in_as_many_pieces_as_a_servers),
        cmocka_unit_test(a_profile_is_measured),
        cmocka_unit_test(packets_of_a_plan_are_right_to_the_byte),
        cmocka_unit_test(a_pipeline_tells_the_cards_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
