/* Batches: reference sets from streams to verdicts, stage times, arrivals, memory, what is left of a
 * deadline. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "perfmodel/cpu.h"
#include "perfmodel/gpu.h"
#include "tests/support/gpu.h"

#define STREAMS_MAX 200

/* ---- reference sets ---- */

struct set {
    size_t count;
    struct core_stream_spec streams[STREAMS_MAX];
    core_ns shortest_ns;
    uint64_t jobs[STREAMS_MAX], batch_bytes;
};

/* The streams of one set, in fine units (see TEST_GPU_FINE): a rate in bytes per ms is so many fine bytes in
 * a million fine ns, as it is so many bytes in a million ns. The file holds the sets in order. */
static void read_set(struct set *set, struct test_csv *streams, double number, size_t count)
{
    assert_in_range(count, 1, STREAMS_MAX);
    set->count = count;
    set->shortest_ns = CORE_NS_NEVER;
    for (size_t i = 0; i < count; i++) {
        assert_true(test_csv_next(streams));
        assert_true(streams->number[0] == number);
        core_ns latency_ns = (core_ns)streams->number[3] * TEST_GPU_FINE;
        set->streams[i] = (struct core_stream_spec){.packet_bytes = (uint32_t)streams->number[2],
                                                    .burst_packets = 1,
                                                    .interval_ns = CORE_NS_PER_MS,
                                                    .latency_ns = latency_ns,
                                                    .cipher = CORE_CIPHER_AES_128_CBC,
                                                    .padding = CORE_PADDING_PKCS7};
        set->shortest_ns = core_time_min(latency_ns, set->shortest_ns);
    }
}

static void fill_jobs(struct set *set, core_ns period_ns)
{
    set->batch_bytes = 0;
    for (size_t i = 0; i < set->count; i++) {
        set->jobs[i] = perfmodel_gpu_job_bytes(&set->streams[i], period_ns, true);
        set->batch_bytes += set->jobs[i];
    }
}

/* Stage times as the paper has them: the kernel by the table itself. */
static struct perfmodel_stages paper_stages(const struct test_gpu *card, const struct set *set,
                                            uint32_t margin_percent)
{
    struct config_profile_margins margins = {.copies_ppm = 10000 * margin_percent};
    uint64_t scratch[STREAMS_MAX];
    struct perfmodel_stages stages =
        perfmodel_gpu_stages(&card->gpu, &margins, set->jobs, set->count, false, scratch);
    core_ns kernel_ns = perfmodel_kernel_ns(&card->gpu, card->gpu.sms, set->jobs, set->count, true, scratch);
    stages.kernel_ns = (kernel_ns * (100 + margin_percent) + 99) / 100;
    return stages;
}

/* The file has three decimals. */
static void expect_near(const char *what, double set, double found, double expected)
{
    expected *= TEST_GPU_FINE;
    if (fabs(found - expected) > 1e-8 * expected + 0.0005 * TEST_GPU_FINE)
        fail_msg("set %.0f, %s: %.3f, expected %.3f", set, what, found, expected);
}

static void check_set(const struct test_csv *sets, struct set *set)
{
    struct test_gpu card;
    test_gpu_reference(&card, (uint32_t)sets->number[2], sets->number[3]);
    core_ns period_ns = set->shortest_ns / 4;
    double number = sets->number[0];
    expect_near("T", number, (double)period_ns, sets->number[4]);
    fill_jobs(set, period_ns);
    expect_near("batch", number, (double)set->batch_bytes, sets->number[5]);
    struct perfmodel_stages bare = paper_stages(&card, set, 0);
    expect_near("T_D", number, (double)bare.up_ns, sets->number[6]);
    expect_near("T_K", number, (double)bare.kernel_ns, sets->number[7]);
    expect_near("T_R", number, (double)bare.down_ns, sets->number[8]);

    struct perfmodel_stages stages = paper_stages(&card, set, 10);
    bool fits =
        perfmodel_gpu_judge(&card.gpu, &stages, period_ns, set->shortest_ns, true) == PERFMODEL_LIMIT_NONE;
    card.gpu.copy_engines = 1;
    bool fits_one =
        perfmodel_gpu_judge(&card.gpu, &stages, period_ns, CORE_NS_NEVER, false) == PERFMODEL_LIMIT_NONE;
    assert_int_equal(fits, sets->number[9] != 0);
    assert_int_equal(fits_one, sets->number[10] != 0);
}

