/* Attacks by TLS: key updates, which cost the server work and bring no data, and handshakes. */
#include "bench/siege/siege.h"
#include "core/protocol.h"

#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define UPDATES   60000
#define HELLOS    64
#define HELLOS_MS 100 /* until those that are unanswered are given up */
#define WAIT_MS   1000

static core_status failed(const char *what, struct core_error *error)
{
    return core_error_set(error, CORE_SYSTEM, "OpenSSL could not %s", what);
}

/* ---- the server's certificate ---- */

static X509 *certificate_make(EVP_PKEY *key)
{
    X509 *made = X509_new();
    X509_EXTENSION *name = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, "IP:127.0.0.1");
    X509_NAME *subject = made ? X509_get_subject_name(made) : NULL;
    const unsigned char *common = (const unsigned char *)"siege";
    const bool good = made && name && X509_set_version(made, X509_VERSION_3) == 1 &&
                      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, common, -1, -1, 0) == 1 &&
                      X509_set_issuer_name(made, subject) == 1 &&
                      ASN1_INTEGER_set(X509_get_serialNumber(made), 1) == 1 &&
                      X509_gmtime_adj(X509_getm_notBefore(made), -3600) &&
                      X509_gmtime_adj(X509_getm_notAfter(made), 86400) && X509_set_pubkey(made, key) == 1 &&
                      X509_add_ext(made, name, -1) == 1 && X509_sign(made, key, EVP_sha256()) > 0;
    X509_EXTENSION_free(name);
    if (good)
        return made;
    X509_free(made);
    return NULL;
}

static FILE *create(const char *folder, const char *name)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    const int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    return descriptor < 0 ? NULL : fdopen(descriptor, "w");
}

core_status siege_certificate_write(const char *folder, struct core_error *error)
{
    EVP_PKEY *key = EVP_RSA_gen(2048); /* the dearer handshake for the server */
    X509 *certificate = key ? certificate_make(key) : NULL;
    FILE *pem = create(folder, "server.pem"), *secret = create(folder, "server.key");
    bool good = certificate && pem && secret && PEM_write_X509(pem, certificate) == 1 &&
                PEM_write_PrivateKey(secret, key, NULL, NULL, 0, NULL, NULL) == 1;
    if (pem)
        good = fclose(pem) == 0 && good;
    if (secret)
        good = fclose(secret) == 0 && good;
    X509_free(certificate);
    EVP_PKEY_free(key);
    return good ? CORE_OK : failed("make a certificate", error);
}

/* ---- key updates ---- */

/* Goes on with the handshake, or with what stands in its stead, until it is done. */
static bool shake(SSL *tls)
{
    const int descriptor = SSL_get_fd(tls);
    for (;;) {
        const int got = SSL_do_handshake(tls);
        if (got == 1)
            return true;
        const int reason = SSL_get_error(tls, got);
        if (reason != SSL_ERROR_WANT_READ && reason != SSL_ERROR_WANT_WRITE)
            return false;
        if (!siege_await(descriptor, reason == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, WAIT_MS))
            return false;
    }
}

/* A connection with its handshake behind it, or NULL. */
static SSL *connect_tls(SSL_CTX *context, const struct siege *siege, unsigned peer)
{
    const int descriptor = siege_dial(siege->tls_port, peer);
    SSL *tls = descriptor < 0 ? NULL : SSL_new(context);
    if (tls && SSL_set_fd(tls, descriptor) == 1 && siege_await(descriptor, POLLOUT, WAIT_MS)) {
        SSL_set_connect_state(tls);
        if (shake(tls))
            return tls;
    }
    SSL_free(tls);
    if (descriptor >= 0)
        (void)close(descriptor);
    return NULL;
}

static void disconnect(SSL *tls)
{
    const int descriptor = SSL_get_rfd(tls);
    SSL_free(tls);
    (void)close(descriptor);
}

/* Sends updates one by one until there were UPDATES, the time is over or the server has had enough. */
static void send_live(struct siege *siege, SSL *tls, int kind)
{
    for (unsigned sent = 0; sent < UPDATES && siege_goes_on(siege); sent++, siege->done++)
        if (SSL_key_update(tls, kind) != 1 || !shake(tls))
            return;
}

static void send_bytes(const struct siege *siege, int descriptor, const char *bytes, size_t count)
{
    while (count > 0 && siege_goes_on(siege) && siege_await(descriptor, POLLOUT, WAIT_MS)) {
        const ssize_t sent = write(descriptor, bytes, count); /* SIGPIPE is ignored */
        if (sent <= 0)
            return;
        bytes += sent;
        count -= (size_t)sent;
    }
}

