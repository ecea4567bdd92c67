/* The playlists of millrace hls: text in, text out; the names in them. */
#include "client/hls/path.h"
#include "client/hls/playlist.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* Places, a letter an item: a and b ready under key a and b, A and B under a with an IV, w waiting, g gone. */
static const struct {
    const char *name, *text, *places, *expected;
} cases[] = {
    {"a key before each segment that changes it",
     "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:4\n#EXT-X-MEDIA-SEQUENCE:7\n#EXTINF:4,\n7.ts\n"
     "#EXTINF:4,\n8.ts\n#X-UNKNOWN:1\n#EXTINF:4,\n9.ts\n#EXT-X-ENDLIST\n",
     "aab",
     "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:4\n#EXT-X-MEDIA-SEQUENCE:7\n"
     "#EXT-X-KEY:METHOD=AES-128,URI=\"a\"\n#EXTINF:4,\n7.ts\n#EXTINF:4,\n8.ts\n#X-UNKNOWN:1\n"
     "#EXT-X-KEY:METHOD=AES-128,URI=\"b\"\n#EXTINF:4,\n9.ts\n#EXT-X-ENDLIST\n"},
    {"cut before what is not there yet, with all that follows",
     "#EXTM3U\n#EXTINF:4,\n7.ts\n#EXT-X-DISCONTINUITY\n#EXTINF:4,\n8.ts\n#EXTINF:4,\n9.ts\n#EXT-X-ENDLIST\n",
     "awa", "#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI=\"a\"\n#EXTINF:4,\n7.ts\n"},
    {"nothing while nothing is there", "#EXTM3U\n#EXTINF:4,\n7.ts\n", "w", NULL},
    {"nothing of a map alone", "#EXTM3U\n#EXT-X-MAP:URI=\"i\"\n#EXTINF:4,\n7.m4s\n", "Aw", NULL},
    {"a map that is gone is waited for", "#EXTM3U\n#EXT-X-MAP:URI=\"i\"\n#EXTINF:4,\n7.m4s\n", "ga", NULL},
    {"an IV for the map, and none for what follows",
     "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-MAP:URI=\"i\"\n#EXTINF:4,\n7.m4s\n", "Aa",
     "#EXTM3U\n#EXT-X-VERSION:7\n"
     "#EXT-X-KEY:METHOD=AES-128,URI=\"a\",IV=0x00000000000000000000000000000001\n#EXT-X-MAP:URI=\"i\"\n"
     "#EXT-X-KEY:METHOD=AES-128,URI=\"a\"\n#EXTINF:4,\n7.m4s\n"},
    {"a gap, and the version that it needs", "#EXTM3U\n#EXTINF:4,\n7.ts\n#EXTINF:4,\n8.ts\n", "ga",
     "#EXTM3U\n#EXT-X-VERSION:8\n#EXTINF:4,\n#EXT-X-GAP\n7.ts\n#EXT-X-KEY:METHOD=AES-128,URI=\"a\"\n"
     "#EXTINF:4,\n8.ts\n"},
    {"parts, with one that is gone",
     "#EXTM3U\n#EXT-X-VERSION:9\n#EXT-X-PART:DURATION=1,URI=\"7.0\"\n#EXT-X-PART:DURATION=1,URI=\"7.1\"\n"
     "#EXTINF:4,\n7.ts\n#EXT-X-PART:DURATION=1,URI=\"8.0\"\n#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"8.1\"\n",
     "agab",
     "#EXTM3U\n#EXT-X-VERSION:9\n#EXT-X-KEY:METHOD=AES-128,URI=\"a\"\n#EXT-X-PART:DURATION=1,URI=\"7.0\"\n"
     "#EXT-X-PART:DURATION=1,URI=\"7.1\",GAP=YES\n#EXTINF:4,\n7.ts\n#EXT-X-KEY:METHOD=AES-128,URI=\"b\"\n"
     "#EXT-X-PART:DURATION=1,URI=\"8.0\"\n#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"8.1\"\n"},
    {"gaps that the packager has said stay as they are",
     "#EXTM3U\n#EXT-X-VERSION:9\n#EXT-X-PART:DURATION=1,GAP=YES,URI=\"7.0\"\n#EXT-X-GAP\n#EXTINF:4,\n7.ts\n"
     "#EXTINF:4,\n8.ts\n",
     "gga",
     "#EXTM3U\n#EXT-X-VERSION:9\n#EXT-X-PART:DURATION=1,GAP=YES,URI=\"7.0\"\n#EXT-X-GAP\n#EXTINF:4,\n7.ts\n"
     "#EXT-X-KEY:METHOD=AES-128,URI=\"a\"\n#EXTINF:4,\n8.ts\n"},
    {"IVs that differ under one key", "#EXTM3U\n#EXT-X-VERSION:3\n#EXTINF:4,\n7.ts\n#EXTINF:4,\n8.ts\n", "AB",
     "#EXTM3U\n#EXT-X-VERSION:3\n"
     "#EXT-X-KEY:METHOD=AES-128,URI=\"a\",IV=0x00000000000000000000000000000001\n#EXTINF:4,\n7.ts\n"
     "#EXT-X-KEY:METHOD=AES-128,URI=\"a\",IV=0x00000000000000000000000000000002\n#EXTINF:4,\n8.ts\n"},
    {"METHOD=NONE goes, CR LF stays", "#EXTM3U\r\n#EXT-X-KEY:METHOD=NONE\r\n#EXTINF:4,\r\n7.ts", "a",
     "#EXTM3U\r\n#EXT-X-KEY:METHOD=AES-128,URI=\"a\"\n#EXTINF:4,\r\n7.ts\n"},
};

