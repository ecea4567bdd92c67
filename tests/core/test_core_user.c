/* Users by name and number, as text, and the change to one: tried in processes of their own, for there is no
 * way back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/user.h"
#include "tests/support/require.h"

#define STRANGER 64000 /* a number that need not be anybody's */

static void users_are_found_by_name_and_by_number(void **state)
{
    const struct passwd *own = getpwuid(0);
    struct core_user by_name, by_number;
    (void)state;
    assert_non_null(own);
    const gid_t group = own->pw_gid;
    assert_int_equal(core_user_find(own->pw_name, &by_name, NULL), CORE_OK);
    assert_int_equal(core_user_find("0", &by_number, NULL), CORE_OK);
    assert_int_equal(by_name.number, 0);
    assert_int_equal(by_name.groups[0], group);
    assert_int_equal(by_number.number, 0);
    assert_int_equal(by_number.group_count, by_name.group_count);
    assert_memory_equal(by_number.groups, by_name.groups,
                        (size_t)by_name.group_count * sizeof by_name.groups[0]);
}

static void who_is_not_there_is_not_found(void **state)
{
    static const char *const names[] = {"",   "no-such-user", "4123456789", "4294967295", "4294967296",
                                        "-1", "0x0",          "0 ",         "+0"};
    struct core_user user;
    struct core_error error;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(core_user_find(names[i], &user, &error), CORE_NOT_FOUND);
        assert_non_null(strstr(error.text, "there is no user '"));
        assert_non_null(strstr(error.text, names[i]));
    }
}

static void a_user_goes_through_text_and_back(void **state)
{
    char text[CORE_USER_TEXT_BYTES];
    struct core_user user = {.number = 4294967294, .group_count = CORE_USER_GROUPS_MAX}, back;
    (void)state;
    for (int i = 0; i < CORE_USER_GROUPS_MAX; i++)
        user.groups[i] = 4294967294 - (unsigned)i;
    assert_int_equal(core_user_parse(core_user_text(&user, text), &back), CORE_OK);
    assert_int_equal(strlen(text), CORE_USER_TEXT_BYTES - 1);
    assert_memory_equal(&user, &back, sizeof user);
    assert_int_equal(core_user_parse("7:8,9", &back), CORE_OK);
    assert_int_equal(back.number, 7);
    assert_int_equal(back.group_count, 2);
    assert_int_equal(back.groups[0], 8);
    assert_int_equal(back.groups[1], 9);
    assert_string_equal(core_user_text(&back, text), "7:8,9");
}

static void other_texts_are_refused(void **state)
{
    static const char *const texts[] = {
        "",       "7",       ":",    "7:",           ":8",
        "7:8,",   "7:8 ",    " 7:8", "7:-8",         "-7:8",
        "7:8:9",  "7,8",     "a:8",  "4294967295:8", "7:4294967295",
        "7:8,,9", "7:8,9;1", "+7:8", "4294967296:8", "99999999999999999999:8"};
    char long_text[4 * CORE_USER_GROUPS_MAX + 8] = "7:1";
    struct core_user user;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (core_user_parse(texts[i], &user) != CORE_INVALID)
            fail_msg("'%s' passes", texts[i]);
    for (int i = 1; i < CORE_USER_GROUPS_MAX; i++)
        strcat(long_text, ",1");
    assert_int_equal(core_user_parse(long_text, &user), CORE_OK);
    assert_int_equal(core_user_parse(strcat(long_text, ",1"), &user), CORE_INVALID);
}

/* ---- the change ---- */

static void hand_down_a_capability(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2];
    TEST_REQUIRE(syscall(SYS_capget, &header, sets) == 0);
    sets[0].inheritable |= 1U << CAP_KILL;
    TEST_REQUIRE(syscall(SYS_capset, &header, sets) == 0);
}

/* Of the old user: its capabilities stay with the process unless they are dropped. */
static void keep_capabilities(void)
{
    hand_down_a_capability();
    TEST_REQUIRE(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0);
}

static bool has_none(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2];
    TEST_REQUIRE(syscall(SYS_capget, &header, sets) == 0);
    return (sets[0].effective | sets[0].permitted | sets[0].inheritable | sets[1].effective |
            sets[1].permitted | sets[1].inheritable) == 0;
}

static void change(void)
{
    const struct core_user user = {
        .number = STRANGER, .groups = {STRANGER + 1, STRANGER + 2}, .group_count = 2};
    uid_t ids[3];
    gid_t groups[3], more[4];
    keep_capabilities();
    TEST_REQUIRE(core_user_may_change());
    TEST_REQUIRE(core_user_become(&user, NULL) == CORE_OK);
    TEST_REQUIRE(getresuid(&ids[0], &ids[1], &ids[2]) == 0 &&
                 getresgid(&groups[0], &groups[1], &groups[2]) == 0);
    for (int i = 0; i < 3; i++)
        TEST_REQUIRE(ids[i] == STRANGER && groups[i] == STRANGER + 1);
    TEST_REQUIRE(getgroups(4, more) == 2 && more[0] == STRANGER + 1 && more[1] == STRANGER + 2);
    TEST_REQUIRE(has_none() && !core_user_may_change());
    TEST_REQUIRE(setuid(0) != 0 && seteuid(0) != 0 && setgid(0) != 0 && setgroups(0, NULL) != 0);
}

/* Who may not is told, and does not go on as if. */
static void refuse(void)
{
    const struct core_user somebody = {.number = STRANGER, .groups = {STRANGER}, .group_count = 1};
    const struct core_user root = {.number = 0, .groups = {0}, .group_count = 1};
    struct core_error error = {""};
    TEST_REQUIRE(core_user_become(&somebody, &error) == CORE_OK);
    TEST_REQUIRE(core_user_become(&root, &error) == CORE_SYSTEM);
    TEST_REQUIRE(strstr(error.text, "can not change to user 0 and group 0: Operation not permitted") != NULL);
}

static void in_a_process(void (*run)(void))
{
    int status;
    if (geteuid() != 0 || !core_user_may_change()) {
        print_message("only root may change to another user\n");
        skip();
    }
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        run();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void who_changes_keeps_nothing(void **state)
{
    (void)state;
    in_a_process(change);
}

static void who_may_not_change_is_told(void **state)
{
    (void)state;
    in_a_process(refuse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(users_are_found_by_name_and_by_number),
        cmocka_unit_test(who_is_not_there_is_not_found),
        cmocka_unit_test(a_user_goes_through_text_and_back),
        cmocka_unit_test(other_texts_are_refused),
        cmocka_unit_test(who_changes_keeps_nothing),
        cmocka_unit_test(who_may_not_change_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
