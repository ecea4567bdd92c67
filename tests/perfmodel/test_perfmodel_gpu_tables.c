/* Transfer tables and utilisation: reference values, rows and what lies between and beyond them, properties
 * on random tables, and the ends of the ranges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "perfmodel/gpu.h"
#include "tests/support/gpu.h"

#define TABLES 3000

/* ---- copies ---- */

static void expect_near(core_ns found_ns, double expected_ns, double size)
{
    double expected = expected_ns * TEST_GPU_FINE;
    if (fabs((double)found_ns - expected) > 1e-8 * expected)
        fail_msg("%.0f bytes: %lld, expected %.3f", size, (long long)found_ns, expected);
}

static void reference_times(void **state)
{
    (void)state;
    struct test_gpu card;
    test_gpu_reference(&card, 1, 1);
    struct test_csv csv = test_csv_open("verner_transfer.csv");
    int rows = 0;
    for (; test_csv_next(&csv); rows++) {
        uint64_t bytes = (uint64_t)csv.number[0] * TEST_GPU_FINE;
        expect_near(perfmodel_copy_ns(&card.gpu, PERFMODEL_UP, false, bytes), csv.number[1], csv.number[0]);
        expect_near(perfmodel_copy_ns(&card.gpu, PERFMODEL_DOWN, false, bytes), csv.number[3], csv.number[0]);
    }
    assert_int_equal(rows, 14);
}

/* Rows and the steps between them, by hand. */
static struct config_profile_copy copies[] = {
    {100, 10, 20, 30, 40},
    {200, 11, 50, 30, 90},
    {400, 100, 50, 130, 241},
};
static struct config_profile_utilisation whole[] = {{1, 1000000}};
static struct config_profile_gpu hand = {.sms = 1,
                                         .copy_engines = 2,
                                         .sm_bytes_per_s = CORE_NS_PER_S,
                                         .copies = copies,
                                         .copy_count = 3,
                                         .utilisation = whole,
                                         .utilisation_count = 1};

static void rows_lines_and_ends(void **state)
{
    (void)state;
    const struct {
        enum perfmodel_direction direction;
        bool busy;
        uint64_t bytes;
        core_ns ns;
    } cases[] = {
        {PERFMODEL_UP, false, 0, 0},       {PERFMODEL_DOWN, true, 0, 0},     {PERFMODEL_UP, false, 1, 10},
        {PERFMODEL_UP, false, 100, 10},    {PERFMODEL_UP, false, 101, 11},  /* 10.01 */
        {PERFMODEL_UP, false, 200, 11},    {PERFMODEL_UP, false, 201, 12},  /* 11.445 */
        {PERFMODEL_UP, false, 300, 56},                                     /* 55.5 */
        {PERFMODEL_UP, false, 400, 100},   {PERFMODEL_UP, false, 600, 189}, /* the last segment's slope */
        {PERFMODEL_UP, false, 401, 101},   {PERFMODEL_DOWN, false, 99, 20},  {PERFMODEL_DOWN, false, 150, 35},
        {PERFMODEL_DOWN, false, 333, 50},  /* flat */
        {PERFMODEL_DOWN, false, 800, 100}, /* flat, so at the last row's rate */
        {PERFMODEL_UP, true, 400, 130},    {PERFMODEL_UP, true, 800, 330},   {PERFMODEL_UP, true, 300, 80},
        {PERFMODEL_DOWN, true, 50, 40},    {PERFMODEL_DOWN, true, 300, 166}, {PERFMODEL_DOWN, true, 500, 317},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        core_ns ns = perfmodel_copy_ns(&hand, cases[i].direction, cases[i].busy, cases[i].bytes);
        if (ns != cases[i].ns)
            fail_msg("case %zu: %lld, expected %lld", i, (long long)ns, (long long)cases[i].ns);
    }
}

