/* What the kernel's small files say, and what they might say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>
#include <string.h>

#include "core/proc.h"

static void a_file_is_read_as_far_as_there_is_room(void **state)
{
    char text[8], whole[4096];
    (void)state;
    assert_true(core_proc_read("/proc/self/stat", text, sizeof text));
    assert_int_equal(strlen(text), sizeof text - 1);
    assert_true(core_proc_read("/proc/self/stat", whole, sizeof whole));
    assert_true(core_proc_figure(whole, 1, 1) > 0);
    assert_true(core_proc_figure(core_proc_stat(whole), 2, 1) > 0); /* the parent */
    assert_false(core_proc_read("/nonexistent", text, sizeof text));
    assert_string_equal(text, "");
    assert_false(core_proc_read("/proc", text, sizeof text)); /* a folder */
}

static void a_figure_is_a_whole_word(void **state)
{
    static const struct {
        const char *text;
        unsigned index;
        int64_t unit, figure;
    } rows[] = {
        {"12 34\n", 1, 1, 12},
        {"12 34\n", 2, 4096, 34 * 4096},
        {"cpu  1 2", 3, 1, 2},
        {"12 34\n56", 3, 1, -1}, /* the next line */
        {"12", 2, 1, -1},
        {"", 1, 1, -1},
        {"max 100000\n", 1, 1, -1},
        {"12x 34\n", 1, 1, -1},
        {"-1 34\n", 1, 1, -1},
        {"4611686018427387903", 1, 1, CORE_PROC_FIGURE_MAX},
        {"4611686018427387904", 1, 1, -1},
        {"4611686018427387903", 1, 2, -1},
        {"99999999999999999999999999", 1, 1, -1},
        {"1", 1, CORE_PROC_FIGURE_MAX, CORE_PROC_FIGURE_MAX},
        {"9", 1, CORE_PROC_FIGURE_MAX, -1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(core_proc_figure(rows[i].text, rows[i].index, rows[i].unit), rows[i].figure);
}

static void a_list_has_ranges(void **state)
{
    static const struct {
        const char *list, *has; /* digits of those from 0 to 9 */
    } rows[] = {
        {"", ""},
        {"\n", ""},
        {"0\n", "0"},
        {"0-3,8\n", "01238"},
        {"5,7-9,11-13", "5789"},
        {"3-1,6", "6"},
        {"1-", ""}, /* less than there should be */
        {"1,x,2", "1"},
        {"2 4", "2"},
        {"-1,2", ""},
        {"99999999999999999999-3,4", "4"},
        {"0-99999999999999999999", "0123456789"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (unsigned number = 0; number < 10; number++)
            if (core_proc_list_has(rows[i].list, number) != (strchr(rows[i].has, '0' + (int)number) != NULL))
                fail_msg("'%s': %u", rows[i].list, number);
}

static void a_name_may_hold_anything(void **state)
{
    (void)state;
    assert_string_equal(core_proc_stat("7 (a) b (c) S 1 2"), "S 1 2");
    assert_string_equal(core_proc_stat("7 (a)"), "");
    assert_string_equal(core_proc_stat("7 (a)S"), "");
    assert_string_equal(core_proc_stat(""), "");
}

static void the_first_processor_is_named(void **state)
{
    static const struct {
        const char *cpuinfo, *name;
    } rows[] = {
        {"processor\t: 0\nmodel name\t: AMD EPYC\nmodel name\t: B\n", "AMD EPYC"},
        {"model name\t: a very long one indeed", "a very long one"},
        {"model name\t:\n", "unknown process"}, /* with nothing behind the colon */
        {"model name\t:", "unknown process"},
        {"model name\nx: y\n", "unknown process"},
        {"\n\n", "unknown process"},
        {"", "unknown process"},
    };
    char text[16];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        core_proc_processor(rows[i].cpuinfo, text, sizeof text);
        assert_string_equal(text, rows[i].name);
    }
}

static void the_group_of_version_2_counts(void **state)
{
    char group[8];
    (void)state;
    assert_true(core_proc_group("5:cpu:/x\n0::/a/b\n", group, sizeof group));
    assert_string_equal(group, "/a/b");
    assert_true(core_proc_group("0::/", group, sizeof group));
    assert_string_equal(group, "/");
    assert_false(core_proc_group("0::/too/long\n", group, sizeof group));
    assert_false(core_proc_group("5:cpu:0::/x\n", group, sizeof group));
    assert_false(core_proc_group("", group, sizeof group));
}

static void a_quota_is_thousandths_of_a_core(void **state)
{
    (void)state;
    assert_int_equal(core_proc_quota("150000 100000\n"), 1500);
    assert_int_equal(core_proc_quota("1 1000000\n"), 1);
    assert_int_equal(core_proc_quota("max 100000\n"), UINT_MAX);
    assert_int_equal(core_proc_quota("5 0\n"), UINT_MAX);
    assert_int_equal(core_proc_quota("5\n"), UINT_MAX);
    assert_int_equal(core_proc_quota("4000000000000000000 1\n"), UINT_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_read_as_far_as_there_is_room),
        cmocka_unit_test(a_figure_is_a_whole_word),
        cmocka_unit_test(a_list_has_ranges),
        cmocka_unit_test(a_name_may_hold_anything),
        cmocka_unit_test(the_first_processor_is_named),
        cmocka_unit_test(the_group_of_version_2_counts),
        cmocka_unit_test(a_quota_is_thousandths_of_a_core),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
