/* TLS under a connection, against a server made here with certificates made here. */
#include "client/millrace.h"
#include "core/address.h"
#include "tests/support/fake_server.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define LONG_MS  20000
#define SHORT_MS 100

/* ---- certificates ---- */

struct identity {
    EVP_PKEY *key;
    X509 *certificate;
    char certificate_file[64], key_file[64];
};

static char folder[] = "/tmp/millrace-tls-XXXXXX";
static struct identity authority, stranger, server_identity, client_identity;

static void add_extension(X509 *certificate, int number, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, certificate, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, number, value);
    assert_non_null(extension);
    assert_int_equal(X509_add_ext(certificate, extension, -1), 1);
    X509_EXTENSION_free(extension);
}

static void write_files(struct identity *identity, const char *name)
{
    snprintf(identity->certificate_file, sizeof identity->certificate_file, "%s/%s.pem", folder, name);
    snprintf(identity->key_file, sizeof identity->key_file, "%s/%s.key", folder, name);
    FILE *file = fopen(identity->certificate_file, "w");
    assert_non_null(file);
    assert_int_equal(PEM_write_X509(file, identity->certificate), 1);
    fclose(file);
    file = fopen(identity->key_file, "w");
    assert_non_null(file);
    assert_int_equal(fchmod(fileno(file), 0600), 0);
    assert_int_equal(PEM_write_PrivateKey(file, identity->key, NULL, NULL, 0, NULL, NULL), 1);
    fclose(file);
}

/* issuer NULL: signs itself, as an authority. names: subjectAltName. */
static void make_identity(struct identity *identity, const char *name, const struct identity *issuer,
                          const char *names)
{
    identity->key = EVP_EC_gen("P-256");
    identity->certificate = X509_new();
    X509 *certificate = identity->certificate;
    assert_non_null(identity->key);
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), (long)strlen(name) + 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, identity->key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(certificate,
                         X509_get_subject_name(issuer == NULL ? certificate : issuer->certificate));
    if (issuer == NULL)
        add_extension(certificate, NID_basic_constraints, "critical,CA:TRUE");
    if (names != NULL)
        add_extension(certificate, NID_subject_alt_name, names);
    assert_true(X509_sign(certificate, issuer == NULL ? identity->key : issuer->key, EVP_sha256()) > 0);
    write_files(identity, name);
}

static void free_identity(struct identity *identity)
{
    unlink(identity->certificate_file);
    unlink(identity->key_file);
    EVP_PKEY_free(identity->key);
    X509_free(identity->certificate);
}

static int make_certificates(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    make_identity(&authority, "authority", NULL, NULL);
    make_identity(&stranger, "stranger", NULL, NULL);
    make_identity(&server_identity, "server", &authority, "DNS:millrace.test,IP:127.0.0.1");
    make_identity(&client_identity, "client", &authority, NULL);
    return 0;
}

static int remove_certificates(void **state)
{
    (void)state;
    free_identity(&authority);
    free_identity(&stranger);
    free_identity(&server_identity);
    free_identity(&client_identity);
    return rmdir(folder);
}

/* ---- the server: TLS outside, a fake server inside ---- */

struct tls_server {
    int listener;
    char address[64];
    int version_max;
    bool asks_certificate;
    bool silent; /* never shakes hands */
    int leaves;  /* after WELCOME, once a byte comes through this pipe; 0: stays */
    pthread_t thread;
};

static void *serve_inside(void *argument)
{
    int descriptor = *(const int *)argument;
    fake_serve(descriptor, NULL);
    close(descriptor);
    return NULL;
}

/* The library must raise no SIGPIPE, so the process does not ignore it; OpenSSL's writes in here may. */
static void block_sigpipe(void)
{
    sigset_t pipe_signal;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, NULL);
}

static bool forward_plain(SSL *tls, int inside)
{
    uint8_t bytes[32768];
    ssize_t count = recv(inside, bytes, sizeof bytes, 0);
    return count > 0 && SSL_write(tls, bytes, (int)count) == count;
}