static void one_row_is_a_rate(void **state)
{
    (void)state;
    struct config_profile_gpu gpu = hand;
    gpu.copy_count = 1;
    assert_int_equal(perfmodel_copy_ns(&gpu, PERFMODEL_UP, false, 7), 10);
    assert_int_equal(perfmodel_copy_ns(&gpu, PERFMODEL_UP, false, 100), 10);
    assert_int_equal(perfmodel_copy_ns(&gpu, PERFMODEL_UP, false, 1001), 101);
}

/* The busy column is flat at its end, the other one rises. */
static void busy_is_never_less_than_alone(void **state)
{
    (void)state;
    struct config_profile_copy rows[] = {{100, 10, 10, 100, 100}, {200, 100, 10, 100, 100}};
    struct config_profile_gpu gpu = hand;
    gpu.copies = rows;
    gpu.copy_count = 2;
    assert_int_equal(perfmodel_copy_ns(&gpu, PERFMODEL_UP, false, 400), 280);
    assert_int_equal(perfmodel_copy_ns(&gpu, PERFMODEL_UP, true, 400), 280);
    assert_int_equal(perfmodel_copy_ns(&gpu, PERFMODEL_DOWN, true, 400), 200);
}

static void longest_copies(void **state)
{
    (void)state;
    struct config_profile_copy rows[] = {{1, 1, 1, 1, 1}, {2, CONFIG_PROFILE_COPY_NS_MAX, 1, 1, 1}};
    struct config_profile_gpu gpu = hand;
    gpu.copies = rows;
    gpu.copy_count = 2;
    rows[1].up_busy_ns = CONFIG_PROFILE_COPY_NS_MAX;
    assert_int_equal(perfmodel_copy_ns(&gpu, PERFMODEL_UP, false, UINT64_MAX), CORE_NS_NEVER);
    assert_int_equal(perfmodel_copy_ns(&gpu, PERFMODEL_UP, false, INT64_C(1) << 44), CORE_NS_NEVER);
    assert_int_equal(perfmodel_copy_ns(&gpu, PERFMODEL_UP, false, 3), 2 * CONFIG_PROFILE_COPY_NS_MAX - 1);
    assert_int_equal(perfmodel_copy_ns(&gpu, PERFMODEL_DOWN, false, UINT64_MAX), CORE_NS_NEVER);
    assert_int_equal(perfmodel_copy_ns(&gpu, PERFMODEL_DOWN, false, INT64_MAX), INT64_C(1) << 62);
    rows[1].bytes = CONFIG_PROFILE_COPY_BYTES_MAX;
    assert_int_equal(perfmodel_copy_ns(&gpu, PERFMODEL_UP, false, CONFIG_PROFILE_COPY_BYTES_MAX),
                     CONFIG_PROFILE_COPY_NS_MAX);
    assert_int_equal(perfmodel_copy_ns(&gpu, PERFMODEL_UP, false, CONFIG_PROFILE_COPY_BYTES_MAX - 1),
                     CONFIG_PROFILE_COPY_NS_MAX); /* rounded up */
}

/* No more bytes in less time, and a busy bus no faster, on any table. */
static void copies_are_monotone(void **state)
{
    (void)state;
    struct test_random random = {.state = 1};
    for (int table = 0; table < TABLES; table++) {
        struct test_gpu card;
        test_gpu_random(&card, &random);
        enum perfmodel_direction direction = test_random_chance(&random, 50) ? PERFMODEL_UP : PERFMODEL_DOWN;
        for (int i = 0; i < 20; i++) {
            uint64_t bytes = (uint64_t)test_random_log(&random, 1, INT64_C(1) << 40);
            if (test_random_chance(&random, 30)) /* at and around a row */
                bytes = card.copies[test_random_in(&random, 0, card.gpu.copy_count - 1)].bytes;
            uint64_t more = bytes + (uint64_t)test_random_log(&random, 1, 1 << 20);
            core_ns ns = perfmodel_copy_ns(&card.gpu, direction, false, bytes);
            assert_true(ns <= perfmodel_copy_ns(&card.gpu, direction, false, more));
            assert_true(ns <= perfmodel_copy_ns(&card.gpu, direction, true, bytes));
            assert_true(perfmodel_copy_ns(&card.gpu, direction, true, bytes) <=
                        perfmodel_copy_ns(&card.gpu, direction, true, bytes + 1));
        }
    }
}

