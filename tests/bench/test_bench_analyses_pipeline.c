/* The analyses and assignments of GPU-SAM and GPU-SPARC against reference values (tests/data/gpusam_*.csv,
 * gpusparc_*.csv) and against schedules that exceed what is printed (counterexamples.json). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/analyses/assign.h"
#include "tests/support/pipeline_sets.h"
#include "tests/support/table.h"

#include <stdlib.h>
#include <string.h>

#define TASKS ANALYSES_PIPELINE_TASKS

struct rules {
    const char *name;
    enum analyses_pipeline_variant variant;
};
static const struct rules sam[] = {
    {"txt", ANALYSES_SAM_TXT}, {"safe", ANALYSES_SAM_SAFE}, {"min", ANALYSES_SAM_MIN}};
static const struct rules sparc[] = {{"lit", ANALYSES_SPARC_PRINTED}, {"safe", ANALYSES_SPARC_SAFE}};

/* false: a variant that is not among them. */
static bool find_variant(const struct rules *rules, size_t count, const char *name,
                         enum analyses_pipeline_variant *variant)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(rules[i].name, name) == 0) {
            *variant = rules[i].variant;
            return true;
        }
    return false;
}

static void complain(const struct test_table *table, const char *column, const char *value)
{
    if (strcmp(test_table_text(table, column), value) != 0)
        fail_msg("set %s, %s: %s is %s, not %s", test_table_text(table, "set"),
                 test_table_text(table, "variant"), column, value, test_table_text(table, column));
}

static void put_time(char *text, size_t size, int64_t time)
{
    const size_t used = strlen(text);
    if (time == ANALYSES_NEVER)
        snprintf(text + used, size - used, "INF");
    else
        snprintf(text + used, size - used, "%lld", (long long)time);
}

static void put_ratio(char *text, size_t size, struct analyses_ratio ratio)
{
    put_time(text, size, ratio.response);
    const size_t used = strlen(text);
    if (ratio.response != ANALYSES_NEVER)
        snprintf(text + used, size - used, "/%lld", (long long)ratio.deadline);
}

static void check_responses(const struct test_table *table, const char *column, const int64_t *response,
                            size_t count)
{
    char text[512] = "";
    for (size_t t = 0; t < count; t++) {
        if (t > 0)
            strcat(text, " ");
        put_time(text, sizeof text, response[t]);
    }
    complain(table, column, text);
}

static void check_assignment(const struct test_table *table, const char *column, const unsigned *m,
                             size_t count, bool modes)
{
    char text[TASKS + 1] = "";
    for (size_t t = 0; t < count; t++)
        text[t] = modes ? (m[t] == 1 ? 'S' : 'M') : (char)('0' + m[t]);
    complain(table, column, text);
}

static size_t check_rows(const struct test_pipeline_sets *sets, const char *file, const char *assigned,
                         const struct rules *rules, size_t rule_count, bool two_modes)
{
    struct test_table table = test_table_open(file);
    static struct analyses_pipeline pipeline;
    size_t rows = 0;

    while (test_table_next(&table)) {
        const struct analyses_pipeline_set *set = test_pipeline_set(sets, test_table_int(&table, "set"));
        enum analyses_pipeline_variant variant = ANALYSES_PIPELINE_VARIANTS;
        unsigned m[TASKS];
        int64_t response[TASKS];
        if (!find_variant(rules, rule_count, test_table_text(&table, "variant"), &variant))
            continue;
        if (strcmp(test_table_text(&table, "scheme"), "SINGLE") == 0)
            analyses_assign_single(set, m);
        else if (strcmp(test_table_text(&table, "scheme"), "ALLMAX") == 0 ||
                 strcmp(test_table_text(&table, "scheme"), "MULTI") == 0)
            analyses_assign_allmax(set, m);
        else
            analyses_assign_individual(set, two_modes, m);
        check_assignment(&table, assigned, m, set->count, two_modes);
        analyses_pipeline_prepare(&pipeline, set, variant);
        const bool kept = analyses_pipeline_respond(&pipeline, m, response, NULL);
        check_responses(&table, "R", response, set->count);
        assert_int_equal(kept, test_table_int(&table, "schedulable"));
        char ratio[64] = "";
        put_ratio(ratio, sizeof ratio, analyses_assign_ratio(set, response));
        complain(&table, "max_R_over_D", ratio);
        rows++;
    }
    return rows;
}

static void test_responses(void **state)
{
    (void)state;
    struct test_pipeline_sets *sets = test_pipeline_sets_open("gpusam");
    assert_int_equal(check_rows(sets, "gpusam_rta.csv", "assignment", sam, 3, false), 810);
    test_pipeline_sets_free(sets);
    sets = test_pipeline_sets_open("gpusparc");
    assert_int_equal(check_rows(sets, "gpusparc_rta.csv", "modes", sparc, 2, true), 360);
    test_pipeline_sets_free(sets);
}

