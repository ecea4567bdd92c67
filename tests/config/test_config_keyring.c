/* Keyrings: parsing, mistakes by file and line, and who may read the file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config/keyring.h"
#include "core/secret.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEX16 "000102030405060708090a0b0c0d0e0f"

static const char good[] = "# name cipher key\n"
                           "\n"
                           "camera-7   aes-128-cbc  " HEX16 "\n"
                           "  b.2_X\taes-192-cbc\t" HEX16 "1011121314151617  \r\n"
                           "Z aes-256-cbc FFeeDDccBBaa99887766554433221100" HEX16; /* no line end */

static void check_good(struct config_keyring *keyring)
{
    const struct config_key *key = config_keyring_find(keyring, "camera-7");

    assert_non_null(key);
    assert_int_equal(key->cipher, CORE_CIPHER_AES_128_CBC);
    for (uint8_t i = 0; i < 16; i++)
        assert_int_equal(key->bytes[i], i);
    key = config_keyring_find(keyring, "b.2_X");
    assert_non_null(key);
    assert_int_equal(key->cipher, CORE_CIPHER_AES_192_CBC);
    assert_int_equal(key->bytes[23], 0x17);
    key = config_keyring_find(keyring, "Z");
    assert_non_null(key);
    assert_int_equal(key->cipher, CORE_CIPHER_AES_256_CBC);
    assert_int_equal(key->bytes[0], 0xff);
    assert_int_equal(key->bytes[5], 0xaa);
    assert_int_equal(key->bytes[31], 0x0f);
    assert_null(config_keyring_find(keyring, "z"));
    assert_null(config_keyring_find(keyring, ""));
    assert_null(config_keyring_find(
        keyring, "a-name-that-is-longer-than-any-name-of-a-key-may-be-0123456789-0123456789"));
}

static void good_text_is_parsed(void **state)
{
    struct config_keyring *keyring = NULL;
    struct core_error error = {""};

    (void)state;
    if (config_keyring_parse(good, strlen(good), "keys", &keyring, &error) != CORE_OK)
        fail_msg("%s", error.text);
    check_good(keyring);
    config_keyring_free(keyring);
    config_keyring_free(NULL);
}

static void an_empty_keyring_is_no_mistake(void **state)
{
    struct config_keyring *keyring;

    (void)state;
    assert_int_equal(config_keyring_parse("# none yet\n", 11, "keys", &keyring, NULL), CORE_OK);
    assert_null(config_keyring_find(keyring, "a"));
    config_keyring_free(keyring);
}

static const struct {
    const char *text, *message;
} mistakes[] = {
    {"a", "keys:1: the second word must be aes-128-cbc"},
    {"#\na aes-128-gcm " HEX16, "keys:2: the second word must be aes-128-cbc"},
    {"a a-cipher-name-that-is-much-too-long-for-any " HEX16, "keys:1: the second word must be"},
    {"a aes-128-cbc", "keys:1: a key for aes-128-cbc has 32 hexadecimal digits, not 0"},
    {"a aes-128-cbc " HEX16 "00", "keys:1: a key for aes-128-cbc has 32 hexadecimal digits, not 34"},
    {"a aes-192-cbc " HEX16, "keys:1: a key for aes-192-cbc has 48 hexadecimal digits, not 32"},
    {"a aes-256-cbc " HEX16, "keys:1: a key for aes-256-cbc has 64 hexadecimal digits, not 32"},
    {"\n\na aes-128-cbc 000102030405060708090a0b0c0d0e0g", "keys:3: the key has a character that is no"},
    {"a aes-128-cbc " HEX16 " x", "keys:1: there is something else behind the key than user="},
    {"a aes-128-cbc " HEX16 " # comment", "keys:1: there is something else behind the key"},
    {"a aes-128-cbc " HEX16 " " HEX16, "keys:1: there is something else behind the key"},
    {"a aes-128-cbc " HEX16 " user=", "keys:1: there is something else behind the key"},
    {"a aes-128-cbc " HEX16 " User=0", "keys:1: there is something else behind the key"},
    {"a aes-128-cbc " HEX16 " client-ivs", "keys:1: there is something else behind the key"},
    {"a aes-128-cbc " HEX16 " user=no-such-user-here", "keys:1: user= names nobody on this machine"},
    {"a aes-128-cbc " HEX16 " user=12x", "keys:1: user= wants the name or the number"},
    {"a aes-128-cbc " HEX16 " user=4294967295", "keys:1: user= wants the name or the number"},
    {"a aes-128-cbc " HEX16 " certificate=sha256:00112", "keys:1: certificate=sha256: wants 64"},
    {"a aes-128-cbc " HEX16 " certificate=sha256:" HEX16 HEX16 "00", "keys:1: certificate=sha256: wants 64"},
    {"a aes-128-cbc " HEX16 " listener=7411", "keys:1: "},
    {"\na aes-128-cbc " HEX16 " user=0 client-iv listener=tcp:", "keys:2: "},
    {"k\xc3\xa4se aes-128-cbc " HEX16, "keys:1: a name has 1 to 63 letters"},
    {"a/b aes-128-cbc " HEX16, "keys:1: a name has 1 to 63 letters"},
    {"0123456789012345678901234567890123456789012345678901234567890123 aes-128-cbc " HEX16,
     "keys:1: a name has 1 to 63 letters"},
    {"b aes-128-cbc " HEX16 "\na aes-128-cbc " HEX16 "\nb aes-128-cbc " HEX16 "\n",
     "keys:3: the name 'b' is already used in line 1"},
};

