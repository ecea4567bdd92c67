/* What millrace hls makes of files and playlists that come, that never come, that come again, or that can not be
 * written; and what a process that begins makes of what one before has left. */
#include "client/hls/rendition.h"
#include "tests/support/hls_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define LIVE "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXT-X-MEDIA-SEQUENCE:"

static struct hls_rig rig;

/* ---- a clock that can be put forward ---- */

static _Atomic core_ns forward_ns;
core_ns __real_core_time_now_ns(void);
core_ns __wrap_core_time_now_ns(void);
core_ns __wrap_core_time_now_ns(void)
{
    return __real_core_time_now_ns() + forward_ns;
}

static int stop(void **state)
{
    (void)state;
    hls_rig_stop(&rig);
    return 0;
}

static int by_put(void **state)
{
    (void)state;
    hls_rig_start(&rig, NULL, false);
    return 0;
}

static int by_folder(void **state)
{
    (void)state;
    hls_rig_start(&rig, NULL, true);
    return 0;
}

static bool folder_has(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", rig.folder, name);
    return access(path, F_OK) == 0;
}

static void make_folder(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", rig.folder, name);
    assert_int_equal(mkdir(path, 0777), 0);
}

static void move(const char *from, const char *to)
{
    char one[128], two[128];
    snprintf(one, sizeof one, "%s/%s", rig.folder, from);
    snprintf(two, sizeof two, "%s/%s", rig.folder, to);
    assert_int_equal(rename(one, two), 0);
}

/* ---- what comes ---- */

static void publishes_what_comes(void **state)
{
    (void)state;
    hls_rig_put(&rig, "live/7.0.ts", "a part");
    hls_rig_put(&rig, "live/x.m3u8",
                LIVE "7\n#EXT-X-PART-INF:PART-TARGET=0.5\n#EXT-X-MAP:URI=\"i.mp4\"\n"
                     "#EXT-X-PART:DURATION=1,URI=\"7.0.ts\"\n#EXTINF:1,\n7.ts\n#EXTINF:1,\n8.ts\n");
    hls_rig_put(&rig, "live/i.mp4", "a map");
    assert_true(hls_rig_await(&rig, "live/x.m3u8", "7.0.ts"));
    assert_false(hls_rig_has(&rig, "live/x.m3u8", "7.ts"));
    hls_rig_put(&rig, "live/7.ts", "a segment");
    hls_rig_put(&rig, "live/8.ts", "a segment under another key");
    assert_true(hls_rig_await(&rig, "live/x.m3u8", "8.ts"));
    assert_true(hls_rig_is_cipher(&rig, "live/x.m3u8", "live/i.mp4", "a map"));
    assert_true(hls_rig_is_cipher(&rig, "live/x.m3u8", "live/7.0.ts", "a part"));
    assert_true(hls_rig_is_cipher(&rig, "live/x.m3u8", "live/7.ts", "a segment"));
    assert_true(hls_rig_is_cipher(&rig, "live/x.m3u8", "live/8.ts", "a segment under another key"));
    assert_int_equal(rig.hls.counts.segments, 2);
    assert_int_equal(rig.hls.counts.parts, 1);
    assert_int_equal(rig.hls.counts.maps, 1);
    assert_int_equal(rig.hls.clear_bytes, 0);
    assert_int_equal(rig.hls.keys.made, 2);
    hls_rig_put(&rig, "live/x.m3u8", LIVE "3\n#EXTINF:1,\n3.ts\n"); /* something new */
    hls_rig_put(&rig, "live/3.ts", "a beginning");
    assert_true(hls_rig_await(&rig, "live/x.m3u8", "3.ts"));
    assert_int_equal(rig.hls.keys.made, 3);
}

