/* Calibration of a GPU: the fits, exactly; a made-up card, whose tables must come back; and an emulated one,
 * whose times are never below its tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/gpu/calibrate.h"
#include "bench/gpu/fit.h"
#include "bench/gpu/journal.h"
#include "bench/gpu/profile.h"
#include "bench/gpu/report.h"
#include "bench/machine.h"
#include "gpu/emulated_tell.h"
#include "gpu/kernel.h"
#include "perfmodel/gpu.h"
#include "tests/support/random.h"

#include <math.h>
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

/* ---- made-up cards ---- */

#define FAKE_CARDS   2
#define HEATING_JOBS 512 /* so that most kernels were measured before */

/* All percents are of a stage's time, on top. */
struct fake {
    const struct config_profile_gpu *kind;
    uint32_t slow_every; /* each so-manieth batch takes longer by this; 0: none */
    int slow;
    int copies_jitter, kernels_jitter; /* up to so much, each batch another part of it */
    int second_card;                   /* the second card's copies, and */
    int second_kernels;                /* its kernels */
    int traffic;                       /* copies beside the processor's own */
    int beside_copies;                 /* kernels of batches back to back */
    int uneven;                        /* kernels of unequal jobs */
    int idle;                          /* kernels after a pause */
    int heat;                          /* kernels, once a batch had HEATING_JOBS on each SM */
    bool hot;
    bool mute; /* nobody knows how it is doing */
    uint32_t batches;
    struct test_random random; /* of a shape, a way and a card, however often others were measured */
    uint64_t seed;
    core_ns cold_ns, first_ns; /* for so long after its first batch all takes thrice as long */
};

static void longer(struct bench_gpu_timing *timing, unsigned stages, double percent)
{
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
        if (stages >> stage & 1)
            timing->stage_ns[stage] += (core_ns)((double)timing->stage_ns[stage] * percent / 100);
}

enum { COPIES = 1 << GPU_STAGE_UP | 1 << GPU_STAGE_DOWN, KERNELS = 1 << GPU_STAGE_KERNEL };

static void fake_disturb(struct fake *fake, uint32_t card, const struct bench_gpu_shape *shape,
                         const struct bench_gpu_way *way, struct bench_gpu_timing *timing)
{
    const double part = (double)test_random_in(&fake->random, 0, 1000) / 1000;
    fake->batches++;
    longer(timing, COPIES, card == 1 ? fake->second_card : 0);
    longer(timing, KERNELS, card == 1 ? fake->second_kernels : 0);
    longer(timing, KERNELS, shape->uneven ? fake->uneven : 0);
    longer(timing, COPIES, way->traffic ? fake->traffic : 0);
    longer(timing, KERNELS, way->together ? fake->beside_copies : 0);
    longer(timing, KERNELS, way->spaced ? fake->idle : 0);
    longer(timing, KERNELS, fake->hot ? fake->heat : 0);
    longer(timing, COPIES, fake->copies_jitter * part);
    longer(timing, KERNELS, fake->kernels_jitter * part);
    longer(timing, COPIES | KERNELS, core_time_now_ns() < fake->first_ns + fake->cold_ns ? 200 : 0);
    longer(timing, COPIES | KERNELS,
           fake->slow_every > 0 && fake->batches % fake->slow_every == 0 ? fake->slow : 0);
}

