/* Calibration of a GPU: the fits, exactly; a made-up card, whose tables must come back; and an emulated one,
 * whose times are never below its tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/gpu_calibrate.h"
#include "bench/gpu_fit.h"
#include "bench/gpu_profile.h"
#include "bench/machine.h"
#include "gpu/kernel.h"
#include "perfmodel/gpu.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TABLE_BYTES (sizeof(struct gpu_job) + sizeof(struct gpu_segment))

/* ---- fits ---- */

static void copies_are_raised_to_what_a_profile_allows(void **state)
{
    (void)state;
    struct config_profile_copy rows[] = {
        {.bytes = 1, .up_ns = 10, .down_ns = 0, .up_busy_ns = 9, .down_busy_ns = 5},
        {.bytes = 2, .up_ns = 8, .down_ns = 7, .up_busy_ns = 20, .down_busy_ns = 4},
        {.bytes = 3, .up_ns = 30, .down_ns = 6, .up_busy_ns = 19, .down_busy_ns = 40},
    };
    const struct config_profile_copy expected[] = {
        {.bytes = 1, .up_ns = 10, .down_ns = 1, .up_busy_ns = 10, .down_busy_ns = 5},
        {.bytes = 2, .up_ns = 10, .down_ns = 7, .up_busy_ns = 20, .down_busy_ns = 7},
        {.bytes = 3, .up_ns = 30, .down_ns = 7, .up_busy_ns = 30, .down_busy_ns = 40},
    };
    bench_gpu_fit_copies(rows, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rows[i].up_ns, expected[i].up_ns);
        assert_int_equal(rows[i].down_ns, expected[i].down_ns);
        assert_int_equal(rows[i].up_busy_ns, expected[i].up_busy_ns);
        assert_int_equal(rows[i].down_busy_ns, expected[i].down_busy_ns);
    }
}

static void a_copy_busy_in_part_tells_the_busy_pace(void **state)
{
    (void)state;
    for (int percent = 25; percent <= 100; percent += 5) {
        const double overlap = percent / 100.0, alone_ns = 1e6, busy_ns = 1.7e6;
        const double taken_ns = 1 / (overlap / busy_ns + (1 - overlap) / alone_ns);
        const core_ns told_ns = bench_gpu_fit_busy_ns((core_ns)taken_ns, (core_ns)alone_ns, overlap);
        assert_in_range(told_ns, (core_ns)(busy_ns * 0.9999), (core_ns)(busy_ns * 1.0001));
    }
    assert_int_equal(bench_gpu_fit_busy_ns(1200, 1000, 0.0), 1200); /* nothing beside it */
    assert_int_equal(bench_gpu_fit_busy_ns(5000, 1000, 0.5), 5000); /* a pause: not by two paces */
    assert_int_equal(bench_gpu_fit_busy_ns(900, 1000, 1.0), 900);   /* as fast as alone */
}

static void a_kernel_that_does_not_grow_is_refused(void **state)
{
    (void)state;
    const struct bench_gpu_kernel_point points[] = {
        {.jobs = 1, .short_bytes = 128, .long_bytes = 1024, .short_ns = 100, .long_ns = 100}};
    struct config_profile_utilisation rows[1];
    struct bench_gpu_kernel_fit fit = {.rows = rows};
    struct core_error error = {""};
    assert_int_equal(bench_gpu_fit_kernel(points, 1, &fit, &error), CORE_INVALID);
    assert_non_null(strstr(error.text, "1 jobs on each SM"));
}