static bool forward_tls(SSL *tls, int inside)
{
    uint8_t bytes[32768];
    do {
        int count = SSL_read(tls, bytes, sizeof bytes);
        if (count <= 0 || !fake_write(inside, bytes, (size_t)count))
            return false;
    } while (SSL_pending(tls) > 0);
    return true;
}

static void carry(SSL *tls, int outside)
{
    int ends[2];
    pthread_t inner;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0 ||
        pthread_create(&inner, NULL, serve_inside, &ends[1]) != 0)
        abort();
    bool open = true;
    while (open) {
        struct pollfd ready[2] = {{.fd = outside, .events = POLLIN}, {.fd = ends[0], .events = POLLIN}};
        poll(ready, 2, -1);
        if (ready[0].revents != 0)
            open = forward_tls(tls, ends[0]);
        if (open && ready[1].revents != 0)
            open = forward_plain(tls, ends[0]);
    }
    close(ends[0]);
    pthread_join(inner, NULL);
}

static void welcome_and_leave(SSL *tls, int go)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const struct protocol_welcome welcome = {
        .version = PROTOCOL_VERSION, .packet_bytes_max = 64, .burst_packets_max = 1};
    if (SSL_read(tls, frame, sizeof frame) > 0)
        SSL_write(tls, frame, (int)protocol_welcome_write(frame, &welcome));
    while (read(go, frame, 1) < 0)
        continue;
}

static SSL_CTX *make_context(const struct tls_server *server)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (context == NULL || SSL_CTX_use_certificate(context, server_identity.certificate) != 1 ||
        SSL_CTX_use_PrivateKey(context, server_identity.key) != 1 ||
        SSL_CTX_set_max_proto_version(context, server->version_max) != 1)
        abort();
    if (server->asks_certificate) {
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
        if (SSL_CTX_load_verify_file(context, authority.certificate_file) != 1)
            abort();
    }
    return context;
}

static void *run_server(void *argument)
{
    struct tls_server *server = argument;
    struct pollfd ready = {.fd = server->listener, .events = POLLIN};
    block_sigpipe();
    poll(&ready, 1, -1);
    int outside = accept(server->listener, NULL, NULL);
    if (server->silent) {
        uint8_t bytes[4096];
        while (recv(outside, bytes, sizeof bytes, 0) > 0)
            continue;
        close(outside);
        return NULL;
    }
    SSL_CTX *context = make_context(server);
    SSL *tls = SSL_new(context);
    SSL_set_fd(tls, outside);
    if (SSL_accept(tls) == 1 && server->leaves > 0)
        welcome_and_leave(tls, server->leaves);
    else if (SSL_is_init_finished(tls))
        carry(tls, outside);
    SSL_free(tls);
    SSL_CTX_free(context);
    ERR_clear_error();
    close(outside);
    return NULL;
}

static void start(struct tls_server *server)
{
    struct core_address address, bound;
    struct core_error error;
    assert_int_equal(core_address_parse("tcp:127.0.0.1:0", &address, NULL), MILLRACE_OK);
    if (core_address_listen(&address, 0, &server->listener, &bound, &error) != CORE_OK)
        fail_msg("%s", error.text);
    snprintf(server->address, sizeof server->address, "tls:127.0.0.1:%u", bound.port);
    assert_int_equal(pthread_create(&server->thread, NULL, run_server, server), 0);
}

static void join(struct tls_server *server)
{
    pthread_join(server->thread, NULL);
    close(server->listener);
}

/* ---- tests ---- */

