/* The figures: every file is there, the same each time, with the numbers that estimates give; and what is
 * said where there is no gnuplot. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/capacity.h"
#include "tests/support/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BENCH MILLRACE_BINARY_DIR "/bench/millrace-bench "
#define POOL  3000 /* of --quick */

static char folder[] = "/tmp/millrace-figures-XXXXXX";

static const char *const csv_files[] = {
    "capacity",          "fig07",        "fig10-paper",        "fig10-server",        "fig10-workloads",
    "fig11-paper",       "fig11-server", "fig12a-total-paper", "fig12a-total-server", "fig12a-gpu-paper",
    "fig12a-gpu-server", "fig12b",       "fig12c-paper",       "fig12c-server",       "bound-paper",
    "bound-server",      "table1",
};

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    char line[256], text[256];
    snprintf(line, sizeof line, "rm -r %s", folder);
    return test_command(line, text, sizeof text);
}

static FILE *opened(const char *set, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s/%s", folder, set, name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_msg("%s is missing", path);
    return file;
}

/* As on a machine without gnuplot: what is named by PATH is not there. */
static void without_gnuplot_the_numbers_are_written(void **state)
{
    (void)state;
    char line[512], text[4096];
    snprintf(line, sizeof line, "PATH=/nowhere; " BENCH "figures --quick --seed 5 --out %s/bare", folder);
    assert_int_equal(test_command(line, text, sizeof text), 1);
    assert_non_null(strstr(text, "there is no gnuplot"));
    assert_non_null(strstr(text, "gnuplot-nox"));
    for (size_t i = 0; i < sizeof csv_files / sizeof *csv_files; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.csv", csv_files[i]);
        fclose(opened("bare", name));
    }
}

static void expect_picture(const char *name)
{
    uint8_t head[8];
    FILE *file = opened("full", name);
    assert_int_equal(fread(head, 1, sizeof head, file), sizeof head);
    assert_memory_equal(head, "\x89PNG\r\n\x1a\n", sizeof head);
    fclose(file);
}

static void pictures_are_made_and_numbers_are_the_same_again(void **state)
{
    (void)state;
    char line[512], text[4096];
    snprintf(line, sizeof line, BENCH "figures --quick --seed 5 --out %s/full --progress", folder);
    const int status = test_command(line, text, sizeof text);
    snprintf(line, sizeof line,
             "cd %s; for f in bare/*.csv; do cmp $f full/${f#bare/} || exit 1; done; ls bare full", folder);
    char differences[4096];
    if (test_command(line, differences, sizeof differences) != 0)
        fail_msg("%s", differences);
    if (status != 0 && strstr(text, "there is no gnuplot") != NULL)
        skip();
    if (status != 0)
        fail_msg("%s", text);
    expect_picture("fig07-paper-rectangle-1.png");
    expect_picture("fig10-paper.png");
    expect_picture("fig10-workloads.png");
    expect_picture("fig12a-speedup-paper.png");
    expect_picture("bound-server.png");
}

static void capacities_are_those_of_estimates(void **state)
{
    (void)state;
    char row[512];
    size_t rows = 0, methods = 0, compared = 0;
    struct bench_machine machine;
    struct bench_pool pool;
    const struct bench_pool_request request = {.workload = "norm2", .count = POOL, .seed = 5};
    struct core_error error = {""};
    assert_int_equal(bench_machine_open(&machine, "gtx285-x2", &error), CORE_OK);
    assert_int_equal(bench_pool_open(&pool, &request, &error), CORE_OK);
    FILE *file = opened("bare", "capacity.csv");
    assert_non_null(fgets(row, sizeof row, file));
    for (; fgets(row, sizeof row, file) != NULL; rows++) {
        static const char start[] = "server,norm2,2,";
        char method[32];
        size_t streams;
        if (strncmp(row, start, strlen(start)) != 0)
            continue;
        assert_int_equal(sscanf(row + strlen(start), "%31[^,],%zu", method, &streams), 2);
        struct bench_capacity_options options = {
            .method = partition_plan_method_find(method), .machine = &machine, .pool = &pool, .seed = 5};
        struct bench_capacity capacity;
        assert_int_equal(bench_capacity_find(&options, &capacity, &error), CORE_OK);
        /* a search that starts elsewhere may end elsewhere if the method is not monotone */
        if (capacity.refused_below == 0) {
            assert_int_equal(capacity.streams, streams);
            compared++;
        }
        bench_capacity_free(&capacity);
    }
    fclose(file);
    bench_pool_free(&pool);
    bench_machine_close(&machine);
    for (const struct partition_plan_method *method = partition_plan_methods; method->name != NULL; method++)
        methods++;
    assert_int_equal(rows, 2 * 5 * 2 * methods);
    assert_true(compared >= 1);
}

/* Table 1 of the paper, GB/s. */
static void transfer_rates_are_the_papers(void **state)
{
    (void)state;
    static const double expected[2][5] = {{2.77, 3.355, 2.77, 1.517, 1.875}, {5.31, 5.81, 5.31, 2.775, 3.75}};
    char head[128];
    FILE *file = opened("bare", "table1.csv");
    assert_non_null(fgets(head, sizeof head, file));
    for (int gpus = 1; gpus <= 2; gpus++) {
        int read_gpus;
        double rate[5];
        assert_int_equal(fscanf(file, "%d,%lf,%lf,%lf,%lf,%lf", &read_gpus, &rate[0], &rate[1], &rate[2],
                                &rate[3], &rate[4]),
                         6);
        assert_int_equal(read_gpus, gpus);
        for (int i = 0; i < 5; i++)
            assert_true(rate[i] > 0.999 * expected[gpus - 1][i] && rate[i] < 1.001 * expected[gpus - 1][i]);
    }
    fclose(file);
}

static void wrong_input_is_told_of(void **state)
{
    (void)state;
    static const struct test_command_mistake mistakes[] = {
        {"", "--out is missing"},
        {"--quick --out /nowhere/there", "/nowhere/there: can not be made"},
        {"--quick --out /dev/null", "/dev/null"},
        {"--out x --pool 3", "a whole number from 1000"},
    };
    test_command_mistakes(BENCH "figures", mistakes, sizeof mistakes / sizeof *mistakes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_gnuplot_the_numbers_are_written),
        cmocka_unit_test(pictures_are_made_and_numbers_are_the_same_again),
        cmocka_unit_test(capacities_are_those_of_estimates),
        cmocka_unit_test(transfer_rates_are_the_papers),
        cmocka_unit_test(wrong_input_is_told_of),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
