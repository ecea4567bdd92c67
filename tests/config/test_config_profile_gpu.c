/* The GPU part of hardware profiles: loading, mistakes by file and line, round trips, copies, and what the
 * shipped profiles say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config/profile.h"
#include "tests/support/profile_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROFILES MILLRACE_SOURCE_DIR "/config/profiles/"

/* A profile without GPUs but for its last brace. */
static const char base[] =
    "{name: n, machine: m, measured: assumed, io: {per_packet_ns: 1, per_byte_fs: 1, limit_percent: 85, "
    "rest_max_ns: 0}, margins: {in_ns: 1, out_ns: 1, percent: 10, copies_ppm: 20001}, cpu: {engine: openssl, "
    "lanes: 1, "
    "burst_pieces: 1, piece_bytes: 4096, per_piece_ns: 1, per_byte_fs: {aes_128_cbc: 1, aes_192_cbc: 1, "
    "aes_256_cbc: 1}, lane_ns: {aes_128_cbc: 1, aes_192_cbc: 1, aes_256_cbc: 1}, queue_granularity_ns: 1}";

/* The lines of a good profile; a test replaces one of them. */
static const char *const lines[] = {
    /*  1 */ base,
    /*  2 */ ", workers: 2",
    /*  3 */ ", pinned_bytes: 1125899906842624, gpus: [",
    /*  4 */ "{name: first",
    /*  5 */ ", count: 2",
    /*  6 */ ", sms: 30",
    /*  7 */ ", copy_engines: 1",
    /*  8 */ ", memory_bytes: 1073741824",
    /*  9 */ ", sm_bytes_per_s: 62500000",
    /* 10 */ ", launch_ns: 10000",
    /* 11 */ ", job_bytes: 64",
    /* 12 */ ", copies: [",
    /* 13 */ "{bytes: 4096, up_ns: 10, down_ns: 11, up_busy_ns: 12, down_busy_ns: 13}",
    /* 14 */ ",{bytes: 8192, up_ns: 20, down_ns: 21, up_busy_ns: 22, down_busy_ns: 23}",
    /* 15 */ "], utilisation: [",
    /* 16 */ "{jobs: 1, share_ppm: 20000}",
    /* 17 */ ",{jobs: 3, share_ppm: 60000}",
    /* 18 */ ",{jobs: 4, share_ppm: 50000}",
    /* 19 */ "]}",
    /* 20 */ ", {name: second, kernel: quad, count: 1, sms: 1, copy_engines: 2, memory_bytes: 1",
    /* 21 */ ", sm_bytes_per_s: 1, launch_ns: 0, job_bytes: 0",
    /* 22 */ ", copies: [{bytes: 1, up_ns: 1, down_ns: 1, up_busy_ns: 1, down_busy_ns: 1}]",
    /* 23 */ ", utilisation: [{jobs: 1, share_ppm: 1}]}",
    /* 24 */ "]}",
};
static const struct profile_text good = {lines, sizeof lines / sizeof lines[0]};

static void every_key_arrives(void **state)
{
    struct config_profile *profile = profile_text_parse(&good);
    const struct config_profile_gpu *gpu = &profile->gpus[0];

    (void)state;
    assert_int_equal(profile->workers, 2);
    assert_int_equal(profile->pinned_bytes, CONFIG_PROFILE_MEMORY_BYTES_MAX);
    assert_int_equal(profile->gpu_count, 2);
    assert_string_equal(gpu->name, "first");
    assert_int_equal(gpu->count, 2);
    assert_int_equal(gpu->sms, 30);
    assert_int_equal(gpu->copy_engines, 1);
    assert_int_equal(gpu->memory_bytes, 1073741824);
    assert_int_equal(gpu->sm_bytes_per_s, 62500000);
    assert_int_equal(gpu->launch_ns, 10000);
    assert_int_equal(gpu->job_bytes, 64);
    assert_int_equal(gpu->copy_count, 2);
    assert_int_equal(gpu->copies[1].bytes, 8192);
    assert_int_equal(gpu->copies[1].up_ns, 20);
    assert_int_equal(gpu->copies[1].down_ns, 21);
    assert_int_equal(gpu->copies[1].up_busy_ns, 22);
    assert_int_equal(gpu->copies[1].down_busy_ns, 23);
    assert_int_equal(gpu->utilisation_count, 3);
    assert_int_equal(gpu->utilisation[1].jobs, 3);
    assert_int_equal(gpu->utilisation[2].share_ppm, 50000);
    assert_string_equal(profile->gpus[1].name, "second");
    assert_null(profile->gpus[0].kernel);
    assert_string_equal(profile->gpus[1].kernel, "quad");
    config_profile_free(profile);
}