/* All updates go into memory first, then to the socket as fast as it takes them. */
static void send_made(struct siege *siege, SSL *tls, int kind)
{
    const int descriptor = SSL_get_rfd(tls);
    BIO *memory = BIO_new(BIO_s_mem());
    char *bytes;
    if (memory == NULL)
        return;
    SSL_set0_wbio(tls, memory);
    for (unsigned made = 0; made < UPDATES && siege_goes_on(siege); made++, siege->done++)
        if (SSL_key_update(tls, kind) != 1 || SSL_do_handshake(tls) != 1)
            break;
    const long count = BIO_get_mem_data(memory, &bytes);
    send_bytes(siege, descriptor, bytes, (size_t)count);
}

static bool greet(SSL *tls)
{
    uint8_t frame[PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX];
    const uint32_t bytes = protocol_hello_write(frame, 1, 2);
    return SSL_write(tls, frame, (int)bytes) == (int)bytes;
}

typedef void send_updates(struct siege *siege, SSL *tls, int kind);

/* Connection after connection. */
static core_status updates(struct siege *siege, send_updates *send, int kind, bool hello,
                           struct core_error *error)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    unsigned connections = 0, unanswered = 0;
    if (context == NULL)
        return failed("make a client", error);
    for (unsigned peer = 0; siege_goes_on(siege); peer++) {
        SSL *tls = connect_tls(context, siege, peer);
        if (tls == NULL) {
            unanswered++;
            core_time_sleep_until(core_time_now_ns() + 10 * CORE_NS_PER_MS);
            continue;
        }
        connections++;
        if (!hello || greet(tls))
            send(siege, tls, kind);
        disconnect(tls);
    }
    SSL_CTX_free(context);
    (void)snprintf(siege->note, sizeof siege->note, "on %u connections, %u more not let in", connections,
                   unanswered);
    return connections > 0 ? CORE_OK : core_error_set(error, CORE_TIMEOUT, "no TLS connection was made");
}

core_status siege_updates_live(struct siege *siege, struct core_error *error)
{
    return updates(siege, send_live, SSL_KEY_UPDATE_NOT_REQUESTED, false, error);
}

core_status siege_updates_made(struct siege *siege, struct core_error *error)
{
    return updates(siege, send_made, SSL_KEY_UPDATE_NOT_REQUESTED, false, error);
}

core_status siege_updates_requested(struct siege *siege, struct core_error *error)
{
    return updates(siege, send_made, SSL_KEY_UPDATE_REQUESTED, true, error);
}

/* ---- handshakes ---- */

/* A ClientHello that is right, and never followed by anything. */
static size_t hello_make(char *bytes, size_t size)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *tls = context ? SSL_new(context) : NULL;
    BIO *from = BIO_new(BIO_s_mem()), *to = BIO_new(BIO_s_mem());
    int count = 0;
    if (tls && from && to) {
        SSL_set_bio(tls, from, to);
        SSL_set_connect_state(tls);
        (void)SSL_do_handshake(tls);
        count = BIO_read(to, bytes, (int)size);
    }
    SSL_free(tls);
    SSL_CTX_free(context);
    return count > 0 ? (size_t)count : 0;
}

/* HELLOS connections say their ClientHello at one time; those that were answered within HELLOS_MS count,
 * those that were closed do not. */
static unsigned hellos_round(const struct siege *siege, const char *bytes, size_t count)
{
    struct pollfd sockets[HELLOS];
    unsigned answered = 0;
    for (unsigned at = 0; at < HELLOS; at++)
        sockets[at] = (struct pollfd){.fd = siege_dial(siege->tls_port, at), .events = POLLIN};
    for (unsigned at = 0; at < HELLOS; at++)
        if (sockets[at].fd >= 0 && siege_await(sockets[at].fd, POLLOUT, WAIT_MS))
            (void)!write(sockets[at].fd, bytes, count);
    core_time_sleep_until(core_time_now_ns() + HELLOS_MS * CORE_NS_PER_MS);
    if (poll(sockets, HELLOS, 0) < 0)
        return 0;
    for (unsigned at = 0; at < HELLOS; at++) {
        char byte;
        answered += (sockets[at].revents & POLLIN) != 0 && recv(sockets[at].fd, &byte, 1, MSG_DONTWAIT) == 1;
        if (sockets[at].fd >= 0)
            (void)close(sockets[at].fd);
    }
    return answered;
}

core_status siege_hellos(struct siege *siege, struct core_error *error)
{
    char bytes[2048];
    const size_t count = hello_make(bytes, sizeof bytes);
    uint64_t answered = 0;
    if (count == 0)
        return failed("make a ClientHello", error);
    while (siege_goes_on(siege)) {
        answered += hellos_round(siege, bytes, count);
        siege->done += HELLOS;
    }
    (void)snprintf(siege->note, sizeof siege->note, "%llu answered in %d ms", (unsigned long long)answered,
                   HELLOS_MS);
    return CORE_OK;
}
