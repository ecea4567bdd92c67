/* The folders of millrace hls: what is read and written, and what can go wrong with it: no room on the disk, no more
 * descriptors, names that are taken, files that are none. */
#include "client/hls/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char name[64];
static int folder;

static int begin(void **state)
{
    struct core_error error;
    (void)state;
    snprintf(name, sizeof name, "/tmp/test-client-hls-folder-XXXXXX");
    return mkdtemp(name) == NULL || hls_folder_open(name, &folder, &error) != CORE_OK;
}

static int end(void **state)
{
    char line[128];
    (void)state;
    close(folder);
    snprintf(line, sizeof line, "rm -rf %s", name);
    return system(line); /* NOLINT(cert-env33-c): a name of ours */
}

static void expect_text(const char *path, const char *text)
{
    uint8_t *content;
    size_t bytes;
    struct stat about;
    struct core_error error;
    if (hls_folder_read(folder, path, 1 << 20, &content, &bytes, &about, &error) != CORE_OK)
        fail_msg("%s", error.text);
    assert_int_equal(bytes, strlen(text));
    assert_memory_equal(content, text, bytes);
    free(content);
}

static void expect_unwritten(const char *path, core_status status, const char *words)
{
    struct core_error error = {""};
    core_status got = hls_folder_publish(folder, path, "0123456789abcdef", 16, &error);
    if (got != status || strstr(error.text, words) == NULL || strstr(error.text, path) == NULL)
        fail_msg("%s: %s: %s", path, core_status_text(got), error.text);
}

static void expect_unread(const char *path, core_status status, const char *words)
{
    uint8_t *content;
    size_t bytes;
    struct stat about;
    struct core_error error = {""};
    core_status got = hls_folder_read(folder, path, 15, &content, &bytes, &about, &error);
    if (got != status || strstr(error.text, words) == NULL || strstr(error.text, path) == NULL)
        fail_msg("%s: %s: %s", path, core_status_text(got), error.text);
}

static void opens_alone(void **state)
{
    struct core_error error;
    int second;
    (void)state;
    assert_int_equal(hls_folder_open("/nowhere", &second, &error), CORE_SYSTEM);
    assert_non_null(strstr(error.text, "/nowhere"));
    assert_int_equal(hls_folder_open(name, &second, &error), CORE_IN_USE);
    assert_non_null(strstr(error.text, name));
}

static void writes_and_reads(void **state)
{
    struct core_error error;
    struct stat about;
    (void)state;
    assert_int_equal(hls_folder_publish(folder, "a/b/c.ts", "one", 3, &error), CORE_OK);
    assert_int_equal(hls_folder_publish(folder, "a/b/c.ts", "another", 7, &error), CORE_OK);
    expect_text("a/b/c.ts", "another");
    assert_true(hls_folder_look(folder, "a/b/c.ts", &about));
    assert_false(hls_folder_look(folder, "a/b", &about));
    assert_false(hls_folder_look(folder, "a/x", &about));
    hls_folder_remove(folder, "a/b/c.ts");
    assert_false(hls_folder_look(folder, "a/b/c.ts", &about));
    const struct stat one = {.st_ino = 1, .st_size = 9, .st_mtim = {2, 7}};
    const struct stat others[] = {{.st_ino = 2, .st_size = 9, .st_mtim = {2, 7}},
                                  {.st_ino = 1, .st_size = 8, .st_mtim = {2, 7}},
                                  {.st_ino = 1, .st_size = 9, .st_mtim = {1, 8}},
                                  {.st_ino = 1, .st_size = 9, .st_mtim = {2, 6}}};
    assert_true(hls_stat_is_same(&one, &one));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_false(hls_stat_is_same(&one, &others[i]));
        assert_int_equal(hls_stat_is_later(&one, &others[i]), i >= 2);
        assert_false(hls_stat_is_later(&others[i], &one));
    }
}

static void reads_files_alone(void **state)
{
    struct core_error error;
    (void)state;
    assert_int_equal(hls_folder_publish(folder, "a.ts", "0123456789abcdef", 16, &error), CORE_OK);
    assert_int_equal(symlinkat("loop", folder, "loop"), 0);
    expect_unread("a.ts", CORE_INVALID, "has 16 bytes, and at most 15 are taken");
    expect_unread("b.ts", CORE_NOT_FOUND, "there is no");
    expect_unread("a.ts/b.ts", CORE_NOT_FOUND, "there is no");
    expect_unread("loop", CORE_SYSTEM, "can not be read");
    assert_int_equal(mkdirat(folder, "c.ts", 0777), 0);
    expect_unread("c.ts", CORE_INVALID, "no regular file");
}

/* A name that no file can have is this file's trouble alone. */
static void leaves_out_what_has_no_place(void **state)
{
    struct core_error error;
    char long_name[300];
    (void)state;
    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    assert_int_equal(mkdirat(folder, "taken", 0777), 0);
    assert_int_equal(hls_folder_publish(folder, "a.ts", "x", 1, &error), CORE_OK);
    expect_unwritten("taken", CORE_SYSTEM, "can not be written: Is a directory");
    expect_unwritten("a.ts/b.ts", CORE_SYSTEM, "can not be written: Not a directory");
    expect_unwritten(long_name, CORE_SYSTEM, "can not be written: File name too long");
    assert_int_equal(mkdirat(folder, ".millrace-hls.tmp", 0777), 0);
    expect_unwritten("b.ts", CORE_SYSTEM, "can not be written");
    assert_int_equal(unlinkat(folder, ".millrace-hls.tmp", AT_REMOVEDIR), 0);
    expect_text("a.ts", "x");
}

static void is_told_of_limits(void **state)
{
    struct rlimit size, files;
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &size), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){8, size.rlim_max}), 0);
    expect_unwritten("a.ts", CORE_SYSTEM, "File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &size), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)folder, files.rlim_max}), 0);
    expect_unwritten("a.ts", CORE_FULL, "Too many open files");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    expect_unread("a.ts", CORE_NOT_FOUND, "there is no");
}

/* In a process and a namespace of its own: 0 as it should be, 77 no such namespace is to be had. */
static int fill_disk(void)
{
    struct core_error error;
    static char content[64 << 10];
    int status = 0;
    if (unshare(CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER)) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", name, "tmpfs", 0, "size=128k") != 0)
        return 77;
    close(folder);
    if (hls_folder_open(name, &folder, &error) != CORE_OK)
        return 1;
    while (hls_folder_publish(folder, status == 0 ? "a.ts" : "b.ts", content, sizeof content, &error) ==
           CORE_OK)
        if (status++ > 8)
            return 2;
    if (strstr(error.text, "No space left on device") == NULL)
        return 3;
    hls_folder_remove(folder, "a.ts");
    return hls_folder_publish(folder, "b.ts", content, sizeof content, &error) == CORE_OK ? 0 : 4;
}

static void waits_for_room_on_the_disk(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(fill_disk());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(opens_alone, begin, end),
        cmocka_unit_test_setup_teardown(writes_and_reads, begin, end),
        cmocka_unit_test_setup_teardown(reads_files_alone, begin, end),
        cmocka_unit_test_setup_teardown(leaves_out_what_has_no_place, begin, end),
        cmocka_unit_test_setup_teardown(is_told_of_limits, begin, end),
        cmocka_unit_test_setup_teardown(waits_for_room_on_the_disk, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