/* Contents that are replaced, and taken away, while they are on their way. */
static void comes_again(void **state)
{
    (void)state;
    hls_rig_put(&rig, "x.m3u8", LIVE "7\n#EXTINF:1,\n7.ts\n#EXTINF:1,\n8.ts\n");
    hls_rig_turn(&rig, 1);
    hls_rig_put(&rig, "7.ts", "one");
    hls_rig_turn(&rig, 1);
    hls_rig_put(&rig, "7.ts", "another");
    hls_rig_put(&rig, "8.ts", "eight");
    hls_rig_turn(&rig, 1);
    hls_remove(&rig.hls, "8.ts");
    hls_rig_put(&rig, "8.ts", "eight again");
    assert_true(hls_rig_await(&rig, "x.m3u8", "8.ts"));
    assert_true(hls_rig_is_cipher(&rig, "x.m3u8", "7.ts", "another"));
    assert_true(hls_rig_is_cipher(&rig, "x.m3u8", "8.ts", "eight again"));
    assert_int_equal(rig.hls.clear_bytes, 0);
    /* the same file has another number: its IV must be said from now on */
    hls_rig_put(&rig, "x.m3u8", LIVE "8\n#EXTINF:1,\n7.ts\n#EXTINF:1,\n8.ts\n");
    assert_true(hls_rig_await(&rig, "x.m3u8", "IV=0x00000000000000000000000000000007"));
}

static void leaves_gaps(void **state)
{
    (void)state;
    hls_rig_put(&rig, "live/x.m3u8",
                LIVE
                "7\n#EXTINF:1,\nhttp://elsewhere/6.ts\n#EXT-X-GAP\n#EXTINF:1,\n7.ts\n#EXTINF:1,\n8.ts\n");
    hls_rig_put(&rig, "live/m.m3u8", LIVE "7\n#EXT-X-MAP:URI=\"i.mp4\"\n#EXTINF:1,\n9.ts\n");
    hls_rig_put(&rig, "live/9.ts", "nine");
    hls_rig_turn(&rig, 50);
    assert_true(hls_rig_has(&rig, "live/x.m3u8", "#EXT-X-GAP\nhttp://elsewhere/6.ts"));
    assert_false(hls_rig_has(&rig, "live/x.m3u8", "8.ts"));
    forward_ns += 3 * CORE_NS_PER_S;
    assert_true(hls_rig_await(&rig, "live/x.m3u8", "#EXT-X-GAP\n8.ts"));
    assert_non_null(strstr(hls_rig_said(), "live/8.ts is left out, a gap in live/x.m3u8: it never came"));
    assert_int_equal(rig.hls.counts.gone, 1);
    assert_false(folder_has("out/live/m.m3u8")); /* a map is waited for */
}

static void forgets_what_is_not_named(void **state)
{
    (void)state;
    hls_rig_put(&rig, "a.ts", "named by nobody");
    hls_rig_put(&rig, "7.ts", "seven");
    hls_rig_put(&rig, "8.ts", "eight");
    hls_rig_put(&rig, "x.m3u8", LIVE "7\n#EXTINF:1,\n7.ts\n#EXTINF:1,\n8.ts\n");
    assert_true(hls_rig_await(&rig, "x.m3u8", "8.ts"));
    assert_int_equal(rig.hls.clear_bytes, strlen("named by nobody"));
    hls_rig_put(&rig, "x.m3u8", LIVE "8\n#EXTINF:1,\n8.ts\n");
    forward_ns += 2 * CORE_NS_PER_S;
    hls_rig_turn(&rig, 2);
    hls_rig_put(&rig, "x.m3u8", LIVE "7\n#EXTINF:1,\n7.ts\n#EXTINF:1,\n8.ts\n"); /* which was forgotten */
    hls_rig_put(&rig, "7.ts", "seven again");
    assert_true(hls_rig_await(&rig, "x.m3u8", "7.ts"));
    forward_ns += 61 * CORE_NS_PER_S;
    hls_rig_turn(&rig, 2);
    assert_int_equal(rig.hls.clear_bytes, 0);
    assert_true(hls_rig_is_cipher(&rig, "x.m3u8", "7.ts", "seven again"));
}

static void keeps_to_its_memory(void **state)
{
    struct core_error error;
    (void)state;
    rig.hls.memory_max = 10;
    assert_int_equal(hls_put(&rig.hls, "a.ts", (uint8_t *)strdup("01234567890"), 11, &error), CORE_FULL);
    assert_non_null(strstr(error.text, "a.ts"));
    hls_rig_put(&rig, "a.ts", "0123456789");
    assert_int_equal(hls_put(&rig.hls, "b.ts", (uint8_t *)strdup("0"), 1, &error), CORE_FULL);
    hls_remove(&rig.hls, "a.ts");
    hls_rig_put(&rig, "b.ts", "0");
}

