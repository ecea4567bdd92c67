/* The engine and a real child with the emulated device: bytes, order, keys, stopping. Faults are in
 * test_gpu_fault.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/gpu_rig.h"

static void one_batch_goes_there_and_back(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(4, 50, 200, 1 << 18, 1);
    const struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_rig rig;
    gpu_rig_open(&rig, crowd, &card, NULL);
    gpu_rig_submit(&rig, 50, 1500);
    gpu_rig_take_back(&rig);
    gpu_rig_close(&rig);
}

/* 10,000 jobs of all key sizes, several batches under way. */
static void many_jobs_come_back_to_the_byte(void **state)
{
    (void)state;
    for (uint32_t engines = 1; engines <= 2; engines++) {
        struct gpu_crowd *crowd = gpu_crowd_open(6, 800, 1600, 1 << 20, engines);
        const struct gpu_emulation card = gpu_crowd_card(engines);
        struct gpu_rig rig;
        gpu_rig_open(&rig, crowd, &card, NULL);
        while (crowd->jobs < 10000)
            gpu_rig_go_on(&rig, 5, 700, 800);
        gpu_rig_take_all(&rig);
        assert_true(crowd->jobs >= 10000);
        gpu_rig_close(&rig);
    }
}

/* Every stream in every batch, and batches close behind each other: chaining values must pass. */
static void a_hundred_batches_chain(void **state)
{
    (void)state;
    for (uint32_t engines = 1; engines <= 2; engines++) {
        struct gpu_crowd *crowd = gpu_crowd_open(5, 30, 90, 1 << 17, 7 + engines);
        const struct gpu_emulation card = gpu_crowd_card(engines);
        struct gpu_rig rig;
        gpu_rig_open(&rig, crowd, &card, NULL);
        for (int batch = 0; batch < 100; batch++)
            gpu_rig_go_on(&rig, 5, 30, 1000);
        gpu_rig_take_all(&rig);
        gpu_rig_close(&rig);
    }
}

/* A slot gets another stream's key while batches with the old one are under way. */
static void keys_change_in_order_with_the_batches(void **state)
{
    (void)state;
    for (uint32_t engines = 1; engines <= 2; engines++) {
        struct gpu_crowd *crowd = gpu_crowd_open(5, 40, 120, 1 << 17, 20 + engines);
        const struct gpu_emulation card = gpu_crowd_card(engines);
        struct gpu_rig rig;
        gpu_rig_open(&rig, crowd, &card, NULL);
        for (int batch = 0; batch < 60; batch++) {
            const uint32_t slot = (uint32_t)gpu_crowd_draw(crowd, 40);
            assert_int_equal(gpu_engine_key_clear(rig.engine, gpu_key_slot(slot, 0)), CORE_OK);
            gpu_crowd_stream_renew(crowd, slot);
            assert_int_equal(gpu_crowd_key_hand(crowd, rig.engine, slot), CORE_OK);
            gpu_rig_go_on(&rig, 5, 40, 1000);
        }
        gpu_rig_take_all(&rig);
        gpu_rig_close(&rig);
    }
}

/* A cleared slot encrypts under its old key no more. */
static void a_cleared_key_is_gone(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(4, 8, 64, 1 << 16, 3);
    const struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_rig rig;
    struct gpu_event event;
    gpu_rig_open(&rig, crowd, &card, NULL);
    for (uint32_t slot = 0; slot < 8; slot++)
        assert_int_equal(gpu_engine_key_clear(rig.engine, gpu_key_slot(slot, 0)), CORE_OK);
    gpu_rig_submit(&rig, 8, 64);
    assert_true(gpu_crowd_wait(rig.engine, &event));
    assert_int_equal(event.kind, GPU_EVENT_BATCH);
    const struct gpu_order *order = &event.batch.order;
    const uint8_t *output = gpu_region_output(&crowd->region, order->arena);
    const uint8_t *expected = crowd->expected[order->arena];
    for (uint64_t at = 0; at < order->used_bytes; at += 16)
        assert_memory_not_equal(output + at, expected + at, 16);
    gpu_rig_close(&rig);
}

/* An empty batch, one with jobs that have no blocks, and one of a single block. */
static void small_batches_come_back(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(4, 4, 8, 4096, 5);
    const struct gpu_emulation card = gpu_crowd_card(1);
    struct gpu_rig rig;
    gpu_rig_open(&rig, crowd, &card, NULL);
    gpu_rig_submit(&rig, 0, 16);
    gpu_rig_take_back(&rig);
    gpu_rig_submit(&rig, 4, 16);
    gpu_rig_take_back(&rig);
    gpu_rig_close(&rig);
}