static void the_faster_kernel_is_told(void **state)
{
    (void)state;
    struct config_profile_utilisation slow[] = {{1, 10000}, {2, 20000}, {64, 1000000}},
                                      fast[] = {{1, 30000}, {2, 60000}, {64, 700000}, {128, 1000000}};
    const struct config_profile_gpu a = {.sm_bytes_per_s = 1000, .utilisation = slow, .utilisation_count = 3},
                                    b = {.sm_bytes_per_s = 1000, .utilisation = fast, .utilisation_count = 4},
                                    c = {.sm_bytes_per_s = 999, .utilisation = slow, .utilisation_count = 3};
    assert_true(bench_gpu_fit_is_faster(&b, &a));
    assert_false(bench_gpu_fit_is_faster(&a, &b));
    assert_false(bench_gpu_fit_is_faster(&c, &a));
    assert_false(bench_gpu_fit_is_faster(&a, &a));
}

/* ---- a made-up card ---- */

struct fake {
    const struct config_profile_gpu *kind;
    uint32_t slow_every; /* each so-manieth batch takes half as long again; 0: none */
    uint32_t batches;
};

static core_status fake_measure(void *argument, const struct bench_gpu_shape *shape, bool together,
                                uint32_t count, struct bench_gpu_timing *timings, struct core_error *error)
{
    struct fake *fake = argument;
    uint64_t *jobs = calloc(2 * shape->jobs, sizeof *jobs);
    (void)error;
    assert_non_null(jobs);
    for (uint32_t i = 0; i < shape->jobs; i++)
        jobs[i] = GPU_BLOCK_BYTES * (shape->blocks > 0 ? shape->blocks : 1);
    const core_ns kernel_ns =
        fake->kind->launch_ns +
        perfmodel_kernel_ns(fake->kind, fake->kind->sms, jobs, shape->jobs, false, jobs + shape->jobs);
    free(jobs);
    for (uint32_t i = 0; i < count; i++) {
        const bool slow = fake->slow_every > 0 && ++fake->batches % fake->slow_every == 0;
        timings[i] = (struct bench_gpu_timing){
            .up_overlap = together, .down_overlap = together, .start_ns = 3000, .tell_ns = 7000};
        timings[i].stage_ns[GPU_STAGE_UP] =
            perfmodel_copy_ns(fake->kind, PERFMODEL_UP, together, shape->bytes);
        timings[i].stage_ns[GPU_STAGE_KERNEL] = kernel_ns;
        timings[i].stage_ns[GPU_STAGE_DOWN] =
            perfmodel_copy_ns(fake->kind, PERFMODEL_DOWN, together, shape->bytes);
        for (int stage = 0; slow && stage < GPU_STAGE_COUNT; stage++)
            timings[i].stage_ns[stage] += timings[i].stage_ns[stage] / 2;
    }
    return CORE_OK;
}

static void fake_calibrate(struct fake *fake, struct bench_gpu_calibration *calibration)
{
    const struct bench_gpu_measurer measurer = {.name = "made-up",
                                                .count = 2,
                                                .sms = fake->kind->sms,
                                                .copy_engines = fake->kind->copy_engines,
                                                .memory_bytes = fake->kind->memory_bytes,
                                                .bytes_max = UINT64_C(64) << 20,
                                                .jobs_max = 1 << 20,
                                                .measure = fake_measure,
                                                .argument = fake};
    const struct bench_gpu_calibrate_options options = {.time_ns = CORE_NS_PER_S};
    struct core_error error = {""};
    if (bench_gpu_calibrate(&measurer, &options, calibration, &error) != CORE_OK)
        fail_msg("%s", error.text);
}

static core_ns kernel_ns(const struct config_profile_gpu *kind, uint32_t jobs, uint64_t bytes)
{
    uint64_t all[4096], scratch[4096];
    assert_true(jobs <= 4096);
    for (uint32_t i = 0; i < jobs; i++)
        all[i] = bytes;
    return kind->launch_ns + perfmodel_kernel_ns(kind, kind->sms, all, jobs, false, scratch);
}