static void reference_sets(void **state)
{
    (void)state;
    struct test_csv sets = test_csv_open("verner_sets.csv"), streams = test_csv_open("verner_streams.csv");
    static struct set set;
    int count = 0;
    for (; test_csv_next(&sets); count++) {
        read_set(&set, &streams, sets.number[0], (size_t)sets.number[1]);
        check_set(&sets, &set);
    }
    assert_int_equal(count, 60);
    assert_false(test_csv_next(&streams));
}

/* ---- stage times ---- */

static struct config_profile_copy copies[] = {{1000, 100, 200, 150, 300}, {2000, 200, 300, 250, 400}};
static struct config_profile_utilisation rows[] = {{1, 500000}, {2, 1000000}};
static const struct config_profile_gpu card = {.sms = 2,
                                               .copy_engines = 2,
                                               .sm_bytes_per_s = CORE_NS_PER_S,
                                               .launch_ns = 7,
                                               .job_bytes = 100,
                                               .copies = copies,
                                               .copy_count = 2,
                                               .utilisation = rows,
                                               .utilisation_count = 2};

static void stages_by_hand(void **state)
{
    (void)state;
    struct config_profile_margins margins = {.copies_ppm = 100000, .kernels_ppm = 50001};
    const uint64_t jobs[] = {400, 300, 500};
    uint64_t scratch[3];
    /* W = 1200 and 300 bytes of tables; the first SM has 400 and 500: 2 * 400 at the peak, 100 at half of it
     */
    struct perfmodel_stages stages = perfmodel_gpu_stages(&card, &margins, jobs, 3, false, scratch);
    assert_int_equal(stages.up_ns, 165);      /* 150 */
    assert_int_equal(stages.kernel_ns, 1058); /* 7 + 1000: 1057.4 */
    assert_int_equal(stages.down_ns, 242);    /* 220 */
    stages = perfmodel_gpu_stages(&card, &margins, jobs, 3, true, scratch);
    assert_int_equal(stages.up_ns, 220);
    assert_int_equal(stages.kernel_ns, 1058);
    assert_int_equal(stages.down_ns, 352);
    stages = perfmodel_gpu_stages(&card, &margins, NULL, 0, true, NULL);
    assert_int_equal(stages.up_ns + stages.kernel_ns + stages.down_ns, 0);
}

static void stages_saturate(void **state)
{
    (void)state;
    struct config_profile_margins margins = {.copies_ppm = 1000000, .kernels_ppm = 1000000};
    const uint64_t jobs[] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    uint64_t scratch[3];
    struct config_profile_copy slow[] = {{1, CONFIG_PROFILE_COPY_NS_MAX, 1, CONFIG_PROFILE_COPY_NS_MAX, 1}};
    struct config_profile_gpu gpu = card;
    gpu.copies = slow;
    gpu.copy_count = 1;
    struct perfmodel_stages stages = perfmodel_gpu_stages(&gpu, &margins, jobs, 3, false, scratch);
    assert_int_equal(stages.up_ns, CORE_NS_NEVER);
    assert_int_equal(stages.kernel_ns, CORE_NS_NEVER);
    assert_int_equal(stages.down_ns, CORE_NS_NEVER); /* 2^64 bytes, a ns each, twice */
    assert_int_equal(perfmodel_gpu_latency_ns(&gpu, &stages, CORE_NS_NEVER), CORE_NS_NEVER);
    assert_int_equal(perfmodel_gpu_judge(&gpu, &stages, CORE_LATENCY_NS_MAX, CORE_LATENCY_NS_MAX, false),
                     PERFMODEL_LIMIT_GPU_COPY);
}

static void more_is_never_faster(void **state)
{
    (void)state;
    struct test_random random = {.state = 8};
    for (int i = 0; i < 3000; i++) {
        struct test_gpu any;
        struct config_profile_margins margins;
        test_gpu_margins_random(&margins, &random);
        uint64_t jobs[50], scratch[50];
        test_gpu_random(&any, &random);
        size_t count = (size_t)test_random_in(&random, 1, 49);
        for (size_t job = 0; job <= count; job++)
            jobs[job] = (uint64_t)test_random_log(&random, 1, 1 << 20);
        bool busy = test_random_chance(&random, 50);
        struct perfmodel_stages less = perfmodel_gpu_stages(&any.gpu, &margins, jobs, count, busy, scratch);
        struct perfmodel_stages alone = perfmodel_gpu_stages(&any.gpu, &margins, jobs, count, false, scratch);
        assert_true(less.up_ns >= alone.up_ns && less.kernel_ns == alone.kernel_ns &&
                    less.down_ns >= alone.down_ns);
        bool longer = test_random_chance(&random, 50);
        jobs[0] += longer ? (uint64_t)test_random_log(&random, 1, 1 << 20) : 0;
        struct perfmodel_stages more =
            perfmodel_gpu_stages(&any.gpu, &margins, jobs, longer ? count : count + 1, busy, scratch);
        assert_true(more.up_ns >= less.up_ns && more.kernel_ns >= less.kernel_ns &&
                    more.down_ns >= less.down_ns);
    }
}