static void check_stream(struct millrace *connection)
{
    static uint8_t packet[60000], ciphertext[60016], expected[60016];
    const struct millrace_open contract = {
        .size = sizeof contract,
        .packet_bytes = sizeof packet,
        .burst_packets = 1,
        .interval_ns = 1000000,
        .latency_ns = 1000000,
        .cipher = MILLRACE_CIPHER_AES_256_CBC,
        .padding = MILLRACE_PADDING_PKCS7,
        .key_kind = MILLRACE_KEY_INLINE,
        .key = (const uint8_t *)"0123456789abcdef0123456789abcdef",
        .key_bytes = 32,
    };
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_result result = {.size = sizeof result};
    struct core_error error;
    uint32_t bytes;
    if (millrace_open_stream(connection, &contract, LONG_MS, &opened, NULL, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t length = i * 3100; /* up to several records */
        memset(packet, (int)i, length);
        if (millrace_encrypt(connection, opened.stream, packet, length, LONG_MS, ciphertext, &bytes, &result,
                             error.text) != MILLRACE_OK)
            fail_msg("%s", error.text);
        assert_int_equal(bytes, fake_encrypt(CORE_PADDING_PKCS7, packet, length, expected));
        assert_memory_equal(ciphertext, expected, bytes);
    }
}

static void count_bytes(void *argument, const struct millrace_result *result)
{
    *(size_t *)argument += result->bytes;
}

/* Far more than the socket takes: writes are cut and repeated, results come in the meantime. */
static void check_flood(struct millrace *connection)
{
    static const uint8_t packet[32768];
    size_t received = 0, sent = 0;
    const struct millrace_callbacks callbacks = {
        .size = sizeof callbacks, .on_result = count_bytes, .argument = &received};
    assert_int_equal(millrace_set_callbacks(connection, &callbacks, NULL), MILLRACE_OK);
    for (int i = 0; i < 200; i++, sent += sizeof packet)
        assert_int_equal(millrace_data(connection, 1, packet, sizeof packet, NULL, NULL), MILLRACE_OK);
    while (received < sent + 200 * 16) {
        struct pollfd ready = {.fd = millrace_descriptor(connection), .events = millrace_events(connection)};
        assert_int_equal(poll(&ready, 1, LONG_MS), 1);
        assert_int_equal(millrace_process(connection, 2, NULL), MILLRACE_OK);
    }
}

static void test_good(void **state)
{
    (void)state;
    struct tls_server server = {.version_max = TLS1_3_VERSION};
    const struct millrace_tls tls = {.size = sizeof tls, .ca_file = authority.certificate_file};
    struct millrace *connection;
    struct core_error error;
    start(&server);
    if (millrace_connect(server.address, &tls, LONG_MS, &connection, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    check_stream(connection);
    check_flood(connection);
    millrace_disconnect(connection);
    join(&server);
}

static void test_client_certificate(void **state)
{
    (void)state;
    struct tls_server server = {.version_max = TLS1_3_VERSION, .asks_certificate = true};
    const struct millrace_tls tls = {.size = sizeof tls,
                                     .ca_file = authority.certificate_file,
                                     .certificate_file = client_identity.certificate_file,
                                     .key_file = client_identity.key_file,
                                     .server_name = "millrace.test"};
    struct millrace *connection;
    struct core_error error;
    start(&server);
    if (millrace_connect(server.address, &tls, LONG_MS, &connection, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    check_stream(connection);
    millrace_disconnect(connection);
    join(&server);
}

static void expect_failure(struct tls_server *server, const struct millrace_tls *tls, int timeout_ms,
                           millrace_status expected, const char *words)
{
    struct millrace *connection = NULL;
    struct core_error error = {.text = ""};
    start(server);
    millrace_status status = millrace_connect(server->address, tls, timeout_ms, &connection, error.text);
    if (status != expected || strstr(error.text, words) == NULL)
        fail_msg("status %s, text \"%s\"; expected %s, \"%s\"", millrace_status_text(status), error.text,
                 millrace_status_text(expected), words);
    assert_null(connection);
    assert_non_null(strstr(error.text, server->address));
    join(server);
}

static void test_server_that_is_not_trusted(void **state)
{
    (void)state;
    struct tls_server server = {.version_max = TLS1_3_VERSION};
    const struct millrace_tls other_authority = {.size = sizeof other_authority,
                                                 .ca_file = stranger.certificate_file};
    const struct millrace_tls other_name = {
        .size = sizeof other_name, .ca_file = authority.certificate_file, .server_name = "other.test"};
    const struct millrace_tls other_address = {
        .size = sizeof other_address, .ca_file = authority.certificate_file, .server_name = "127.0.0.2"};
    expect_failure(&server, &other_authority, LONG_MS, MILLRACE_DENIED, "certificate");
    expect_failure(&server, &other_name, LONG_MS, MILLRACE_DENIED, "mismatch");
    expect_failure(&server, &other_address, LONG_MS, MILLRACE_DENIED, "mismatch");
    expect_failure(&server, NULL, LONG_MS, MILLRACE_DENIED, "certificate"); /* the system trusts it not */
}

static void test_old_version(void **state)
{
    (void)state;
    struct tls_server server = {.version_max = TLS1_2_VERSION};
    const struct millrace_tls tls = {.size = sizeof tls, .ca_file = authority.certificate_file};
    expect_failure(&server, &tls, LONG_MS, MILLRACE_SYSTEM, "version");
}

static void test_certificate_that_is_asked_for_and_missing(void **state)
{
    (void)state;
    struct tls_server server = {.version_max = TLS1_3_VERSION, .asks_certificate = true};
    const struct millrace_tls tls = {.size = sizeof tls, .ca_file = authority.certificate_file};
    expect_failure(&server, &tls, LONG_MS, MILLRACE_SYSTEM, "certificate required");
}

static void test_silent_server(void **state)
{
    (void)state;
    struct tls_server server = {.silent = true};
    const struct millrace_tls tls = {.size = sizeof tls, .ca_file = authority.certificate_file};
    expect_failure(&server, &tls, SHORT_MS, MILLRACE_TIMEOUT, "in time");
}

/* The first write after the server has gone brings a reset, the second would raise SIGPIPE. */
static void test_server_that_leaves(void **state)
{
    (void)state;
    int go[2];
    assert_int_equal(pipe(go), 0);
    struct tls_server server = {.version_max = TLS1_3_VERSION, .leaves = go[0]};
    const struct millrace_tls tls = {.size = sizeof tls, .ca_file = authority.certificate_file};
    struct millrace *connection;
    struct core_error error;
    start(&server);
    if (millrace_connect(server.address, &tls, LONG_MS, &connection, error.text) != MILLRACE_OK)
        fail_msg("%s", error.text);
    assert_int_equal(write(go[1], "g", 1), 1);
    join(&server);
    millrace_status status;
    do {
        assert_int_equal(millrace_send_ping(connection, NULL, 0, NULL, NULL), MILLRACE_OK);
        status = millrace_flush(connection, error.text);
    } while (status == MILLRACE_OK);
    assert_int_equal(status, MILLRACE_CLOSED);
    millrace_disconnect(connection);
    close(go[0]);
    close(go[1]);
}

static void test_files_that_are_wrong(void **state)
{
    (void)state;
    struct tls_server server = {.silent = true};
    const struct millrace_tls no_ca = {.size = sizeof no_ca, .ca_file = "/nowhere/ca.pem"};
    const struct millrace_tls no_key = {.size = sizeof no_key,
                                        .certificate_file = client_identity.certificate_file};
    const struct millrace_tls wrong_key = {.size = sizeof wrong_key,
                                           .certificate_file = client_identity.certificate_file,
                                           .key_file = server_identity.key_file};
    const struct millrace_tls no_certificate = {.size = sizeof no_certificate,
                                                .certificate_file = client_identity.key_file,
                                                .key_file = client_identity.key_file};
    expect_failure(&server, &no_ca, LONG_MS, MILLRACE_INVALID, "/nowhere/ca.pem");
    expect_failure(&server, &no_key, LONG_MS, MILLRACE_INVALID, "give both files");
    expect_failure(&server, &wrong_key, LONG_MS, MILLRACE_INVALID, "client key");
    expect_failure(&server, &no_certificate, LONG_MS, MILLRACE_INVALID, "client certificate");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_client_certificate),
        cmocka_unit_test(test_server_that_is_not_trusted),
        cmocka_unit_test(test_old_version),
        cmocka_unit_test(test_certificate_that_is_asked_for_and_missing),
        cmocka_unit_test(test_silent_server),
        cmocka_unit_test(test_server_that_leaves),
        cmocka_unit_test(test_files_that_are_wrong),
    };
    return cmocka_run_group_tests(tests, make_certificates, remove_certificates);
}
