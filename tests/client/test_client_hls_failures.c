/* millrace hls where calls fail: from the first to the last that it makes for some files, each fails once, and all that
 * came is published all the same, encrypted as its playlist says. */
#include "core/realtime.h"
#include "core/secret.h"
#include "tests/support/allocator.h"
#include "tests/support/hls_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <cmocka.h>

#define LIVE                                                                                                 \
    "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-PART-INF:PART-TARGET=0.5\n#EXT-X-MEDIA-SEQUENCE:7\n"           \
    "#EXT-X-MAP:URI=\"i.mp4\"\n#EXT-X-PART:DURATION=1,URI=\"7.0.ts\"\n#EXTINF:1,\n7.ts\n"

/* ---- calls that fail, and a clock that runs ---- */

static _Thread_local int left; /* calls of this thread until one fails; 0: none does */
static int failed;             /* the number of the one that does */
static _Atomic core_ns forward_ns;

static bool fails(void)
{
    if (left == 0 || --left > 0)
        return false;
    errno = ENOMEM;
    return true;
}

char *__real_strdup(const char *text);
FILE *__real_open_memstream(char **text, size_t *bytes);
ssize_t __real_getrandom(void *bytes, size_t count, unsigned flags);
int __real_eventfd(unsigned count, int flags);
int __real_fsync(int file);
void *__real_core_secret_alloc(size_t bytes);
core_status __real_core_thread_start(pthread_t *thread, const struct core_thread_options *options,
                                     void *(*run)(void *), void *argument, struct core_error *not_permitted,
                                     struct core_error *error);
core_ns __real_core_time_now_ns(void);
char *__wrap_strdup(const char *text);
FILE *__wrap_open_memstream(char **text, size_t *bytes);
ssize_t __wrap_getrandom(void *bytes, size_t count, unsigned flags);
int __wrap_eventfd(unsigned count, int flags);
int __wrap_fsync(int file);
void *__wrap_core_secret_alloc(size_t bytes);
core_status __wrap_core_thread_start(pthread_t *thread, const struct core_thread_options *options,
                                     void *(*run)(void *), void *argument, struct core_error *not_permitted,
                                     struct core_error *error);
core_ns __wrap_core_time_now_ns(void);

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

FILE *__wrap_open_memstream(char **text, size_t *bytes)
{
    return fails() ? NULL : __real_open_memstream(text, bytes);
}

ssize_t __wrap_getrandom(void *bytes, size_t count, unsigned flags)
{
    return fails() ? -1 : __real_getrandom(bytes, count, flags);
}

int __wrap_eventfd(unsigned count, int flags)
{
    return fails() ? -1 : __real_eventfd(count, flags);
}

int __wrap_fsync(int file)
{
    return fails() ? -1 : __real_fsync(file);
}

void *__wrap_core_secret_alloc(size_t bytes)
{
    return fails() ? NULL : __real_core_secret_alloc(bytes);
}

core_status __wrap_core_thread_start(pthread_t *thread, const struct core_thread_options *options,
                                     void *(*run)(void *), void *argument, struct core_error *not_permitted,
                                     struct core_error *error)
{
    if (fails())
        return core_error_set(error, CORE_SYSTEM, "no thread can be started");
    return __real_core_thread_start(thread, options, run, argument, not_permitted, error);
}

core_ns __wrap_core_time_now_ns(void)
{
    return __real_core_time_now_ns() + forward_ns;
}

/* ---- some files ---- */

/* A packager, which tries again. */
static void put(struct hls_rig *rig, const char *path, const char *text)
{
    core_status status = CORE_FULL;
    for (int i = 0; i < 2 && status == CORE_FULL; i++) {
        struct core_error error;
        int until = left;
        left = 0; /* not of this test's own calls */
        uint8_t *content = (uint8_t *)strdup(text);
        assert_non_null(content);
        left = until;
        status = hls_put(&rig->hls, path, content, strlen(text), &error);
    }
    if (status == CORE_NO_MEMORY)
        put(rig, path, text); /* a playlist */
    else
        assert_int_equal(status, CORE_OK);
}

static bool has(const struct hls_rig *rig, const char *words)
{
    int until = left;
    left = 0;
    bool is_there = hls_rig_has(rig, "x.m3u8", words);
    left = until;
    return is_there;
}

static void await(struct hls_rig *rig, const char *words)
{
    for (int i = 0; i < 3000 && !has(rig, words); i++) {
        hls_rig_turn(rig, 1);
        forward_ns += 10 * CORE_NS_PER_MS;
    }
    if (!has(rig, words))
        fail_msg("call %d: %s is not published: %s", failed, words, hls_rig_said());
}

static void expect_all(const struct hls_rig *rig)
{
    assert_true(hls_rig_is_cipher(rig, "x.m3u8", "i.mp4", "a map"));
    assert_true(hls_rig_is_cipher(rig, "x.m3u8", "7.0.ts", "a part"));
    assert_true(hls_rig_is_cipher(rig, "x.m3u8", "7.ts", "a segment"));
    assert_true(hls_rig_has(rig, "m.m3u8", "x.m3u8"));
    assert_false(hls_rig_has(rig, "x.m3u8", "GAP"));
}

/* With the call that fails when `left` is 0 among them; true: there was such a call. */
static bool play(int call)
{
    static struct hls_rig rig;
    hls_rig_start(&rig, NULL, false);
    left = failed = call;
    put(&rig, "7.0.ts", "a part");
    put(&rig, "m.m3u8", "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\nx.m3u8\n");
    put(&rig, "x.m3u8", LIVE);
    put(&rig, "i.mp4", "a map");
    put(&rig, "7.ts", "a segment");
    await(&rig, "7.ts");
    for (int i = 0; i < 30; i++) {
        hls_rig_turn(&rig, 1);
        forward_ns += 10 * CORE_NS_PER_MS;
    }
    bool has_failed = left == 0;
    left = 0;
    expect_all(&rig);
    hls_rig_again(&rig); /* goes on with it, whatever of that is forgotten */
    left = has_failed ? call : 0;
    put(&rig, "x.m3u8", LIVE "#EXTINF:1,\n8.ts\n");
    for (int i = 0; i < 5; i++)
        hls_rig_turn(&rig, 1);
    left = 0;
    hls_rig_stop(&rig);
    return has_failed;
}

static void publishes_whatever_fails(void **state)
{
    int call = 1;
    (void)state;
    while (play(call))
        call++;
    print_message("%d calls failed, one after the other\n", call - 1);
    assert_true(call > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(publishes_whatever_fails)};
    test_allocator_fails = fails;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