static void all_of_it_may_be_absent(void **state)
{
    struct config_profile *profile = NULL;
    struct core_error error = {""};

    (void)state;
    char text[sizeof base + 1];
    snprintf(text, sizeof text, "%s}", base);
    assert_int_equal(config_profile_parse(text, strlen(text), "p.yaml", &profile, &error), CORE_OK);
    assert_int_equal(profile->workers, 1);
    assert_int_equal(profile->pinned_bytes, 0);
    assert_null(profile->gpus);
    assert_int_equal(profile->gpu_count, 0);
    config_profile_free(profile);
}

static const struct profile_mistake mistakes[] = {
    {2, ", workers: 0", "p.yaml:2: workers: 0 is out of range; give 1 to 1024"},
    {2, ", workers: 1025", "p.yaml:2: workers: 1025 is out of range"},
    {2, ", workers: -1", "p.yaml:2: workers: must not be negative"},
    {2, ", workers: 1.5", "p.yaml:2: workers: is not a whole number"},
    {2, ", workers: nan", "p.yaml:2: workers: is not a whole number"},
    {2, ", workers: 1, workers: 1", "p.yaml:2: workers: is given twice"},
    {3, ", pinned_bytes: 0, gpus: [", "p.yaml:3: gpus: need pinned_bytes"},
    {3, ", gpus: [", "p.yaml:3: gpus: need pinned_bytes"},
    {3, ", pinned_bytes: -1, gpus: [", "p.yaml:3: pinned_bytes: must not be negative"},
    {3, ", pinned_bytes: 1125899906842625, gpus: [",
     "p.yaml:3: pinned_bytes: 1125899906842625 is out of range"},
    {3, ", pinned_bytes: 9223372036854775808, gpus: [", "p.yaml:3: pinned_bytes: is too large a number"},
    {3, ", pinned_bytes: 1, gpu: [", "p.yaml:3: unknown key 'gpu'"},
    {4, "{name: ''", "p.yaml:4: gpus[0].name: has no value"},
    {4, "{name: second", "p.yaml:20: gpus[1].name: 'second' is given twice"},
    {4, "{name: \"Z\\xfcrich\"", "p.yaml:4: gpus[0].name: has characters other than printable ASCII"},
    {4, "{label: first", "p.yaml:4: gpus[0]: unknown key 'label'"},
    {5, ", count: 0", "p.yaml:5: gpus[0].count: 0 is out of range; give 1 to 64"},
    {5, ", count: 65", "p.yaml:5: gpus[0].count: 65 is out of range"},
    {5, ", kernel: half, count: 2", "p.yaml:5: gpus[0].kernel: 'half' is no form of the kernel"},
    {6, ", sms: 0", "p.yaml:6: gpus[0].sms: 0 is out of range"},
    {6, ", sms: 4097", "p.yaml:6: gpus[0].sms: 4097 is out of range"},
    {7, ", copy_engines: 0", "p.yaml:7: gpus[0].copy_engines: 0 is out of range; give 1 to 2"},
    {7, ", copy_engines: 3", "p.yaml:7: gpus[0].copy_engines: 3 is out of range"},
    {8, ", memory_bytes: 0", "p.yaml:8: gpus[0].memory_bytes: 0 is out of range"},
    {8, ", memory_bytes: 1125899906842625", "p.yaml:8: gpus[0].memory_bytes: 1125899906842625 is out"},
    {9, ", sm_bytes_per_s: 0", "p.yaml:9: gpus[0].sm_bytes_per_s: 0 is out of range"},
    {9, ", sm_bytes_per_s: .nan", "p.yaml:9: gpus[0].sm_bytes_per_s: is not a whole number"},
    {9, ", sm_bytes_per_s: 1000000000001", "p.yaml:9: gpus[0].sm_bytes_per_s: 1000000000001 is out of"},
    {10, ", launch_ns: -1", "p.yaml:10: gpus[0].launch_ns: -1 is out of range"},
    {10, ", launch_ns: 1000000001", "p.yaml:10: gpus[0].launch_ns: 1000000001 is out of range"},
    {11, ", job_bytes: 65537", "p.yaml:11: gpus[0].job_bytes: 65537 is out of range"},
    {13, "{bytes: 0, up_ns: 10, down_ns: 11, up_busy_ns: 12, down_busy_ns: 13}",
     "p.yaml:13: gpus[0].copies[0].bytes: 0 is out of range"},
    {13, "{bytes: 4096, up_ns: 0, down_ns: 11, up_busy_ns: 12, down_busy_ns: 13}",
     "p.yaml:13: gpus[0].copies[0].up_ns: 0 is out of range"},
    {13, "{bytes: 4096, up_ns: 10, down_ns: 11, up_busy_ns: 12}",
     "p.yaml:13: gpus[0].copies[0]: the key 'down_busy_ns' is missing"},
    {13, "{bytes: 4096, up_ns: 10, down_ns: 11, up_busy_ns: 9, down_busy_ns: 13}",
     "p.yaml:13: gpus[0].copies[0].up_busy_ns: 9 is shorter than up_ns, 10"},
    {13, "{bytes: 4096, up_ns: 10, down_ns: 11, up_busy_ns: 12, down_busy_ns: 10}",
     "p.yaml:13: gpus[0].copies[0].down_busy_ns: 10 is shorter than down_ns, 11"},
    {14, ",{bytes: 4096, up_ns: 20, down_ns: 21, up_busy_ns: 22, down_busy_ns: 23}",
     "p.yaml:14: gpus[0].copies[1].bytes: 4096 does not rise above 4096"},
    {14, ",{bytes: 4095, up_ns: 20, down_ns: 21, up_busy_ns: 22, down_busy_ns: 23}",
     "p.yaml:14: gpus[0].copies[1].bytes: 4095 does not rise above 4096"},
    {14, ",{bytes: 17592186044417, up_ns: 20, down_ns: 21, up_busy_ns: 22, down_busy_ns: 23}",
     "p.yaml:14: gpus[0].copies[1].bytes: 17592186044417 is out of range"},
    {14, ",{bytes: 8192, up_ns: 9, down_ns: 21, up_busy_ns: 22, down_busy_ns: 23}",
     "p.yaml:14: gpus[0].copies[1].up_ns: 9 is shorter than 10 for fewer bytes"},
    {14, ",{bytes: 8192, up_ns: 10, down_ns: 10, up_busy_ns: 22, down_busy_ns: 23}",
     "p.yaml:14: gpus[0].copies[1].down_ns: 10 is shorter than 11 for fewer bytes"},
    {14, ",{bytes: 8192, up_ns: 10, down_ns: 11, up_busy_ns: 11, down_busy_ns: 23}",
     "p.yaml:14: gpus[0].copies[1].up_busy_ns: 11 is shorter than 12 for fewer bytes"},
    {14, ",{bytes: 8192, up_ns: 10, down_ns: 11, up_busy_ns: 12, down_busy_ns: 12}",
     "p.yaml:14: gpus[0].copies[1].down_busy_ns: 12 is shorter than 13 for fewer bytes"},
    {14, ",{bytes: 8192, up_ns: 20, down_ns: 21, up_busy_ns: 22, down_busy_ns: 3600000000001}",
     "p.yaml:14: gpus[0].copies[1].down_busy_ns: 3600000000001 is out of range"},
    {16, "{jobs: 2, share_ppm: 20000}", "p.yaml:16: gpus[0].utilisation[0].jobs: 2 is not 1"},
    {16, "{jobs: 0, share_ppm: 20000}", "p.yaml:16: gpus[0].utilisation[0].jobs: 0 is not 1"},
    {16, "{jobs: 1, share_ppm: 0}", "p.yaml:16: gpus[0].utilisation[0].share_ppm: 0 is out of range"},
    {17, ",{jobs: 1, share_ppm: 60000}", "p.yaml:17: gpus[0].utilisation[1].jobs: 1 does not rise above 1"},
    {17, ",{jobs: 3, share_ppm: 1000001}", "p.yaml:17: gpus[0].utilisation[1].share_ppm: 1000001 is out"},
    {17, ",{jobs: 3, share_ppm: 0.5}", "p.yaml:17: gpus[0].utilisation[1].share_ppm: is not a whole"},
    {18, ",{jobs: 2, share_ppm: 50000}", "p.yaml:18: gpus[0].utilisation[2].jobs: 2 does not rise above 3"},
    {18, ",{jobs: 1048577, share_ppm: 50000}",
     "p.yaml:18: gpus[0].utilisation[2].jobs: 1048577 is out of range"},
    {22, ", copies: []", "p.yaml:22: gpus[1].copies: has 0 entries; give 1 to 4096"},
    {23, ", utilisation: []}", "p.yaml:23: gpus[1].utilisation: has 0 entries; give 1 to 65536"},
    {23, ", utilisation: {jobs: 1, share_ppm: 1}}", "p.yaml:23: gpus[1].utilisation: must be a list"},
    {23, "}", "p.yaml:20: gpus[1]: the key 'utilisation' is missing"},
};