static core_status fake_measure(void *argument, uint32_t card, const struct bench_gpu_shape *shape,
                                const struct bench_gpu_way *way, uint32_t count,
                                struct bench_gpu_timing *timings, struct core_error *error)
{
    struct fake *fake = argument;
    uint64_t *jobs = calloc(2 * shape->jobs, sizeof *jobs);
    const bool busy = way->together;
    (void)error;
    const uint64_t seed = shape->bytes ^ (uint64_t)card << 50 ^ (uint64_t)way->together << 51 ^
                          (uint64_t)way->spaced << 52 ^ (uint64_t)way->traffic << 53;
    if (fake->first_ns == 0)
        fake->first_ns = core_time_now_ns();
    if (seed != fake->seed)
        fake->random.state = fake->seed = seed;
    fake->hot |= fake->heat > 0 && shape->jobs >= HEATING_JOBS * fake->kind->sms;
    assert_non_null(jobs);
    assert_true(card < FAKE_CARDS && !(way->together && way->spaced));
    for (uint32_t i = 0; i < shape->jobs; i++)
        jobs[i] = (uint64_t)GPU_BLOCK_BYTES * bench_gpu_shape_blocks(shape, i);
    const core_ns kernel_ns =
        fake->kind->launch_ns +
        perfmodel_kernel_ns(fake->kind, fake->kind->sms, jobs, shape->jobs, false, jobs + shape->jobs);
    free(jobs);
    for (uint32_t i = 0; i < count; i++) {
        timings[i] = (struct bench_gpu_timing){
            .up_overlap = busy, .down_overlap = busy, .start_ns = 3000, .tell_ns = 7000};
        timings[i].stage_ns[GPU_STAGE_UP] = perfmodel_copy_ns(fake->kind, PERFMODEL_UP, busy, shape->bytes);
        timings[i].stage_ns[GPU_STAGE_KERNEL] = kernel_ns;
        timings[i].stage_ns[GPU_STAGE_DOWN] =
            perfmodel_copy_ns(fake->kind, PERFMODEL_DOWN, busy, shape->bytes);
        fake_disturb(fake, card, shape, way, &timings[i]);
    }
    return CORE_OK;
}

static core_status fake_health(void *argument, uint32_t card, struct gpu_nvml_health *health,
                               struct core_error *why)
{
    const struct fake *fake = argument;
    assert_true(card < FAKE_CARDS);
    if (fake->mute)
        return core_error_set(why, CORE_UNSUPPORTED, "no library at hand");
    *health = (struct gpu_nvml_health){.sm_mhz = fake->hot ? 1200 : 1980,
                                       .sm_most_mhz = 1980,
                                       .reasons = fake->hot ? GPU_NVML_HOT : GPU_NVML_IDLE,
                                       .celsius = fake->hot ? 90 : 50};
    return CORE_OK;
}

static core_status fake_calibrate_with(struct fake *fake, struct bench_gpu_journal *journal,
                                       struct bench_gpu_calibration *calibration, struct core_error *error)
{
    const struct bench_gpu_measurer measurer = {.name = "made-up",
                                                .count = FAKE_CARDS,
                                                .sms = fake->kind->sms,
                                                .copy_engines = fake->kind->copy_engines,
                                                .memory_bytes = fake->kind->memory_bytes,
                                                .bytes_max = UINT64_C(64) << 20,
                                                .jobs_max = 1 << 20,
                                                .measure = fake_measure,
                                                .health = fake_health,
                                                .argument = fake};
    const struct bench_gpu_calibrate_options options = {.time_ns = CORE_NS_PER_S, .journal = journal};
    return bench_gpu_calibrate(&measurer, &options, calibration, error);
}

