/* Hardware profiles: loading, mistakes by file and line, and a round trip that changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config/profile.h"
#include "tests/support/profile_text.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The lines of a good profile; a test replaces one of them. */
static const char *const lines[] = {
    /*  1 */ "name: n",
    /*  2 */ "machine: m",
    /*  3 */ "measured: assumed",
    /*  4 */ "cpu:",
    /*  5 */ "  engine: ipsec-mb",
    /*  6 */ "  lanes: 8",
    /*  7 */ "  burst_pieces: 32",
    /*  8 */ "  piece_bytes: 4096",
    /*  9 */ "  per_piece_ns: 60",
    /* 10 */ "  per_byte_fs: {aes_128_cbc: 1, aes_192_cbc: 2, aes_256_cbc: 3}",
    /* 11 */ "  lane_ns:",
    /* 12 */ "    aes_128_cbc: 4",
    /* 13 */ "    aes_192_cbc: 5",
    /* 14 */ "    aes_256_cbc: 6",
    /* 15 */ "  queue_granularity_ns: 4096",
    /* 16 */ "io:",
    /* 17 */ "  per_packet_ns: 1500",
    /* 18 */ "  per_byte_fs: 500000",
    /* 19 */ "  limit_percent: 85",
    /* 20 */ "  rest_max_ns: 500000",
    /* 21 */ "margins:",
    /* 22 */ "  in_ns: 300000",
    /* 23 */ "  out_ns: 200000",
    /* 24 */ "  percent: 10",
};
static const struct profile_text good = {lines, sizeof lines / sizeof lines[0]};

static void every_key_arrives(void **state)
{
    struct config_profile *profile = profile_text_parse(&good);

    (void)state;
    assert_string_equal(profile->name, "n");
    assert_string_equal(profile->machine, "m");
    assert_string_equal(profile->measured, "assumed");
    assert_string_equal(profile->cpu.engine, "ipsec-mb");
    assert_int_equal(profile->cpu.lanes, 8);
    assert_int_equal(profile->cpu.burst_pieces, 32);
    assert_int_equal(profile->cpu.piece_bytes, 4096);
    assert_int_equal(profile->cpu.per_piece_ns, 60);
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        assert_int_equal(profile->cpu.per_byte_fs[i], 1 + i);
        assert_int_equal(profile->cpu.lane_ns[i], 4 + i);
    }
    assert_int_equal(profile->cpu.queue_granularity_ns, 4096);
    assert_int_equal(profile->io.per_packet_ns, 1500);
    assert_int_equal(profile->io.per_byte_fs, 500000);
    assert_int_equal(profile->cpu.decrypt_more_percent, CONFIG_PROFILE_DECRYPT_MORE_PERCENT);
    assert_int_equal(profile->io.pattern_per_byte_fs, CONFIG_PROFILE_PATTERN_FS); /* not in the file */
    assert_int_equal(profile->io.mac_per_byte_fs, CONFIG_PROFILE_MAC_FS);
    assert_int_equal(profile->io.by_lane_per_packet_ns, 1500);
    assert_int_equal(profile->io.by_lane_per_byte_fs, 500000);
    assert_int_equal(profile->io.limit_percent, 85);
    assert_int_equal(profile->io.rest_max_ns, 500000);
    assert_int_equal(profile->margins.in_ns, 300000);
    assert_int_equal(profile->margins.out_ns, 200000);
    assert_int_equal(profile->margins.percent, 10);
    assert_int_equal(profile->margins.copies_ppm, 100000); /* by `percent`, as no key says more */
    assert_int_equal(profile->margins.kernels_ppm, 100000);
    config_profile_free(profile);
}