static bool memory_has(const uint8_t *memory, size_t bytes, const uint8_t *wanted, size_t wanted_bytes)
{
    return memmem(memory, bytes, wanted, wanted_bytes) != NULL;
}

/* The channel's memory as any process that holds its descriptor sees it. */
static void the_channel_keeps_no_key(void **state)
{
    (void)state;
    struct gpu_channel server, child;
    struct core_error error = {""};
    const struct gpu_channel_start start = {.beat_ns = 1};
    const struct gpu_command set = {.kind = GPU_COMMAND_KEY_SET, .key_slot = 1};
    struct gpu_channel_key key = {.key_bytes = 32};
    memset(key.key, 0xa7, sizeof key.key);
    assert_int_equal(gpu_channel_create(&server, &start, &error), CORE_OK);
    assert_int_equal(gpu_channel_attach(&child, server.memory_descriptor, &error), CORE_OK);
    const uint8_t *memory = (const uint8_t *)server.memory;
    assert_int_equal(gpu_channel_command_put(&server, &set, &key), CORE_OK);
    assert_true(memory_has(memory, server.bytes, key.key, 16));
    assert_non_null(gpu_channel_command_peek(&child));
    gpu_channel_command_take(&child);
    assert_false(memory_has(memory, server.bytes, key.key, 16));
    assert_int_equal(gpu_channel_command_put(&server, &set, &key), CORE_OK);
    gpu_channel_reset(&server);
    assert_false(memory_has(memory, server.bytes, key.key, 16));
    gpu_channel_detach(&child);
    gpu_channel_destroy(&server);
}

static uint32_t descriptors_of(pid_t pid, const char *unwanted)
{
    char path[64], link[600], target[512];
    uint32_t count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *directory = opendir(path);
    if (directory == NULL)
        return 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        snprintf(link, sizeof link, "%s/%s", path, entry->d_name);
        const ssize_t length = readlink(link, target, sizeof target - 1);
        if (length < 0)
            continue;
        target[length] = '\0';
        assert_null(strstr(target, unwanted));
        count++;
    }
    closedir(directory);
    return count;
}

/* Of /proc/PID/status. */
static bool has_line(pid_t pid, const char *line)
{
    char path[64], text[8192];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return strstr(text, line) != NULL;
}

static void the_child_is_hardened(void **state)
{
    (void)state;
    char secret[] = "/tmp/millrace-gpu-test-XXXXXX";
    const int open_file = mkstemp(secret); /* not close-on-exec */
    assert_true(open_file >= 0);
    struct gpu_crowd *crowd = gpu_crowd_open(2, 4, 8, 4096, 6);
    const struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_rig rig;
    gpu_rig_open(&rig, crowd, &card, NULL);
    const pid_t pid = gpu_engine_process(rig.engine);
    struct rlimit core, files;
    assert_int_equal(prlimit(pid, RLIMIT_CORE, NULL, &core), 0);
    assert_int_equal(core.rlim_cur, 0);
    assert_int_equal(core.rlim_max, 0);
    assert_int_equal(prlimit(pid, RLIMIT_NOFILE, NULL, &files), 0);
    assert_true(files.rlim_max <= 1024);
    assert_true(has_line(pid, "NoNewPrivs:\t1\n"));
    assert_true(has_line(pid, "Seccomp:\t2\n") == (core_sandbox_check(NULL) == CORE_OK));
    const uint32_t count = descriptors_of(pid, secret); /* 0: we may not look */
    assert_true(count <= 16);
    gpu_rig_close(&rig);
    close(open_file);
    unlink(secret);
}

