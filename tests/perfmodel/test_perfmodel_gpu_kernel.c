/* Kernel times: reference values, the definition in floating point, monotonicity on random cards, dealing,
 * the longest job, and the ends of the ranges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "perfmodel/gpu.h"
#include "tests/support/gpu.h"

#define JOBS_MAX 400
#define CARDS    4000

/* ---- reference values ---- */

static size_t read_jobs(char *cell, uint64_t *jobs)
{
    size_t count = 0;
    for (char *rest = cell, *size = strsep(&rest, " "); size != NULL; size = strsep(&rest, " ")) {
        assert_in_range(count, 0, JOBS_MAX - 1);
        jobs[count++] = strtoull(size, NULL, 10) * TEST_GPU_FINE;
    }
    return count;
}

static void reference_kernels(void **state)
{
    (void)state;
    struct test_gpu card;
    test_gpu_reference(&card, 1, 1);
    struct test_csv csv = test_csv_open("verner_kernel.csv");
    int cases = 0;
    for (; test_csv_next(&csv); cases++) {
        uint64_t jobs[JOBS_MAX], scratch[JOBS_MAX];
        size_t count = read_jobs(csv.cell[3], jobs);
        assert_int_equal(count, (size_t)csv.number[2]);
        core_ns ns = perfmodel_kernel_ns(&card.gpu, (uint32_t)csv.number[1], jobs, count, true, scratch);
        double expected = csv.number[4] * TEST_GPU_FINE;
        if (fabs((double)ns - expected) > 1e-8 * expected)
            fail_msg("case %s: %lld, expected %.3f", csv.cell[0], (long long)ns, expected);
    }
    assert_int_equal(cases, 60);
}

/* ---- one SM against its definition ---- */

