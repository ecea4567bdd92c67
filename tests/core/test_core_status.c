#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/status.h"

#include <errno.h>
#include <string.h>

static void every_status_has_its_own_text(void **state)
{
    (void)state;
    for (int i = CORE_OK; i <= CORE_IN_USE; i++) {
        assert_string_not_equal(core_status_text((core_status)i), "unknown status");
        for (int j = CORE_OK; j < i; j++)
            assert_string_not_equal(core_status_text((core_status)i), core_status_text((core_status)j));
    }
    assert_string_equal(core_status_text((core_status)99), "unknown status");
    assert_string_equal(core_status_text((core_status)-1), "unknown status");
}

static void error_set_formats_and_passes_the_status_on(void **state)
{
    (void)state;
    struct core_error error = {"old"};
    assert_int_equal(core_error_set(&error, CORE_INVALID, "line %d: %s", 7, "bad"), CORE_INVALID);
    assert_string_equal(error.text, "line 7: bad");
    assert_int_equal(core_error_set(NULL, CORE_FULL, "nobody reads this %d", 1), CORE_FULL);
}

static void error_set_may_use_its_own_text(void **state)
{
    (void)state;
    struct core_error error = {"inner"};
    assert_int_equal(core_error_set(&error, CORE_SYSTEM, "outer(%s)", error.text), CORE_SYSTEM);
    assert_string_equal(error.text, "outer(inner)");
}

static void error_set_cuts_long_text(void **state)
{
    (void)state;
    struct core_error error;
    (void)core_error_set(&error, CORE_INVALID, "%0*d", 2000, 5);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
}

static void error_errno_adds_the_system_s_words(void **state)
{
    (void)state;
    struct core_error error;
    errno = ENOENT;
    assert_int_equal(core_error_errno(&error, "can not open %s", "x.yaml"), CORE_SYSTEM);
    assert_string_equal(error.text, "can not open x.yaml: No such file or directory");
    assert_int_equal(errno, ENOENT);
    errno = EPERM;
    assert_int_equal(core_error_errno(NULL, "unread"), CORE_SYSTEM);
    assert_int_equal(errno, EPERM);
    (void)core_error_errno(&error, "%0*d", 2000, 5);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
}

static void error_prefix_keeps_the_sentence(void **state)
{
    (void)state;
    struct core_error error = {"must be 1 to 5"};
    assert_int_equal(core_error_prefix(&error, CORE_REFUSED, "%s:%d", "a.yaml", 3), CORE_REFUSED);
    assert_string_equal(error.text, "a.yaml:3: must be 1 to 5");
    assert_int_equal(core_error_prefix(NULL, CORE_CLOSED, "x"), CORE_CLOSED);
    (void)core_error_prefix(&error, CORE_REFUSED, "%0*d", 505, 5);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_its_own_text),
        cmocka_unit_test(error_set_formats_and_passes_the_status_on),
        cmocka_unit_test(error_set_may_use_its_own_text),
        cmocka_unit_test(error_set_cuts_long_text),
        cmocka_unit_test(error_errno_adds_the_system_s_words),
        cmocka_unit_test(error_prefix_keeps_the_sentence),
    };
    return cmocka_run_group_tests_name("core/status", tests, NULL, NULL);
}