static void what_can_not_be_is_refused(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(4, 8, 64, 1 << 16, 9);
    struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_engine_options options = gpu_crowd_options(crowd, &card);
    struct gpu_engine *engine;
    struct core_error error = {""};
    const core_ns now_ns = core_time_now_ns();
    static const uint8_t key[32], chain[16];
    options.program = "/nowhere/millrace-gpu";
    assert_int_equal(gpu_engine_open(&engine, &options, &error), CORE_NOT_FOUND);
    assert_non_null(strstr(error.text, "/nowhere/millrace-gpu"));
    options = gpu_crowd_options(crowd, &card);
    options.restart_max_ns = -1;
    assert_int_equal(gpu_engine_open(&engine, &options, &error), CORE_INVALID);
    options = gpu_crowd_options(crowd, &card);
    card.copy_count = 0;
    assert_int_equal(gpu_engine_open(&engine, &options, &error), CORE_INVALID);

    struct gpu_rig rig;
    card = gpu_crowd_card(2);
    gpu_rig_open(&rig, crowd, &card, NULL);
    engine = rig.engine;
    assert_int_equal(gpu_engine_start(engine, now_ns, &error), CORE_INVALID);
    assert_int_equal(gpu_engine_key_set(engine, 16, key, 16, chain), CORE_INVALID);
    assert_int_equal(gpu_engine_key_set(engine, 0, key, 17, chain), CORE_INVALID);
    assert_int_equal(gpu_engine_key_clear(engine, 16), CORE_INVALID);
    const struct gpu_order good = {.number = 5, .arena = 1};
    struct gpu_order bad = good;
    bad.number = 0;
    assert_int_equal(gpu_engine_submit(engine, &bad, 1, now_ns, &error), CORE_INVALID);
    bad = good, bad.arena = 4;
    assert_int_equal(gpu_engine_submit(engine, &bad, 1, now_ns, &error), CORE_INVALID);
    bad = good, bad.job_count = 65;
    assert_int_equal(gpu_engine_submit(engine, &bad, 1, now_ns, &error), CORE_INVALID);
    bad = good, bad.segment_count = 65;
    assert_int_equal(gpu_engine_submit(engine, &bad, 1, now_ns, &error), CORE_INVALID);
    bad = good, bad.used_bytes = (1 << 16) + 16;
    assert_int_equal(gpu_engine_submit(engine, &bad, 1, now_ns, &error), CORE_INVALID);
    bad = good, bad.used_bytes = 17;
    assert_int_equal(gpu_engine_submit(engine, &bad, 1, now_ns, &error), CORE_INVALID);
    assert_int_equal(gpu_engine_submit(engine, &good, 0, now_ns, &error), CORE_INVALID);
    assert_int_equal(gpu_engine_submit(engine, &good, 1, now_ns, &error), CORE_OK);
    bad = good, bad.number = 6; /* the arena is under way */
    assert_int_equal(gpu_engine_submit(engine, &bad, 1, now_ns, &error), CORE_INVALID);
    bad = good, bad.arena = 2; /* the number does not rise */
    assert_int_equal(gpu_engine_submit(engine, &bad, 1, now_ns, &error), CORE_INVALID);
    gpu_engine_stop(engine, CORE_NS_PER_S);
    assert_int_equal(gpu_engine_submit(engine, &good, 1, now_ns, &error), CORE_INVALID);
    assert_int_equal(gpu_engine_key_clear(engine, 1), CORE_AGAIN);
    gpu_rig_close(&rig);
}

/* Stop: the child ends by itself, what was under way is through, and it can be started again at once. */
static void a_stopped_engine_starts_again(void **state)
{
    (void)state;
    struct gpu_crowd *crowd = gpu_crowd_open(4, 20, 60, 1 << 16, 10);
    const struct gpu_emulation card = gpu_crowd_card(2);
    struct gpu_rig rig;
    gpu_rig_open(&rig, crowd, &card, NULL);
    gpu_rig_submit(&rig, 20, 500);
    const struct gpu_order order = rig.under_way[0];
    gpu_engine_stop(rig.engine, 30 * CORE_NS_PER_S);
    assert_true(gpu_engine_gone(rig.engine));
    assert_true(gpu_crowd_matches(crowd, &order));
    rig.back = rig.submitted;
    gpu_rig_start(&rig);
    for (int batch = 0; batch < 10; batch++)
        gpu_rig_go_on(&rig, 3, 20, 500);
    gpu_rig_take_all(&rig);
    gpu_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_batch_goes_there_and_back),
        cmocka_unit_test(many_jobs_come_back_to_the_byte),
        cmocka_unit_test(a_hundred_batches_chain),
        cmocka_unit_test(keys_change_in_order_with_the_batches),
        cmocka_unit_test(a_cleared_key_is_gone),
        cmocka_unit_test(small_batches_come_back),
        cmocka_unit_test(the_channel_keeps_no_key),
        cmocka_unit_test(the_child_is_hardened),
        cmocka_unit_test(what_can_not_be_is_refused),
        cmocka_unit_test(a_stopped_engine_starts_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