static const struct profile_mistake mistakes[] = {
    {1, "name: ''", "p.yaml:1: name: has no value"},
    {1, "#", "p.yaml:2: the key 'name' is missing"},
    {2, "machine: \"Zürich\"", "p.yaml:2: machine: has characters other than printable ASCII"},
    {3, "measured: [2026]", "p.yaml:3: measured: must be a single text"},
    {5, "  engine: cuda", "p.yaml:5: cpu.engine: 'cuda' is no engine"},
    {6, "  lanes: 0", "p.yaml:6: cpu.lanes: 0 is out of range"},
    {6, "  lanes: 129", "p.yaml:6: cpu.lanes: 129 is out of range"},
    {6, "  lanes: -8", "p.yaml:6: cpu.lanes: must not be negative"},
    {6, "  lanes: 4294967304", "p.yaml:6: cpu.lanes: is too large"},
    {6, "  lane: 8", "p.yaml:6: cpu: unknown key 'lane'"},
    {6, "  engine: openssl", "p.yaml:6: cpu.engine: is given twice"},
    {7, "  burst_pieces: 0", "p.yaml:7: cpu.burst_pieces: 0 is out of range"},
    {7, "  burst_pieces: 136", "p.yaml:7: cpu.burst_pieces: 136 is out of range"},
    {7, "  burst_pieces: 12", "p.yaml:7: cpu.burst_pieces: 12 is no multiple of the 8 lanes"},
    {8, "  piece_bytes: 0", "p.yaml:8: cpu.piece_bytes: 0 is out of range"},
    {8, "  piece_bytes: 65536", "p.yaml:8: cpu.piece_bytes: 65536 is out of range"},
    {8, "  piece_bytes: 100", "p.yaml:8: cpu.piece_bytes: 100 is no multiple of 16"},
    {9, "  per_piece_ns: -1", "p.yaml:9: cpu.per_piece_ns: -1 is out of range"},
    {9, "  per_piece_ns: nan", "p.yaml:9: cpu.per_piece_ns: is not a whole number"},
    {9, "  per_piece_ns: .inf", "p.yaml:9: cpu.per_piece_ns: is not a whole number"},
    {10, "  per_byte_fs: {aes_128_cbc: 1, aes_192_cbc: 0, aes_256_cbc: 1}",
     "p.yaml:10: cpu.per_byte_fs.aes_192_cbc: 0 is out of range"},
    {10, "  per_byte_fs: {aes_128_cbc: 1, aes_192_cbc: 1}",
     "p.yaml:10: cpu.per_byte_fs: the key 'aes_256_cbc'"},
    {14, "    aes_256_cbc: 1000000001", "p.yaml:14: cpu.lane_ns.aes_256_cbc: 1000000001 is out of range"},
    {15, "  queue_granularity_ns: -1", "p.yaml:15: cpu.queue_granularity_ns: -1 is out of range"},
    {17, "  per_packet_ns: -1", "p.yaml:17: io.per_packet_ns: -1 is out of range"},
    {18, "  per_byte_fs: 1\n  pattern_per_byte_fs: -1",
     "p.yaml:19: io.pattern_per_byte_fs: -1 is out of range"},
    {18, "  per_byte_fs: 1\n  mac_per_byte_fs: 1000000001",
     "p.yaml:19: io.mac_per_byte_fs: 1000000001 is out of range"},
    {18, "  per_byte_fs: 1\n  by_lane_per_packet_ns: -1",
     "p.yaml:19: io.by_lane_per_packet_ns: -1 is out of range"},
    {18, "  per_byte_fs: 1\n  by_lane_per_byte_fs: 1000000001",
     "p.yaml:19: io.by_lane_per_byte_fs: 1000000001 is out of range"},
    {18, "  per_byte_fs: 1000000001", "p.yaml:18: io.per_byte_fs: 1000000001 is out of range"},
    {19, "  limit_percent: 0", "p.yaml:19: io.limit_percent: 0 is out of range; give 1 to 100"},
    {19, "  limit_percent: 101", "p.yaml:19: io.limit_percent: 101 is out of range"},
    {20, "  rest_max_ns: -1", "p.yaml:20: io.rest_max_ns: -1 is out of range"},
    {20, "  rest_max_ns: 1000000001", "p.yaml:20: io.rest_max_ns: 1000000001 is out of range"},
    {22, "  in_ns: -5", "p.yaml:22: margins.in_ns: -5 is out of range"},
    {23, "  out_ns: 1e6", "p.yaml:23: margins.out_ns: is not a whole number"},
    {24, "  percent: 101", "p.yaml:24: margins.percent: 101 is out of range"},
    {24, "  percent: 10\n  copies_ppm: -1", "p.yaml:25: margins.copies_ppm: must not be negative"},
    {24, "  percent: 10\n  copies_ppm: 1000001", "p.yaml:25: margins.copies_ppm: 1000001 is out of range"},
    {24, "  percent: 10\n  kernels_ppm: 1000001", "p.yaml:25: margins.kernels_ppm: 1000001 is out of range"},
    {24, "  percent: 10 %", "p.yaml:24: margins.percent: is not a whole number"},
};

