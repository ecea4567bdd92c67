/* RGEM's bounds against reference values (tests/data/rgem_*.csv, papers.json). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/analyses/rgem.h"
#include "tests/support/table.h"

#include <jansson.h>
#include <string.h>

#define TASKS_MAX 16

static const char *const variants[ANALYSES_RGEM_VARIANTS] = {"lit", "fix", "half", "once"};

static void read_system(const struct test_table *table, struct analyses_rgem_system *system)
{
    *system = (struct analyses_rgem_system){
        .chunk_bytes = test_table_int(table, "CS"),
        .up_ns = test_table_int(table, "UL"),
        .down_ns = test_table_int(table, "DL"),
        .scheduler_ns = test_table_int(table, "S"),
        .setup_ns = test_table_int(table, "O"),
        .switch_ns = test_table_int(table, "X"),
        .copy_queue_ns = test_table_int(table, "EQm") + test_table_int(table, "DQm"),
        .kernel_queue_ns = test_table_int(table, "EQk") + test_table_int(table, "DQk"),
    };
}

static void read_task(const struct test_table *table, struct analyses_rgem_task *task)
{
    *task = (struct analyses_rgem_task){.period_ns = test_table_int(table, "T"),
                                        .up_bytes = test_table_int(table, "UT"),
                                        .down_bytes = test_table_int(table, "DT")};
    for (const char *list = test_table_text(table, "kernels"); *list != '\0';) {
        assert_in_range(task->kernels, 0, ANALYSES_RGEM_KERNELS - 1);
        task->kernel_ns[task->kernels++] = test_table_list_next(&list);
    }
}

static void check(const struct test_table *table, const char *column, int64_t value)
{
    if (value != test_table_int(table, column))
        fail_msg("set %s, task %s, %s: %s is %lld, not %s", test_table_text(table, "set"),
                 test_table_text(table, "task"), test_table_text(table, "variant"), column, (long long)value,
                 test_table_text(table, column));
}

static void check_row(const struct test_table *table, const struct analyses_rgem_bounds *bounds)
{
    if (*test_table_text(table, "BU") != '\0') {
        check(table, "BU", bounds->block_up_ns);
        check(table, "BD", bounds->block_down_ns);
        check(table, "BK", bounds->block_kernel_ns);
    }
    check(table, "RU", bounds->up_ns);
    check(table, "RD", bounds->down_ns);
    check(table, "RK", bounds->kernel_ns);
}

static void test_reference(void **state)
{
    (void)state;
    struct test_table systems = test_table_open("rgem_sys.csv"),
                      all_tasks = test_table_open("rgem_tasks.csv");
    struct test_table results = test_table_open("rgem_results.csv");
    int rows = 0;

    while (test_table_next(&systems)) {
        struct analyses_rgem_system system;
        struct analyses_rgem_task tasks[TASKS_MAX];
        struct analyses_rgem_bounds bounds[ANALYSES_RGEM_VARIANTS][TASKS_MAX];
        const size_t count = (size_t)test_table_int(&systems, "n");
        assert_in_range(count, 1, TASKS_MAX);
        read_system(&systems, &system);
        for (size_t i = 0; i < count; i++) {
            assert_true(test_table_next(&all_tasks));
            read_task(&all_tasks, &tasks[i]);
        }
        for (int v = 0; v < ANALYSES_RGEM_VARIANTS; v++)
            analyses_rgem_bound(&system, tasks, count, (enum analyses_rgem_variant)v, bounds[v]);
        for (size_t i = 0; i < count; i++)
            for (int v = 0; v < ANALYSES_RGEM_VARIANTS; v++, rows++) {
                assert_true(test_table_next(&results));
                assert_string_equal(test_table_text(&results, "set"), test_table_text(&systems, "set"));
                assert_string_equal(test_table_text(&results, "variant"), variants[v]);
                check_row(&results, &bounds[v][i]);
            }
    }
    assert_false(test_table_next(&results));
    assert_int_equal(rows, 976);
}

/* The worked example of papers.json, by hand small. */
static void test_worked_example(void **state)
{
    (void)state;
    const struct analyses_rgem_system system = {.chunk_bytes = 1000,
                                                .up_ns = 10,
                                                .down_ns = 12,
                                                .scheduler_ns = 1,
                                                .setup_ns = 2,
                                                .switch_ns = 1,
                                                .copy_queue_ns = 2,
                                                .kernel_queue_ns = 2};
    const struct analyses_rgem_task tasks[] = {
        {.period_ns = 1000, .up_bytes = 2000, .down_bytes = 1000, .kernels = 1, .kernel_ns = {50}},
        {.period_ns = 2000, .up_bytes = 1500, .kernels = 2, .kernel_ns = {30, 20}},
        {.period_ns = 4000, .up_bytes = 3000, .down_bytes = 2000, .kernels = 1, .kernel_ns = {100}},
    };
    json_error_t problem;
    json_t *facts = json_load_file(MILLRACE_SOURCE_DIR "/tests/data/papers.json", 0, &problem);
    int found = 0;

    assert_non_null(facts);
    for (int v = 0; v < ANALYSES_RGEM_VARIANTS; v++) {
        struct analyses_rgem_bounds bounds[3];
        size_t index;
        const json_t *fact;
        char id[64];
        analyses_rgem_bound(&system, tasks, 3, (enum analyses_rgem_variant)v, bounds);
        snprintf(id, sizeof id, "rgem-appendix-tiny-%s", variants[v]);
        json_array_foreach(facts, index, fact)
        {
            const json_t *expected = json_object_get(fact, "expected");
            if (strcmp(json_string_value(json_object_get(fact, "id")), id) != 0)
                continue;
            found++;
            for (size_t i = 0; i < 3; i++) {
                assert_int_equal(bounds[i].up_ns,
                                 json_integer_value(json_array_get(json_object_get(expected, "RU"), i)));
                assert_int_equal(bounds[i].down_ns,
                                 json_integer_value(json_array_get(json_object_get(expected, "RD"), i)));
                assert_int_equal(bounds[i].kernel_ns,
                                 json_integer_value(json_array_get(json_object_get(expected, "RK"), i)));
            }
        }
    }
    assert_int_equal(found, ANALYSES_RGEM_VARIANTS);
    json_decref(facts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_worked_example),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
