/* The keys of millrace hls: URIs, keys that are drawn, keys that a file gives, and whatever may be wrong with them. */
#include "client/hls/keys.h"
#include "core/secret.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])
#define IV              "000102030405060708090a0b0c0d0e0f"

static char folder[] = "/tmp/test-client-hls-keys-XXXXXX";

/* Of the few names, each has its place. */
static const char *in_folder(const char *name)
{
    static char paths[8][128];
    char *path = paths[0];
    for (size_t i = 0; i < COUNT_OF(paths) && (path = paths[i])[0] != '\0'; i++)
        if (strcmp(path + strlen(folder) + 1, name) == 0)
            return path;
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* Puts it in the place of what was there. */
static void give(const char *name, const char *text, size_t bytes, mode_t mode)
{
    int file = open(in_folder("new"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, bytes), bytes);
    assert_int_equal(fchmod(file, mode), 0);
    close(file);
    assert_int_equal(rename(in_folder("new"), in_folder(name)), 0);
}

static unsigned count_keys(const char *path)
{
    unsigned count = 0;
    DIR *keys = opendir(path);
    assert_non_null(keys);
    for (struct dirent *entry; (entry = readdir(keys)) != NULL;)
        count += strstr(entry->d_name, ".key") != NULL;
    closedir(keys);
    return count;
}

/* ---- URIs and info files ---- */

static void makes_uris(void **state)
{
    char uri[HLS_URI_BYTES], long_name[HLS_URI_BYTES];
    (void)state;
    assert_true(hls_key_uri("/keys/{rendition}/{id}.key?{x}", "12", "live/a", uri));
    assert_string_equal(uri, "/keys/live/a/12.key?{x}");
    assert_false(hls_key_uri("\"{id}", "12", "live/a", uri));
    assert_false(hls_key_uri("", "12", "live/a", uri));
    memset(long_name, 'n', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    assert_true(hls_key_uri("{rendition}", "12", long_name, uri));
    assert_false(hls_key_uri("/{rendition}", "12", long_name, uri));
}

static void reads_info_files(void **state)
{
    static const char *const broken[] = {
        "",           "\np\n",        "u\"\np\n", "u\n", "u\n\n000102030405060708090a0b0c0d0e0f",
        "u\np\n00\n", "u\np\nno IV\n"};
    struct hls_key_info info;
    char text[HLS_URI_BYTES + HLS_PATH_BYTES];
    (void)state;
    assert_int_equal(hls_key_info_parse("u\r\np\r\n" IV "\r\n", &info, NULL), CORE_OK);
    assert_string_equal(info.uri, "u");
    assert_string_equal(info.path, "p");
    assert_true(info.has_iv && info.iv[15] == 15);
    assert_int_equal(hls_key_info_parse("u\np", &info, NULL), CORE_OK);
    assert_false(info.has_iv);
    for (size_t i = 0; i < COUNT_OF(broken); i++)
        if (hls_key_info_parse(broken[i], &info, NULL) != CORE_INVALID)
            fail_msg("%s", broken[i]);
    memset(text, 'u', HLS_URI_BYTES);
    memcpy(text + HLS_URI_BYTES, "\np", 3);
    assert_int_equal(hls_key_info_parse(text, &info, NULL), CORE_INVALID);
    memset(text, 'p', HLS_PATH_BYTES + 2);
    memcpy(text, "u\n", 2);
    text[HLS_PATH_BYTES + 2] = '\0';
    assert_int_equal(hls_key_info_parse(text, &info, NULL), CORE_INVALID);
}

/* ---- keys that are drawn ---- */

static void draws(void **state)
{
    struct hls_keys keys = {.folder = folder, .uri_template = "https://k/{id}"};
    struct hls_key *one, *two;
    struct core_error error;
    struct stat about;
    char name[64], bytes[HLS_KEY_BYTES + 1];
    (void)state;
    assert_int_equal(hls_keys_draw(&keys, "a", &one, &error), CORE_OK);
    assert_int_equal(hls_keys_draw(&keys, "a", &two, &error), CORE_OK);
    assert_int_equal(keys.made, 2);
    assert_memory_not_equal(one->bytes, two->bytes, HLS_KEY_BYTES);
    assert_string_not_equal(one->uri, two->uri);
    snprintf(name, sizeof name, "%s.key", one->uri + strlen("https://k/"));
    int file = open(in_folder(name), O_RDONLY | O_CLOEXEC);
    assert_int_equal(fstat(file, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    assert_int_equal(read(file, bytes, sizeof bytes), HLS_KEY_BYTES);
    assert_memory_equal(bytes, one->bytes, HLS_KEY_BYTES);
    close(file);
    hls_key_drop(one);
    hls_key_drop(two);
    hls_keys_close(&keys);
}

static void expect_no_key(const char *where, const char *uri_template, const char *words)
{
    struct hls_keys keys = {.folder = where, .uri_template = uri_template};
    struct hls_key *key;
    struct core_error error = {""};
    if (hls_keys_draw(&keys, "live/a", &key, &error) == CORE_OK || strstr(error.text, words) == NULL)
        fail_msg("%s: %s", words, error.text);
    assert_int_equal(keys.made, 0);
}

static void draws_nothing_that_can_not_be_kept(void **state)
{
    char deep[HLS_PATH_BYTES + 64];
    (void)state;
    expect_no_key("/nowhere", "{id}", "can not be made: No such file");
    expect_no_key(folder, "{id}\n", "no URI");
    memset(deep, '/', sizeof deep);
    deep[sizeof deep - 1] = '\0';
    expect_no_key(deep, "{id}", "name of the folder of keys is too long");
    /* a file that can have 8 bytes only: nothing of it is left */
    struct rlimit before;
    unsigned count = count_keys(folder);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){8, before.rlim_max}), 0);
    expect_no_key(folder, "{id}", "can not be written");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(count_keys(folder), count);
}

/* ---- keys that a file gives ---- */

static void takes_what_is_given(void **state)
{
    char text[256];
    struct hls_keys keys = {.info_file = in_folder("info")};
    struct hls_key *key, *again;
    struct core_error error;
    (void)state;
    give("key", "0123456789abcdef", 16, 0600);
    snprintf(text, sizeof text, "https://k/1\n%s\n" IV "\n", in_folder("key"));
    give("info", text, strlen(text), 0644);
    assert_int_equal(hls_keys_given(&keys, &key, &error), CORE_OK);
    assert_memory_equal(key->bytes, "0123456789abcdef", HLS_KEY_BYTES);
    assert_true(key->has_iv);
    assert_int_equal(hls_keys_given(&keys, &again, &error), CORE_OK);
    assert_ptr_equal(key, again);
    assert_int_equal(keys.made, 1);
    hls_key_drop(again);
    give("info", "nonsense", 8, 0644); /* the key before goes on, and it is said why */
    assert_int_equal(hls_keys_given(&keys, &again, &error), CORE_INVALID);
    assert_ptr_equal(key, again);
    assert_non_null(strstr(error.text, "info: its second line is no path"));
    hls_key_drop(again);
    snprintf(text, sizeof text, "https://k/2\n%s\n", in_folder("key"));
    give("info", text, strlen(text), 0644);
    assert_int_equal(hls_keys_given(&keys, &again, &error), CORE_OK);
    assert_string_equal(again->uri, "https://k/2");
    assert_int_equal(keys.made, 2);
    hls_key_drop(again);
    hls_key_drop(key);
    hls_keys_close(&keys);
}

static void takes_no_bad_keys(void **state)
{
    static const struct {
        const char *info, *key; /* NULL: there is none */
        mode_t mode;
        const char *words;
    } cases[] = {
        {NULL, NULL, 0, "No such file"},
        {"https://k/1\n/nowhere/key\n", NULL, 0, "/nowhere/key"},
        {"https://k/1\n%s\n", "0123456789abcde", 0600, "has 15 bytes, must have 16"},
        {"https://k/1\n%s\n", "0123456789abcdefg", 0600, "has 17 bytes, must have 16"},
        {"https://k/1\n%s\n", "0123456789abcdef", 0644, "chmod 600"},
        {"https://k/1\n%s\n00\n", "0123456789abcdef", 0600, "no IV of 32"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[256];
        struct hls_keys keys = {.info_file = in_folder("info")};
        struct hls_key *key;
        struct core_error error = {""};
        unlink(in_folder("info"));
        if (cases[i].key != NULL)
            give("key", cases[i].key, strlen(cases[i].key), cases[i].mode);
        if (cases[i].info != NULL) {
            const char *mark = strstr(cases[i].info, "%s");
            snprintf(text, sizeof text, "%.*s%s%s", mark == NULL ? 1000 : (int)(mark - cases[i].info),
                     cases[i].info, mark == NULL ? "" : in_folder("key"), mark == NULL ? "" : mark + 2);
            give("info", text, strlen(text), 0644);
        }
        if (hls_keys_given(&keys, &key, &error) == CORE_OK || key != NULL ||
            strstr(error.text, cases[i].words) == NULL)
            fail_msg("%s: %s", cases[i].words, error.text);
    }
    give("info", "", 0, 0644);
    struct hls_keys keys = {.info_file = folder};
    struct hls_key *key;
    struct core_error error;
    assert_int_not_equal(hls_keys_given(&keys, &key, &error), CORE_OK); /* a folder */
    assert_null(key);
}

static int prepare(void **state)
{
    struct core_error error;
    bool locked;
    (void)state;
    return mkdtemp(folder) == NULL || core_secret_init(1 << 16, &locked, &error) != CORE_OK;
}

static int clean_up(void **state)
{
    char line[128];
    (void)state;
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line); /* NOLINT(cert-env33-c): a name of ours */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(makes_uris),
        cmocka_unit_test(reads_info_files),
        cmocka_unit_test(draws),
        cmocka_unit_test(draws_nothing_that_can_not_be_kept),
        cmocka_unit_test(takes_what_is_given),
        cmocka_unit_test(takes_no_bad_keys),
    };
    return cmocka_run_group_tests(tests, prepare, clean_up);
}