static void mistakes_are_named_with_file_and_line(void **state)
{
    (void)state;
    profile_text_expect(&good, mistakes, sizeof mistakes / sizeof mistakes[0]);
}

static void a_profile_from_elsewhere_is_checked_alike(void **state)
{
    struct config_profile *profile = profile_text_parse(&good);
    struct core_error error;

    (void)state;
    assert_int_equal(config_profile_check(profile, &error), CORE_OK);
    profile->cpu.burst_pieces = 9;
    assert_int_equal(config_profile_check(profile, &error), CORE_INVALID);
    assert_string_equal(error.text, "cpu.burst_pieces: 9 is no multiple of the 8 lanes");
    profile->cpu.burst_pieces = 8;
    profile->cpu.lanes = 0; /* must not be divided by */
    assert_int_equal(config_profile_check(profile, &error), CORE_INVALID);
    profile->cpu.lanes = 1;
    free(profile->machine);
    profile->machine = NULL;
    assert_int_equal(config_profile_check(profile, NULL), CORE_INVALID);
    config_profile_free(profile);
    config_profile_free(NULL);
}

static void profiles_equal(const struct config_profile *a, const struct config_profile *b)
{
    assert_string_equal(a->name, b->name);
    assert_string_equal(a->machine, b->machine);
    assert_string_equal(a->measured, b->measured);
    assert_string_equal(a->cpu.engine, b->cpu.engine);
    assert_int_equal(a->cpu.lanes, b->cpu.lanes);
    assert_int_equal(a->cpu.burst_pieces, b->cpu.burst_pieces);
    assert_int_equal(a->cpu.piece_bytes, b->cpu.piece_bytes);
    assert_int_equal(a->cpu.per_piece_ns, b->cpu.per_piece_ns);
    assert_memory_equal(a->cpu.per_byte_fs, b->cpu.per_byte_fs, sizeof a->cpu.per_byte_fs);
    assert_memory_equal(a->cpu.lane_ns, b->cpu.lane_ns, sizeof a->cpu.lane_ns);
    assert_int_equal(a->cpu.queue_granularity_ns, b->cpu.queue_granularity_ns);
    assert_int_equal(a->cpu.decrypt_more_percent, b->cpu.decrypt_more_percent);
    assert_int_equal(a->io.per_packet_ns, b->io.per_packet_ns);
    assert_int_equal(a->io.per_byte_fs, b->io.per_byte_fs);
    assert_int_equal(a->io.pattern_per_byte_fs, b->io.pattern_per_byte_fs);
    assert_int_equal(a->io.mac_per_byte_fs, b->io.mac_per_byte_fs);
    assert_int_equal(a->io.by_lane_per_packet_ns, b->io.by_lane_per_packet_ns);
    assert_int_equal(a->io.by_lane_per_byte_fs, b->io.by_lane_per_byte_fs);
    assert_int_equal(a->io.limit_percent, b->io.limit_percent);
    assert_int_equal(a->io.rest_max_ns, b->io.rest_max_ns);
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) { /* not in the file */
        assert_int_equal(b->io.audit_per_piece_ns[i], b->cpu.per_piece_ns + b->cpu.lane_ns[i]);
        assert_int_equal(b->io.audit_per_byte_fs[i], b->cpu.per_byte_fs[i]);
    }
    assert_memory_equal(&a->margins, &b->margins, sizeof a->margins);
}

static void replace_text(char **member, const char *text)
{
    free(*member);
    *member = strdup(text);
    assert_non_null(*member);
}