static void publishes_masters_last(void **state)
{
    (void)state;
    hls_rig_put(&rig, "m.m3u8",
                "#EXTM3U\n#EXT-X-MEDIA:TYPE=AUDIO,URI=\"http://elsewhere/a.m3u8\"\n"
                "#EXT-X-STREAM-INF:BANDWIDTH=1\nv/x.m3u8\n");
    hls_rig_turn(&rig, 20);
    hls_rig_put(&rig, "v/x.m3u8", LIVE "7\n#EXTINF:1,\n7.ts\n");
    hls_rig_turn(&rig, 20);
    assert_false(folder_has("out/m.m3u8"));
    hls_rig_put(&rig, "v/7.ts", "seven");
    assert_true(hls_rig_await(&rig, "m.m3u8", "v/x.m3u8"));
    assert_true(folder_has("out/v/x.m3u8"));
    assert_int_equal(rig.hls.counts.playlists, 2);
    hls_rig_put(&rig, "m.m3u8", "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=2\nv/x.m3u8\n");
    assert_true(hls_rig_await(&rig, "m.m3u8", "BANDWIDTH=2"));
}

/* How long a file may wait, by the playlist or by --wait. */
static void waits_as_long_as_is_said(void **state)
{
    static const struct {
        const char *tags;
        core_ns option_ns, wait_ns;
    } cases[] = {
        {"#EXT-X-TARGETDURATION:2\n", 0, CORE_NS_PER_S / 2},
        {"#EXT-X-TARGETDURATION:60\n", 0, CORE_NS_PER_S},
        {"#EXT-X-TARGETDURATION:2\n#EXT-X-PART-INF:PART-TARGET=0.02\n", 0, 20 * CORE_NS_PER_MS},
        {"#EXT-X-TARGETDURATION:2\n", 50 * CORE_NS_PER_MS, 50 * CORE_NS_PER_MS},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[128];
        snprintf(text, sizeof text, "#EXTM3U\n%s#EXTINF:1,\n7.ts\n", cases[i].tags);
        rig.hls.wait_ns = cases[i].option_ns;
        hls_rig_put(&rig, "x.m3u8", text);
        hls_rig_turn(&rig, 1);
        assert_int_equal(hls_rendition_find(&rig.hls, "x.m3u8")->stream.wait_ns, cases[i].wait_ns);
    }
}

/* ---- what goes wrong ---- */

static void waits_for_keys(void **state)
{
    (void)state;
    move("keys", "away");
    hls_rig_put(&rig, "7.ts", "seven");
    hls_rig_put(&rig, "x.m3u8", LIVE "7\n#EXTINF:1,\n7.ts\n");
    for (int i = 0; i < 5; i++) {
        hls_rig_turn(&rig, 5);
        forward_ns += CORE_NS_PER_S;
    }
    const char *said = strstr(hls_rig_said(), ".key can not be made: No such file");
    assert_non_null(said);
    assert_false(folder_has("out/7.ts"));
    move("away", "keys");
    forward_ns += CORE_NS_PER_S;
    assert_true(hls_rig_await(&rig, "x.m3u8", "7.ts"));
    assert_true(hls_rig_is_cipher(&rig, "x.m3u8", "7.ts", "seven"));
}

/* The same error, of keys that a file gives, is told once. */
static void tells_of_bad_keys_once(void **state)
{
    (void)state;
    rig.hls.keys = (struct hls_keys){.info_file = "/nowhere/info", .rotate = 1};
    hls_rig_put(&rig, "7.ts", "seven");
    hls_rig_put(&rig, "x.m3u8", LIVE "7\n#EXTINF:1,\n7.ts\n");
    for (int i = 0; i < 5; i++) {
        hls_rig_turn(&rig, 5);
        forward_ns += CORE_NS_PER_S;
    }
    const char *said = strstr(hls_rig_said(), "/nowhere/info");
    assert_non_null(said);
    assert_null(strstr(said + 1, "/nowhere/info"));
    assert_false(folder_has("out/7.ts"));
}