static void mistakes_are_named_with_file_and_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        struct config_keyring *keyring = NULL;
        struct core_error error = {""};
        const core_status status =
            config_keyring_parse(mistakes[i].text, strlen(mistakes[i].text), "keys", &keyring, &error);
        if (status != CORE_INVALID ||
            strncmp(error.text, mistakes[i].message, strlen(mistakes[i].message)) != 0)
            fail_msg("case %zu: status %d, \"%s\", expected \"%s\"", i, status, error.text,
                     mistakes[i].message);
        assert_null(strstr(error.text, "0001020304")); /* no message shows a key */
        assert_null(keyring);
    }
}

static void nul_bytes_are_refused(void **state)
{
    const char text[] = "a\0b aes-128-cbc " HEX16, inside[] = "a aes-128-cbc " HEX16 " user=1\0002";
    struct config_keyring *keyring;

    (void)state;
    assert_int_equal(config_keyring_parse(text, sizeof text - 1, "keys", &keyring, NULL), CORE_INVALID);
    assert_int_equal(config_keyring_parse(inside, sizeof inside - 1, "keys", &keyring, NULL), CORE_INVALID);
}

/* ---- who may use a key ---- */

#define FINGERPRINT                                                                                          \
    "00:11:22:33:44:55:66:77:88:99:aa:bb:CC:DD:EE:FF:"                                                       \
    "00:11:22:33:44:55:66:77:88:99:aa:bb:CC:DD:EE:FF"

static const char ruled[] = "open aes-128-cbc " HEX16 "\n"
                            "user aes-128-cbc " HEX16 " user=1000 user=root\n"
                            "name aes-128-cbc " HEX16 " certificate=camera.example client-iv\n"
                            "print aes-128-cbc " HEX16 " certificate=sha256:" FINGERPRINT "\n"
                            "tcp aes-128-cbc " HEX16 " listener=tcp:127.0.0.1:7411\n"
                            "unix aes-128-cbc " HEX16 " listener=unix:a.sock\n"
                            "mixed aes-128-cbc " HEX16 " user=7 certificate=b listener=tcp:127.0.0.1:7411\n"
                            "iv aes-128-cbc " HEX16 " client-iv audit\n";

enum {
    ROOT,
    USER_7,
    USER_1000,
    TCP,
    TCP_OTHER,
    BLANK_TLS,
    CAMERA,
    CAMERA_PREFIX,
    B,
    ADOPTED_STRANGER,
    USERS
};