static void mistakes_are_named_with_file_and_line(void **state)
{
    (void)state;
    profile_text_expect(&good, mistakes, sizeof mistakes / sizeof mistakes[0]);
}

static void expect_invalid(const struct config_profile *profile, const char *message)
{
    struct core_error error = {""};

    assert_int_equal(config_profile_check(profile, &error), CORE_INVALID);
    if (strncmp(error.text, message, strlen(message)) != 0)
        fail_msg("\"%s\", expected \"%s\"", error.text, message);
}

static void a_profile_from_elsewhere_is_checked_alike(void **state)
{
    struct config_profile *profile = profile_text_parse(&good);
    struct config_profile broken = *profile;
    struct config_profile_gpu gpu = profile->gpus[0];

    (void)state;
    broken.workers = 0; /* counts as 1 */
    assert_int_equal(config_profile_check(&broken, NULL), CORE_OK);
    broken.workers = 1025;
    expect_invalid(&broken, "workers: 1025 is out of range");
    broken.workers = 1;
    broken.gpus = NULL;
    expect_invalid(&broken, "gpus: needs 1 to 16 kinds of cards, or none");
    broken.gpus = &gpu;
    broken.gpu_count = 0;
    expect_invalid(&broken, "gpus: needs 1 to 16 kinds of cards, or none");
    broken.gpu_count = 17;
    expect_invalid(&broken, "gpus: needs 1 to 16 kinds of cards, or none");
    broken.gpu_count = 1;
    assert_int_equal(config_profile_check(&broken, NULL), CORE_OK);
    gpu.memory_bytes = UINT64_MAX;
    expect_invalid(&broken, "gpus[0].memory_bytes: 18446744073709551615 is out of range");
    gpu = profile->gpus[0];
    gpu.copies = NULL;
    expect_invalid(&broken, "gpus[0].copies: needs 1 to 4096 rows");
    gpu = profile->gpus[0];
    gpu.copy_count = 0;
    expect_invalid(&broken, "gpus[0].copies: needs 1 to 4096 rows");
    gpu = profile->gpus[0];
    gpu.utilisation_count = 0;
    expect_invalid(&broken, "gpus[0].utilisation: needs 1 to 65536 rows");
    gpu = profile->gpus[0];
    gpu.name = NULL;
    expect_invalid(&broken, "gpus[0].name: is empty");
    config_profile_free(profile);
}