static void leaves_out_what_is_not_encrypted(void **state)
{
    static const struct hls_server odd = {.failing = 3};
    (void)state;
    hls_rig_start(&rig, &odd, false);
    hls_rig_put(&rig, "7.ts", "seven");
    hls_rig_put(&rig, "x.m3u8", LIVE "7\n#EXTINF:1,\n7.ts\n#EXTINF:1,\n8.ts\n");
    assert_true(hls_rig_await(&rig, "x.m3u8", "#EXT-X-GAP\n7.ts\n"));
    hls_rig_put(&rig, "8.ts", "eight");
    assert_true(hls_rig_await(&rig, "x.m3u8", "8.ts"));
    assert_non_null(
        strstr(hls_rig_said(), "7.ts is left out, a gap in x.m3u8: the server has not encrypted it"));
    assert_int_equal(rig.hls.clear_bytes, 0);
}

static void leaves_out_what_has_no_place(void **state)
{
    (void)state;
    make_folder("out/7.ts");
    make_folder("out/y.m3u8");
    hls_rig_put(&rig, "7.ts", "seven");
    hls_rig_put(&rig, "8.ts", "eight");
    hls_rig_put(&rig, "x.m3u8", LIVE "7\n#EXTINF:1,\n7.ts\n#EXTINF:1,\n8.ts\n");
    assert_true(hls_rig_await(&rig, "x.m3u8", "8.ts"));
    assert_true(hls_rig_has(&rig, "x.m3u8", "#EXT-X-GAP\n7.ts"));
    assert_non_null(
        strstr(hls_rig_said(), "7.ts is left out, a gap in x.m3u8: 7.ts can not be written: Is a dir"));
    hls_rig_put(&rig, "9.ts", "nine");
    hls_rig_put(&rig, "y.m3u8", LIVE "9\n#EXTINF:1,\n9.ts\n");
    hls_rig_turn(&rig, 100);
    const char *said = strstr(hls_rig_said(), "y.m3u8 can not be written: Is a directory");
    assert_non_null(said);
    assert_null(strstr(said + 1, "y.m3u8"));
}

/* What there is no room for waits, is told once, and is there when there is room again. */
static void waits_for_room(void **state)
{
    struct rlimit before;
    (void)state;
    rig.hls.keys.rotate = 100; /* a key needs room, too */
    hls_rig_put(&rig, "6.ts", "six");
    hls_rig_put(&rig, "x.m3u8", LIVE "6\n#EXTINF:1,\n6.ts\n");
    assert_true(hls_rig_await(&rig, "x.m3u8", "6.ts"));
    hls_rig_put(&rig, "x.m3u8", LIVE "6\n#EXTINF:1,\n6.ts\n#EXTINF:1,\n7.ts\n");
    hls_rig_turn(&rig, 1);
    (void)hls_rig_said();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, before.rlim_max}), 0);
    hls_rig_put(&rig, "7.ts", "seven");
    hls_rig_put(&rig, "x.m3u8", LIVE "6\n#EXTINF:1,\n6.ts\n#EXTINF:1,\n7.ts\n#EXTINF:1,\nlost.ts\n");
    for (int i = 0; i < 5; i++) {
        hls_rig_turn(&rig, 20);
        forward_ns += 300 * CORE_NS_PER_MS;
    }
    hls_rig_put(&rig, "lost.ts", "on its way, and then not asked for");
    hls_rig_turn(&rig, 20);
    hls_remove(&rig.hls, "lost.ts");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    const char *said = strstr(hls_rig_said(), "Too many open files; what is ready waits");
    assert_non_null(said);
    assert_null(strstr(said + 1, "Too many"));
    assert_int_equal(rig.hls.clear_bytes, strlen("seven"));
    assert_false(hls_rig_has(&rig, "x.m3u8", "7.ts"));
    forward_ns += 2 * CORE_NS_PER_S;
    assert_true(hls_rig_await(&rig, "x.m3u8", "7.ts"));
    assert_true(hls_rig_is_cipher(&rig, "x.m3u8", "7.ts", "seven"));
    assert_non_null(strstr(hls_rig_said(), "files can be written again"));
    assert_int_equal(rig.hls.clear_bytes, 0);
    assert_false(hls_rig_has(&rig, "x.m3u8", "GAP"));
}

/* ---- a folder that is watched ---- */

