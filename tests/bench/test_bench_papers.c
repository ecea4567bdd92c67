/* millrace-bench papers: goes on where it was stopped, gives the same files, keeps settings apart; and what its
 * tables of soundness say of a few sets: the repaired analysis is not exceeded, the printed one is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/papers/papers.h"
#include "tests/support/command.h"

#include <stdlib.h>
#include <string.h>

#define BENCH MILLRACE_BINARY_DIR "/bench/millrace-bench papers "

static char folder[] = "/tmp/millrace-papers-XXXXXX";

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

/* Runs it with the folder's name in place of %s, twice at most. */
static int run(const char *format, char *text, size_t size)
{
    char line[1024];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(line, sizeof line, format, folder, folder);
#pragma GCC diagnostic pop
    return test_command(line, text, size);
}

static void a_stopped_run_goes_on(void **state)
{
    (void)state;
    char text[8192];
    /* Without gnuplot the numbers are written all the same, and the end is told. */
    assert_int_equal(run("PATH=/nowhere; " BENCH "rgem --sets 1 --out %s/a", text, sizeof text), 1);
    assert_non_null(strstr(text, "no gnuplot"));
    assert_int_equal(run("cp -r %s/a %s/b", text, sizeof text), 0);
    assert_int_equal(run("cd %s/b; head -c -30 rgem-sound.csv > x; mv x rgem-sound.csv; rm rgem-fig08.csv",
                         text, sizeof text),
                     0);
    assert_int_equal(run("PATH=/nowhere; " BENCH "rgem --sets 1 --out %s/b", text, sizeof text), 1);
    assert_int_equal(run("diff -r %s/a %s/b", text, sizeof text), 0);
    assert_int_equal(run(BENCH "rgem --sets 2 --out %s/b", text, sizeof text), 1);
    assert_non_null(strstr(text, "name another folder"));
}

static void wrong_arguments_are_named(void **state)
{
    (void)state;
    char text[8192];
    assert_int_equal(run(BENCH "rgem", text, sizeof text), 2);
    assert_non_null(strstr(text, "--out is missing"));
    assert_int_equal(run(BENCH "verner --out %s/c", text, sizeof text), 2);
    assert_non_null(strstr(text, "one of rgem"));
    assert_int_equal(run(BENCH "rgem --mode printed --out %s/c", text, sizeof text), 2);
    assert_non_null(strstr(text, "there are paper, safe and both"));
}

/* The value in the column of this name of one row of the figure. */
static double cell(const struct papers_figure *figure, const char *row, const char *column)
{
    const char *name = figure->columns;

    while (strncmp(name, column, strlen(column)) != 0 ||
           (name[strlen(column)] != ',' && name[strlen(column)] != '\0')) {
        name = strchr(name, ',');
        row = strchr(row, ',');
        if (name == NULL || row == NULL)
            fail_msg("%s has no %s", figure->name, column);
        name++;
        row++;
    }
    return strtod(row, NULL);
}

static const struct papers_figure *figure_of(const struct papers_figure *figures, size_t count,
                                             const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(figures[i].name, name) == 0)
            return &figures[i];
    fail_msg("there is no %s", name);
    return NULL;
}

static void row_of(const struct papers_figure *figure, unsigned sets, char *row, size_t size)
{
    const struct papers_options options = {.as_printed = true, .safe = true, .sets = sets, .output.seed = 1};
    struct inputgen_random random;
    FILE *file = fmemopen(row, size, "w");

    assert_non_null(file);
    inputgen_random_seed(&random, 7);
    figure->row(&options, 0, &random, file);
    fclose(file);
    print_message("%s: %s\n", figure->name, row);
}

static size_t commas(const char *text)
{
    size_t count = 0;
    for (; *text != '\0'; text++)
        count += *text == ',';
    return count;
}

static void check_columns(const struct papers_figure *figures, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (int mode = 1; mode <= 3; mode++) {
            const struct papers_options options = {
                .as_printed = (mode & 1) != 0, .safe = (mode & 2) != 0, .sets = 1, .output.seed = 1};
            struct inputgen_random random;
            char line[4096] = "";
            FILE *file = fmemopen(line, sizeof line, "w");
            inputgen_random_seed(&random, 3);
            figures[i].row(&options, figures[i].rows - 1, &random, file);
            fclose(file);
            if (commas(line) != commas(figures[i].columns))
                fail_msg("%s: %s", figures[i].name, line);
        }
}

static void every_row_has_its_columns(void **state)
{
    (void)state;
    check_columns(papers_rgem, papers_rgem_count);
    check_columns(papers_gpu_sam, papers_gpu_sam_count);
    check_columns(papers_gpu_sparc, papers_gpu_sparc_count);
    check_columns(papers_gpu_sync, papers_gpu_sync_count);
}

static void rgem_is_exceeded_as_printed_only(void **state)
{
    (void)state;
    const struct papers_figure *figure = figure_of(papers_rgem, papers_rgem_count, "rgem-sound");
    char row[1024];

    row_of(figure, 300, row, sizeof row);
    assert_true(cell(figure, row, "lit_beaten") > 0);
    assert_true(cell(figure, row, "fix_beaten") > 0); /* two queues where there is one */
    assert_true(cell(figure, row, "half_beaten") == 0);
    assert_true(cell(figure, row, "once_beaten") == 0);
    assert_true(cell(figure, row, "worst_once") > 0.99); /* and is reached: there is nothing to give away */
}