static void gpus_equal(const struct config_profile *a, const struct config_profile *b)
{
    assert_int_equal(a->workers, b->workers);
    assert_int_equal(a->pinned_bytes, b->pinned_bytes);
    assert_int_equal(a->gpu_count, b->gpu_count);
    for (uint32_t i = 0; i < a->gpu_count; i++) {
        const struct config_profile_gpu *x = &a->gpus[i], *y = &b->gpus[i];
        assert_string_equal(x->name, y->name);
        assert_string_equal(x->kernel ? x->kernel : "", y->kernel ? y->kernel : "");
        assert_int_equal(x->count, y->count);
        assert_int_equal(x->sms, y->sms);
        assert_int_equal(x->copy_engines, y->copy_engines);
        assert_int_equal(x->memory_bytes, y->memory_bytes);
        assert_int_equal(x->sm_bytes_per_s, y->sm_bytes_per_s);
        assert_int_equal(x->launch_ns, y->launch_ns);
        assert_int_equal(x->job_bytes, y->job_bytes);
        assert_int_equal(x->copy_count, y->copy_count);
        assert_memory_equal(x->copies, y->copies, x->copy_count * sizeof *x->copies);
        assert_int_equal(x->utilisation_count, y->utilisation_count);
        assert_memory_equal(x->utilisation, y->utilisation, x->utilisation_count * sizeof *x->utilisation);
    }
}

