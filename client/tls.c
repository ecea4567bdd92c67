/* TLS 1.3 under a connection. OpenSSL's own socket BIO writes without MSG_NOSIGNAL, so a server that goes
 * away would kill the process that uses the library by SIGPIPE; hence a BIO of our own. */
#include "client/transport.h"

#include "core/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_AHEAD_BYTES 65536 /* several records a system call */

/* ---- the BIO ---- */

static int bio_descriptor(BIO *bio)
{
    return (int)(intptr_t)BIO_get_data(bio);
}

static int bio_write(BIO *bio, const char *data, int bytes)
{
    ssize_t count = send(bio_descriptor(bio), data, (size_t)bytes, MSG_NOSIGNAL);
    BIO_clear_retry_flags(bio);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_write(bio);
    return (int)count;
}

static int bio_read(BIO *bio, char *room, int bytes)
{
    ssize_t count = recv(bio_descriptor(bio), room, (size_t)bytes, 0);
    BIO_clear_retry_flags(bio);
    BIO_clear_flags(bio, BIO_FLAGS_IN_EOF);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_read(bio);
    if (count == 0)
        BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    return (int)count;
}

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    (void)number;
    (void)pointer;
    switch (command) {
    case BIO_CTRL_FLUSH:
        return 1;
    case BIO_CTRL_EOF:
        return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
    default:
        return 0;
    }
}

static BIO_METHOD *bio_method; /* set once, by make_bio_method */

static void make_bio_method(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "millrace socket");
    if (method == NULL)
        return;
    BIO_meth_set_write(method, bio_write);
    BIO_meth_set_read(method, bio_read);
    BIO_meth_set_ctrl(method, bio_control);
    bio_method = method;
}

static BIO *bio_new(int descriptor)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_bio_method);
    BIO *bio = bio_method == NULL ? NULL : BIO_new(bio_method);
    if (bio == NULL)
        return NULL;
    BIO_set_data(bio, (void *)(intptr_t)descriptor);
    BIO_set_init(bio, 1);
    return bio;
}

/* ---- errors ---- */

/* What went wrong in the TLS call just made, in words: the certificate's fault, OpenSSL's, the system's. */
static core_status tls_error(SSL *tls, const char *doing, struct core_error *error)
{
    int system_error = errno;
    unsigned long code = ERR_peek_last_error();
    long verdict = SSL_get_verify_result(tls);
    core_status status;
    if (verdict != X509_V_OK)
        status = core_error_set(error, CORE_DENIED, "%s: the server's certificate: %s", doing,
                                X509_verify_cert_error_string(verdict));
    else if (code != 0 && ERR_reason_error_string(code) != NULL)
        status = core_error_set(error, CORE_SYSTEM, "%s: %s", doing, ERR_reason_error_string(code));
    else if (code == 0 && system_error != 0)
        status = core_error_set(error, CORE_SYSTEM, "%s: %s", doing, strerror(system_error));
    else
        status = core_error_set(error, CORE_SYSTEM, "%s: the connection broke", doing);
    ERR_clear_error();
    return status;
}

static core_status context_error(const char *what, const char *file, struct core_error *error)
{
    return core_error_set(error, CORE_INVALID, "%s %s: %s", what, file, core_tls_reason());
}

/* ---- reading and writing ---- */

static core_status tls_read(struct client_transport *transport, void *room, size_t bytes, size_t *got,
                            struct core_error *error)
{
    transport->wants = 0;
    ERR_clear_error();
    errno = 0;
    if (SSL_read_ex(transport->tls, room, bytes, got) == 1)
        return CORE_OK;
    switch (SSL_get_error(transport->tls, 0)) {
    case SSL_ERROR_WANT_WRITE:
        transport->wants = POLLOUT;
        return CORE_AGAIN;
    case SSL_ERROR_WANT_READ:
        return CORE_AGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return CORE_CLOSED;
    default:
        if (ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
            ERR_clear_error();
            return CORE_CLOSED;
        }
        return tls_error(transport->tls, "reading from the server", error);
    }
}

static core_status tls_write(struct client_transport *transport, const struct iovec *parts, int count,
                             size_t *written, struct core_error *error)
{
    (void)count; /* one part a call; the caller comes back for the other */
    ERR_clear_error();
    errno = 0;
    if (SSL_write_ex(transport->tls, parts[0].iov_base, parts[0].iov_len, written) == 1)
        return CORE_OK;
    switch (SSL_get_error(transport->tls, 0)) {
    case SSL_ERROR_WANT_WRITE:
    case SSL_ERROR_WANT_READ:
        return CORE_AGAIN;
    default:
        return tls_error(transport->tls, "writing to the server", error);
    }
}

static bool tls_pending(const struct client_transport *transport)
{
    return SSL_has_pending(transport->tls) == 1;
}

static void tls_free(struct client_transport *transport)
{
    SSL_free(transport->tls);
    SSL_CTX_free(transport->tls_context);
    transport->tls = NULL;
    transport->tls_context = NULL;
}

