#include "server/net/transport.h"

#include "server/net/files.h"
#include "server/net/lane.h"

#include "core/tls.h"

#include <errno.h>
#include <linux/sockios.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define BOUNCE_BYTES    16384              /* one TLS record */
#define CHAIN_BYTES_MAX (16 * 1024 * 1024) /* of a certificate and its issuers: more than any client takes */
#define TURNS_MAX       4096               /* of a handshake, of a record each at least */

static core_status tls_error(struct core_error *error, const char *what, const char *file)
{
    return core_error_set(error, CORE_INVALID, "can not use %s %s: %s", what, file, core_tls_reason());
}

static core_status use_certificate(SSL_CTX *context, const struct config_listener *listener,
                                   struct core_error *error)
{
    EVP_PKEY *key = NULL;

    if (SSL_CTX_use_certificate_chain_file(context, listener->certificate) != 1)
        return tls_error(error, "the certificate", listener->certificate);
    core_status status = core_tls_key_read(listener->key, &key, error);
    if (status != CORE_OK)
        return core_error_prefix(error, status, "can not use the private key");
    if (SSL_CTX_use_PrivateKey(context, key) != 1 || SSL_CTX_check_private_key(context) != 1)
        status = tls_error(error, "the private key", listener->key);
    EVP_PKEY_free(key);
    return status;
}

static core_status ask_for_certificates(SSL_CTX *context, const char *client_ca, struct core_error *error)
{
    STACK_OF(X509_NAME) * names;

    if (SSL_CTX_load_verify_locations(context, client_ca, NULL) != 1 ||
        (names = SSL_load_client_CA_file(client_ca)) == NULL)
        return tls_error(error, "the client CA", client_ca);
    SSL_CTX_set_client_CA_list(context, names);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return CORE_OK;
}

static bool shake_hands(SSL *server, SSL *client)
{
    BIO *near = NULL, *far = NULL;
    bool done = false, waits = true;

    if (BIO_new_bio_pair(&near, 0, &far, 0) != 1)
        return false;
    SSL_set_bio(server, near, near);
    SSL_set_bio(client, far, far);
    SSL_set_accept_state(server);
    SSL_set_connect_state(client);
    SSL_set_verify(server, SSL_VERIFY_NONE, NULL);
    SSL_set_max_cert_list(client, CHAIN_BYTES_MAX);
    for (int turn = 0; turn < TURNS_MAX && waits && !done; turn++) {
        const int client_result = SSL_do_handshake(client), server_result = SSL_do_handshake(server);
        done = client_result == 1 && server_result == 1;
        waits = SSL_get_error(client, client_result) != SSL_ERROR_SSL &&
                SSL_get_error(server, server_result) != SSL_ERROR_SSL;
    }
    return done;
}

/* Only a handshake tells whether OpenSSL has an algorithm for this key, and what it lacks for ever when it got
 * no memory while it set itself up. */
static core_status try_context(SSL_CTX *context, const struct config_listener *listener,
                               struct core_error *error)
{
    SSL_CTX *peer = SSL_CTX_new(TLS_client_method());
    SSL *client = peer != NULL ? SSL_new(peer) : NULL, *server = SSL_new(context);
    core_status status = CORE_OK;

    ERR_clear_error();
    if (client == NULL || server == NULL || !shake_hands(server, client))
        status =
            core_error_set(error, CORE_INVALID, "no TLS handshake is possible with the certificate %s: %s",
                           listener->certificate, core_tls_reason());
    SSL_free(server);
    SSL_free(client);
    SSL_CTX_free(peer);
    ERR_clear_error();
    return status;
}