static void fake_calibrate(struct fake *fake, struct bench_gpu_calibration *calibration)
{
    struct core_error error = {""};
    if (fake_calibrate_with(fake, NULL, calibration, &error) != CORE_OK)
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

static bool has_row(const struct config_profile_gpu *kind, uint32_t jobs)
{
    for (uint32_t i = 0; i < kind->utilisation_count; i++)
        if (kind->utilisation[i].jobs == jobs)
            return true;
    return false;
}

/* What the model charges by both, for jobs that were measured in batches of up to bytes_max; at the rows of
 * both alone, if so: between its rows an emulated card is faster than the model has it. */
static void require_kernels(const struct config_profile_gpu *told, const struct config_profile_gpu *own,
                            uint64_t bytes_max, bool at_rows, double least, double most)
{
    for (uint32_t i = 0; i < told->utilisation_count; i++) {
        const uint32_t jobs = told->utilisation[i].jobs * own->sms;
        if (at_rows && !has_row(own, told->utilisation[i].jobs))
            continue;
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
        require_kernels(told, own, UINT64_C(64) << 20, false, 0.9999, 1.02);
        assert_int_equal(calibration.copies.ppm, 20000); /* nothing varied */
        assert_int_equal(calibration.kernels.ppm, 100000);
        assert_int_equal(calibration.unsettled, 0);
        assert_int_equal(calibration.start_ns, 3000);
        assert_int_equal(calibration.gpu.host_batch_ns, 3000);
        assert_int_equal(calibration.tell_ns, 7000);
        bench_gpu_calibration_free(&calibration);
        bench_machine_close(&machine);
    }
}

/* One shape a part, and each part's last record torn: the figures are those of a calibration without a pause. */
static void a_calibration_in_parts_goes_on_where_it_ended(void **state)
{
    char path[] = "/tmp/millrace-test-XXXXXX";
    struct bench_machine machine;
    struct core_error error = {""};
    struct bench_gpu_calibration whole, parts;
    struct bench_gpu_journal journal;
    core_status status = CORE_AGAIN;
    uint32_t part_count = 0;
    (void)state;
    assert_int_equal(bench_machine_open(&machine, "emulated-small", &error), CORE_OK);
    const struct fake fresh = {.kind = &machine.file->gpus[0], .copies_jitter = 1, .kernels_jitter = 1};
    struct fake fake = fresh;
    fake_calibrate(&fake, &whole);
    assert_int_equal(close(mkstemp(path)), 0);
    for (; status == CORE_AGAIN; part_count++) {
        fake = fresh;
        if (part_count % 7 == 6) { /* its last record is not whole */
            struct stat file;
            assert_true(stat(path, &file) == 0 && truncate(path, file.st_size - 1) == 0);
        }
        const core_ns end_ns = part_count < 20 ? 0 : CORE_NS_NEVER;
        assert_int_equal(bench_gpu_journal_open(&journal, path, end_ns, &error), CORE_OK);
        status = fake_calibrate_with(&fake, &journal, &parts, &error);
        bench_gpu_journal_close(&journal);
    }
    if (status != CORE_OK || part_count != 21)
        fail_msg("%u parts: %s", part_count, error.text);
    assert_int_equal(parts.shapes, whole.shapes);
    assert_int_equal(parts.copies.times, whole.copies.times);
    assert_int_equal(parts.copies.ppm, whole.copies.ppm);
    assert_int_equal(parts.kernels.ppm, whole.kernels.ppm);
    assert_int_equal(parts.start_ns, whole.start_ns);
    assert_int_equal(parts.health.readings, whole.health.readings);
    assert_int_equal(parts.gpu.sm_bytes_per_s, whole.gpu.sm_bytes_per_s);
    assert_memory_equal(parts.gpu.copies, whole.gpu.copies, whole.gpu.copy_count * sizeof *whole.gpu.copies);

    fake = fresh; /* all is there: nothing is measured but the warming up */
    assert_int_equal(bench_gpu_journal_open(&journal, path, 0, &error), CORE_OK);
    bench_gpu_calibration_free(&parts);
    assert_int_equal(fake_calibrate_with(&fake, &journal, &parts, &error), CORE_OK);
    assert_false(journal.measured);
    bench_gpu_journal_close(&journal);
    bench_gpu_calibration_free(&parts);

    FILE *other = fopen(path, "r+");
    assert_true(other != NULL && fputs("another shape", other) >= 0 && fclose(other) == 0);
    assert_int_equal(bench_gpu_journal_open(&journal, path, CORE_NS_NEVER, &error), CORE_OK);
    assert_int_equal(fake_calibrate_with(&fake, &journal, &parts, &error), CORE_MISMATCH);
    assert_non_null(strstr(error.text, "of another calibration"));
    bench_gpu_journal_close(&journal);
    assert_int_equal(bench_gpu_journal_open(&journal, "/nowhere/at/all", 0, &error), CORE_SYSTEM);
    assert_int_equal(unlink(path), 0);
    bench_gpu_calibration_free(&whole);
    bench_machine_close(&machine);
}

/* ---- cards as they are ---- */

static struct bench_machine card_machine;
static const struct config_profile_gpu *card_kind;

static int card_open(void **state)
{
    struct core_error error = {""};
    (void)state;
    assert_int_equal(bench_machine_open(&card_machine, "emulated-small", &error), CORE_OK);
    card_kind = &card_machine.file->gpus[0];
    return 0;
}

static int card_close(void **state)
{
    (void)state;
    bench_machine_close(&card_machine);
    return 0;
}

/* What the summary says of it. Freed with free(). */
static char *report_of(const struct bench_gpu_calibration *calibration)
{
    static const struct gpu_device_facts facts = {.name = "made-up", .driver = "1.0", .kernel = "whole"};
    char *text = NULL;
    size_t size = 0;
    FILE *report = open_memstream(&text, &size);
    assert_non_null(report);
    bench_gpu_report(report, calibration, &facts);
    assert_int_equal(fclose(report), 0);
    return text;
}

static bool is_beyond(const struct bench_gpu_timing *timing, const struct perfmodel_stages *bound)
{
    return timing->stage_ns[GPU_STAGE_UP] > bound->up_ns ||
           timing->stage_ns[GPU_STAGE_KERNEL] > bound->kernel_ns ||
           timing->stage_ns[GPU_STAGE_DOWN] > bound->down_ns;
}

/* Bounds from the figures, margins included, hold for batches of such a card in any way, on any card, of equal
 * and unequal jobs: but for one time in 1000, and a batch has three. */
static void require_covered(struct fake *fake, const struct bench_gpu_calibration *calibration)
{
    enum { JOBS = 64, WAYS = 5, BATCHES = 4000 };
    static const struct bench_gpu_way ways[WAYS] = {
        {0}, {.spaced = true}, {.traffic = true}, {.together = true}, {.together = true, .traffic = true}};
    const struct config_profile_margins margins = {.copies_ppm = calibration->copies.ppm,
                                                   .kernels_ppm = calibration->kernels.ppm};
    struct test_random random = {.state = 1};
    int beyond = 0;
    for (uint32_t i = 0; i < BATCHES; i++) {
        const struct bench_gpu_way *way = &ways[i % WAYS];
        struct bench_gpu_shape shape = {
            .jobs = JOBS, .blocks = (uint32_t)test_random_in(&random, 2000, 30000), .uneven = i & 1};
        struct bench_gpu_timing timing;
        uint64_t jobs[JOBS], scratch[JOBS];
        struct core_error error = {""};
        for (uint32_t job = 0; job < JOBS; job++) {
            jobs[job] = (uint64_t)bench_gpu_shape_blocks(&shape, job) * GPU_BLOCK_BYTES;
            shape.bytes += jobs[job];
        }
        assert_int_equal(fake_measure(fake, i / WAYS % FAKE_CARDS, &shape, way, 1, &timing, &error), CORE_OK);
        const struct perfmodel_stages bound =
            perfmodel_gpu_stages(&calibration->gpu, &margins, jobs, JOBS, way->together, scratch);
        beyond += is_beyond(&timing, &bound);
    }
    print_message("  %d of %d batches beyond their bounds\n", beyond, BATCHES);
    assert_in_range(beyond, 0, 3 * BATCHES / 1000);
}

/* Above what it should be, and by no more than the jitter. */
static void require_table(core_ns told_ns, core_ns own_ns, double above, int jitter)
{
    const double ratio = (double)told_ns / (double)own_ns;
    assert_true(ratio >= 0.9999 * above);
    assert_true(ratio <= 1.02 * above * (1 + jitter / 100.0));
}

/* The margins cover what single times vary by; the tables have what some way or some card always takes. */
static void whatever_a_card_does_is_covered(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct fake fake;
        uint32_t copies_ppm, kernels_ppm; /* the margins, at least */
        double copies, kernels;           /* the tables, of the card's own */
    } cases[] = {
        {"calm", {0}, 20000, 100000, 1, 1},
        {"copies vary", {.copies_jitter = 6}, 25000, 100000, 1, 1},
        {"kernels vary", {.kernels_jitter = 30}, 20000, 105000, 1, 1},
        {"a slow second card", {.second_card = 12, .second_kernels = 20}, 20000, 100000, 1.12, 1.2},
        {"the processor's traffic", {.traffic = 9}, 20000, 100000, 1.09, 1},
        {"copies beside kernels", {.beside_copies = 7}, 20000, 100000, 1, 1.07},
        {"clocks fall in pauses", {.idle = 40}, 20000, 100000, 1, 1.4},
        {"unequal jobs", {.uneven = 15}, 20000, 130000, 1, 1},
        {"a cold card", {.cold_ns = 40 * CORE_NS_PER_MS}, 20000, 100000, 1, 1},
        {"all of it",
         {.copies_jitter = 6, .kernels_jitter = 30, .second_card = 12, .traffic = 9, .idle = 40},
         25000,
         105000,
         1.12 * 1.09,
         1.4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fake fake = cases[i].fake;
        const int jitter = fake.copies_jitter;
        struct bench_gpu_calibration calibration;
        fake.kind = card_kind;
        fake_calibrate(&fake, &calibration);
        const struct config_profile_copy *row = &calibration.gpu.copies[12]; /* 16 MiB */
        print_message("%s: margins %u and %u ppm\n", cases[i].name, calibration.copies.ppm,
                      calibration.kernels.ppm);
        assert_in_range(calibration.copies.ppm, cases[i].copies_ppm, cases[i].copies_ppm + 20000);
        assert_in_range(calibration.kernels.ppm, cases[i].kernels_ppm, cases[i].kernels_ppm + 60000);
        require_table(row->up_ns, perfmodel_copy_ns(card_kind, PERFMODEL_UP, false, row->bytes),
                      cases[i].copies, jitter);
        require_table(row->down_busy_ns, perfmodel_copy_ns(card_kind, PERFMODEL_DOWN, true, row->bytes),
                      cases[i].copies, jitter);
        require_table(kernel_ns(&calibration.gpu, 64, 8192), kernel_ns(card_kind, 64, 8192), cases[i].kernels,
                      fake.kernels_jitter);
        fake.cold_ns = 0;
        require_covered(&fake, &calibration);
        bench_gpu_calibration_free(&calibration);
    }
}

/* Times that jump are in the margin and not in the tables. */
static void jitter_is_in_the_margin_not_in_the_tables(void **state)
{
    (void)state;
    struct fake fake = {.kind = card_kind, .slow_every = 9, .slow = 50};
    struct bench_gpu_calibration calibration;
    fake_calibrate(&fake, &calibration);
    assert_int_equal(calibration.gpu.copies[8].up_ns,
                     perfmodel_copy_ns(card_kind, PERFMODEL_UP, false, calibration.gpu.copies[8].bytes));
    assert_in_range(calibration.copies.ppm, 490000, 510000);
    assert_in_range(calibration.kernels.ppm, 490000, 510000);
    bench_gpu_calibration_free(&calibration);
}

/* Kernels get slower from the middle of the calibration on: what was measured before is covered by what the
 * margin has of the drift. */
static void heat_is_covered_and_told(void **state)
{
    (void)state;
    struct fake calm = {.kind = card_kind}, fake = {.kind = card_kind, .heat = 30};
    struct bench_gpu_calibration calibration;
    fake_calibrate(&calm, &calibration);
    char *text = report_of(&calibration);
    assert_non_null(strstr(text, "clock of the SMs 1980 to 1980 MHz, at most 50 C"));
    assert_null(strstr(text, "warning"));
    free(text);
    bench_gpu_calibration_free(&calibration);
    fake_calibrate(&fake, &calibration);
    assert_true(fabs(calibration.kernels.drift - 0.3) < 0.01);
    assert_true(calibration.copies.drift < 0.01);
    assert_true(calibration.kernels.ppm >= 300000);
    require_covered(&fake, &calibration);
    text = report_of(&calibration);
    assert_non_null(strstr(text, "warning: kernels took 30.0 % longer at the end than in the beginning"));
    assert_non_null(strstr(text, "nvidia-smi"));
    assert_non_null(strstr(text, "warning: the card was held down while it was measured (heat"));
    assert_non_null(strstr(text, "clock of the SMs 1200 to 1980 MHz, at most 90 C"));
    free(text);
    bench_gpu_calibration_free(&calibration);
}

static void what_no_margin_covers_is_told(void **state)
{
    (void)state;
    struct fake fake = {.kind = card_kind, .slow_every = 9, .slow = 150, .second_card = 80, .mute = true};
    struct bench_gpu_calibration calibration;
    fake_calibrate(&fake, &calibration);
    char *text = report_of(&calibration);
    assert_true(calibration.kernels.exceeded);
    assert_int_equal(calibration.kernels.ppm, CONFIG_PROFILE_MARGIN_PPM);
    assert_non_null(strstr(text, "warning: no margin covers that of kernels; the profile is NOT safe"));
    assert_non_null(strstr(text, "clocks and heat are not known: no library at hand"));
    assert_non_null(strstr(text, "card 1 of them took 80.0 % longer"));
    free(text);
    bench_gpu_calibration_free(&calibration);
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
    assert_int_equal(a->host_batch_ns, b->host_batch_ns);
    assert_int_equal(a->host_packet_ns, b->host_packet_ns);
    assert_int_equal(a->copy_count, b->copy_count);
    assert_memory_equal(a->copies, b->copies, a->copy_count * sizeof *a->copies);
    assert_int_equal(a->utilisation_count, b->utilisation_count);
    assert_memory_equal(a->utilisation, b->utilisation, a->utilisation_count * sizeof *a->utilisation);
    config_profile_free(read);
}

/* But for a step of the clock by which it measures. */
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
            const core_ns up_ns = perfmodel_copy_ns(&own->gpus[0], PERFMODEL_UP, false, row->bytes);
            const core_ns down_ns = perfmodel_copy_ns(&own->gpus[0], PERFMODEL_DOWN, false, row->bytes);
            assert_true(row->up_ns >= up_ns - GPU_EMULATED_CLOCK_STEP_NS);
            assert_true(row->down_ns >= down_ns - GPU_EMULATED_CLOCK_STEP_NS);
        }
        require_kernels(&told->gpus[0], &own->gpus[0], 65536, true, 0.995, 1e9);
        assert_true(told->margins.out_ns > machine.file->margins.out_ns);
        assert_true(told->gpus[0].host_batch_ns > 0 && told->gpus[0].host_packet_ns > 0);
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

    assert_int_equal(gpu_region_create(&region, &shape, NULL, &error), CORE_OK);
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
        cmocka_unit_test(a_calibration_in_parts_goes_on_where_it_ended),
        cmocka_unit_test_setup_teardown(whatever_a_card_does_is_covered, card_open, card_close),
        cmocka_unit_test_setup_teardown(jitter_is_in_the_margin_not_in_the_tables, card_open, card_close),
        cmocka_unit_test_setup_teardown(heat_is_covered_and_told, card_open, card_close),
        cmocka_unit_test_setup_teardown(what_no_margin_covers_is_told, card_open, card_close),
        cmocka_unit_test(an_emulated_cards_times_are_not_below_its_tables),
        cmocka_unit_test(a_card_runs_the_kernel_that_is_asked_for),
        cmocka_unit_test(a_batch_waits_until_there_is_room),
        cmocka_unit_test(a_card_is_found_by_its_index),
        cmocka_unit_test(a_machine_without_a_card_keeps_its_profile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