/* Saves and loads. */
static struct config_profile *round_trip(const struct config_profile *profile)
{
    char folder[] = "/tmp/millrace-test-XXXXXX", path[64];
    struct config_profile *loaded = NULL;
    struct core_error error = {""};

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/p.yaml", folder);
    if (config_profile_save(profile, path, "a comment", &error) != CORE_OK ||
        config_profile_load(path, &loaded, &error) != CORE_OK)
        fail_msg("%s", error.text);
    unlink(path);
    rmdir(folder);
    return loaded;
}

static void saved_and_loaded_is_the_same(void **state)
{
    struct config_profile *profile = profile_text_parse(&good);

    (void)state;
    free(profile->gpus[1].name);
    profile->gpus[1].name = strdup("#1: \"quoted\" \\ back, [x] {y} & *z ~");
    struct config_profile *loaded = round_trip(profile);
    gpus_equal(profile, loaded);
    config_profile_free(loaded);

    struct config_profile without = *profile;
    without.workers = 0;
    without.pinned_bytes = 0;
    without.gpus = NULL;
    without.gpu_count = 0;
    loaded = round_trip(&without);
    without.workers = 1; /* what 0 counts as */
    gpus_equal(&without, loaded);
    config_profile_free(loaded);
    config_profile_free(profile);
}

static void a_copy_is_deep(void **state)
{
    struct config_profile *profile = profile_text_parse(&good), *copy = NULL;
    const struct config_profile *same;

    (void)state;
    assert_int_equal(config_profile_copy(profile, &copy), CORE_OK);
    gpus_equal(profile, copy);
    assert_ptr_not_equal(profile->gpus[0].name, copy->gpus[0].name);
    assert_ptr_not_equal(profile->gpus[0].copies, copy->gpus[0].copies);
    assert_ptr_not_equal(profile->gpus[0].utilisation, copy->gpus[0].utilisation);
    config_profile_free(profile);
    same = profile = profile_text_parse(&good);
    gpus_equal(same, copy);
    config_profile_free(profile);
    config_profile_free(copy);
}

static void shipped_profiles_survive_a_round_trip(void **state)
{
    const char *const paths[] = {
        PROFILES "cpu-only.yaml",      PROFILES "gtx285-x2.yaml",     PROFILES "emulated-small.yaml",
        PROFILES "emulated-demo.yaml", PROFILES "emulated-pair.yaml", PROFILES "h200-assumed.yaml",
        PROFILES "h200.yaml"};
    const uint32_t cards[] = {0, 2, 1, 1, 2, 1, 1};

    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        struct config_profile *profile = NULL;
        struct core_error error = {""};
        if (config_profile_load(paths[i], &profile, &error) != CORE_OK)
            fail_msg("%s", error.text);
        assert_int_equal(profile->gpu_count > 0 ? profile->gpus[0].count : 0, cards[i]);
        struct config_profile *loaded = round_trip(profile);
        gpus_equal(profile, loaded);
        config_profile_free(loaded);
        config_profile_free(profile);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_arrives),
        cmocka_unit_test(all_of_it_may_be_absent),
        cmocka_unit_test(mistakes_are_named_with_file_and_line),
        cmocka_unit_test(a_profile_from_elsewhere_is_checked_alike),
        cmocka_unit_test(saved_and_loaded_is_the_same),
        cmocka_unit_test(a_copy_is_deep),
        cmocka_unit_test(shipped_profiles_survive_a_round_trip),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