core_status server_transport_context(const struct config_listener *listener, SSL_CTX **context,
                                     struct core_error *error)
{
    SSL_CTX *fresh = SSL_CTX_new(TLS_server_method());
    if (fresh == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "can not create a TLS context");
    ERR_clear_error();
    SSL_CTX_set_min_proto_version(fresh, TLS1_3_VERSION);
    SSL_CTX_set_mode(fresh, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_clear_mode(fresh, SSL_MODE_AUTO_RETRY); /* a read returns after a record without data */
    SSL_CTX_set_options(fresh, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_CLEANSE_PLAINTEXT); /* keys pass here */
    SSL_CTX_set_session_cache_mode(fresh, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_num_tickets(fresh, 0); /* no resumption: every connection shows its certificate */
    core_status status = use_certificate(fresh, listener, error);
    if (status == CORE_OK && listener->client_ca != NULL)
        status = ask_for_certificates(fresh, listener->client_ca, error);
    if (status == CORE_OK)
        status = try_context(fresh, listener, error);
    if (status != CORE_OK) {
        SSL_CTX_free(fresh);
        return status;
    }
    *context = fresh;
    return CORE_OK;
}

void server_transport_init(struct server_transport *transport, int descriptor, struct server_files *files)
{
    *transport = (struct server_transport){.descriptor = descriptor, .files = files, .memory = -1};
}

/* What is left of a TLS connection that has been closed. */
struct server_transport_disposal {
    struct server_message message; /* first member */
    SSL *tls;
    struct server_mailbox *disposer;
};

static void dispose(void *owner, struct server_message *message)
{
    struct server_transport_disposal *disposal = (struct server_transport_disposal *)message;
    (void)owner;
    SSL_free(disposal->tls);
    ERR_clear_error();
    free(disposal);
}

core_status server_transport_secure(struct server_transport *transport, SSL_CTX *context,
                                    struct server_mailbox *disposer, struct core_error *error)
{
    struct server_transport_disposal *disposal = malloc(sizeof *disposal);
    transport->tls = SSL_new(context);
    transport->bounce = malloc(BOUNCE_BYTES);
    if (disposal == NULL || transport->tls == NULL || transport->bounce == NULL ||
        SSL_set_fd(transport->tls, transport->descriptor) != 1) {
        free(disposal);
        ERR_clear_error();
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a TLS connection");
    }
    *disposal = (struct server_transport_disposal){{.run = dispose}, transport->tls, disposer};
    transport->disposal = disposal;
    SSL_set_accept_state(transport->tls);
    return CORE_OK;
}

static void on_message(int sent, int version, int type, const void *bytes, size_t count, SSL *tls,
                       void *argument)
{
    struct server_transport *transport = argument;
    (void)version, (void)bytes, (void)count, (void)tls;
    if (sent == 0 && type == SSL3_RT_HANDSHAKE)
        transport->messages++;
}

static void count_messages(struct server_transport *transport)
{
    SSL_set_msg_callback(transport->tls, on_message);
    SSL_set_msg_callback_arg(transport->tls, transport);
}

void server_transport_move(struct server_transport *to, struct server_transport *from)
{
    *to = *from;
    *from = (struct server_transport){.descriptor = -1, .memory = -1};
    if (to->tls != NULL && SSL_is_init_finished(to->tls))
        count_messages(to);
}

/* What a failed TLS call means for us; remembers whether it waits for the socket to be writable. */
static core_status tls_outcome(struct server_transport *transport, int result)
{
    int reason = SSL_get_error(transport->tls, result);
    ERR_clear_error();
    transport->wants_write = reason == SSL_ERROR_WANT_WRITE;
    if (reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE)
        return CORE_AGAIN;
    return reason == SSL_ERROR_ZERO_RETURN ? CORE_NOT_FOUND : CORE_CLOSED;
}

/* What OpenSSL says of a handshake that failed, and its words where there are none better. */
static const struct reason {
    int code;
    enum server_turned reason;
    const char *words; /* NULL: OpenSSL's */
} reasons[] = {
    {SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE, SERVER_TURNED_NO_CERTIFICATE,
     "the peer shows no certificate, and the listener has a client_ca"},
    {SSL_R_CERTIFICATE_VERIFY_FAILED, SERVER_TURNED_CERTIFICATE, NULL},
    {SSL_R_UNSUPPORTED_PROTOCOL, SERVER_TURNED_VERSION, "the peer does not know TLS 1.3"},
    {SSL_R_VERSION_TOO_LOW, SERVER_TURNED_VERSION, "the peer does not know TLS 1.3"},
    {SSL_R_HTTP_REQUEST, SERVER_TURNED_NOT_TLS, "the peer speaks HTTP, not TLS"},
    {SSL_R_HTTPS_PROXY_REQUEST, SERVER_TURNED_NOT_TLS, "the peer speaks HTTP, not TLS"},
    {SSL_R_WRONG_VERSION_NUMBER, SERVER_TURNED_NOT_TLS, "the peer does not speak TLS"},
    {SSL_R_PACKET_LENGTH_TOO_LONG, SERVER_TURNED_NOT_TLS, "the peer does not speak TLS"},
    {SSL_R_UNEXPECTED_EOF_WHILE_READING, SERVER_TURNED_GONE, "the peer closed the connection"},
};

/* 0: the socket broke. */
static struct reason why_failed(unsigned long code)
{
    if (code == 0)
        return (struct reason){.reason = SERVER_TURNED_GONE, .words = "the peer closed the connection"};
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if (ERR_GET_REASON(code) == reasons[i].code)
            return reasons[i];
    return (struct reason){.reason = SERVER_TURNED_PROTOCOL};
}

core_status server_transport_handshake(struct server_transport *transport, enum server_turned *reason,
                                       struct core_error *error)
{
    int result = SSL_accept(transport->tls);
    unsigned long code = ERR_peek_error();
    const char *words = code == 0 ? NULL : ERR_reason_error_string(code);
    long verdict = SSL_get_verify_result(transport->tls);

    if (result == 1) {
        ERR_clear_error();
        transport->wants_write = false;
        count_messages(transport);
        return CORE_OK;
    }
    if (tls_outcome(transport, result) == CORE_AGAIN)
        return CORE_AGAIN;
    struct reason why = why_failed(code);
    *reason = why.reason;
    if (why.reason == SERVER_TURNED_CERTIFICATE)
        return core_error_set(error, CORE_CLOSED, "the peer's certificate: %s",
                              X509_verify_cert_error_string(verdict));
    if (why.words != NULL)
        words = why.words;
    return core_error_set(error, CORE_CLOSED, "%s", words != NULL ? words : "no reason given");
}

static bool too_many_messages(const struct server_transport *transport)
{
    return transport->messages > SERVER_TLS_MESSAGES + transport->data_bytes / SERVER_TLS_MESSAGE_BYTES;
}

static core_status tls_read(struct server_transport *transport, uint8_t *buffer, size_t bytes, size_t *got)
{
    int result = SSL_read_ex(transport->tls, buffer, bytes, got);
    if (result != 1) {
        core_status status = tls_outcome(transport, result);
        return too_many_messages(transport) ? CORE_DENIED : status;
    }
    transport->data_bytes += *got;
    return CORE_OK;
}

core_status server_transport_read(struct server_transport *transport, uint8_t *buffer, size_t bytes,
                                  uint8_t **read, size_t *got)
{
    *read = buffer;
    if (transport->tls != NULL)
        return tls_read(transport, buffer, bytes, got);
    if (transport->lane != NULL)
        return core_lane_look(&transport->lane->lane, bytes, read, got);
    ssize_t result = transport->files == NULL
                         ? recv(transport->descriptor, buffer, bytes, 0)
                         : server_files_receive(transport->files, transport->descriptor, buffer, bytes,
                                                transport->takes_memory ? &transport->memory : NULL);
    if (result > 0) {
        *got = (size_t)result;
        return CORE_OK;
    }
    if (result == 0)
        return CORE_NOT_FOUND;
    return errno == EAGAIN || errno == EINTR ? CORE_AGAIN : CORE_CLOSED;
}

void server_transport_taken(struct server_transport *transport, size_t got)
{
    if (transport->lane != NULL && got > 0)
        core_lane_take(&transport->lane->lane, got);
}

int server_transport_take_memory(struct server_transport *transport)
{
    const int memory = transport->memory;
    transport->memory = -1;
    return memory;
}

static ssize_t receive_bells(void *files, int socket, void *buffer, size_t bytes)
{
    return server_files_receive(files, socket, buffer, bytes, NULL);
}

void server_transport_share(struct server_transport *transport, struct server_lane *lane)
{
    lane->lane.socket = transport->descriptor;
    lane->lane.receive = receive_bells;
    lane->lane.receiver = transport->files;
    transport->lane = lane;
}

bool server_transport_has_more(const struct server_transport *transport)
{
    const struct server_lane *lane = transport->lane;
    return lane != NULL && (lane->lane.ended || core_lane_left_bytes(&lane->lane) > 0);
}

static core_status plain_write(struct server_transport *transport, const struct iovec *vector, int count,
                               size_t *taken)
{
    struct msghdr message = {.msg_iov = (struct iovec *)vector, .msg_iovlen = (size_t)count};
    size_t total = 0;

    *taken = 0;
    for (int i = 0; i < count; i++)
        total += vector[i].iov_len;
    ssize_t result = sendmsg(transport->descriptor, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (result < 0)
        return errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? CORE_AGAIN : CORE_CLOSED;
    *taken = (size_t)result;
    return *taken == total ? CORE_OK : CORE_AGAIN;
}

core_status server_transport_flush(struct server_transport *transport)
{
    while (transport->bounce_done < transport->bounce_bytes) {
        size_t written;
        int result = SSL_write_ex(transport->tls, transport->bounce + transport->bounce_done,
                                  transport->bounce_bytes - transport->bounce_done, &written);
        if (result != 1)
            return tls_outcome(transport, result) == CORE_AGAIN ? CORE_AGAIN : CORE_CLOSED;
        transport->bounce_done += written;
    }
    transport->bounce_bytes = transport->bounce_done = 0;
    transport->wants_write = false;
    return CORE_OK;
}

static size_t fill_bounce(struct server_transport *transport, const struct iovec *vector, int count,
                          size_t skip)
{
    size_t filled = 0;
    for (int i = 0; i < count && transport->bounce_bytes < BOUNCE_BYTES; i++) {
        size_t bytes = vector[i].iov_len;
        if (skip >= bytes) {
            skip -= bytes;
            continue;
        }
        size_t piece = bytes - skip, room = BOUNCE_BYTES - transport->bounce_bytes;
        if (piece > room)
            piece = room;
        memcpy(transport->bounce + transport->bounce_bytes, (const uint8_t *)vector[i].iov_base + skip,
               piece);
        transport->bounce_bytes += piece;
        filled += piece;
        skip = 0;
    }
    return filled;
}

core_status server_transport_write(struct server_transport *transport, const struct iovec *vector, int count,
                                   size_t *taken)
{
    if (transport->lane != NULL) {
        core_status status = core_lane_write(&transport->lane->lane, vector, count, taken);
        return status == CORE_INVALID ? CORE_CLOSED : status;
    }
    if (transport->tls == NULL)
        return plain_write(transport, vector, count, taken);
    *taken = 0;
    for (;;) {
        core_status status = server_transport_flush(transport);
        if (status != CORE_OK)
            return status;
        size_t filled = fill_bounce(transport, vector, count, *taken);
        if (filled == 0)
            return CORE_OK;
        *taken += filled;
    }
}

size_t server_transport_waiting_bytes(const struct server_transport *transport)
{
    int bytes = 0;
    if (transport->lane != NULL)
        return core_lane_waiting_bytes(&transport->lane->lane);
    return ioctl(transport->descriptor, SIOCOUTQ, &bytes) == 0 && bytes > 0 ? (size_t)bytes : 0;
}

size_t server_transport_left_bytes(const struct server_transport *transport)
{
    int bytes = 0;
    if (transport->lane != NULL)
        return core_lane_left_bytes(&transport->lane->lane);
    return ioctl(transport->descriptor, FIONREAD, &bytes) == 0 && bytes > 0 ? (size_t)bytes : 0;
}

void server_transport_finish(struct server_transport *transport)
{
    if (transport->tls != NULL && SSL_is_init_finished(transport->tls))
        (void)SSL_shutdown(transport->tls);
    ERR_clear_error();
    shutdown(transport->descriptor, SHUT_WR);
}

/* What has come and was not read may have descriptors. */
static void close_unix(const struct server_transport *transport)
{
    shutdown(transport->descriptor, SHUT_RDWR);
    server_files_close(transport->files, transport->descriptor);
}

void server_transport_close(struct server_transport *transport)
{
    if (transport->disposal != NULL)
        server_mailbox_post(transport->disposal->disposer, &transport->disposal->message);
    else
        SSL_free(transport->tls); /* there was no memory for more */
    free(transport->bounce);
    server_lane_drop(transport->lane);
    if (transport->memory >= 0)
        server_files_close(transport->files, transport->memory);
    if (transport->files != NULL)
        close_unix(transport);
    else if (transport->descriptor >= 0)
        close(transport->descriptor);
    *transport = (struct server_transport){.descriptor = -1, .memory = -1};
}