static int compare_bytes(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static long double cost_within(const struct config_profile_gpu *gpu, uint32_t n, bool measured)
{
    const struct config_profile_utilisation *row = gpu->utilisation;
    const struct config_profile_utilisation *last = &row[gpu->utilisation_count - 1];
    long double cost = 0;
    for (; row <= last && row->jobs < n; row++)
        cost = fmaxl(cost, 1e6L * row->jobs / row->share_ppm);
    long double above = row <= last ? 1e6L * row->jobs / row->share_ppm : 1e6L * n / last->share_ppm;
    return measured ? above : fmaxl(cost, above);
}

static uint32_t last_jobs(const struct config_profile_gpu *gpu)
{
    return gpu->utilisation[gpu->utilisation_count - 1].jobs;
}

/* What the pass that is begun may take above its part of a full one: over all r < N of c(r) - c(N) r / N. */
static long double begun_of(const struct config_profile_gpu *gpu)
{
    const uint32_t last = last_jobs(gpu);
    const long double full = cost_within(gpu, last, false);
    const struct config_profile_utilisation *row = gpu->utilisation;
    long double cost = 0, begun = 0;
    for (uint32_t r = 1; r < last; r++) {
        row += r > row->jobs;
        cost = fmaxl(cost, 1e6L * row->jobs / row->share_ppm);
        begun = fmaxl(begun, cost - full * r / last);
    }
    return begun;
}

/* Its c(n) as the header has it. */
static long double sm_by_definition(const struct config_profile_gpu *gpu, const uint64_t *sorted,
                                    size_t count, bool measured)
{
    const uint32_t last = last_jobs(gpu);
    const long double full = cost_within(gpu, last, false), begun = begun_of(gpu);
    long double sum = 0;
    for (size_t k = 1; k <= count; k++) {
        const uint64_t step = sorted[k - 1] - (k > 1 ? sorted[k - 2] : 0);
        const uint32_t n = (uint32_t)(count - k + 1);
        sum += (long double)step *
               (n <= last || measured ? cost_within(gpu, n, measured) : full * n / last + begun);
    }
    return sum * 1e9L / (long double)gpu->sm_bytes_per_s;
}

/* Sizes as they come: many alike, some of nothing, a few huge. */
static size_t random_jobs(struct test_random *random, uint64_t *jobs, size_t limit)
{
    size_t count = (size_t)test_random_in(random, 1, (int64_t)limit);
    int64_t largest = test_random_log(random, 1, INT64_C(1) << 30);
    for (size_t i = 0; i < count; i++) {
        jobs[i] = (uint64_t)test_random_in(random, 0, largest);
        if (i > 0 && test_random_chance(random, 30))
            jobs[i] = jobs[i - 1];
    }
    return count;
}

static void sm_is_its_definition_rounded_up(void **state)
{
    (void)state;
    struct test_random random = {.state = 3};
    for (int i = 0; i < CARDS; i++) {
        struct test_gpu card;
        uint64_t jobs[JOBS_MAX];
        test_gpu_random(&card, &random);
        size_t count = random_jobs(&random, jobs, 120);
        qsort(jobs, count, sizeof *jobs, compare_bytes);
        bool measured = test_random_chance(&random, 50);
        long double exact = sm_by_definition(&card.gpu, jobs, count, measured);
        core_ns ns = perfmodel_sm_ns(&card.gpu, jobs, count, measured);
        if (ns == CORE_NS_NEVER) /* a byte takes over 8 s */
            continue;
        assert_true((long double)ns >= exact * (1 - 1e-15L));
        assert_true((long double)ns <= exact * (1 + 2e-9L) + 1);
    }
}

static const struct config_profile_copy copies[] = {{1, 1, 1, 1, 1}};

/* A card of one SM whose peak is a byte per ns. */
static struct config_profile_gpu card_with(struct config_profile_utilisation *rows, uint32_t count)
{
    return (struct config_profile_gpu){.sms = 1,
                                       .copy_engines = 2,
                                       .sm_bytes_per_s = CORE_NS_PER_S,
                                       .copies = (struct config_profile_copy *)copies,
                                       .copy_count = 1,
                                       .utilisation = rows,
                                       .utilisation_count = count};
}

/* Where U rises faster than n, two jobs are faster than one: the measured table says so, a bound must not,
 * and an envelope of U alone would. */
static void fewer_jobs_are_not_slower(void **state)
{
    (void)state;
    struct config_profile_utilisation rows[] = {{1, 2000}, {2, 8000}};
    struct config_profile_gpu gpu = card_with(rows, 2);
    const uint64_t one[] = {0, 1000}, two[] = {1000, 1000};
    assert_int_equal(perfmodel_sm_ns(&gpu, two, 2, true), 250000);
    assert_int_equal(perfmodel_sm_ns(&gpu, one, 2, true), 500000);
    assert_int_equal(perfmodel_sm_ns(&gpu, two, 2, false), 500000);
    assert_int_equal(perfmodel_sm_ns(&gpu, one, 2, false), 500000);
}

/* An SM with room for as many jobs as the table has takes more of them in passes: the longest first, each pass when
 * the one before has ended. Equal jobs come to what is charged, with the number that the line rests on. */
static void more_than_the_table_run_in_passes(void **state)
{
    (void)state;
    struct test_random random = {.state = 7};
    unsigned beyond = 0, reached = 0;
    for (int i = 0; i < CARDS; i++) {
        struct test_gpu card;
        uint64_t jobs[JOBS_MAX];
        const bool equal = test_random_chance(&random, 50);
        test_gpu_random(&card, &random);
        card.gpu.utilisation_count = (uint32_t)test_random_in(&random, 1, card.gpu.utilisation_count);
        const size_t room = last_jobs(&card.gpu), count = random_jobs(&random, jobs, JOBS_MAX);
        for (size_t job = 0; equal && job < count; job++)
            jobs[job] = 1 << 20;
        qsort(jobs, count, sizeof *jobs, compare_bytes);
        long double passes_ns = 0;
        for (size_t left = count, pass; left > 0; left -= pass) {
            const uint64_t *longest = &jobs[left - (left < room ? left : room)];
            pass = left < room ? left : room;
            for (size_t k = 0; k < pass; k++)
                passes_ns += (long double)(longest[k] - (k > 0 ? longest[k - 1] : 0)) *
                             cost_within(&card.gpu, (uint32_t)(pass - k), false);
        }
        passes_ns *= 1e9L / (long double)card.gpu.sm_bytes_per_s;
        const core_ns ns = perfmodel_sm_ns(&card.gpu, jobs, count, false);
        if (ns == CORE_NS_NEVER)
            continue;
        assert_true((long double)ns >= passes_ns * (1 - 1e-15L));
        beyond += count > room;
        reached += count > room && count % room != 0 && (long double)ns <= passes_ns * (1 + 1e-8L) + 1;
    }
    assert_true(beyond > CARDS / 4);
    assert_true(reached > CARDS / 50);
}

/* ---- all SMs ---- */

static core_ns kernel(const struct config_profile_gpu *gpu, const uint64_t *jobs, size_t count)
{
    uint64_t scratch[JOBS_MAX + 1];
    return perfmodel_kernel_ns(gpu, gpu->sms, jobs, count, false, scratch);
}

/* Deals and sorts without any of the function's shortcuts. */
static core_ns kernel_by_definition(const struct config_profile_gpu *gpu, const uint64_t *jobs, size_t count,
                                    bool measured)
{
    core_ns longest_ns = 0;
    for (size_t sm = 0; sm < gpu->sms; sm++) {
        uint64_t dealt[JOBS_MAX];
        size_t dealt_count = 0;
        for (size_t i = 0; i < count; i++)
            if (i % gpu->sms == sm)
                dealt[dealt_count++] = jobs[i];
        qsort(dealt, dealt_count, sizeof *dealt, compare_bytes);
        core_ns ns = perfmodel_sm_ns(gpu, dealt, dealt_count, measured);
        longest_ns = ns > longest_ns ? ns : longest_ns;
    }
    return longest_ns;
}

static int compare_falling(const void *a, const void *b)
{
    return compare_bytes(b, a);
}

static void dealing_has_no_shortcuts(void **state)
{
    (void)state;
    struct test_random random = {.state = 4};
    for (int i = 0; i < CARDS; i++) {
        struct test_gpu card;
        uint64_t jobs[JOBS_MAX];
        test_gpu_random(&card, &random);
        size_t count = random_jobs(&random, jobs, 200);
        if (test_random_chance(&random, 50))
            qsort(jobs, count, sizeof *jobs,
                  test_random_chance(&random, 30) ? compare_bytes : compare_falling);
        bool measured = test_random_chance(&random, 50);
        uint64_t scratch[JOBS_MAX];
        assert_int_equal(perfmodel_kernel_ns(&card.gpu, card.gpu.sms, jobs, count, measured, scratch),
                         kernel_by_definition(&card.gpu, jobs, count, measured));
    }
}

static void more_is_never_faster(void **state)
{
    (void)state;
    struct test_random random = {.state = 5};
    for (int i = 0; i < CARDS; i++) {
        struct test_gpu card;
        uint64_t jobs[JOBS_MAX + 1];
        test_gpu_random(&card, &random);
        size_t count = random_jobs(&random, jobs, 200);
        core_ns ns = kernel(&card.gpu, jobs, count);
        size_t changed = (size_t)test_random_in(&random, 0, (int64_t)count - 1);
        uint64_t before = jobs[changed];
        jobs[changed] += (uint64_t)test_random_log(&random, 1, 1 << 20);
        assert_true(kernel(&card.gpu, jobs, count) >= ns);
        jobs[changed] = before;
        jobs[count] = (uint64_t)test_random_log(&random, 1, 1 << 20);
        assert_true(kernel(&card.gpu, jobs, count + 1) >= ns);
        /* in falling order wherever the job more belongs */
        qsort(jobs, count, sizeof *jobs, compare_falling);
        ns = kernel(&card.gpu, jobs, count);
        qsort(jobs, count + 1, sizeof *jobs, compare_falling);
        assert_true(kernel(&card.gpu, jobs, count + 1) >= ns);
    }
}

/* What a batch is judged by holds whichever of its jobs come, and however short. */
static void part_of_a_batch_is_no_slower(void **state)
{
    (void)state;
    struct test_random random = {.state = 6};
    for (int i = 0; i < CARDS; i++) {
        struct test_gpu card;
        uint64_t jobs[JOBS_MAX];
        test_gpu_random(&card, &random);
        size_t count = random_jobs(&random, jobs, 200);
        core_ns ns = kernel(&card.gpu, jobs, count);
        for (size_t job = 0; job < count; job++)
            if (test_random_chance(&random, 40))
                jobs[job] = 0;
            else if (test_random_chance(&random, 40))
                jobs[job] = (uint64_t)test_random_in(&random, 0, (int64_t)jobs[job]);
        assert_true(kernel(&card.gpu, jobs, count) <= ns);
    }
}

/* ---- the ends of the ranges ---- */

static void ends_of_the_ranges(void **state)
{
    (void)state;
    struct config_profile_utilisation rows[] = {{1, 1000000}, {2, 1}};
    struct config_profile_gpu gpu = card_with(rows, 1);
    const uint64_t limit[] = {UINT64_C(1) << 53}, beyond[] = {0, 0, (UINT64_C(1) << 53) + 1};
    const uint64_t nothing[3] = {0}, byte[] = {1, 1};
    uint64_t scratch[3];
    assert_int_equal(perfmodel_sm_ns(&gpu, NULL, 0, false), 0);
    assert_int_equal(perfmodel_sm_ns(&gpu, nothing, 3, false), 0);
    assert_int_equal(perfmodel_kernel_ns(&gpu, 4, NULL, 0, false, NULL), 0);
    assert_int_equal(perfmodel_kernel_ns(&gpu, UINT32_MAX, nothing, 3, false, scratch), 0);
    assert_int_equal(perfmodel_sm_ns(&gpu, limit, 1, false), INT64_C(1) << 53);
    assert_int_equal(perfmodel_sm_ns(&gpu, beyond, 3, false), CORE_NS_NEVER);
    assert_int_equal(perfmodel_kernel_ns(&gpu, 2, beyond, 3, true, scratch), CORE_NS_NEVER);
    gpu.sm_bytes_per_s = CONFIG_PROFILE_SM_RATE_MAX; /* still over two hours: CORE_NS_NEVER beyond is fair */
    assert_true(perfmodel_sm_ns(&gpu, limit, 1, false) > 7200 * CORE_NS_PER_S);

    gpu.sm_bytes_per_s = 1;
    assert_int_equal(perfmodel_sm_ns(&gpu, byte, 1, false), CORE_NS_PER_S);
    assert_int_equal(perfmodel_sm_ns(&gpu, byte, 2, false), 2 * CORE_NS_PER_S);
    assert_int_equal(perfmodel_sm_ns(&gpu, limit, 1, false), CORE_NS_NEVER); /* 2^53 s are 2^83 ns */
    gpu.utilisation_count = 2;                                               /* 2 jobs: 2,000,000 s a byte */
    assert_int_equal(perfmodel_sm_ns(&gpu, byte, 2, false), CORE_NS_NEVER);
    assert_int_equal(perfmodel_utilisation_ppm(&gpu, 1), 1000000);
    assert_int_equal(perfmodel_utilisation_ppm(&gpu, 2), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_kernels),         cmocka_unit_test(sm_is_its_definition_rounded_up),
        cmocka_unit_test(fewer_jobs_are_not_slower), cmocka_unit_test(dealing_has_no_shortcuts),
        cmocka_unit_test(more_is_never_faster),      cmocka_unit_test(part_of_a_batch_is_no_slower),

        cmocka_unit_test(ends_of_the_ranges),        cmocka_unit_test(more_than_the_table_run_in_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
