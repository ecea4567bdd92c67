/* Tests and bounds for global EDF against reference values (tests/data/gedf_*.csv). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/analyses/exact.h"
#include "bench/analyses/soft.h"
#include "tests/support/random.h"
#include "tests/support/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TASKS 32

struct row {
    struct analyses_gedf_task tasks[TASKS];
    char cells[TASKS][8][32]; /* of the results, in the order of `results` */
    size_t count;
};
static const char *const results[] = {
    "rta_resp", "da_resp",  "gedf_resp",    "gedf_resp_real", "gedf_resp_unreduced_real",
    "gfl_Y",    "gfl_resp", "gfl_resp_real"};

static void read_rows(struct test_table *table, struct row *row, size_t count)
{
    assert_in_range(count, 1, TASKS);
    row->count = count;
    for (size_t i = 0; i < count; i++) {
        assert_true(test_table_next(table));
        row->tasks[i] = (struct analyses_gedf_task){.cost = test_table_int(table, "C"),
                                                    .deadline = test_table_int(table, "D"),
                                                    .period = test_table_int(table, "T")};
        for (size_t r = 0; r < 8; r++)
            snprintf(row->cells[i][r], sizeof row->cells[i][r], "%s", test_table_text(table, results[r]));
    }
}

static void near(const char *what, const char *expected, double value)
{
    if (*expected == '\0')
        return;
    const double reference = strtod(expected, NULL);
    if (!(fabs(value - reference) <= 1e-8 * fmax(1, fabs(reference))))
        fail_msg("%s: %.12f, not %s", what, value, expected);
}

static void check_soft(const struct test_table *sets, const struct row *row, unsigned m)
{
    double edf[TASKS], whole[TASKS], fl[TASKS];
    const double x = analyses_soft_devi(m, row->tasks, row->count);

    if (*test_table_text(sets, "DA_x") != '\0')
        near("DA_x", test_table_text(sets, "DA_x"), x);
    near("CVA_s", test_table_text(sets, "CVA_s"),
         analyses_soft_compliant(m, row->tasks, row->count, ANALYSES_SOFT_EDF, edf));
    near("GFL_s", test_table_text(sets, "GFL_s"),
         analyses_soft_compliant(m, row->tasks, row->count, ANALYSES_SOFT_FL, fl));
    analyses_soft_compliant(m, row->tasks, row->count, ANALYSES_SOFT_EDF_UNREDUCED, whole);
    for (size_t i = 0; i < row->count; i++) {
        near("da_resp", row->cells[i][1],
             (double)(row->tasks[i].period + row->tasks[i].cost) + ceil(x - 1e-9));
        near("gedf_resp", row->cells[i][2], ceil(edf[i] - 1e-9));
        near("gedf_resp_real", row->cells[i][3], edf[i]);
        near("gedf_resp_unreduced_real", row->cells[i][4], whole[i]);
        near("gfl_Y", row->cells[i][5], (double)analyses_soft_point(m, &row->tasks[i], ANALYSES_SOFT_FL));
        near("gfl_resp", row->cells[i][6], ceil(fl[i] - 1e-9));
        near("gfl_resp_real", row->cells[i][7], fl[i]);
    }
}

static void check_hard(const struct test_table *sets, const struct row *row, unsigned m, int *verdicts)
{
    int64_t response[TASKS];

    for (int t = 0; t < ANALYSES_GEDF_TESTS; t++) {
        const char *cell = test_table_text(sets, analyses_gedf_names[t]);
        if (strcmp(cell, "NA") == 0)
            continue;
        const bool passes = analyses_gedf_passes((enum analyses_gedf_test)t, m, row->tasks, row->count);
        if (passes != (*cell == '1'))
            fail_msg("set %s: %s says %d", test_table_text(sets, "set"), analyses_gedf_names[t], passes);
        if (passes)
            assert_int_equal(test_table_int(sets, "sim_first_miss"), 0);
        verdicts[t] += passes;
    }
    if (*test_table_text(sets, "RTA") == '1') {
        assert_true(analyses_gedf_respond(m, row->tasks, row->count, response));
        for (size_t i = 0; i < row->count; i++)
            assert_int_equal(response[i], strtoll(row->cells[i][0], NULL, 10));
    }
}

static void test_reference(void **state)
{
    (void)state;
    struct test_table sets = test_table_open("gedf_sets.csv"), all_tasks = test_table_open("gedf_tasks.csv");
    static struct row row;
    int rows = 0, verdicts[ANALYSES_GEDF_TESTS] = {0};

    for (; test_table_next(&sets); rows++) {
        const unsigned m = (unsigned)test_table_int(&sets, "m");
        read_rows(&all_tasks, &row, (size_t)test_table_int(&sets, "n"));
        check_hard(&sets, &row, m, verdicts);
        check_soft(&sets, &row, m);
    }
    assert_int_equal(rows, 217);
    for (int t = 0; t < ANALYSES_GEDF_TESTS; t++)
        assert_true(verdicts[t] >= 28); /* each says yes to some */
}

/* At the very bound, where a rounding would decide: three tasks of a third each fill one processor. */
static void test_exact_bounds(void **state)
{
    (void)state;
    const struct analyses_gedf_task thirds[3] = {{1, 3, 3}, {1, 3, 3}, {1, 3, 3}};
    struct analyses_gedf_task more[3] = {{1, 3, 3}, {1, 3, 3}, {1000000001, 3000000000, 3000000000}};

    assert_true(analyses_gedf_passes(ANALYSES_GFB, 1, thirds, 3));
    assert_false(analyses_gedf_passes(ANALYSES_GFB, 1, more, 3));
    assert_true(isinf(analyses_soft_devi(1, more, 3)));
}

/* Fractions against fractions of 64 bits. */
static void test_fractions(void **state)
{
    (void)state;
    struct test_random random = {5};

    for (int turn = 0; turn < 20000; turn++) {
        struct analyses_exact x, y;
        __int128 over = 0, under = 1;
        analyses_exact_set(&x, 0, 1);
        for (int i = 0; i < 5; i++) {
            const int64_t n = test_random_in(&random, -1000, 1000), d = test_random_in(&random, 1, 1000);
            analyses_exact_add(&x, n, d);
            over = over * d + n * under;
            under *= d;
        }
        const int64_t n = test_random_in(&random, -3, 3), d = test_random_in(&random, 1, 3);
        const __int128 difference = over * d - n * under;
        assert_int_equal(analyses_exact_compare_to(&x, n, d), (difference > 0) - (difference < 0));
        analyses_exact_set(&y, n, d);
        assert_int_equal(analyses_exact_compare(&y, &x), (difference < 0) - (difference > 0));
        analyses_exact_add(&y, -n, d);
        assert_int_equal(analyses_exact_compare_to(&y, 0, 1), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_exact_bounds),
        cmocka_unit_test(test_fractions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
