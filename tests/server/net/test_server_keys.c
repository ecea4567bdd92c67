/* Who may use which named key, and what SIGHUP reads again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/admin/snapshot.h"
#include "tests/support/certificates.h"
#include "tests/support/client.h"
#include "tests/support/server.h"
#include "tests/support/stream.h"

#include <fcntl.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEX16 "000102030405060708090a0b0c0d0e0f"

enum { LOCAL, TCP, TLS, TLS_KNOWN, LISTENERS };

static struct test_server server;
static SSL_CTX *known, *nameless;

static const uint8_t key_bytes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* As `openssl x509 -noout -fingerprint -sha256` writes it. */
static void print_fingerprint(const char *name, char text[3 * 32])
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned bytes = 0;
    char path[128];
    snprintf(path, sizeof path, "%s/%s", server.folder, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    X509 *certificate = PEM_read_X509(file, NULL, NULL, NULL);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(X509_digest(certificate, EVP_sha256(), digest, &bytes), 1);
    X509_free(certificate);
    for (unsigned i = 0; i < bytes; i++)
        sprintf(text + 3 * i, i + 1 < bytes ? "%02X:" : "%02X", digest[i]);
}

static void write_keyring(void)
{
    char text[2048], ours[96], strangers[96];
    print_fingerprint("client.pem", ours);
    print_fingerprint("stranger.pem", strangers);
    snprintf(text, sizeof text,
             "plain aes-128-cbc " HEX16 "\n"
             "mine aes-128-cbc " HEX16 " user=%u\n"
             "theirs aes-128-cbc " HEX16 " user=%u\n"
             "port aes-128-cbc " HEX16 " listener=tcp:127.0.0.1:0\n"
             "socket aes-128-cbc " HEX16 " listener=unix:socket\n"
             "name aes-128-cbc " HEX16 " certificate=CLIENT\n"
             "other aes-128-cbc " HEX16 " certificate=stranger\n"
             "print aes-128-cbc " HEX16 " certificate=sha256:%s\n"
             "wrong aes-128-cbc " HEX16 " certificate=sha256:%s\n"
             "either aes-128-cbc " HEX16 " certificate=client listener=tcp:127.0.0.1:0\n"
             "chain aes-128-cbc " HEX16 " client-iv\n",
             (unsigned)geteuid(), (unsigned)geteuid() + 1, ours, strangers);
    test_server_write(&server, "keyring", text);
}

