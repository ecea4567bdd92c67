/* `millrace-bench siege --quick`: every attack runs, every row is told in both forms, and whatever this
 * machine is busy with, no packet is called met that was late for certain, none is lost and none is wrong.
 * Whether a row reaches its goals is a matter of the machine, and not looked at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/command.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define SIEGE   MILLRACE_BINARY_DIR "/bench/millrace-bench siege "
#define PROFILE "--profile " MILLRACE_SOURCE_DIR "/config/profiles/cpu-only.yaml "

static char text[65536];

/* What a thread that wakes late may hide of a packet: docs/protocol.md, section 4. */
static double hidden_ms(const json_t *row)
{
    double eighth_ms = json_real_value(json_object_get(row, "shortest_bound_ms")) / 8;
    return 0.2 + (eighth_ms < 0.5 ? 0.5 : eighth_ms > 10 ? 10 : eighth_ms);
}

/* The attacks of the program, by its own list. */
static size_t listed(char names[][32], size_t room)
{
    size_t count = 0;
    assert_int_equal(test_command(SIEGE "--only help", text, sizeof text), 2);
    for (char *line = strtok(text, "\n"); line && count < room; line = strtok(NULL, "\n"))
        if (strncmp(line, "  ", 2) == 0 && sscanf(line, "%31s", names[count]) == 1)
            count++;
    return count;
}

static int64_t number(const json_t *row, const char *name)
{
    const json_t *value = json_object_get(row, name);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static void look_at_row(const json_t *row, const char *name)
{
    static const char *const honest[] = {"packets", "late", "missed", "opens", "opens_failed"};
    assert_string_equal(json_string_value(json_object_get(row, "attack")), name);
    if (strncmp(name, "none", 4) != 0 && number(row, "done") == 0)
        fail_msg("%s did not run: %s", name, json_string_value(json_object_get(row, "note")));
    /* A thread of a busy machine wakes late; no word is further from the truth than that may hide. */
    if (json_real_value(json_object_get(row, "untrue_by_ms")) > hidden_ms(row))
        fail_msg("%s: %d packets untrue, by %.3f ms", name, (int)number(row, "untrue"),
                 json_real_value(json_object_get(row, "untrue_by_ms")));
    assert_int_equal(number(row, "spoilt"), 0);
    for (size_t at = 0; at < sizeof honest / sizeof *honest; at++)
        assert_true(number(row, honest[at]) >= 0);
    if (strcmp(name, "threads") != 0)
        assert_true(number(row, "packets") > 0 && number(row, "opens") > 0);
}

static void every_attack_runs_and_nothing_is_untrue(void **state)
{
    char names[64][32];
    json_error_t error;
    (void)state;
    const size_t count = listed(names, 64);
    assert_true(count >= 15);
    const int status = test_command(SIEGE PROFILE "--quick --json", text, sizeof text);
    assert_true(status == 0 || status == 1);
    json_t *document = json_loads(text, 0, &error);
    assert_non_null(document);
    const json_t *rows = json_object_get(document, "attacks");
    assert_int_equal(json_array_size(rows), count);
    for (size_t at = 0; at < count; at++)
        look_at_row(json_array_get(rows, at), names[at]);
    json_decref(document);
}

static void one_row_is_printed_for_a_person(void **state)
{
    (void)state;
    const int status = test_command(SIEGE PROFILE "--quick --only none", text, sizeof text);
    assert_true(status == 0 || status == 1);
    assert_non_null(strstr(text, "untrue"));
    assert_non_null(strstr(text, " none "));
    assert_null(strstr(text, " hellos "));
}

static void wrong_words_are_told(void **state)
{
    (void)state;
    static const struct test_command_mistake mistakes[] = {
        {"--only fire", "no such attack"},
        {"--duration 0", "--duration 0: give a time from 100 ms to 3600 s"},
        {"--only none --millraced /bin/false", "did not start"},
    };
    test_command_mistakes(SIEGE, mistakes, sizeof mistakes / sizeof *mistakes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_attack_runs_and_nothing_is_untrue),
        cmocka_unit_test(one_row_is_printed_for_a_person),
        cmocka_unit_test(wrong_words_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