static void reads_the_folder(void **state)
{
    (void)state;
    hls_rig_write(&rig, "in/x.m3u8", LIVE "7\n#EXTINF:1,\n7.ts\n#EXTINF:1,\n8.ts\n");
    hls_rig_write(&rig, "in/7.ts", "seven");
    hls_notice(&rig.hls, "nothing.m3u8");
    hls_notice(&rig.hls, "7.ts"); /* not named yet */
    hls_notice(&rig.hls, "x.m3u8");
    assert_true(hls_rig_await(&rig, "x.m3u8", "7.ts"));
    hls_notice(&rig.hls, "7.ts"); /* as it was */
    hls_rig_write(&rig, "in/8.ts", "eight");
    hls_notice(&rig.hls, "8.ts");
    assert_true(hls_rig_await(&rig, "x.m3u8", "8.ts"));
    assert_int_equal(rig.hls.counts.segments, 2);
    hls_rig_write(&rig, "in/8.new", "eight, but another one");
    move("in/8.new", "in/8.ts");
    hls_notice(&rig.hls, "8.ts");
    for (int i = 0; i < 5000 && rig.hls.counts.segments < 3; i++)
        hls_rig_turn(&rig, 1);
    assert_true(hls_rig_await(&rig, "x.m3u8", "8.ts"));
    assert_true(hls_rig_is_cipher(&rig, "x.m3u8", "8.ts", "eight, but another one"));
    (void)hls_rig_said();
    hls_rig_write(&rig, "in/y.m3u8", "no playlist");
    hls_notice(&rig.hls, "y.m3u8");
    assert_non_null(strstr(hls_rig_said(), "y.m3u8: it does not begin with #EXTM3U"));
    make_folder("in/z.m3u8");
    hls_notice(&rig.hls, "z.m3u8");
    assert_non_null(strstr(hls_rig_said(), "z.m3u8 is no regular file"));
}

/* Files that are too large for the memory, now or ever. */
static void reads_what_there_is_room_for(void **state)
{
    (void)state;
    rig.hls.memory_max = 10;
    hls_rig_write(&rig, "in/x.m3u8", LIVE "7\n#EXTINF:1,\n7.ts\n#EXTINF:1,\n8.ts\n");
    hls_rig_write(&rig, "in/7.ts", "eleven byte");
    hls_rig_write(&rig, "in/8.ts", "eight");
    hls_rig_put(&rig, "a.ts", "1234567890"); /* takes it all for a while */
    hls_notice(&rig.hls, "x.m3u8");
    hls_rig_turn(&rig, 20);
    forward_ns += 3 * CORE_NS_PER_S;
    hls_rig_turn(&rig, 5);
    assert_non_null(
        strstr(hls_rig_said(), "7.ts is left out, a gap in x.m3u8: 7.ts has 11 bytes, and at most 10"));
    assert_false(folder_has("out/8.ts"));
    hls_remove(&rig.hls, "a.ts");
    forward_ns += CORE_NS_PER_S;
    assert_true(hls_rig_await(&rig, "x.m3u8", "8.ts"));
    assert_true(hls_rig_is_cipher(&rig, "x.m3u8", "8.ts", "eight"));
}

/* ---- a process that begins ---- */