static int set_up(void **state)
{
    (void)state;
    test_server_prepare(&server);
    test_certificates_write(server.folder);
    write_keyring();
    test_server_start(&server,
                      "listeners:\n"
                      "  - {address: 'unix:socket'}\n"
                      "  - {address: 'tcp:127.0.0.1:0'}\n"
                      "  - {address: 'tls:127.0.0.1:0', certificate: server.pem, key: server.key}\n"
                      "  - {address: 'tls:127.0.0.2:0', certificate: server.pem, key: server.key, "
                      "client_ca: ca.pem}\n"
                      "keyring: keyring\nclient_iv: true\n",
                      &test_profile_generous);
    known = test_certificates_client(server.folder, "client");
    nameless = test_certificates_client(server.folder, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    SSL_CTX_free(known);
    SSL_CTX_free(nameless);
    return test_server_stop(&server) == 0 ? 0 : -1;
}

static void dial(struct test_client *client, uint32_t listener)
{
    test_client_dial(client, server_address(server.server, listener));
    if (listener >= TLS)
        assert_true(test_client_secure(client, listener == TLS_KNOWN ? known : nameless));
    test_client_hello(client, NULL);
}

static struct protocol_open open_named(const char *name, enum core_cipher cipher)
{
    struct protocol_open open = {.spec = test_spec,
                                 .key_kind = PROTOCOL_KEY_NAMED,
                                 .key = (const uint8_t *)name,
                                 .key_bytes = (uint32_t)strlen(name)};
    open.spec.cipher = cipher;
    return open;
}

static uint64_t denied(void)
{
    struct server_snapshot *snapshot;
    assert_int_equal(server_snapshot_take(server.server, &snapshot), CORE_OK);
    uint64_t count = snapshot->totals.keys_denied;
    server_snapshot_free(snapshot);
    return count;
}

/* Of a key that is not for the client as of one that is not there, whatever it asks for. */
static void expect_unknown(struct test_client *client, const struct protocol_open *open)
{
    char text[160];
    struct protocol_refused refused;
    snprintf(text, sizeof text, "the server's keyring has no key called '%.*s' that this connection may use",
             (int)open->key_bytes, (const char *)open->key);
    for (int type = PROTOCOL_OPEN; type != 0; type = type == PROTOCOL_OPEN ? PROTOCOL_QUERY : 0) {
        assert_false(test_client_ask(client, (enum protocol_type)type, open, NULL, &refused));
        assert_int_equal(refused.code, PROTOCOL_REFUSED_KEY);
        assert_string_equal(refused.text, text);
    }
}

static void expect_refused(struct test_client *client, const char *name)
{
    struct protocol_open open = open_named(name, CORE_CIPHER_AES_128_CBC);
    expect_unknown(client, &open);
    open.spec.cipher = CORE_CIPHER_AES_256_CBC;
    expect_unknown(client, &open);
    open.has_iv = true;
    expect_unknown(client, &open);
}

static void expect_served(struct test_client *client, const char *name)
{
    struct protocol_open open = open_named(name, CORE_CIPHER_AES_128_CBC);
    struct protocol_opened opened;
    if (!test_client_ask(client, PROTOCOL_OPEN, &open, &opened, NULL))
        fail_msg("%s", name);
    struct test_stream *stream = test_stream_adopt(client, &test_spec, 1, key_bytes, &opened);
    assert_true(test_stream_send(stream, 256));
    test_stream_drain(stream);
    (void)test_stream_close(stream);
    test_stream_free(stream);
}

static void key_rules_name_allowed_clients(void **state)
{
    static const struct {
        const char *name;
        bool may[LISTENERS];
    } rows[] = {
        {"plain", {[LOCAL] = true, [TLS_KNOWN] = true}},
        {"mine", {[LOCAL] = true}},
        {"theirs", {false}},
        {"port", {[TCP] = true}},
        {"socket", {[LOCAL] = true}},
        {"name", {[TLS_KNOWN] = true}},
        {"other", {false}},
        {"print", {[TLS_KNOWN] = true}},
        {"wrong", {false}},
        {"either", {[TCP] = true, [TLS_KNOWN] = true}},
    };
    uint64_t count = denied();
    (void)state;
    for (uint32_t listener = LOCAL; listener < LISTENERS; listener++) {
        struct test_client client;
        dial(&client, listener);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
            if (rows[i].may[listener]) {
                expect_served(&client, rows[i].name);
            } else {
                expect_refused(&client, rows[i].name);
                count += 6;
            }
        assert_int_equal(denied(), count);
        expect_refused(&client, "nothing"); /* the same answer; and it is nobody's */
        assert_int_equal(denied(), count);
        test_client_close(&client);
    }
}

static void client_iv_requires_key_permission(void **state)
{
    struct protocol_open open = open_named("plain", CORE_CIPHER_AES_128_CBC);
    struct protocol_opened opened;
    struct protocol_refused refused;
    struct test_client client;
    (void)state;
    dial(&client, LOCAL);
    open.has_iv = true;
    assert_false(test_client_ask(&client, PROTOCOL_OPEN, &open, NULL, &refused));
    assert_int_equal(refused.code, PROTOCOL_REFUSED_IV);
    assert_non_null(strstr(refused.text, "with the key called 'plain' (write client-iv"));
    open.key = (const uint8_t *)"chain";
    assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, NULL));
    assert_memory_equal(opened.iv, open.iv, CORE_BLOCK_BYTES);
    open = test_open_inline(&test_spec, key_bytes); /* whoever has the key needs no oracle */
    open.has_iv = true;
    assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, NULL));
    test_client_close(&client);
}

/* ---- reading again ---- */

static void reload(core_status status, const char *message)
{
    struct core_error error = {""};
    assert_int_equal(server_reload(server.server, server.config, &error), status);
    if (strstr(error.text, message) == NULL)
        fail_msg("%s", error.text);
}