static void has_right_words(const struct config_keyring *keyring, const struct config_key_user *users)
{
    static const struct {
        const char *name;
        bool client_iv, may[USERS];
    } rows[] = {
        {"open",
         false,
         {[ROOT] = true,
          [USER_7] = true,
          [USER_1000] = true,
          [CAMERA] = true,
          [CAMERA_PREFIX] = true,
          [B] = true}},
        {"user", false, {[ROOT] = true, [USER_1000] = true}},
        {"name", true, {[CAMERA] = true}},
        {"print", false, {[B] = true}},
        {"tcp", false, {[TCP] = true}},
        {"unix", false, {[USER_7] = true}},
        {"mixed", false, {[USER_7] = true, [TCP] = true, [B] = true}},
        {"iv",
         true,
         {[ROOT] = true,
          [USER_7] = true,
          [USER_1000] = true,
          [CAMERA] = true,
          [CAMERA_PREFIX] = true,
          [B] = true}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct config_key *key = config_keyring_find(keyring, rows[i].name);
        assert_non_null(key);
        assert_int_equal(key->client_iv, rows[i].client_iv);
        assert_int_equal(key->audit, strcmp(rows[i].name, "iv") == 0);
        for (int user = 0; user < USERS; user++)
            if (config_key_is_for(key, &users[user]) != rows[i].may[user])
                fail_msg("key %s, user %d", rows[i].name, user);
    }
}

static struct core_address address_of(const char *text)
{
    struct core_address address;
    assert_int_equal(core_address_parse(text, &address, NULL), CORE_OK);
    return address;
}

static void words_say_who_may_use_a_key(void **state)
{
    static char camera[] = "front\0Camera.example\0", prefix[] = "camera.example.org\0camera\0", b[] = "b\0";
    struct core_address local = address_of("unix:/keys/a.sock"), tcp = address_of("tcp:127.0.0.1:7411"),
                        other = address_of("tcp:127.0.0.1:7412"), tls = address_of("tls:127.0.0.1:7411");
    struct config_listener listeners[] = {{.address = tcp}, {.address = local}};
    struct config_keyring *keyring;
    struct core_error error;
    struct config_key_user users[USERS] = {
        [ROOT] = {.has_uid = true},
        [USER_7] = {.listener = &local, .has_uid = true, .uid = 7},
        [USER_1000] = {.has_uid = true, .uid = 1000},
        [TCP] = {.listener = &tcp},
        [TCP_OTHER] = {.listener = &other},
        [BLANK_TLS] = {.listener = &tls, .names = camera},
        [CAMERA] = {.listener = &tls, .has_certificate = true, .names = camera},
        [CAMERA_PREFIX] = {.listener = &tls, .has_certificate = true, .names = prefix},
        [B] = {.listener = &tls, .has_certificate = true, .names = b},
        [ADOPTED_STRANGER] = {.listener = NULL},
    };
    for (int i = 0; i < CONFIG_KEY_FINGERPRINT_BYTES; i++)
        users[B].fingerprint[i] = (uint8_t)(i % 16 * 0x11);
    (void)state;

    if (config_keyring_parse(ruled, strlen(ruled), "/keys/ring", &keyring, &error) != CORE_OK)
        fail_msg("%s", error.text);
    has_right_words(keyring, users);
    assert_int_equal(config_keyring_check(keyring, listeners, 2, &error), CORE_OK);
    assert_int_equal(config_keyring_check(keyring, listeners, 1, &error), CORE_INVALID);
    assert_string_equal(error.text,
                        "/keys/ring:6: there is no listener unix:/keys/a.sock; write it as in `listeners`");
    config_keyring_free(keyring);
}

/* ---- files ---- */

struct place {
    char folder[64], path[80], link[80];
};

static void file_write(const char *path, const char *text, size_t bytes)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

static int place_make(void **state)
{
    struct place *place = calloc(1, sizeof *place);

    if (!place)
        return -1;
    snprintf(place->folder, sizeof place->folder, "/tmp/millrace-test-XXXXXX");
    if (!mkdtemp(place->folder))
        return -1;
    snprintf(place->path, sizeof place->path, "%s/keys", place->folder);
    snprintf(place->link, sizeof place->link, "%s/link", place->folder);
    *state = place;
    return 0;
}

static int place_remove(void **state)
{
    struct place *place = *state;

    unlink(place->path);
    unlink(place->link);
    const int result = rmdir(place->folder);
    free(place);
    return result;
}

static core_status load(const char *path, char message[512])
{
    struct config_keyring *keyring = NULL;
    struct core_error error = {""};
    const core_status status = config_keyring_load(path, &keyring, &error);

    memcpy(message, error.text, sizeof error.text);
    config_keyring_free(keyring);
    return status;
}

static void a_private_file_is_loaded(void **state)
{
    const struct place *place = *state;
    struct config_keyring *keyring = NULL;
    struct core_error error = {""};

    file_write(place->path, good, strlen(good));
    if (config_keyring_load(place->path, &keyring, &error) != CORE_OK)
        fail_msg("%s", error.text);
    check_good(keyring);
    config_keyring_free(keyring);
    assert_int_equal(chmod(place->path, 0400), 0); /* stricter is fine */
    assert_int_equal(load(place->path, error.text), CORE_OK);
}

static void others_must_not_have_access(void **state)
{
    static const mode_t loose[] = {0640, 0604, 0660, 0610, 0601, 0602, 0777};
    const struct place *place = *state;
    char message[512];

    file_write(place->path, good, strlen(good));
    for (size_t i = 0; i < sizeof loose / sizeof loose[0]; i++) {
        assert_int_equal(chmod(place->path, loose[i]), 0);
        assert_int_equal(load(place->path, message), CORE_DENIED);
        assert_non_null(strstr(message, "chmod 600"));
    }
}

static void another_users_file_is_refused(void **state)
{
    const struct place *place = *state;
    char message[512];

    if (geteuid() != 0)
        skip(); /* only root can give a file away */
    file_write(place->path, good, strlen(good));
    assert_int_equal(chown(place->path, 12345, 12345), 0);
    assert_int_equal(load(place->path, message), CORE_DENIED);
    assert_non_null(strstr(message, "belongs to user 12345"));
}

static void links_are_followed_folders_and_pipes_refused(void **state)
{
    const struct place *place = *state;
    char message[512];

    file_write(place->path, good, strlen(good));
    assert_int_equal(symlink(place->path, place->link), 0);
    assert_int_equal(load(place->link, message), CORE_OK);
    assert_int_equal(chmod(place->path, 0640), 0);
    assert_int_equal(load(place->link, message), CORE_DENIED);
    assert_non_null(strstr(message, "chmod 600"));
    unlink(place->link);
    assert_int_equal(mkfifo(place->link, 0600), 0);
    assert_int_equal(load(place->link, message), CORE_INVALID);
    assert_int_equal(load(place->folder, message), CORE_INVALID);
    assert_non_null(strstr(message, "not a regular file"));
    assert_int_equal(load("/nonexistent/keys", message), CORE_SYSTEM);
}

static void long_lines_are_refused_with_their_number(void **state)
{
    const struct place *place = *state;
    char text[9000], message[512], expected[128];
    static const size_t lengths[] = {2048, 4095, 4096, 4097, 8191, 8192, 8193};

    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memset(text, '#', sizeof text);
        text[0] = '\n';
        file_write(place->path, text, lengths[i] + 1);
        snprintf(expected, sizeof expected, "%s:2: the line is too long", place->path);
        assert_int_equal(load(place->path, message), CORE_INVALID);
        if (strncmp(message, expected, strlen(expected)) != 0)
            fail_msg("%zu bytes: %s", lengths[i], message);
    }
}

