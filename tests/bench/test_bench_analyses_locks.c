/* Blocking by locks, and Elliott and Anderson's two methods, against reference values (tests/data/lock_*.csv,
 * srmcm_*.csv) and the paper's example. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/analyses/locks.h"
#include "bench/analyses/soft.h"
#include "bench/analyses/srm.h"
#include "tests/support/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TASKS   48
#define COLUMNS 6

struct cells {
    int64_t value[TASKS][COLUMNS];
};

static void complain(const struct test_table *sets, size_t task, const char *column, int64_t value,
                     int64_t expected)
{
    if (value != expected)
        fail_msg("set %s, task %zu: %s is %lld, not %lld", test_table_text(sets, "set"), task, column,
                 (long long)value, (long long)expected);
}

static void read_requests(const char *text, struct analyses_lock_task *task)
{
    while (*text != '\0') {
        struct analyses_lock_request *request = &task->requests[task->request_count++];
        long long count, length;
        int used;
        assert_int_equal(sscanf(text, "%u:%lld:%lld%n", &request->resource, &count, &length, &used), 3);
        request->count = count;
        request->length = length;
        text += used + (text[used] == '/');
    }
}

static void test_locks(void **state)
{
    (void)state;
    static const struct {
        const char *blocking, *arrival;
        enum analyses_lock_protocol protocol;
    } columns[] = {{"global_fmlp", NULL, ANALYSES_LOCK_FMLP},
                   {"global_omlp", NULL, ANALYSES_LOCK_OMLP},
                   {"clustered_omlp", "clustered_omlp_arrival", ANALYSES_LOCK_CLUSTERED},
                   {"clustered_kx_omlp", "clustered_kx_arrival", ANALYSES_LOCK_CLUSTERED_KX}};
    struct test_table sets = test_table_open("lock_sets.csv"), rows = test_table_open("lock_tasks.csv");
    int seen = 0;

    while (test_table_next(&sets)) {
        const struct analyses_lock_system system = {.m = (unsigned)test_table_int(&sets, "m"),
                                                    .per_cluster = (unsigned)test_table_int(&sets, "c"),
                                                    .replicas =
                                                        (unsigned)test_table_int(&sets, "k_replicas")};
        const size_t count = (size_t)test_table_int(&sets, "n");
        static struct analyses_lock_task tasks[TASKS];
        static struct cells blocking, arrival;
        for (size_t i = 0; i < count; i++, seen++) {
            assert_true(test_table_next(&rows));
            tasks[i] = (struct analyses_lock_task){.period = test_table_int(&rows, "T"),
                                                   .response = test_table_int(&rows, "R"),
                                                   .cluster = (unsigned)test_table_int(&rows, "cluster")};
            read_requests(test_table_text(&rows, "requests"), &tasks[i]);
            for (size_t c = 0; c < 4; c++) {
                blocking.value[i][c] = test_table_int(&rows, columns[c].blocking);
                arrival.value[i][c] =
                    columns[c].arrival == NULL ? 0 : test_table_int(&rows, columns[c].arrival);
            }
        }
        for (size_t i = 0; i < count; i++)
            for (size_t c = 0; c < 4; c++) {
                int64_t once;
                complain(&sets, i, columns[c].blocking,
                         analyses_lock_blocking(&system, tasks, count, columns[c].protocol, i, &once),
                         blocking.value[i][c]);
                complain(&sets, i, "arrival", once, arrival.value[i][c]);
            }
    }
    assert_int_equal(seen, 1141);
}

static void near(const struct test_table *sets, const char *column, double value)
{
    const double expected = test_table_real(sets, column);
    if (!(fabs(value - expected) <= 1e-8 * fmax(1, expected)))
        fail_msg("set %s: %s is %.12f, not %.12f", test_table_text(sets, "set"), column, value, expected);
}

static const struct {
    const char *ok, *turns, *blocking, *tardiness;
} variants[ANALYSES_SRM_VARIANTS] = {{"fmlp_ok", NULL, "fmlp_b", "fmlp_tard"},
                                     {"omlp_ok", "omlp_iters", "omlp_b", "omlp_tard"},
                                     {"omlp2_ok", "omlp2_iters", "omlp2_b", "omlp2_tard"},
                                     {"omlp2cva_ok", "omlp2cva_iters", "omlp2cva_b", "omlp2cva_tard"}};

static void check_shared(const struct test_table *sets, const struct analyses_srm_task *tasks, size_t count,
                         const struct cells *blocking, const struct cells *tardiness)
{
    const unsigned m = (unsigned)test_table_int(sets, "m");

    for (int v = 0; v < ANALYSES_SRM_VARIANTS; v++) {
        const struct analyses_srm_result result =
            analyses_srm_shared(m, tasks, count, (enum analyses_srm_variant)v);
        assert_int_equal(result.passes, test_table_int(sets, variants[v].ok));
        if (variants[v].turns != NULL)
            assert_int_equal(result.turns, test_table_int(sets, variants[v].turns));
        for (size_t i = 0; i < count; i++) {
            complain(sets, i, variants[v].blocking, result.blocking[i], blocking->value[i][v]);
            if (result.passes)
                complain(sets, i, variants[v].tardiness, result.tardiness[i], tardiness->value[i][v]);
        }
        if (v == ANALYSES_SRM_FMLP)
            near(sets, "fmlp_U", result.utilisation);
        if (v == ANALYSES_SRM_OMLP)
            near(sets, "omlp_U", result.utilisation);
    }
}

static void test_methods(void **state)
{
    (void)state;
    struct test_table sets = test_table_open("srmcm_sets.csv"), rows = test_table_open("srmcm_tasks.csv");
    int seen = 0, contained = 0;

    for (; test_table_next(&sets); seen++) {
        struct analyses_srm_task tasks[TASKS];
        static struct cells blocking, tardiness;
        const size_t count = (size_t)test_table_int(&sets, "n");
        assert_in_range(count, 1, TASKS);
        for (size_t i = 0; i < count; i++) {
            assert_true(test_table_next(&rows));
            tasks[i] = (struct analyses_srm_task){.period = test_table_int(&rows, "p"),
                                                  .cpu = test_table_int(&rows, "e"),
                                                  .gpu = test_table_int(&rows, "s"),
                                                  .section = test_table_int(&rows, "cs")};
            for (int v = 0; v < ANALYSES_SRM_VARIANTS; v++) {
                blocking.value[i][v] = test_table_int(&rows, variants[v].blocking);
                tardiness.value[i][v] = test_table_int(&rows, variants[v].tardiness);
            }
        }
        check_shared(&sets, tasks, count, &blocking, &tardiness);
        const struct analyses_srm_container container =
            analyses_srm_contain((unsigned)test_table_int(&sets, "m"), tasks, count);
        assert_int_equal(container.passes, test_table_int(&sets, "cm_ok"));
        near(&sets, "cm_wG", container.gpu);
        near(&sets, "cm_total", container.total);
        near(&sets, "gpu_util", analyses_srm_gpu_utilisation(tasks, count));
        contained += container.passes;
    }
    assert_int_equal(seen, 160);
    assert_true(contained > 20);
}

/* Section 4.1 and 4.2: b = 16, U = 3.83; w(G) = 0.83, 1.17 in all; Devi and Anderson's x on it. */
static void test_example(void **state)
{
    (void)state;
    struct analyses_srm_task tasks[7] = {{30, 5, 0, 0}, {30, 5, 0, 0}};
    struct analyses_gedf_task inflated[7] = {{5, 30, 30}, {5, 30, 30}};

    for (size_t i = 2; i < 7; i++) {
        tasks[i] = (struct analyses_srm_task){30, 3, 2, 4};
        inflated[i] = (struct analyses_gedf_task){21, 30, 30};
    }
    const struct analyses_srm_result fmlp = analyses_srm_shared(4, tasks, 7, ANALYSES_SRM_FMLP);
    assert_true(fmlp.passes);
    assert_int_equal(fmlp.blocking[0], 0);
    assert_int_equal(fmlp.blocking[6], 16);
    assert_true(fabs(fmlp.utilisation - 23.0 / 6) < 1e-12);
    assert_int_equal(analyses_srm_shared(4, tasks, 7, ANALYSES_SRM_OMLP).blocking[6],
                     28); /* 2m - 1 of 4 each */
    assert_int_equal(analyses_srm_shared(4, tasks, 7, ANALYSES_SRM_OMLP2).blocking[6], 16);
    const struct analyses_srm_container container = analyses_srm_contain(4, tasks, 7);
    assert_true(container.passes);
    assert_true(fabs(container.gpu - 5.0 / 6) < 1e-12 && fabs(container.total - 7.0 / 6) < 1e-12);
    assert_true(fabs(analyses_srm_gpu_utilisation(tasks, 7) - 2.0 / 3) < 1e-12);
    assert_true(fabs(analyses_soft_devi(4, inflated, 7) - 58 / 2.6) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_locks),
        cmocka_unit_test(test_methods),
        cmocka_unit_test(test_example),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
