#include "tests/support/pipeline_sets.h"

#include "tests/support/require.h"
#include "tests/support/table.h"

#include <stdlib.h>
#include <string.h>

#define SETS_MAX 128

struct test_pipeline_sets {
    size_t count;
    int64_t number[SETS_MAX];
    struct analyses_pipeline_set set[SETS_MAX];
};

static void read_times(const struct test_table *table, bool sparc, unsigned gpus,
                       struct analyses_pipeline_stage *stage)
{
    for (unsigned m = 1; m <= gpus; m++) {
        char column[16];
        snprintf(column, sizeof column, "C%u", m);
        if (sparc)
            snprintf(column, sizeof column, "%s", m == 1 ? "C_single" : "C_multi");
        stage->time[m - 1] = test_table_int(table, column);
    }
}

static void read_stages(struct test_pipeline_sets *sets, const char *file, bool sparc)
{
    struct test_table table = test_table_open(file);
    size_t index = 0;

    while (test_table_next(&table)) {
        while (sets->number[index] != test_table_int(&table, "set"))
            TEST_REQUIRE(++index < sets->count);
        struct analyses_pipeline_task *task = &sets->set[index].tasks[test_table_int(&table, "task")];
        struct analyses_pipeline_stage *stage = &task->stages[task->stage_count++];
        const char resource = *test_table_text(&table, "res");
        stage->resource = resource == 'C' ? ANALYSES_CPU : resource == 'P' ? ANALYSES_PCI : ANALYSES_GPU;
        read_times(&table, sparc, sets->set[index].units[ANALYSES_GPU], stage);
    }
}

static void read_tasks(struct test_pipeline_sets *sets, const char *file)
{
    struct test_table table = test_table_open(file);
    size_t index = 0;

    while (test_table_next(&table)) {
        while (sets->number[index] != test_table_int(&table, "set"))
            TEST_REQUIRE(++index < sets->count);
        struct analyses_pipeline_task *task = &sets->set[index].tasks[sets->set[index].count++];
        task->period = test_table_int(&table, "T");
        task->deadline = test_table_int(&table, "D");
    }
}

struct test_pipeline_sets *test_pipeline_sets_open(const char *name)
{
    struct test_pipeline_sets *sets = calloc(1, sizeof *sets);
    char file[64];
    TEST_REQUIRE(sets != NULL);
    snprintf(file, sizeof file, "%s_sys.csv", name);
    struct test_table table = test_table_open(file);

    while (test_table_next(&table)) {
        TEST_REQUIRE(sets->count < SETS_MAX);
        sets->number[sets->count] = test_table_int(&table, "set");
        unsigned *units = sets->set[sets->count++].units;
        units[ANALYSES_CPU] = (unsigned)test_table_int(&table, "n_cpu");
        units[ANALYSES_PCI] = (unsigned)test_table_int(&table, "n_pci");
        units[ANALYSES_GPU] = (unsigned)test_table_int(&table, "n_gpu");
    }
    snprintf(file, sizeof file, "%s_tasks.csv", name);
    read_tasks(sets, file);
    snprintf(file, sizeof file, "%s_stages.csv", name);
    read_stages(sets, file, strcmp(name, "gpusparc") == 0);
    return sets;
}

void test_pipeline_sets_free(struct test_pipeline_sets *sets)
{
    free(sets);
}

const struct analyses_pipeline_set *test_pipeline_set(const struct test_pipeline_sets *sets, int64_t number)
{
    for (size_t i = 0; i < sets->count; i++)
        if (sets->number[i] == number)
            return &sets->set[i];
    test_require_failed(__FILE__, __LINE__, "a set of this number");
}