/* Makes a folder and the path of a file in it. */
static void folder_make(char folder[64], char path[80])
{
    snprintf(folder, 64, "/tmp/millrace-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, 80, "%s/p.yaml", folder);
}

static void saved_and_loaded_is_the_same(void **state)
{
    char folder[64], path[80];
    struct config_profile *profile = profile_text_parse(&good), *loaded = NULL;
    struct core_error error = {""};

    (void)state;
    folder_make(folder, path);
    /* texts that plain YAML would take for something else */
    replace_text(&profile->name, "#1: \"quoted\" \\ back, [x] {y} & *z ~");
    replace_text(&profile->machine, "null");
    replace_text(&profile->measured, " 2026-11-21 ");
    profile->cpu.per_byte_fs[1] = 1000000000;
    assert_int_equal(config_profile_save(profile, path, "first\nsecond: \x01 [not YAML\n", &error), CORE_OK);
    if (config_profile_load(path, &loaded, &error) != CORE_OK)
        fail_msg("%s", error.text);
    profiles_equal(profile, loaded);
    config_profile_free(loaded);
    assert_int_equal(config_profile_save(profile, path, NULL, &error), CORE_OK); /* over the first one */
    assert_int_equal(config_profile_load(path, &loaded, &error), CORE_OK);
    profiles_equal(profile, loaded);
    config_profile_free(loaded);
    config_profile_free(profile);
    unlink(path);
    assert_int_equal(rmdir(folder), 0); /* nothing else was left in it */
}

static void comments_go_on_top(void **state)
{
    char folder[64], path[80], line[128];
    struct config_profile *profile = profile_text_parse(&good);

    (void)state;
    folder_make(folder, path);
    assert_int_equal(config_profile_save(profile, path, "one\ntwo", NULL), CORE_OK);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_string_equal(fgets(line, sizeof line, file), "# one\n");
    assert_string_equal(fgets(line, sizeof line, file), "# two\n");
    assert_string_equal(fgets(line, sizeof line, file), "name: \"n\"\n");
    fclose(file);
    config_profile_free(profile);
    unlink(path);
    rmdir(folder);
}

static void a_failed_save_leaves_nothing_and_says_why(void **state)
{
    char folder[64], path[80];
    struct config_profile *profile = profile_text_parse(&good);
    struct core_error error;

    (void)state;
    folder_make(folder, path);
    assert_int_equal(config_profile_save(profile, "/nonexistent/p.yaml", NULL, &error), CORE_SYSTEM);
    assert_non_null(strstr(error.text, "/nonexistent/p.yaml"));
    assert_int_equal(mkdir(path, 0700), 0); /* rename can not replace a folder */
    assert_int_equal(config_profile_save(profile, path, NULL, &error), CORE_SYSTEM);
    rmdir(path);
    profile->io.limit_percent = 0;
    assert_int_equal(config_profile_save(profile, path, NULL, &error), CORE_INVALID);
    config_profile_free(profile);
    assert_int_equal(rmdir(folder), 0); /* no temporary file stayed behind */
}

static void a_copy_is_deep(void **state)
{
    struct config_profile *profile = profile_text_parse(&good), *copy = NULL;

    (void)state;
    assert_int_equal(config_profile_copy(profile, &copy), CORE_OK);
    profiles_equal(profile, copy);
    assert_ptr_not_equal(profile->name, copy->name);
    assert_ptr_not_equal(profile->cpu.engine, copy->cpu.engine);
    config_profile_free(profile);
    assert_string_equal(copy->machine, "m");
    config_profile_free(copy);
}

static void every_shipped_profile_loads(void **state)
{
    const char *folder = MILLRACE_SOURCE_DIR "/config/profiles";
    DIR *entries = opendir(folder);
    size_t count = 0;

    (void)state;
    assert_non_null(entries);
    for (struct dirent *entry = readdir(entries); entry; entry = readdir(entries)) {
        char path[512];
        struct config_profile *profile;
        struct core_error error = {""};
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (config_profile_load(path, &profile, &error) != CORE_OK)
            fail_msg("%s", error.text);
        config_profile_free(profile);
        count++;
    }
    closedir(entries);
    assert_true(count >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_arrives),
        cmocka_unit_test(mistakes_are_named_with_file_and_line),
        cmocka_unit_test(a_profile_from_elsewhere_is_checked_alike),
        cmocka_unit_test(saved_and_loaded_is_the_same),
        cmocka_unit_test(comments_go_on_top),
        cmocka_unit_test(a_failed_save_leaves_nothing_and_says_why),
        cmocka_unit_test(a_copy_is_deep),
        cmocka_unit_test(every_shipped_profile_loads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