/* ---- utilisation ---- */

static void utilisation_by_hand(void **state)
{
    (void)state;
    struct config_profile_utilisation rows[] = {{1, 20000}, {2, 80000}, {3, 60000}, {6, 240000}, {8, 200000}};
    struct config_profile_gpu gpu = hand;
    gpu.utilisation = rows;
    gpu.utilisation_count = 5;
    /* c: 50, 50 (a row below binds), 50, then 25 by the rows, 40 from 7 on; beyond 8 jobs 50 n / 8 and what one
     * takes above its part of eight, 50 - 50/8: 100, 106.25 */
    const uint32_t expected[] = {20000, 40000, 60000, 80000, 100000, 120000, 140000, 160000, 90000, 94117};
    for (uint32_t n = 1; n <= 10; n++)
        assert_int_equal(perfmodel_utilisation_ppm(&gpu, n), expected[n - 1]);
    assert_int_equal(perfmodel_utilisation_ppm(&gpu, UINT32_MAX), 159999);
}

/* The top of each tooth is enough to have the saw: so the shipped profile gives the formula in its comment.
 */
static void rows_left_out_are_charged_as_the_next(void **state)
{
    (void)state;
    struct config_profile *profile = NULL;
    struct core_error error;
    const char *path = MILLRACE_SOURCE_DIR "/config/profiles/gtx285-x2.yaml";
    assert_int_equal(config_profile_load(path, &profile, &error), CORE_OK);
    for (uint32_t n = 1; n <= 256; n++) {
        double warps = (n + 7) / 8; // NOLINT(bugprone-integer-division)
        uint32_t expected = (uint32_t)(1e6 * n / 8.0 / fmax(6.25, warps) + 1e-6);
        assert_int_equal(perfmodel_utilisation_ppm(&profile->gpus[0], n), expected);
    }
    config_profile_free(profile);
}

/* n / U(n) of a row, or of the row that n jobs are charged as. */
static long double measured_cost(const struct config_profile_gpu *gpu, uint32_t n)
{
    const struct config_profile_utilisation *last = &gpu->utilisation[gpu->utilisation_count - 1];
    for (const struct config_profile_utilisation *row = gpu->utilisation; row <= last; row++)
        if (row->jobs >= n)
            return (long double)row->jobs / row->share_ppm;
    return (long double)n / last->share_ppm;
}

static void envelope_is_the_largest_safe_table(void **state)
{
    (void)state;
    struct test_random random = {.state = 2};
    for (int table = 0; table < TABLES; table++) {
        struct test_gpu card;
        test_gpu_random(&card, &random);
        uint32_t last = card.utilisation[card.gpu.utilisation_count - 1].jobs;
        long double cost = 0;
        for (uint32_t n = 1; n <= last; n++) {
            uint32_t found = perfmodel_utilisation_ppm(&card.gpu, n);
            cost = fmaxl(cost, measured_cost(&card.gpu, n)); /* never falls, never below the measured one */
            assert_true(found <= n / measured_cost(&card.gpu, n) + 1e-9L);
            assert_true(fabsl(n / cost - found) < 1 + 1e-9L);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_times),
        cmocka_unit_test(rows_lines_and_ends),
        cmocka_unit_test(one_row_is_a_rate),
        cmocka_unit_test(busy_is_never_less_than_alone),
        cmocka_unit_test(longest_copies),
        cmocka_unit_test(copies_are_monotone),
        cmocka_unit_test(utilisation_by_hand),
        cmocka_unit_test(rows_left_out_are_charged_as_the_next),
        cmocka_unit_test(envelope_is_the_largest_safe_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