/* Noise in single points: the fit is a profile still, and its kernels take no less than measured. */
static void noise_in_kernels_raises_them(void **state)
{
    (void)state;
    /* 1, 1, 2 and 4 ns for each byte after 1,000 ns; then long times too short, and one too long */
    static const struct {
        core_ns short_ns[4], long_ns[4];
        int64_t rate;
        uint32_t raised;
    } cases[] = {
        {{1100, 1100, 1200, 1400}, {2000, 2000, 3000, 5000}, 2000000000, 0},
        {{1100, 1100, 1200, 1400}, {2000, 1100, 3000, 5000}, 2000000000, 1},
        {{1100, 1100, 1200, 1400}, {2000, 2000, 1200, 5000}, 4000000000, 1},
        {{1100, 1100, 1200, 1400}, {1000, 2000, 3000, 5000}, 2000000000, 1},
        {{1100, 1100, 1200, 1400}, {1101, 1050, 1100, 1100}, CONFIG_PROFILE_SM_RATE_MAX, 3},
        {{1100, 1100, 1200, 1400}, {2000, 9200, 3000, 5000}, 888888888, 3},
    };
    static const uint32_t jobs[] = {1, 2, 4, 8};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench_gpu_kernel_point points[4];
        struct config_profile_utilisation rows[4];
        struct bench_gpu_kernel_fit fit = {.rows = rows};
        struct core_error error = {""};
        for (int n = 0; n < 4; n++)
            points[n] = (struct bench_gpu_kernel_point){.jobs = jobs[n],
                                                        .short_bytes = 100,
                                                        .long_bytes = 1000,
                                                        .short_ns = cases[i].short_ns[n],
                                                        .long_ns = cases[i].long_ns[n]};
        assert_int_equal(bench_gpu_fit_kernel(points, 4, &fit, &error), CORE_OK);
        assert_int_equal(fit.raised, cases[i].raised);
        assert_in_range(fit.sm_bytes_per_s, cases[i].rate - 1, cases[i].rate);
        const struct config_profile_gpu told = {.sms = 1,
                                                .sm_bytes_per_s = fit.sm_bytes_per_s,
                                                .launch_ns = fit.launch_ns,
                                                .utilisation = rows,
                                                .utilisation_count = 4};
        for (int n = 0; n < 4; n++) {
            assert_in_range(rows[n].share_ppm, 1, CONFIG_PROFILE_SHARE_PPM);
            assert_true(kernel_ns(&told, jobs[n], 100) >= points[n].short_ns - 2);
            assert_true(kernel_ns(&told, jobs[n], 1000) >= points[n].long_ns - 2);
        }
    }
}

/* What the model charges by both, for jobs that were measured in batches of up to bytes_max. */
static void require_kernels(const struct config_profile_gpu *told, const struct config_profile_gpu *own,
                            uint64_t bytes_max, double least, double most)
{
    for (uint32_t i = 0; i < told->utilisation_count; i++) {
        const uint32_t jobs = told->utilisation[i].jobs * own->sms;
        for (uint64_t bytes = 128; bytes <= 32768 && bytes * jobs <= bytes_max && jobs <= 4096; bytes *= 4) {
            const double ratio = (double)kernel_ns(told, jobs, bytes) / (double)kernel_ns(own, jobs, bytes);
            assert_true(ratio >= least);
            assert_true(ratio <= most);
        }
    }
}

