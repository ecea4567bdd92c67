/* `millrace-bench hls`: it starts a server and millrace hls, and every part that comes back is right, in both forms of
 * its report. Whether one is late is a matter of the machine, and not looked at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/command.h"

#include <jansson.h>
#include <string.h>

#define HLS                                                                                                  \
    MILLRACE_BINARY_DIR "/bench/millrace-bench hls --folder /tmp --profile " MILLRACE_SOURCE_DIR             \
                        "/config/profiles/cpu-only.yaml "

static char text[16384];

static void compares_every_part(void **state)
{
    (void)state;
    (void)test_command(HLS "-n 2 --rate 1Mbit/s --part 100ms --duration 1s --deadline 5s --json", text,
                       sizeof text);
    json_error_t error;
    json_t *report = json_loads(text, 0, &error);
    if (report == NULL)
        fail_msg("%s: %s", error.text, text);
    assert_int_equal(json_integer_value(json_object_get(report, "renditions")), 2);
    assert_true(json_integer_value(json_object_get(report, "parts")) > 0);
    assert_int_equal(json_integer_value(json_object_get(report, "wrong")), 0);
    assert_int_equal(json_integer_value(json_object_get(report, "refused")), 0);
    json_decref(report);
}

static void finds_how_many(void **state)
{
    (void)state;
    (void)test_command(HLS "--rate 100kbit/s --part 50ms --duration 0.2s --deadline 100ms", text,
                       sizeof text);
    assert_non_null(strstr(text, "    8 renditions, trial: "));
    assert_null(strstr(text, "1 wrong"));
}

static void tells_what_is_wrong(void **state)
{
    static const struct test_command_mistake mistakes[] = {
        {"--renditions 0", "--renditions"},
        {"--renditions 1001", "--renditions"},
        {"--part 1us", "--part"},
        {"--rate none", "--rate"},
        {"--deadline 0", "--deadline"},
        {"--folder /nowhere -n 1", "--folder /nowhere: No such file"},
        {"--millrace /nowhere/millrace -n 1", "millrace hls did not start"},
        {"--millraced /nowhere/millraced -n 1", "the server did not start"},
    };
    (void)state;
    test_command_mistakes(HLS, mistakes, sizeof mistakes / sizeof mistakes[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compares_every_part),
        cmocka_unit_test(finds_how_many),
        cmocka_unit_test(tells_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