/* Many more bytes than the window that the file is read through, so that every cut between windows occurs. */
static void many_keys_survive_the_window(void **state)
{
    const struct place *place = *state;
    struct config_keyring *keyring;
    struct core_error error = {""};
    FILE *file = fopen(place->path, "w");

    assert_non_null(file);
    for (unsigned i = 0; i < 1000; i++)
        fprintf(file, "key-%u aes-128-cbc %032x\n", i, i);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(place->path, 0600), 0);
    if (config_keyring_load(place->path, &keyring, &error) != CORE_OK)
        fail_msg("%s", error.text);
    for (unsigned i = 0; i < 1000; i++) {
        char name[16];
        snprintf(name, sizeof name, "key-%u", i);
        const struct config_key *key = config_keyring_find(keyring, name);
        assert_non_null(key);
        assert_int_equal(key->bytes[14] << 8 | key->bytes[15], i);
    }
    config_keyring_free(keyring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_text_is_parsed),
        cmocka_unit_test(an_empty_keyring_is_no_mistake),
        cmocka_unit_test(mistakes_are_named_with_file_and_line),
        cmocka_unit_test(nul_bytes_are_refused),
        cmocka_unit_test(words_say_who_may_use_a_key),
        cmocka_unit_test_setup_teardown(a_private_file_is_loaded, place_make, place_remove),
        cmocka_unit_test_setup_teardown(others_must_not_have_access, place_make, place_remove),
        cmocka_unit_test_setup_teardown(another_users_file_is_refused, place_make, place_remove),
        cmocka_unit_test_setup_teardown(links_are_followed_folders_and_pipes_refused, place_make,
                                        place_remove),
        cmocka_unit_test_setup_teardown(long_lines_are_refused_with_their_number, place_make, place_remove),
        cmocka_unit_test_setup_teardown(many_keys_survive_the_window, place_make, place_remove),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