static void a_cards_own_tables_come_back(void **state)
{
    static const char *const profiles[] = {"emulated-small", "gtx285-x2"};
    (void)state;
    for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++) {
        struct bench_machine machine;
        struct core_error error = {""};
        assert_int_equal(bench_machine_open(&machine, profiles[i], &error), CORE_OK);
        const struct config_profile_gpu *own = &machine.file->gpus[0];
        struct fake fake = {.kind = own};
        struct bench_gpu_calibration calibration;
        fake_calibrate(&fake, &calibration);
        const struct config_profile_gpu *told = &calibration.gpu;
        assert_int_equal(told->copy_count, 15); /* 4 KiB .. 64 MiB */
        for (uint32_t row = 0; row < told->copy_count; row++) {
            const struct config_profile_copy *copy = &told->copies[row];
            assert_int_equal(copy->up_ns, perfmodel_copy_ns(own, PERFMODEL_UP, false, copy->bytes));
            assert_int_equal(copy->down_busy_ns, perfmodel_copy_ns(own, PERFMODEL_DOWN, true, copy->bytes));
        }
        assert_int_equal(told->utilisation[0].jobs, 1);
        require_kernels(told, own, UINT64_C(64) << 20, 0.9999, 1.02);
        assert_int_equal(calibration.copies.ppm, 20000); /* nothing varied */
        assert_int_equal(calibration.kernels.ppm, 100000);
        assert_int_equal(calibration.unsettled, 0);
        assert_int_equal(calibration.start_ns, 3000);
        assert_int_equal(calibration.tell_ns, 7000);
        bench_gpu_calibration_free(&calibration);
        bench_machine_close(&machine);
    }
}

static void jitter_is_in_the_margin_not_in_the_tables(void **state)
{
    (void)state;
    struct bench_machine machine;
    struct core_error error = {""};
    assert_int_equal(bench_machine_open(&machine, "emulated-small", &error), CORE_OK);
    const struct config_profile_gpu *own = &machine.file->gpus[0];
    struct fake fake = {.kind = own, .slow_every = 9};
    struct bench_gpu_calibration calibration;
    fake_calibrate(&fake, &calibration);
    assert_int_equal(calibration.gpu.copies[8].up_ns,
                     perfmodel_copy_ns(own, PERFMODEL_UP, false, calibration.gpu.copies[8].bytes));
    assert_in_range(calibration.copies.ppm, 490000, 510000);
    assert_in_range(calibration.kernels.ppm, 490000, 510000);
    bench_gpu_calibration_free(&calibration);
    bench_machine_close(&machine);
}

/* ---- emulated cards, through their children ---- */

/* Slow, so that the real work on this machine is no part of its times. */
static struct config_profile *slow_profile(uint32_t cards, uint32_t copy_engines)
{
    static struct config_profile_copy copies[] = {
        {.bytes = 4096, .up_ns = 200000, .down_ns = 300000, .up_busy_ns = 300000, .down_busy_ns = 400000},
        {.bytes = 262144,
         .up_ns = 900000,
         .down_ns = 1000000,
         .up_busy_ns = 1300000,
         .down_busy_ns = 1400000}};
    static struct config_profile_utilisation shares[] = {{1, 100000}, {8, 700000}, {32, 1000000}};
    static struct config_profile_gpu kind;
    struct config_profile *profile;
    struct bench_machine machine;
    struct core_error error = {""};
    assert_int_equal(bench_machine_open(&machine, "cpu-only", &error), CORE_OK);
    assert_int_equal(config_profile_copy(machine.file, &profile), CORE_OK);
    bench_machine_close(&machine);
    kind = (struct config_profile_gpu){.name = "slow card",
                                       .count = cards,
                                       .sms = 2,
                                       .copy_engines = copy_engines,
                                       .memory_bytes = 1 << 30,
                                       .sm_bytes_per_s = 20000000,
                                       .launch_ns = 100000,
                                       .copies = copies,
                                       .copy_count = 2,
                                       .utilisation = shares,
                                       .utilisation_count = 3};
    profile->gpus = &kind;
    profile->gpu_count = 1;
    profile->pinned_bytes = 1 << 28;
    return profile;
}

static void slow_profile_free(struct config_profile *profile)
{
    profile->gpus = NULL;
    profile->gpu_count = 0;
    config_profile_free(profile);
}