/* What the last turn of each recurrence is made of, INDIVIDUAL. */
static void test_terms(void **state)
{
    (void)state;
    struct test_pipeline_sets *sets = test_pipeline_sets_open("gpusam");
    struct test_table table = test_table_open("gpusam_detail.csv");
    static struct analyses_pipeline pipeline;
    static struct analyses_pipeline_terms terms[TASKS][ANALYSES_PIPELINE_STAGES];
    int64_t of_set = -1;
    char of_variant[8] = "";
    size_t rows = 0;

    while (test_table_next(&table)) {
        enum analyses_pipeline_variant variant = ANALYSES_PIPELINE_VARIANTS;
        assert_true(find_variant(sam, 3, test_table_text(&table, "variant"), &variant));
        if (test_table_int(&table, "set") != of_set ||
            strcmp(of_variant, test_table_text(&table, "variant")) != 0) {
            unsigned m[TASKS];
            int64_t response[TASKS];
            of_set = test_table_int(&table, "set");
            snprintf(of_variant, sizeof of_variant, "%s", test_table_text(&table, "variant"));
            analyses_assign_individual(test_pipeline_set(sets, of_set), false, m);
            analyses_pipeline_prepare(&pipeline, test_pipeline_set(sets, of_set), variant);
            analyses_pipeline_respond(&pipeline, m, response, terms);
        }
        const struct analyses_pipeline_terms *of =
            &terms[test_table_int(&table, "task")][test_table_int(&table, "stage")];
        assert_int_equal(of->r, test_table_int(&table, "r"));
        assert_int_equal(of->jitter, test_table_int(&table, "J"));
        assert_int_equal(of->x, test_table_int(&table, "X"));
        assert_int_equal(of->y, test_table_int(&table, "Y"));
        assert_int_equal(of->z, test_table_int(&table, "Z"));
        rows++;
    }
    assert_int_equal(rows, 2132);
    test_pipeline_sets_free(sets);
}

static void check_trace(const struct test_table *table, const char *column,
                        const struct analyses_assign_trace *trace, bool with_m)
{
    char text[1024] = "";
    for (size_t i = 0; i < trace->steps; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, with_m ? "%s%zu:%u:" : "%s%zu:", i > 0 ? " " : "",
                 trace->step[i].task, trace->step[i].m);
        put_ratio(text, sizeof text, trace->step[i].ratio);
    }
    complain(table, column, text);
}

/* The exhaustive columns: how many pass, the first of them, and the best. */
static void check_all(const struct test_table *table, const struct analyses_pipeline *pipeline,
                      bool two_modes)
{
    const char *prefix = two_modes ? "glob" : "opt";
    const size_t count = pipeline->set->count;
    const struct analyses_assign_optimal all = analyses_assign_optimal(pipeline, two_modes, false);
    const struct analyses_assign_optimal one = analyses_assign_optimal(pipeline, two_modes, true);
    char column[32], text[64] = "";
    unsigned m[TASKS];

    snprintf(column, sizeof column, "%s_ok", prefix);
    assert_int_equal(all.passing > 0, test_table_int(table, column));
    assert_int_equal(one.passing > 0, all.passing > 0);
    snprintf(column, sizeof column, "%s_count", prefix);
    assert_int_equal(all.passing, test_table_int(table, column));
    snprintf(column, sizeof column, "%s_first", prefix);
    if (all.passing > 0) {
        check_assignment(table, column, all.first, count, two_modes);
        check_assignment(table, column, one.first, count, two_modes);
    }
    put_ratio(text, sizeof text, analyses_assign_best(pipeline, two_modes, m));
    snprintf(column, sizeof column, "%s_best_ratio", prefix);
    complain(table, column, text);
    snprintf(column, sizeof column, "%s_best_%s", prefix, two_modes ? "modes" : "assignment");
    check_assignment(table, column, m, count, two_modes);
}

static void test_assignments(void **state)
{
    (void)state;
    static struct analyses_pipeline pipeline;
    size_t rows = 0;

    for (int two_modes = 0; two_modes < 2; two_modes++) {
        struct test_pipeline_sets *sets = test_pipeline_sets_open(two_modes ? "gpusparc" : "gpusam");
        struct test_table table = test_table_open(two_modes ? "gpusparc_gema.csv" : "gpusam_gpa.csv");
        while (test_table_next(&table)) {
            const struct analyses_pipeline_set *set = test_pipeline_set(sets, test_table_int(&table, "set"));
            enum analyses_pipeline_variant variant = ANALYSES_PIPELINE_VARIANTS;
            unsigned m[TASKS];
            assert_true(find_variant(two_modes ? sparc : sam, two_modes ? 2 : 3,
                                     test_table_text(&table, "variant"), &variant));
            analyses_pipeline_prepare(&pipeline, set, variant);
            const struct analyses_assign_trace trace =
                two_modes ? analyses_assign_gema(&pipeline, m) : analyses_assign_gpa(&pipeline, m);
            assert_int_equal(trace.passes, test_table_int(&table, two_modes ? "gema_ok" : "gpa_ok"));
            assert_int_equal(trace.steps, test_table_int(&table, two_modes ? "gema_steps" : "gpa_steps"));
            check_assignment(&table, two_modes ? "gema_modes" : "gpa_assignment", m, set->count, two_modes);
            check_trace(&table, two_modes ? "gema_trace" : "gpa_trace", &trace, !two_modes);
            if (!two_modes) {
                int64_t response[TASKS];
                analyses_pipeline_respond(&pipeline, m, response, NULL);
                check_responses(&table, "gpa_R", response, set->count);
            }
            check_all(&table, &pipeline, two_modes);
            rows++;
        }
        test_pipeline_sets_free(sets);
    }
    assert_int_equal(rows, 270 + 120);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_responses),
        cmocka_unit_test(test_terms),
        cmocka_unit_test(test_assignments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