/* Jobs that are told by their sizes, of which some come again and some have no bytes, are as told one by one. */
static void equal_jobs_are_told_together(void **state)
{
    (void)state;
    struct test_random random = {.state = 10};
    for (int i = 0; i < 3000; i++) {
        struct test_gpu any;
        struct config_profile_margins margins;
        struct perfmodel_jobs falling[12];
        uint64_t jobs[12 * 20], scratch[12 * 20], bytes = 1 << 20;
        size_t count = 0, sizes = (size_t)test_random_in(&random, 0, 12);
        test_gpu_margins_random(&margins, &random);
        test_gpu_random(&any, &random);
        const bool busy = test_random_chance(&random, 50);
        for (size_t at = 0; at < sizes; at++) {
            bytes = test_random_chance(&random, 20) ? bytes
                                                    : (uint64_t)test_random_in(&random, 0, (int64_t)bytes);
            falling[at] = (struct perfmodel_jobs){bytes, (uint64_t)test_random_in(&random, 1, 20)};
            for (uint64_t job = 0; job < falling[at].count; job++)
                jobs[count++] = bytes;
        }
        const struct perfmodel_stages each =
            perfmodel_gpu_stages(&any.gpu, &margins, jobs, count, busy, scratch);
        const struct perfmodel_stages together =
            perfmodel_gpu_stages_falling(&any.gpu, &margins, falling, sizes, busy);
        assert_memory_equal(&each, &together, sizeof each);
    }
}

static void too_many_jobs_take_for_ever(void **state)
{
    (void)state;
    struct test_gpu any;
    struct test_random random = {.state = 11};
    test_gpu_random(&any, &random);
    const struct perfmodel_jobs many[] = {{32, UINT64_C(1) << 32}, {16, 1}};
    const struct perfmodel_jobs long_one = {(UINT64_C(1) << 53) + 1, 1};
    assert_int_equal(perfmodel_kernel_falling_ns(&any.gpu, many, 2), CORE_NS_NEVER);
    assert_int_equal(perfmodel_kernel_falling_ns(&any.gpu, &long_one, 1), CORE_NS_NEVER);
}

/* ---- arrivals ---- */

static struct core_stream_spec stream(uint32_t packet_bytes, uint32_t burst, core_ns interval_ns)
{
    return (struct core_stream_spec){.packet_bytes = packet_bytes,
                                     .burst_packets = burst,
                                     .interval_ns = interval_ns,
                                     .latency_ns = 20 * CORE_NS_PER_MS,
                                     .cipher = CORE_CIPHER_AES_128_CBC,
                                     .padding = CORE_PADDING_PKCS7};
}