/* Saved and read again it is the same. */
static void require_round_trip(const struct config_profile *profile)
{
    char path[] = "/tmp/millrace-calibrate-XXXXXX";
    struct config_profile *read = NULL;
    struct core_error error = {""};
    const int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    if (config_profile_save(profile, path, "Measured.", &error) != CORE_OK ||
        config_profile_load(path, &read, &error) != CORE_OK)
        fail_msg("%s", error.text);
    unlink(path);
    const struct config_profile_gpu *a = &profile->gpus[0], *b = &read->gpus[0];
    assert_int_equal(read->gpu_count, profile->gpu_count);
    assert_int_equal(read->pinned_bytes, profile->pinned_bytes);
    assert_memory_equal(&read->margins, &profile->margins, sizeof read->margins);
    assert_string_equal(read->machine, profile->machine);
    assert_string_equal(a->name, b->name);
    assert_string_equal(a->kernel, "whole");
    assert_string_equal(b->kernel, "whole");
    assert_int_equal(a->sm_bytes_per_s, b->sm_bytes_per_s);
    assert_int_equal(a->launch_ns, b->launch_ns);
    assert_int_equal(a->copy_count, b->copy_count);
    assert_memory_equal(a->copies, b->copies, a->copy_count * sizeof *a->copies);
    assert_int_equal(a->utilisation_count, b->utilisation_count);
    assert_memory_equal(a->utilisation, b->utilisation, a->utilisation_count * sizeof *a->utilisation);
    config_profile_free(read);
}

static void an_emulated_cards_times_are_not_below_its_tables(void **state)
{
    (void)state;
    for (uint32_t cards = 1; cards <= 2; cards++) {
        char program[512];
        struct config_profile *own = slow_profile(cards, 3 - cards), *told;
        struct bench_machine machine;
        struct core_error error = {""};
        const struct bench_gpu_profile_options options = {
            .machine = {.program = {.path = bench_gpu_program_find(program, sizeof program),
                                    .backend = "emulated"},
                        .emulated = own,
                        .arena_bytes = 65536,
                        .cipher = CORE_CIPHER_AES_128_CBC},
            .time_ns = CORE_NS_PER_MS};
        assert_int_equal(bench_machine_open(&machine, "cpu-only", &error), CORE_OK);
        assert_int_equal(config_profile_copy(machine.file, &told), CORE_OK);
        FILE *report = fopen("/dev/null", "w");
        assert_non_null(report);
        if (bench_gpu_profile_measure(&options, told, report, &error) != CORE_OK)
            fail_msg("%s", error.text);
        fclose(report);
        assert_int_equal(told->gpu_count, 1);
        assert_int_equal(told->gpus[0].count, cards);
        assert_int_equal(told->gpus[0].copy_engines, 3 - cards);
        assert_int_equal(told->gpus[0].copy_count, 5); /* 4 KiB .. 64 KiB */
        assert_non_null(strstr(told->machine, "slow card, driver emulated, kernel whole"));
        for (uint32_t i = 0; i < told->gpus[0].copy_count; i++) {
            const struct config_profile_copy *row = &told->gpus[0].copies[i];
            assert_true(row->up_ns >= perfmodel_copy_ns(&own->gpus[0], PERFMODEL_UP, false, row->bytes));
            assert_true(row->down_ns >= perfmodel_copy_ns(&own->gpus[0], PERFMODEL_DOWN, false, row->bytes));
        }
        require_kernels(&told->gpus[0], &own->gpus[0], 65536, 0.9999, 1e9);
        assert_true(told->margins.out_ns > machine.file->margins.out_ns);
        require_round_trip(told);
        config_profile_free(told);
        bench_machine_close(&machine);
        slow_profile_free(own);
    }
}