static void tls_close(struct client_transport *transport)
{
    ERR_clear_error();
    SSL_shutdown(transport->tls); /* says goodbye if the socket takes it; a dead connection takes nothing */
    ERR_clear_error();
    tls_free(transport);
    close(transport->descriptor);
}

static const struct client_transport_kind tls_kind = {
    .read = tls_read, .write = tls_write, .pending = tls_pending, .close = tls_close};

/* ---- setting up ---- */

static core_status load_trust(SSL_CTX *context, const struct millrace_tls *options, struct core_error *error)
{
    if (options->ca_file == NULL) {
        if (SSL_CTX_set_default_verify_paths(context) != 1)
            return context_error("the system's trusted certificates", "", error);
    } else if (SSL_CTX_load_verify_file(context, options->ca_file) != 1) {
        return context_error("trusted certificates", options->ca_file, error);
    }
    return CORE_OK;
}

static core_status load_identity(SSL_CTX *context, const struct millrace_tls *options,
                                 struct core_error *error)
{
    if (options->certificate_file == NULL && options->key_file == NULL)
        return CORE_OK;
    if (options->certificate_file == NULL || options->key_file == NULL)
        return core_error_set(error, CORE_INVALID,
                              "a client certificate needs its key, and the key it: give both files");
    if (SSL_CTX_use_certificate_chain_file(context, options->certificate_file) != 1)
        return context_error("client certificate", options->certificate_file, error);
    EVP_PKEY *key = NULL;
    core_status status = core_tls_key_read(options->key_file, &key, error);
    if (status != CORE_OK)
        return core_error_prefix(error, status, "client key");
    if (SSL_CTX_use_PrivateKey(context, key) != 1 || SSL_CTX_check_private_key(context) != 1)
        status = context_error("client key", options->key_file, error);
    EVP_PKEY_free(key);
    return status;
}

static core_status make_context(struct client_transport *transport, const struct millrace_tls *options,
                                struct core_error *error)
{
    SSL_CTX *context = core_tls_ready(NULL) == CORE_OK ? SSL_CTX_new(TLS_client_method()) : NULL;
    transport->tls_context = context;
    if (context == NULL || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for TLS");
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    /* The output buffer may be moved, and more frames put behind the first, before a write is repeated. */
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, READ_AHEAD_BYTES);
    core_status status = load_trust(context, options, error);
    return status ? status : load_identity(context, options, error);
}

/* The name to verify: an address is compared with the certificate's addresses, a name with its names (and
 * told to the server, which may have several certificates). */
static bool expect_name(SSL *tls, const char *name)
{
    uint8_t address[16];
    if (inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), name) == 1;
    return SSL_set1_host(tls, name) == 1 && SSL_set_tlsext_host_name(tls, name) == 1;
}

static core_status make_tls(struct client_transport *transport, const char *name, struct core_error *error)
{
    transport->tls = SSL_new(transport->tls_context);
    BIO *bio = bio_new(transport->descriptor);
    if (transport->tls == NULL || bio == NULL) {
        BIO_free(bio);
        return core_error_set(error, CORE_NO_MEMORY, "no memory for TLS");
    }
    SSL_set_bio(transport->tls, bio, bio);
    if (!expect_name(transport->tls, name))
        return core_error_set(error, CORE_INVALID, "\"%s\" can not be verified in a certificate", name);
    return CORE_OK;
}

static core_status shake_hands(struct client_transport *transport, core_ns deadline_ns,
                               struct core_error *error)
{
    for (;;) {
        ERR_clear_error();
        errno = 0;
        int done = SSL_connect(transport->tls);
        if (done == 1)
            return CORE_OK;
        int reason = SSL_get_error(transport->tls, done);
        if (reason != SSL_ERROR_WANT_READ && reason != SSL_ERROR_WANT_WRITE)
            return tls_error(transport->tls, "TLS handshake", error);
        struct pollfd ready = {.fd = transport->descriptor,
                               .events = reason == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT};
        int timeout_ms = client_milliseconds_until(deadline_ns);
        if (timeout_ms == 0)
            return core_error_set(error, CORE_TIMEOUT, "TLS handshake: the server did not answer in time");
        if (poll(&ready, 1, timeout_ms) < 0 && errno != EINTR)
            return core_error_errno(error, "TLS handshake: poll");
    }
}

core_status client_tls_start(struct client_transport *transport, const struct core_address *address,
                             const struct millrace_tls *tls, core_ns deadline_ns, struct core_error *error)
{
    const char *name = tls->server_name == NULL ? address->host : tls->server_name;
    core_status status;
    if ((status = make_context(transport, tls, error)) || (status = make_tls(transport, name, error)) ||
        (status = shake_hands(transport, deadline_ns, error))) {
        tls_free(transport);
        return status;
    }
    transport->kind = &tls_kind;
    return CORE_OK;
}