static void goes_on_with_the_output(void **state)
{
    (void)state;
    hls_rig_write(&rig, "in/x.m3u8",
                  LIVE "7\n#EXT-X-MAP:URI=\"i.mp4\"\n#EXTINF:1,\n7.ts\n#EXTINF:1,\n8.ts\n#EXTINF:1,\n9.ts\n");
    hls_rig_write(&rig, "in/i.mp4", "a map");
    hls_rig_write(&rig, "in/7.ts", "seven");
    hls_rig_write(&rig, "in/8.ts", "eight");
    hls_rig_write(&rig, "in/9.ts", "nine");
    hls_notice(&rig.hls, "x.m3u8");
    assert_true(hls_rig_await(&rig, "x.m3u8", "9.ts"));
    hls_rig_again(&rig);
    char path[128];
    snprintf(path, sizeof path, "%s/out/8.ts", rig.folder);
    assert_int_equal(unlink(path), 0); /* of the output, and so to be encrypted again */
    snprintf(path, sizeof path, "%s/in/7.ts", rig.folder);
    assert_int_equal(unlink(path), 0); /* of the input, which nobody needs any more */
    const struct timespec later[2] = {{.tv_sec = 4000000000}, {.tv_sec = 4000000000}};
    hls_rig_write(&rig, "in/9.ts", "nine, but another one");
    snprintf(path, sizeof path, "%s/in/9.ts", rig.folder);
    assert_int_equal(utimensat(-1, path, later, 0), 0);
    hls_notice(&rig.hls, "x.m3u8");
    for (int i = 0; i < 5000 && rig.hls.counts.segments < 2; i++)
        hls_rig_turn(&rig, 1);
    hls_rig_turn(&rig, 5);
    assert_int_equal(rig.hls.counts.segments, 2);
    assert_int_equal(rig.hls.counts.maps, 0);
    assert_true(hls_rig_is_cipher(&rig, "x.m3u8", "i.mp4", "a map"));
    assert_true(hls_rig_is_cipher(&rig, "x.m3u8", "7.ts", "seven"));
    assert_true(hls_rig_is_cipher(&rig, "x.m3u8", "8.ts", "eight"));
    assert_true(hls_rig_is_cipher(&rig, "x.m3u8", "9.ts", "nine, but another one"));
}

/* What the output has is not always what we have left there. */
static void goes_on_with_odd_outputs(void **state)
{
    (void)state;
    hls_rig_write(&rig, "out/x.m3u8", "no playlist");
    hls_rig_write(&rig, "out/y.m3u8",
                  LIVE "7\n#EXTINF:1,\n6.ts\n#EXT-X-KEY:METHOD=AES-128,URI=\"k\",IV=0x7\n#EXTINF:1,\n"
                       "http://elsewhere/7.ts\n#EXT-X-GAP\n#EXTINF:1,\n8.ts\n#EXTINF:1,\nold.ts\n");
    hls_rig_write(&rig, "out/6.ts", "in clear");
    hls_rig_write(&rig, "out/8.ts", "a gap");
    hls_rig_write(&rig, "out/old.ts", "encrypted");
    hls_rig_put(&rig, "old.ts", "here already");
    hls_rig_put(&rig, "7.ts", "seven");
    hls_rig_put(&rig, "x.m3u8", LIVE "7\n#EXTINF:1,\n7.ts\n");
    hls_rig_put(&rig, "y.m3u8", LIVE "7\n#EXTINF:1,\nold.ts\n");
    assert_true(hls_rig_await(&rig, "x.m3u8", "7.ts"));
    assert_true(hls_rig_is_cipher(&rig, "x.m3u8", "7.ts", "seven"));
    for (int i = 0; i < 5000 && rig.hls.counts.segments < 2; i++)
        hls_rig_turn(&rig, 1);
    hls_rig_turn(&rig, 5);
    assert_true(hls_rig_is_cipher(&rig, "y.m3u8", "old.ts", "here already"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(publishes_what_comes, by_put, stop),
        cmocka_unit_test_setup_teardown(comes_again, by_put, stop),
        cmocka_unit_test_setup_teardown(leaves_gaps, by_put, stop),
        cmocka_unit_test_setup_teardown(forgets_what_is_not_named, by_put, stop),
        cmocka_unit_test_setup_teardown(keeps_to_its_memory, by_put, stop),
        cmocka_unit_test_setup_teardown(publishes_masters_last, by_put, stop),
        cmocka_unit_test_setup_teardown(waits_as_long_as_is_said, by_put, stop),
        cmocka_unit_test_setup_teardown(waits_for_keys, by_put, stop),
        cmocka_unit_test_setup_teardown(tells_of_bad_keys_once, by_put, stop),
        cmocka_unit_test_teardown(leaves_out_what_is_not_encrypted, stop),
        cmocka_unit_test_setup_teardown(leaves_out_what_has_no_place, by_put, stop),
        cmocka_unit_test_setup_teardown(waits_for_room, by_put, stop),
        cmocka_unit_test_setup_teardown(reads_the_folder, by_folder, stop),
        cmocka_unit_test_setup_teardown(reads_what_there_is_room_for, by_folder, stop),
        cmocka_unit_test_setup_teardown(goes_on_with_the_output, by_folder, stop),
        cmocka_unit_test_setup_teardown(goes_on_with_odd_outputs, by_put, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
