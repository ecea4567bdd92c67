/* The folder that millrace hls watches: what is there when it begins, what comes and goes, folders in it, and events
 * that the kernel has lost. */
#include "client/hls/watch.h"
#include "tests/support/hls_rig.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define LIVE "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-MEDIA-SEQUENCE:7\n#EXTINF:1,\n"

static struct hls_rig rig;
static struct hls_watch watch;
static char root[128];

static int begin(void **state)
{
    (void)state;
    hls_rig_start(&rig, NULL, true);
    snprintf(root, sizeof root, "%s/in", rig.folder);
    return 0;
}

static int end(void **state)
{
    (void)state;
    close(watch.descriptor);
    hls_rig_stop(&rig);
    return 0;
}

static const char *in_root(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static void start(void)
{
    struct core_error error;
    if (hls_watch_start(&watch, &rig.hls, root, &error) != CORE_OK)
        fail_msg("%s", error.text);
}

static bool await(const char *path, const char *words)
{
    for (int i = 0; i < 5000 && !hls_rig_has(&rig, path, words); i++) {
        hls_watch_read(&watch);
        hls_rig_turn(&rig, 1);
    }
    return hls_rig_has(&rig, path, words);
}

static void finds_what_is_there_and_what_comes(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in_root("a"), 0777), 0);
    hls_rig_write(&rig, "in/a/x.m3u8", LIVE "7.ts\n#EXTINF:1,\n8.ts\n");
    hls_rig_write(&rig, "in/a/7.ts", "seven");
    hls_rig_write(&rig, "in/.hidden", "nothing");
    assert_int_equal(symlink("nowhere", in_root("dangling")), 0);
    start();
    assert_int_equal(watch.count, 2);
    assert_true(await("a/x.m3u8", "7.ts"));
    hls_rig_write(&rig, "in/a/8.new", "eight");
    hls_rig_write(&rig, "in/.hidden", "still nothing");
    char from[512];
    snprintf(from, sizeof from, "%s", in_root("a/8.new"));
    assert_int_equal(rename(from, in_root("a/8.ts")), 0);
    assert_true(await("a/x.m3u8", "8.ts"));
    assert_int_equal(mkdir(in_root("b"), 0777), 0); /* may have files before it is watched */
    hls_rig_write(&rig, "in/b/7.ts", "seven");
    hls_rig_write(&rig, "in/b/x.m3u8", LIVE "7.ts\n");
    assert_true(await("b/x.m3u8", "7.ts"));
    assert_int_equal(unlink(in_root("b/7.ts")), 0);
    for (int i = 0; i < 5000 && hls_rig_has(&rig, "b/7.ts", ""); i++)
        hls_watch_read(&watch);
    assert_false(hls_rig_has(&rig, "b/7.ts", ""));
    assert_int_equal(unlink(in_root("b/x.m3u8")), 0);
    assert_int_equal(rmdir(in_root("b")), 0);
    hls_watch_read(&watch);
    assert_int_equal(watch.count, 2);
    assert_int_equal(mkdir(in_root("c"), 0777), 0); /* goes on */
    hls_rig_write(&rig, "in/c/7.ts", "seven");
    hls_rig_write(&rig, "in/c/x.m3u8", LIVE "7.ts\n");
    assert_true(await("c/x.m3u8", "7.ts"));
}

/* More happens than the kernel keeps: all is looked at again. */
static void looks_again_when_events_are_lost(void **state)
{
    int limit = 16384;
    FILE *file = fopen("/proc/sys/fs/inotify/max_queued_events", "re");
    (void)state;
    if (file != NULL) {
        if (fscanf(file, "%d", &limit) != 1) /* NOLINT(cert-err34-c): the kernel's */
            limit = 16384;
        fclose(file);
    }
    if (limit > 100000)
        skip();
    start();
    for (int i = 0; i < limit / 2 + 10; i++) { /* two events each */
        char name[32];
        snprintf(name, sizeof name, "in/%d.ts", i % 2);
        hls_rig_write(&rig, name, "content");
    }
    hls_rig_write(&rig, "in/x.m3u8", LIVE "0.ts\n#EXTINF:1,\n1.ts\n");
    assert_true(await("x.m3u8", "1.ts"));
}

static void has_room_for_so_many_folders(void **state)
{
    char name[32];
    (void)state;
    for (int i = 0; i < HLS_WATCH_FOLDERS; i++) {
        snprintf(name, sizeof name, "%d", i);
        assert_int_equal(mkdir(in_root(name), 0777), 0);
    }
    start();
    assert_int_equal(watch.count, HLS_WATCH_FOLDERS);
    assert_non_null(strstr(hls_rig_said(), "is not watched: more than 256 folders"));
}

/* Names of folders and files that together are longer than any path of ours. */
static void leaves_out_long_paths(void **state)
{
    char name[201];
    (void)state;
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    int folder = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(mkdirat(folder, name, 0777), 0);
        int inner = openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(inner >= 0);
        close(folder);
        folder = inner;
    }
    close(folder);
    start();
    assert_int_equal(watch.count, 1 + (HLS_PATH_BYTES - 1) / sizeof name);
}

static void tells_why_it_can_not_begin(void **state)
{
    struct core_error error;
    struct rlimit before;
    (void)state;
    assert_int_equal(hls_watch_start(&watch, &rig.hls, in_root("nowhere"), &error), CORE_SYSTEM);
    assert_non_null(strstr(error.text, "nowhere/ can not be watched: No such file"));
    close(watch.descriptor);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, before.rlim_max}), 0);
    core_status status = hls_watch_start(&watch, &rig.hls, root, &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(status, CORE_SYSTEM);
    assert_non_null(strstr(error.text, "Too many open files"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(finds_what_is_there_and_what_comes, begin, end),
        cmocka_unit_test_setup_teardown(looks_again_when_events_are_lost, begin, end),
        cmocka_unit_test_setup_teardown(has_room_for_so_many_folders, begin, end),
        cmocka_unit_test_setup_teardown(leaves_out_long_paths, begin, end),
        cmocka_unit_test_setup_teardown(tells_why_it_can_not_begin, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
