/* `millrace-bench calibrate` where it is run by a script. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "tests/support/command.h"

#define CALIBRATE MILLRACE_BINARY_DIR "/bench/millrace-bench calibrate --seconds 500ms --rounds 1 --gpus none"

static void a_script_gets_no_escapes_and_no_alarms(void **state)
{
    static char text[1 << 15];
    (void)state;

    assert_int_equal(test_command(CALIBRATE, text, sizeof text), 0);
    assert_non_null(strstr(text, "per_packet_ns"));
    assert_null(strchr(text, '\033'));
    assert_null(strchr(text, '\r'));
    assert_null(strstr(text, "overload."));
    assert_null(strstr(text, "start.profile"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_script_gets_no_escapes_and_no_alarms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
