/* Bytes of one connection, plain, through TLS 1.3, or through a lane, of which the socket only tells.
 * Non-blocking; its owner calls everything: the I/O thread, before it, until a TLS handshake is done, a handshake
 * thread.
 *
 * One read takes one TLS record, whether there is data in it or not, so that no peer can keep a thread inside
 * a read. Messages without data (key updates) may be SERVER_TLS_MESSAGES, and one more for every
 * SERVER_TLS_MESSAGE_BYTES of data: no TLS library asks for a fresh key as often. */
#ifndef MILLRACE_SERVER_NET_TRANSPORT_H
#define MILLRACE_SERVER_NET_TRANSPORT_H

#include "config/server.h"
#include "core/status.h"
#include "server/mailbox.h"
#include "server/stats.h"

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* The TLS context of one listener: TLS 1.3 only, its certificate, and the client CA if one is asked for. It has
 * shaken hands with a client of our own before anybody gets it. */
CORE_CHECKED core_status server_transport_context(const struct config_listener *listener, SSL_CTX **context,
                                                  struct core_error *error);

#define SERVER_TLS_MESSAGES      64
#define SERVER_TLS_MESSAGE_BYTES (UINT64_C(1) << 20)

struct server_files;
struct server_lane;

struct server_transport {
    int descriptor;
    struct server_lane *lane;                   /* NULL: the socket carries the bytes */
    struct server_files *files;                 /* of a Unix socket; NULL: no descriptors can come */
    bool takes_memory;                          /* one may: */
    int memory;                                 /* that has come; -1: none */
    SSL *tls;                                   /* NULL: plain; */
    struct server_transport_disposal *disposal; /* and what frees it, far from deadlines */
    uint8_t *bounce;                            /* tls: bytes taken and not yet written */
    size_t bounce_bytes, bounce_done;
    bool wants_write;    /* tls: waits for the socket to become writable */
    uint64_t messages;   /* tls: without data, received since the handshake */
    uint64_t data_bytes; /* tls: received */
};

/* Plain; takes over the descriptor. files: of a Unix socket, else NULL. */
void server_transport_init(struct server_transport *transport, int descriptor, struct server_files *files);

/* TLS from here on. What OpenSSL has of it is freed by the owner of `disposer`, after the transport has been
 * closed: freeing takes locks that threads of ordinary priority take, too. CORE_NO_MEMORY. */
CORE_CHECKED core_status server_transport_secure(struct server_transport *transport, SSL_CTX *context,
                                                 struct server_mailbox *disposer, struct core_error *error);

/* To another place in memory. */
void server_transport_move(struct server_transport *to, struct server_transport *from);

/* CORE_OK when the TLS handshake is done, CORE_AGAIN, or CORE_CLOSED and why. */
CORE_CHECKED core_status server_transport_handshake(struct server_transport *transport,
                                                    enum server_turned *reason, struct core_error *error);

/* At most `bytes` of what has come: in `buffer`, or in a lane, where it lies until server_transport_taken and where the
 * peer can change it. *got > 0 with CORE_OK; CORE_AGAIN; CORE_NOT_FOUND at the end of the peer's stream; CORE_CLOSED when broken;
 * CORE_DENIED when there were too many messages without data; CORE_INVALID where a lane's counts can not be. */
CORE_CHECKED core_status server_transport_read(struct server_transport *transport, uint8_t *buffer,
                                               size_t bytes, uint8_t **read, size_t *got);

/* What a read has brought was taken. */
void server_transport_taken(struct server_transport *transport, size_t got);

/* The descriptor that has come is the caller's from here on. */
int server_transport_take_memory(struct server_transport *transport);

/* From here on a lane carries the bytes. It is given back with the transport. */
void server_transport_share(struct server_transport *transport, struct server_lane *lane);

/* May there be something to read of which the socket will not tell again? */
bool server_transport_has_more(const struct server_transport *transport);

/* Takes as many bytes from the front as there is room; *taken may be 0. CORE_OK, CORE_AGAIN when less than
 * all was taken, CORE_CLOSED. Bytes taken are gone from the caller's view even if TLS still holds them. */
CORE_CHECKED core_status server_transport_write(struct server_transport *transport,
                                                const struct iovec *vector, int count, size_t *taken);

/* Writes what TLS holds: CORE_OK when nothing is left. */
CORE_CHECKED core_status server_transport_flush(struct server_transport *transport);

/* Bytes that the socket holds because the peer has not taken them, as far as the system tells: what one write
 * gave a Unix socket counts, in pieces of up to 64 KiB, until all of the piece was taken. */
size_t server_transport_waiting_bytes(const struct server_transport *transport);

/* Bytes that have come and were not read yet, of TLS with the records around them; no system call waits. */
size_t server_transport_left_bytes(const struct server_transport *transport);

/* Ends our direction: TLS close_notify and shutdown(SHUT_WR). */
void server_transport_finish(struct server_transport *transport);
void server_transport_close(struct server_transport *transport);

#endif