static void a_card_runs_the_kernel_that_is_asked_for(void **state)
{
    (void)state;
    static const char *const names[GPU_KERNEL_FORMS] = {"whole", "quad"};
    struct config_profile *own = slow_profile(1, 2);
    for (int form = 0; form < GPU_KERNEL_FORMS; form++) {
        char program[512];
        struct bench_gpu_machine *machine;
        struct core_error error = {""};
        const struct bench_gpu_machine_options options = {
            .program = {.path = bench_gpu_program_find(program, sizeof program),
                        .backend = "emulated",
                        .kernel_forms = bench_gpu_kernel_forms(names[form])},
            .emulated = own,
            .arena_bytes = 65536,
            .cipher = CORE_CIPHER_AES_128_CBC};
        if (bench_gpu_machine_open(&machine, &options, NULL, &error) != CORE_OK)
            fail_msg("%s", error.text);
        assert_string_equal(bench_gpu_machine_facts(machine, 0)->kernel, names[form]);
        bench_gpu_machine_close(machine);
    }
    assert_int_equal(bench_gpu_kernel_forms(NULL), 0);
    assert_int_equal(bench_gpu_kernel_forms("half"), 0);
    slow_profile_free(own);
}

/* Lets a stopped process go on, a little later. */
static void *continue_later(void *argument)
{
    const pid_t *process = argument;
    static const struct timespec pause = {.tv_nsec = 20 * CORE_NS_PER_MS};
    nanosleep(&pause, NULL);
    assert_int_equal(kill(*process, SIGCONT), 0);
    return NULL;
}

static void a_batch_waits_until_there_is_room(void **state)
{
    (void)state;
    const uint8_t key[16] = {0}, chain[GPU_BLOCK_BYTES] = {0};
    const struct gpu_region_shape shape = {.arenas = 2, .slots = 1, .segments = 1, .arena_bytes = 4096};
    const struct gpu_order order = {.number = 1, .job_count = 1, .segment_count = 1, .used_bytes = 16};
    struct config_profile *own = slow_profile(1, 2);
    struct gpu_region region;
    struct bench_gpu_card card;
    struct gpu_event event;
    struct core_error error = {""};
    core_ns submitted_ns = 0, seen_ns;
    core_status full = CORE_OK;
    siginfo_t stopped;
    pthread_t thread;
    char program[512];
    const struct gpu_listed which = {.index = 0};
    const struct bench_gpu_program with = {.path = bench_gpu_program_find(program, sizeof program),
                                           .backend = "emulated"};

    assert_int_equal(gpu_region_create(&region, &shape, &error), CORE_OK);
    assert_int_equal(bench_gpu_card_start(&card, &with, &which, &region, &own->gpus[0], false, &error),
                     CORE_OK);
    gpu_region_jobs(&region, 0)[0] = (struct gpu_job){.blocks = 1};
    gpu_region_segments(&region, 0)[0] =
        (struct gpu_segment){.length_bytes = GPU_BLOCK_BYTES, .next = GPU_SEGMENT_NONE};
    pid_t process = gpu_engine_process(card.engine);
    assert_int_equal(kill(process, SIGSTOP), 0);
    assert_int_equal(waitid(P_PID, (id_t)process, &stopped, WSTOPPED | WNOWAIT), 0);
    while ((full = gpu_engine_key_set(card.engine, 0, key, sizeof key, chain)) == CORE_OK) {
    }
    assert_int_equal(full, CORE_FULL);
    assert_int_equal(gpu_engine_submit(card.engine, &order, CORE_NS_PER_S, core_time_now_ns(), &error),
                     CORE_FULL);
    assert_int_equal(pthread_create(&thread, NULL, continue_later, &process), 0);
    if (bench_gpu_card_submit(&card, &order, CORE_NS_PER_S, &submitted_ns, &error) != CORE_OK)
        fail_msg("%s", error.text);
    pthread_join(thread, NULL);
    assert_true(submitted_ns > 0 && submitted_ns <= core_time_now_ns());
    if (bench_gpu_card_next(&card, core_time_now_ns() + 60 * CORE_NS_PER_S, &event, &seen_ns, &error) !=
        CORE_OK)
        fail_msg("%s", error.text);
    assert_int_equal(event.batch.order.number, 1);
    bench_gpu_card_stop(&card);
    gpu_region_close(&region);
    slow_profile_free(own);
}