static void split_kernels_are_exceeded_as_printed_only(void **state)
{
    (void)state;
    const struct papers_figure *figure = figure_of(papers_gpu_sam, papers_gpu_sam_count, "gpu-sam-sound");
    char row[1024];

    row_of(figure, 2500, row, sizeof row);
    assert_true(cell(figure, row, "paper_beaten") > 0);
    assert_true(cell(figure, row, "safe_beaten") == 0);
    assert_true(cell(figure, row, "min_beaten") == 0);
    assert_true(cell(figure, row, "worst_min") > 0.99);
    figure = figure_of(papers_gpu_sparc, papers_gpu_sparc_count, "gpu-sparc-sound");
    row_of(figure, 500, row, sizeof row);
    assert_true(cell(figure, row, "paper_beaten") > 0);
    assert_true(cell(figure, row, "safe_beaten") == 0);
}

/* What is passed by fewer rules is passed by OPTIMAL, and where no set passes the shares are empty. */
static void shares_are_of_optimal(void **state)
{
    (void)state;
    const struct papers_options options = {.as_printed = true, .safe = true, .sets = 5, .output.seed = 1};

    for (size_t row = 0; row < 20; row += 7) {
        const struct papers_figure *figure = figure_of(papers_gpu_sam, papers_gpu_sam_count, "gpu-sam-fig09");
        char line[2048];
        struct inputgen_random random;
        FILE *file = fmemopen(line, sizeof line, "w");
        inputgen_random_seed(&random, 11 + row);
        figure->row(&options, row, &random, file);
        fclose(file);
        assert_true(cell(figure, line, "paper_gpa") <= cell(figure, line, "paper_optimal"));
        assert_true(cell(figure, line, "min_gpa") <= cell(figure, line, "min_optimal"));
        assert_true(cell(figure, line, "safe_optimal") <= cell(figure, line, "min_optimal"));
        assert_true(cell(figure, line, "drawn") >= cell(figure, line, "paper_optimal"));
        if (row >= 14)
            assert_true(cell(figure, line, "paper_optimal") == 0);
        else
            assert_true(cell(figure, line, "paper_optimal") > 0 || row == 7);
    }
}

static void global_bounds_are_not_exceeded(void **state)
{
    (void)state;
    static const char *const claims[] = {"gfb",  "bak",  "bar", "bcl", "bcli", "rta",  "ffdbf",
                                         "load", "devi", "cva", "gfl", "fmlp", "omlp", "omlp2"};
    const struct papers_figure *figure = figure_of(papers_gpu_sync, papers_gpu_sync_count, "gpu-sync-sound");
    char row[2048], column[32];

    row_of(figure, 200, row, sizeof row);
    for (size_t i = 0; i < sizeof claims / sizeof claims[0]; i++) {
        snprintf(column, sizeof column, "%s_passed", claims[i]);
        assert_true(cell(figure, row, column) > 10);
        snprintf(column, sizeof column, "%s_beaten", claims[i]);
        assert_true(cell(figure, row, column) == 0);
    }
    assert_true(cell(figure, row, "worst_rta") > 0.99);
    assert_true(cell(figure, row, "worst_gfl") > 0.8);
}

/* Where the paper's curves end: medium tasks on four processors, 75 % of the execution on the GPU. */
static void effective_utilisation_ends_where_the_paper_has_it(void **state)
{
    (void)state;
    const struct papers_options options = {.as_printed = true, .safe = true, .sets = 20, .output.seed = 1};
    const struct papers_figure *figure = figure_of(papers_gpu_sync, papers_gpu_sync_count, "gpu-sync-fig06");
    double contained = 0, shared = 0;

    for (size_t row = 5 * 40; row < 6 * 40; row++) {
        char line[1024];
        FILE *file = fmemopen(line, sizeof line, "w");
        figure->row(&options, row, NULL, file);
        fclose(file);
        assert_int_equal(*line, 'f');
        if (cell(figure, line, "16x_cm") > 0)
            contained = cell(figure, line, "u_eff");
        if (cell(figure, line, "16x_srm") > 0)
            shared = cell(figure, line, "u_eff");
        assert_true(cell(figure, line, "16x_srm") <= cell(figure, line, "16x_sets"));
        assert_true(cell(figure, line, "2x_srm") <= cell(figure, line, "2x_srm_omlp2_cva"));
    }
    assert_true(contained > 14 && contained < 16.5); /* "15.0" */
    assert_true(shared > 9 && shared < contained);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_run_goes_on),
        cmocka_unit_test(wrong_arguments_are_named),
        cmocka_unit_test(every_row_has_its_columns),
        cmocka_unit_test(rgem_is_exceeded_as_printed_only),
        cmocka_unit_test(split_kernels_are_exceeded_as_printed_only),
        cmocka_unit_test(shares_are_of_optimal),
        cmocka_unit_test(global_bounds_are_not_exceeded),
        cmocka_unit_test(effective_utilisation_ends_where_the_paper_has_it),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