static void renders(void **state)
{
    (void)state;
    static const struct hls_cover covers[] = {{.key_uri = "a"},
                                              {.key_uri = "b"},
                                              {.key_uri = "a", .has_iv = true, .iv = {[15] = 1}},
                                              {.key_uri = "a", .has_iv = true, .iv = {[15] = 2}}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct hls_playlist playlist;
        struct hls_place places[8];
        char *text;
        size_t bytes;
        assert_int_equal(hls_playlist_parse(cases[i].text, strlen(cases[i].text), &playlist, NULL), CORE_OK);
        assert_int_equal(playlist.item_count, strlen(cases[i].places));
        for (size_t item = 0; item < playlist.item_count; item++) {
            char place = cases[i].places[item];
            places[item] = (struct hls_place){place == 'w'   ? HLS_WAITING
                                              : place == 'g' ? HLS_GONE
                                                             : HLS_READY,
                                              &covers[place == 'A'   ? 2
                                                      : place == 'B' ? 3
                                                      : place == 'b' ? 1
                                                                     : 0]};
        }
        assert_int_equal(hls_playlist_render(&playlist, places, &text, &bytes), CORE_OK);
        if (cases[i].expected == NULL ? text != NULL : text == NULL || strcmp(text, cases[i].expected) != 0)
            fail_msg("%s: %s", cases[i].name, text == NULL ? "(nothing)" : text);
        free(text);
        hls_playlist_free(&playlist);
    }
}

static void refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        core_status status;
    } broken[] = {
        {"", CORE_INVALID},
        {"#EXTM3U8\n", CORE_INVALID},
        {"#EXTM3U\n#EXTINF:4,\n7.ts\n#EXT-X-MEDIA-SEQUENCE:7\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-MEDIA-SEQUENCE:-7\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-PART:URI=\"a=1,URI=\"b\"\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-PART:URI=\"a\",GAP=NO\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-MAP:BYTERANGE=\"7@0\"\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-MAP:URI=\"i\",BYTERANGE=\"7@0\"\n", CORE_UNSUPPORTED},
        {"#EXTM3U\n#EXT-X-BYTERANGE:7@0\n7.ts\n", CORE_UNSUPPORTED},
        {"#EXTM3U\n#EXT-X-SKIP:SKIPPED-SEGMENTS=3\n", CORE_UNSUPPORTED},
        {"#EXTM3U\n#EXT-X-KEY:METHOD=SAMPLE-AES,URI=\"a\"\n", CORE_UNSUPPORTED},
        {"#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI=\"a\",IV=0xg\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI=\"a\",IV=0x\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI=\"a\",IV=0y1\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI=\"a\",IV=1x1\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI=\"a\",IV=0x000000000000000000000000000000001\n",
         CORE_INVALID},
        {"#EXTM3U\n#EXT-X-KEY:URI=\"a\"\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-KEY:METHOD=AES-128\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI=\"\"\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-PART:DURATION=1,URI=\"a\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-PART:DURATION\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-PART:DURATION=\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-MEDIA-SEQUENCE:\n", CORE_INVALID},
        {"#EXTM3U\n#EXT-X-MEDIA-SEQUENCE:1000000000000000000000000\n", CORE_INVALID},
    };
    for (size_t i = 0; i < COUNT_OF(broken); i++) {
        struct hls_playlist playlist;
        if (hls_playlist_parse(broken[i].text, strlen(broken[i].text), &playlist, NULL) != broken[i].status)
            fail_msg("%s", broken[i].text);
    }
}

