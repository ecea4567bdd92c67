#include "core/tls.h"

#include "core/keyfile.h"
#include "core/secret.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdbool.h>
#include <string.h>

#define KEY_FILE_BYTES_MAX ((size_t)32767) /* RSA of 16384 bits takes 13 KiB; a power of two with its NUL */

const char *core_tls_reason(void)
{
    const unsigned long code = ERR_peek_error();
    const char *reason =
        ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code)) : ERR_reason_error_string(code);

    ERR_clear_error();
    return reason ? reason : "no reason given";
}

/* Asked for the pass phrase of a key that is encrypted as a whole file. */
static int refuse_phrase(char *phrase, int size, int writing, void *asked)
{
    (void)phrase, (void)size, (void)writing;
    *(bool *)asked = true;
    return -1;
}

static EVP_PKEY *key_decode(const char *text, size_t bytes, bool *asked)
{
    unsigned char *body = NULL;
    char *kind = NULL;
    long body_bytes = 0;
    EVP_PKEY *key = NULL;
    BIO *file = BIO_new_mem_buf(text, (int)bytes);

    if (file && PEM_bytes_read_bio_secmem(&body, &body_bytes, &kind, PEM_STRING_EVP_PKEY, file, refuse_phrase,
                                          asked) == 1) {
        const unsigned char *at = body;
        *asked = strcmp(kind, PEM_STRING_PKCS8) == 0;
        if (!*asked)
            key = d2i_AutoPrivateKey(NULL, &at, body_bytes);
        OPENSSL_secure_clear_free(body, (size_t)body_bytes);
        OPENSSL_secure_free(kind);
    }
    BIO_free(file);
    return key;
}

core_status core_tls_ready(struct core_error *error)
{
    return OSSL_LIB_CTX_get0_global_default() != NULL
               ? CORE_OK
               : core_error_set(error, CORE_NO_MEMORY, "no memory for OpenSSL");
}

core_status core_tls_key_read(const char *path, EVP_PKEY **key, struct core_error *error)
{
    char *text;
    size_t bytes;
    bool asked = false;
    core_status status = core_keyfile_read(path, KEY_FILE_BYTES_MAX, &text, &bytes, error);

    if (status != CORE_OK)
        return status;
    ERR_clear_error();
    *key = key_decode(text, bytes, &asked);
    if (asked)
        status = core_error_set(error, CORE_UNSUPPORTED,
                                "%s: the key has a pass phrase; take it off (openssl pkey -in FILE -out NEW)",
                                path);
    else if (!*key)
        status = core_error_set(error, CORE_INVALID, "%s: no private key (PEM): %s", path, core_tls_reason());
    ERR_clear_error();
    core_secret_free(text, KEY_FILE_BYTES_MAX + 1);
    return status;
}