static void set_mode(const char *name, mode_t mode)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", server.folder, name);
    assert_int_equal(chmod(path, mode), 0);
}

static bool is_trusted(uint32_t listener, SSL_CTX *context)
{
    struct test_client client;
    test_client_dial(&client, server_address(server.server, listener));
    bool secure = test_client_secure(&client, context);
    test_client_close(&client);
    return secure;
}

static void keyring_rules_reloaded(void **state)
{
    struct test_client client;
    (void)state;
    dial(&client, TCP);
    struct protocol_open open = open_named("port", CORE_CIPHER_AES_128_CBC);
    struct protocol_opened opened;
    assert_true(test_client_ask(&client, PROTOCOL_OPEN, &open, &opened, NULL));
    struct test_stream *stream = test_stream_adopt(&client, &test_spec, 1, key_bytes, &opened);
    test_server_write(&server, "keyring", "port aes-128-cbc " HEX16 " listener=tcp:127.0.0.1:1\n");
    reload(CORE_INVALID, "keyring:1: there is no listener tcp:127.0.0.1:1");
    expect_served(&client, "port");
    test_server_write(&server, "keyring", "port aes-128-cbc " HEX16 "\n");
    reload(CORE_OK, "");
    expect_refused(&client, "port");
    assert_true(test_stream_send(stream, 1024)); /* an open stream keeps what it has */
    test_stream_drain(stream);
    test_stream_free(stream);
    test_client_close(&client);
    write_keyring();
    reload(CORE_OK, "");
}

/* The names of two certificates and their keys. */
static void exchange_files(const char *one, const char *other)
{
    static const char *const suffixes[] = {"pem", "key"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        char first[300], second[300];
        snprintf(first, sizeof first, "%s/%s.%s", server.folder, one, suffixes[i]);
        snprintf(second, sizeof second, "%s/%s.%s", server.folder, other, suffixes[i]);
        assert_int_equal(renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE), 0);
    }
}

static void certificates_reloaded(void **state)
{
    SSL_CTX *old = test_certificates_client(server.folder, "client");
    struct test_client client;
    (void)state;
    dial(&client, TLS_KNOWN);
    test_certificates_write(server.folder); /* of another authority, and clients, too */
    SSL_CTX *renewed = test_certificates_client(server.folder, "client");
    assert_true(is_trusted(TLS, old) && !is_trusted(TLS, renewed));
    reload(CORE_OK, "");
    assert_true(is_trusted(TLS, renewed) && !is_trusted(TLS, old));
    assert_true(is_trusted(TLS_KNOWN, renewed) && !is_trusted(TLS_KNOWN, old));
    expect_served(&client, "plain"); /* a connection goes on with the certificates that it began with */
    test_client_close(&client);

    set_mode("server.key", 0640);
    reload(CORE_DENIED, "server.key: its mode 0640 lets others in");
    set_mode("server.key", 0600);
    exchange_files("odd", "server");
    reload(CORE_INVALID, "no TLS handshake is possible with the certificate ");
    exchange_files("odd", "server");
    test_server_write(&server, "ca.pem", "nothing\n");
    reload(CORE_INVALID, "can not use the client CA ");
    test_server_write(&server, "server.pem", "nothing\n");
    reload(CORE_INVALID, "can not use the certificate ");
    assert_true(is_trusted(TLS, renewed) && is_trusted(TLS_KNOWN, renewed));

    SSL_CTX_free(known);
    known = renewed;
    SSL_CTX_free(old);
    SSL_CTX_free(nameless);
    test_certificates_write(server.folder);
    nameless = test_certificates_client(server.folder, NULL);
    write_keyring();
    reload(CORE_OK, "");
    SSL_CTX_free(known);
    known = test_certificates_client(server.folder, "client");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(key_rules_name_allowed_clients),
        cmocka_unit_test(client_iv_requires_key_permission),
        cmocka_unit_test(keyring_rules_reloaded),
        cmocka_unit_test(certificates_reloaded),
    };
    return cmocka_run_group_tests_name("server/keys", tests, set_up, tear_down);
}