/* What is refused for its length, and bytes that no string has. */
static void refuses_what_is_no_text(void **state)
{
    static const char zero[] = "#EXTM3U\n#EXTINF:4,\n\0.ts\n";
    char text[HLS_URI_BYTES + 64] = "#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI=\"";
    struct hls_playlist playlist;
    (void)state;
    assert_int_equal(hls_playlist_parse(zero, sizeof zero - 1, &playlist, NULL), CORE_INVALID);
    size_t length = strlen(text);
    memset(text + length, 'u', HLS_URI_BYTES);
    memcpy(text + length + HLS_URI_BYTES, "\"\n", 3);
    assert_int_equal(hls_playlist_parse(text, strlen(text), &playlist, NULL), CORE_INVALID);
    memcpy(text + length + HLS_URI_BYTES - 1, "\"\n", 3);
    assert_int_equal(hls_playlist_parse(text, strlen(text), &playlist, NULL), CORE_OK);
    hls_playlist_free(&playlist);
}

/* Tags that say nothing, or too much, are as if they were not there. */
static void reads_odd_tags(void **state)
{
    static const char text[] =
        "#EXTM3U\n#EXT-X-VERSION:1001\n#EXT-X-TARGETDURATION:1e10\n#EXT-X-PART-INF:X=1\n"
        "#EXT-X-TARGETDURATIONS:7\n#EXT-X-PART:DURATION=1, URI=a\n#EXTINF:4,\n7.ts\n";
    static const char numbers[] =
        "#EXTM3U\n#EXT-X-TARGETDURATION:0000000000000000000000000000000000007.5\n"
        "#EXT-X-PART-INF:PART-TARGET=0.33\n#EXT-X-KEY:METHOD=AES-128,URI=k,IV=0xA\n7.ts";
    static const char master[] = "#EXTM3U\n#EXT-X-MEDIA:TYPE=AUDIO,URI=\"a.m3u8\"\n#EXT-X-MEDIA:TYPE=AUDIO\n"
                                 "#EXT-X-STREAM-INF:BANDWIDTH=1\nv.m3u8\n";
    struct hls_playlist playlist;
    (void)state;
    assert_int_equal(hls_playlist_parse(text, strlen(text), &playlist, NULL), CORE_OK);
    assert_int_equal(playlist.version, 1);
    assert_true(playlist.target_s == 0 && playlist.part_target_s == 0);
    assert_int_equal(playlist.item_count, 2);
    assert_memory_equal(playlist.items[0].uri, "a", playlist.items[0].uri_bytes);
    hls_playlist_free(&playlist);
    assert_int_equal(hls_playlist_parse(numbers, strlen(numbers), &playlist, NULL), CORE_OK);
    assert_true(playlist.target_s == 0 && playlist.part_target_s > 0.32 && playlist.part_target_s < 0.34);
    assert_int_equal(playlist.items[0].cover.iv[15], 10);
    hls_playlist_free(&playlist);
    assert_int_equal(hls_playlist_parse(master, strlen(master), &playlist, NULL), CORE_OK);
    assert_true(playlist.master);
    assert_int_equal(playlist.item_count, 2);
    hls_playlist_free(&playlist);
}

