/* Every figure of /status and /metrics that the tables have is told of in the documentation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/admin/figures.h"

#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *pages;

/* The pages of docs/operations, one behind the other. */
static int read_pages(void **state)
{
    glob_t found;
    size_t bytes;
    (void)state;
    FILE *text = open_memstream(&pages, &bytes);
    if (text == NULL || glob(MILLRACE_SOURCE_DIR "/docs/operations/*.md", 0, NULL, &found) != 0)
        return -1;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        FILE *file = fopen(found.gl_pathv[i], "re");
        for (int c; file != NULL && (c = getc(file)) != EOF;)
            putc(c, text);
        if (file != NULL)
            (void)fclose(file);
    }
    globfree(&found);
    return fclose(text);
}

static int free_pages(void **state)
{
    (void)state;
    free(pages);
    return 0;
}

/* In code quotes; the labels of a metric may follow. */
static bool is_told(const char *name)
{
    char quoted[80], labelled[80];
    (void)snprintf(quoted, sizeof quoted, "`%s`", name);
    (void)snprintf(labelled, sizeof labelled, "`%s{", name);
    return strstr(pages, quoted) != NULL || strstr(pages, labelled) != NULL;
}

static size_t expect_told(const struct server_figure *figures)
{
    size_t count = 0;
    for (const struct server_figure *figure = figures; figure->help != NULL; figure++) {
        count++;
        if (figure->metric != NULL && !is_told(figure->metric))
            fail_msg("no page tells of the metric %s", figure->metric);
        if (figure->status != NULL && !is_told(figure->status))
            fail_msg("no page tells of the member %s of /status", figure->status);
    }
    return count;
}

static void every_figure_is_documented(void **state)
{
    size_t count = expect_told(server_figures_totals) + expect_told(server_figures_io) +
                   expect_told(server_figures_worker) + expect_told(server_figures_gpu) +
                   expect_told(server_figures_unit) + expect_told(server_figures_moves) +
                   expect_told(server_figures_plans);
    (void)state;
    for (size_t i = 0; i < SERVER_FIGURES_STAGES; i++) {
        assert_true(is_told(server_figures_stages[i].status));
        count += expect_told(server_figures_stages[i].figures);
    }
    assert_true(count > 100);
    assert_false(is_told("no_such_figure"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_figure_is_documented)};
    return cmocka_run_group_tests(tests, read_pages, free_pages);
}
