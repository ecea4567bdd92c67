#include "tests/support/certificates.h"

#include "tests/support/require.h"

#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

struct identity {
    EVP_PKEY *key;
    X509 *certificate;
};

static void add_extension(X509 *certificate, int kind, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, kind, value);
    TEST_REQUIRE(extension != NULL && X509_add_ext(certificate, extension, -1) == 1);
    X509_EXTENSION_free(extension);
}

/* issuer NULL: signed by itself, and an authority. */
static struct identity issue_on(const char *curve, const char *name, long serial,
                                const struct identity *issuer)
{
    struct identity made = {.key = EVP_EC_gen(curve), .certificate = X509_new()};
    TEST_REQUIRE(made.key != NULL && made.certificate != NULL);
    const struct identity *by = issuer != NULL ? issuer : &made;
    X509_NAME *subject = X509_get_subject_name(made.certificate);

    TEST_REQUIRE(
        X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0) == 1);
    TEST_REQUIRE(X509_set_version(made.certificate, X509_VERSION_3) == 1);
    TEST_REQUIRE(ASN1_INTEGER_set(X509_get_serialNumber(made.certificate), serial) == 1);
    TEST_REQUIRE(X509_gmtime_adj(X509_getm_notBefore(made.certificate), -3600) != NULL);
    TEST_REQUIRE(X509_gmtime_adj(X509_getm_notAfter(made.certificate), 86400) != NULL);
    TEST_REQUIRE(X509_set_issuer_name(made.certificate, X509_get_subject_name(by->certificate)) == 1);
    TEST_REQUIRE(X509_set_pubkey(made.certificate, made.key) == 1);
    add_extension(made.certificate, NID_basic_constraints, issuer == NULL ? "critical,CA:TRUE" : "CA:FALSE");
    add_extension(made.certificate, NID_subject_alt_name, "IP:127.0.0.1");
    TEST_REQUIRE(X509_sign(made.certificate, by->key, EVP_sha256()) > 0);
    return made;
}

static struct identity issue(const char *name, long serial, const struct identity *issuer)
{
    return issue_on("P-256", name, serial, issuer);
}

static FILE *create(const char *folder, const char *name, const char *suffix)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s.%s", folder, name, suffix);
    int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    TEST_REQUIRE(descriptor >= 0);
    FILE *file = fdopen(descriptor, "w");
    TEST_REQUIRE(file != NULL);
    return file;
}

static void save(const struct identity *identity, const char *folder, const char *name)
{
    FILE *file = create(folder, name, "pem");
    TEST_REQUIRE(PEM_write_X509(file, identity->certificate) == 1);
    TEST_REQUIRE(fclose(file) == 0);
    file = create(folder, name, "key");
    TEST_REQUIRE(PEM_write_PrivateKey(file, identity->key, NULL, NULL, 0, NULL, NULL) == 1);
    TEST_REQUIRE(fclose(file) == 0);
}

/* The server's certificate and a thousand that have nothing to do with it. */
static void save_chain(const struct identity *server, const struct identity *other, const char *folder)
{
    FILE *file = create(folder, "long", "pem");
    TEST_REQUIRE(PEM_write_X509(file, server->certificate) == 1);
    for (int i = 0; i < 1000; i++)
        TEST_REQUIRE(PEM_write_X509(file, other->certificate) == 1);
    TEST_REQUIRE(fclose(file) == 0);
}

static void discard(struct identity *identity)
{
    EVP_PKEY_free(identity->key);
    X509_free(identity->certificate);
}

void test_certificates_write(const char *folder)
{
    struct identity authority = issue("millrace test authority", 1, NULL);
    struct identity server = issue("server", 2, &authority);
    struct identity client = issue("client", 3, &authority);
    struct identity stranger = issue("stranger", 4, NULL);
    struct identity odd = issue_on("secp256k1", "odd", 5, NULL);
    save(&authority, folder, "ca");
    save(&server, folder, "server");
    save(&client, folder, "client");
    save(&stranger, folder, "stranger");
    save(&odd, folder, "odd");
    save_chain(&server, &stranger, folder);
    discard(&authority);
    discard(&server);
    discard(&client);
    discard(&stranger);
    discard(&odd);
}

SSL_CTX *test_certificates_client(const char *folder, const char *certificate)
{
    char path[256];
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    TEST_REQUIRE(context != NULL);
    snprintf(path, sizeof path, "%s/ca.pem", folder);
    TEST_REQUIRE(SSL_CTX_load_verify_locations(context, path, NULL) == 1);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_max_cert_list(context, 1 << 20);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (certificate == NULL)
        return context;
    snprintf(path, sizeof path, "%s/%s.pem", folder, certificate);
    TEST_REQUIRE(SSL_CTX_use_certificate_chain_file(context, path) == 1);
    snprintf(path, sizeof path, "%s/%s.key", folder, certificate);
    TEST_REQUIRE(SSL_CTX_use_PrivateKey_file(context, path, SSL_FILETYPE_PEM) == 1);
    return context;
}