static void reads_what_it_wrote(void **state)
{
    (void)state;
    static const char text[] =
        "#EXTM3U\n#EXT-X-MEDIA-SEQUENCE:7\n#EXT-X-KEY:METHOD=AES-128,URI=\"k,=1\",IV=0x10\n"
        "#EXT-X-MAP:URI=\"i\"\n#EXT-X-KEY:METHOD=AES-128,URI=\"k\"\n#EXTINF:4,\n7.m4s\n"
        "#EXT-X-GAP\n8.m4s\n";
    struct hls_playlist playlist;
    assert_int_equal(hls_playlist_parse(text, strlen(text), &playlist, NULL), CORE_OK);
    assert_int_equal(playlist.item_count, 3);
    assert_string_equal(playlist.items[0].cover.key_uri, "k,=1");
    assert_true(playlist.items[0].cover.has_iv);
    assert_int_equal(playlist.items[0].cover.iv[15], 0x10);
    assert_false(playlist.items[1].cover.has_iv);
    assert_int_equal(playlist.items[2].sequence, 8);
    assert_true(playlist.items[2].gap);
    hls_playlist_free(&playlist);
}

static void resolves(void **state)
{
    (void)state;
    static const struct {
        const char *base, *uri, *path; /* NULL: refused */
    } names[] = {
        {"", "a.ts", "a.ts"},
        {"live/x.m3u8", "a.ts", "live/a.ts"},
        {"live/x.m3u8", "../a.ts", "a.ts"},
        {"x.m3u8", "../a.ts", NULL},
        {"a/b/x.m3u8", "../../../c", NULL},
        {"", "/etc/passwd", NULL},
        {"", "http://host/a.ts", NULL},
        {"", "a%20b.ts?c=d", "a b.ts"},
        {"", "%2e%2e/a", NULL},
        {"", "a//b", NULL},
        {"", ".hidden", NULL},
        {"", "a%00b", NULL},
        {"", "a%zz", NULL},
        {"", "", NULL},
        {"", "a/%2e./%2e./b", NULL},
        {"live/x.m3u8", "./a.ts", "live/a.ts"},
        {"live/x.m3u8", "..", NULL},
        {"", "a.ts#t=1", "a.ts"},
        {"", "a/b:c.ts", "a/b:c.ts"},
        {"", "urn:a.ts", NULL},
        {"", "\xc3\xa9.ts", "\xc3\xa9.ts"},
        {"", "a\x7f", NULL},
        {"", "a%4", NULL},
        {"", "a%4z", NULL},
    };
    char path[HLS_PATH_BYTES];
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        core_status status = hls_path_resolve(names[i].base, names[i].uri, strlen(names[i].uri), path);
        if ((status == CORE_OK) != (names[i].path != NULL) ||
            (status == CORE_OK && strcmp(path, names[i].path) != 0))
            fail_msg("%s in %s is %s", names[i].uri, names[i].base, status == CORE_OK ? path : "refused");
    }
    assert_true(hls_path_is_playlist("a/b.m3u8") && hls_path_is_playlist("b.m3u"));
    assert_false(hls_path_is_playlist("m3u8") || hls_path_is_playlist("a.ts"));
}

/* The longest names, and one more. */
static void resolves_long_names(void **state)
{
    char base[HLS_PATH_BYTES] = "", name[HLS_PATH_BYTES + 8], path[HLS_PATH_BYTES];
    (void)state;
    memset(name, 'n', sizeof name);
    assert_int_equal(hls_path_resolve("", name, HLS_PATH_BYTES - 2, path), CORE_OK);
    assert_int_equal(hls_path_resolve("", name, HLS_PATH_BYTES, path), CORE_INVALID);
    memset(base, 'b', 600);
    memcpy(base + 600, "/x", 3);
    assert_int_equal(hls_path_resolve(base, name, HLS_PATH_BYTES - 602, path), CORE_OK);
    assert_int_equal(strlen(path), HLS_PATH_BYTES - 1);
    assert_int_equal(hls_path_resolve(base, name, HLS_PATH_BYTES - 601, path), CORE_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renders),
        cmocka_unit_test(refuses),
        cmocka_unit_test(reads_what_it_wrote),
        cmocka_unit_test(resolves),
        cmocka_unit_test(resolves_long_names),
        cmocka_unit_test(refuses_what_is_no_text),
        cmocka_unit_test(reads_odd_tags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
