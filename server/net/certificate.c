#include "server/net/certificate.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX       16 /* an I/O thread compares them */
#define NAMES_BYTES_MAX 1024

struct names {
    char text[NAMES_BYTES_MAX];
    size_t bytes, count;
};

/* One with a NUL inside would be read as another name than the one that was certified. */
static void add_name(struct names *names, const unsigned char *text, int bytes)
{
    if (bytes <= 0 || memchr(text, '\0', (size_t)bytes) != NULL || names->count == NAMES_MAX ||
        (size_t)bytes + 2 > sizeof names->text - names->bytes)
        return;
    memcpy(names->text + names->bytes, text, (size_t)bytes);
    names->bytes += (size_t)bytes;
    names->text[names->bytes++] = '\0';
    names->count++;
}

static void add_common_names(struct names *names, const X509 *certificate)
{
    const X509_NAME *subject = X509_get_subject_name(certificate);
    for (int at = -1; (at = X509_NAME_get_index_by_NID(subject, NID_commonName, at)) >= 0;) {
        unsigned char *text = NULL;
        int bytes = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
        if (bytes >= 0)
            add_name(names, text, bytes);
        OPENSSL_free(text);
    }
}

static void add_alternative_names(struct names *names, const X509 *certificate)
{
    GENERAL_NAMES *list = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; i < sk_GENERAL_NAME_num(list); i++) {
        int kind = 0;
        const ASN1_STRING *value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(list, i), &kind);
        if (kind == GEN_DNS || kind == GEN_URI)
            add_name(names, ASN1_STRING_get0_data(value), ASN1_STRING_length(value));
    }
    GENERAL_NAMES_free(list);
}

core_status server_certificate_identify(const SSL *tls, struct config_key_user *user)
{
    const X509 *certificate = SSL_get0_peer_certificate(tls);
    struct names names = {.bytes = 0};
    unsigned bytes = sizeof user->fingerprint;

    if (certificate == NULL)
        return CORE_OK;
    add_common_names(&names, certificate);
    add_alternative_names(&names, certificate);
    ERR_clear_error(); /* of names that are none */
    if (X509_digest(certificate, EVP_sha256(), user->fingerprint, &bytes) != 1 ||
        (user->names = malloc(names.bytes + 1)) == NULL)
        return CORE_NO_MEMORY;
    memcpy(user->names, names.text, names.bytes);
    user->names[names.bytes] = '\0';
    user->has_certificate = true;
    return CORE_OK;
}