static void jobs_are_whole_packets(void **state)
{
    (void)state;
    const struct {
        uint32_t packet_bytes, burst;
        core_ns interval_ns, period_ns;
        uint64_t packets, fluid;
    } cases[] = {
        {1000, 1, 1000000, 1, 1, 1},          /* 0.001 */
        {1000, 1, 1000000, 999999, 1, 1000},  /* 999.999 */
        {1000, 1, 1000000, 1000000, 2, 1000}, /* one at each end */
        {1000, 1, 1000000, 5000000, 6, 5000},
        {1000, 8, 1000000, 5500000, 13, 5500},
        {1000, 1, 60000000000, 5000000, 1, 1}, /* rarer than the batches: a whole packet or none */
        {CORE_PACKET_BYTES_MAX, CORE_BURST_MAX, CORE_INTERVAL_NS_MIN, CORE_LATENCY_NS_MAX, 65536 + 3600000000,
         3600000000 * UINT64_C(1048576)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct core_stream_spec spec = stream(cases[i].packet_bytes, cases[i].burst, cases[i].interval_ns);
        uint64_t padded = core_stream_padded_bytes(spec.padding, spec.packet_bytes);
        assert_int_equal(perfmodel_gpu_job_bytes(&spec, cases[i].period_ns, false),
                         cases[i].packets * padded);
        assert_int_equal(perfmodel_gpu_job_bytes(&spec, cases[i].period_ns, true), cases[i].fluid);
    }
    struct core_stream_spec bare = stream(1024, 1, 1000000);
    bare.padding = CORE_PADDING_NONE;
    assert_int_equal(perfmodel_gpu_job_bytes(&bare, 1000000, false), 2048);
    assert_int_equal(perfmodel_gpu_job_bytes(&bare, CORE_NS_NEVER, false), (INT64_MAX / 1000000 + 1) * 1024);
    bare.interval_ns = 1000;
    assert_int_equal(perfmodel_gpu_job_bytes(&bare, CORE_NS_NEVER, true) > INT64_MAX, 1);
}

static void packets_that_stand_alone_are_jobs(void **state)
{
    (void)state;
    struct core_stream_spec spec = stream(1000, 8, 1000000);
    struct perfmodel_jobs jobs = perfmodel_gpu_jobs(&spec, 5500000, false);
    assert_true(jobs.bytes == UINT64_C(13) * 1008 && jobs.count == 1);
    spec.unit = CORE_UNIT_MESSAGE;
    spec.iv = CORE_IV_COUNTER;
    jobs = perfmodel_gpu_jobs(&spec, 5500000, false); /* a message may have them all */
    assert_true(jobs.bytes == UINT64_C(13) * (1008 + 16) && jobs.count == 1);
    spec.message_packets = 1;
    jobs = perfmodel_gpu_jobs(&spec, 5500000, false);
    assert_true(jobs.bytes == 1008 + 16 && jobs.count == 13);
    jobs = perfmodel_gpu_jobs(&spec, 5500000, true);
    assert_true(jobs.bytes == 5500 && jobs.count == 1);
    spec.iv = CORE_IV_CHAIN;
    jobs = perfmodel_gpu_jobs(&spec, 5500000, false);
    assert_true(jobs.bytes == UINT64_C(13) * 1008 && jobs.count == 1);
}

/* A fluid never has more than the packets; a longer period never has less. */
static void jobs_are_monotone(void **state)
{
    (void)state;
    struct test_random random = {.state = 9};
    for (int i = 0; i < 3000; i++) {
        struct core_stream_spec spec =
            stream((uint32_t)test_random_log(&random, 1, 65536), (uint32_t)test_random_log(&random, 1, 100),
                   test_random_log(&random, 1000, 1000000000));
        core_ns period_ns = test_random_log(&random, 1, 1000000000);
        core_ns longer_ns = period_ns + test_random_log(&random, 1, 1000000);
        uint64_t packets = perfmodel_gpu_job_bytes(&spec, period_ns, false);
        assert_true(perfmodel_gpu_job_bytes(&spec, period_ns, true) <= packets);
        assert_true(packets <= perfmodel_gpu_job_bytes(&spec, longer_ns, false));
    }
}

/* ---- margins ---- */

static void what_is_left_of_a_deadline(void **state)
{
    (void)state;
    struct config_profile profile = {.margins = {.in_ns = 300000, .out_ns = 200000}};
    struct core_stream_spec spec = stream(1000, 1, 1000000);
    assert_int_equal(perfmodel_gpu_work_ns(&spec, &profile), 19500000);
    profile.io.rest_max_ns = 100000;
    assert_int_equal(perfmodel_gpu_work_ns(&spec, &profile), 19300000);
    profile.io.rest_max_ns = CORE_NS_PER_S;
    assert_int_equal(perfmodel_gpu_work_ns(&spec, &profile), 19500000 - 1218750);
    struct core_stream_spec back = spec; /* none of it, however much there is, for what a GPU does not do */
    back.direction = CORE_DIRECTION_DECRYPT;
    assert_int_equal(perfmodel_gpu_work_ns(&back, &profile), 0);
    spec.latency_ns = 400000;
    assert_true(perfmodel_gpu_work_ns(&spec, &profile) <= 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_sets),
        cmocka_unit_test(stages_by_hand),
        cmocka_unit_test(stages_saturate),
        cmocka_unit_test(more_is_never_faster),
        cmocka_unit_test(equal_jobs_are_told_together),
        cmocka_unit_test(too_many_jobs_take_for_ever),
        cmocka_unit_test(jobs_are_whole_packets),
        cmocka_unit_test(packets_that_stand_alone_are_jobs),
        cmocka_unit_test(jobs_are_monotone),
        cmocka_unit_test(what_is_left_of_a_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