static void a_machine_without_a_card_keeps_its_profile(void **state)
{
    (void)state;
    char program[512], text[512] = "";
    struct config_profile *profile;
    struct bench_machine machine;
    struct core_error error = {""};
    struct bench_gpu_profile_options options = {
        .machine = {.program = {.path = "/bin/true", .backend = "cuda"}, .cipher = CORE_CIPHER_AES_128_CBC}};
    assert_int_equal(bench_machine_open(&machine, "cpu-only", &error), CORE_OK);
    assert_int_equal(config_profile_copy(machine.file, &profile), CORE_OK);
    FILE *report = fmemopen(text, sizeof text, "w");
    assert_int_equal(bench_gpu_profile_measure(&options, profile, report, &error), CORE_OK);
    fclose(report);
    assert_int_equal(profile->gpu_count, 0);
    assert_non_null(strstr(text, "no GPU"));
    options.machine.program.path = "/nowhere/millrace-gpu";
    assert_int_equal(bench_gpu_profile_measure(&options, profile, stderr, &error), CORE_NOT_FOUND);
    assert_non_null(strstr(error.text, "--gpu-program"));
    options.machine.program.path = bench_gpu_program_find(program, sizeof program);
    assert_int_equal(access(options.machine.program.path, X_OK), 0);
    config_profile_free(profile);
    bench_machine_close(&machine);
}

/* A card is found by its index and known by its UUID. */
static void a_card_is_found_by_its_index(void **state)
{
    static const char lister[] = "#!/bin/sh\n"
                                 "for i in 0 1; do printf \"$i\\tA\\t1 bytes\\t1 SMs\\t1 copy engines\\t"
                                 "driver 1\\tGPU-$i\\t0000:0$i:00.0\\n\"; done\n";
    char path[] = "/tmp/millrace-lister-XXXXXX";
    const int descriptor = mkstemp(path);
    struct bench_gpu_program program = {.path = path, .backend = "cuda"};
    struct core_error error = {""};
    struct gpu_listed card;
    (void)state;
    assert_int_equal(write(descriptor, lister, sizeof lister - 1), sizeof lister - 1);
    assert_int_equal(fchmod(descriptor, 0755), 0);
    assert_int_equal(close(descriptor), 0);
    assert_int_equal(bench_gpu_card_find(&program, 1, &card, &error), CORE_OK);
    assert_int_equal(card.index, 1);
    assert_string_equal(card.facts.uuid, "GPU-1");
    assert_int_equal(bench_gpu_card_find(&program, 2, &card, &error), CORE_NOT_FOUND);
    assert_non_null(strstr(error.text, "there is no card 2"));
    program.backend = "emulated"; /* of which there is no list */
    assert_int_equal(bench_gpu_card_find(&program, 2, &card, &error), CORE_OK);
    assert_int_equal(card.index, 2);
    assert_string_equal(card.facts.uuid, "");
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_are_raised_to_what_a_profile_allows),
        cmocka_unit_test(a_copy_busy_in_part_tells_the_busy_pace),
        cmocka_unit_test(a_kernel_that_does_not_grow_is_refused),
        cmocka_unit_test(noise_in_kernels_raises_them),
        cmocka_unit_test(the_faster_kernel_is_told),
        cmocka_unit_test(a_cards_own_tables_come_back),
        cmocka_unit_test(jitter_is_in_the_margin_not_in_the_tables),
        cmocka_unit_test(an_emulated_cards_times_are_not_below_its_tables),
        cmocka_unit_test(a_card_runs_the_kernel_that_is_asked_for),
        cmocka_unit_test(a_batch_waits_until_there_is_room),
        cmocka_unit_test(a_card_is_found_by_its_index),
        cmocka_unit_test(a_machine_without_a_card_keeps_its_profile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
