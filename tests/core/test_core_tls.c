/* Private keys of TLS: which files are taken, and that nothing of them is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/secret.h"
#include "core/tls.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[64];

static int make_file(void **state)
{
    bool locked;
    (void)state;
    snprintf(path, sizeof path, "/tmp/millrace-test-XXXXXX");
    int descriptor = mkstemp(path); /* of mode 0600 */
    return descriptor >= 0 && close(descriptor) == 0 && core_secret_init(1 << 17, &locked, NULL) == CORE_OK &&
                   core_secret_init_openssl(1 << 20, &locked, NULL) == CORE_OK
               ? 0
               : -1;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

enum form { PKCS8, TRADITIONAL, PHRASE, TRADITIONAL_PHRASE };

static void write_key(EVP_PKEY *key, enum form form)
{
    const EVP_CIPHER *cipher = form == PHRASE || form == TRADITIONAL_PHRASE ? EVP_aes_256_cbc() : NULL;
    static unsigned char phrase[] = "phrase";
    BIO *file = BIO_new_file(path, "w");
    assert_non_null(file);
    if (form == PKCS8 || form == PHRASE)
        assert_int_equal(PEM_write_bio_PKCS8PrivateKey(file, key, cipher, cipher ? (char *)phrase : NULL,
                                                       cipher ? 6 : 0, NULL, NULL),
                         1);
    else
        assert_int_equal(PEM_write_bio_PrivateKey_traditional(file, key, cipher, cipher ? phrase : NULL,
                                                              cipher ? 6 : 0, NULL, NULL),
                         1);
    BIO_free(file);
}

static core_status read_key(EVP_PKEY **key, struct core_error *error)
{
    *key = NULL;
    core_status status = core_tls_key_read(path, key, error);
    assert_int_equal(ERR_peek_error(), 0); /* nothing for the next call to trip over */
    return status;
}

static void keys_of_all_kinds_are_read_into_secret_memory(void **state)
{
    EVP_PKEY *keys[] = {EVP_RSA_gen(2048), EVP_EC_gen("P-256"), EVP_PKEY_Q_keygen(NULL, NULL, "ED25519")};
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        for (enum form form = PKCS8; form <= (i < 2 ? TRADITIONAL : PKCS8); form++) {
            EVP_PKEY *found;
            struct core_error error = {""};
            write_key(keys[i], form);
            size_t used = CRYPTO_secure_used();
            if (read_key(&found, &error) != CORE_OK)
                fail_msg("key %zu, form %d: %s", i, form, error.text);
            assert_int_equal(EVP_PKEY_eq(found, keys[i]), 1);
            assert_true(CRYPTO_secure_used() > used); /* the secret numbers; */
            EVP_PKEY_free(found);
            assert_int_equal(CRYPTO_secure_used(), used); /* and no text of the file */
        }
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        EVP_PKEY_free(keys[i]);
}

static void write_text(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void expect_refused(core_status status, const char *message)
{
    struct core_error error = {""};
    EVP_PKEY *found;
    size_t used = CRYPTO_secure_used();
    assert_int_equal(read_key(&found, &error), status);
    if (strstr(error.text, message) == NULL || strstr(error.text, path) == NULL)
        fail_msg("%s", error.text);
    assert_null(found);
    assert_int_equal(CRYPTO_secure_used(), used);
}

static void other_files_are_refused_in_words(void **state)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    (void)state;
    write_key(key, PHRASE);
    expect_refused(CORE_UNSUPPORTED, "pass phrase");
    write_key(key, TRADITIONAL_PHRASE);
    expect_refused(CORE_UNSUPPORTED, "pass phrase");
    write_text("");
    expect_refused(CORE_INVALID, "no private key (PEM)");
    write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    expect_refused(CORE_INVALID, "no private key (PEM)");
    write_key(key, PKCS8);
    assert_int_equal(chmod(path, 0640), 0);
    expect_refused(CORE_DENIED, "chmod 600");
    assert_int_equal(unlink(path), 0);
    expect_refused(CORE_SYSTEM, "No such file or directory");
    write_text(""); /* to be removed */
    EVP_PKEY_free(key);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(keys_of_all_kinds_are_read_into_secret_memory, make_file,
                                        remove_file),
        cmocka_unit_test_setup_teardown(other_files_are_refused_in_words, make_file, remove_file),
    };
    return cmocka_run_group_tests_name("core/tls", tests, NULL, NULL);
}
