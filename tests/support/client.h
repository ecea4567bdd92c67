/* A client without manners: a socket and the codec. It sends whatever bytes it is given, cut anywhere, and
 * reads frame by frame. What is awaited is awaited for TEST_PATIENCE_MS at most, so that a server that hangs
 * fails the test. Every function may be used by any thread and by a forked child; one thread per client. */
#ifndef MILLRACE_TESTS_CLIENT_H
#define MILLRACE_TESTS_CLIENT_H

#include "core/address.h"
#include "core/lane.h"
#include "core/protocol.h"

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TEST_PATIENCE_MS 240000
#define TEST_FRAME_BYTES (PROTOCOL_HEADER_BYTES + PROTOCOL_CONTROL_BYTES_MAX)

struct test_client {
    int descriptor;
    SSL *tls; /* NULL: plain */
    struct core_lane lane;
    bool shares; /* through the lane */
    uint8_t *input;
    size_t input_start, input_end, input_capacity;
    bool ended; /* the server closed, or the connection broke */
    uint16_t welcome_flags;
    uint16_t version; /* in force since WELCOME; 0 before */
};

struct test_frame {
    struct protocol_header header;
    const uint8_t *body; /* valid until the next call on this client */
};

enum test_outcome { TEST_FRAME, TEST_END, TEST_SILENCE };

/* ---- bytes ---- */

/* Connects and says nothing yet. */
void test_client_dial(struct test_client *client, const struct core_address *address);
/* TLS on top; false if the handshake fails. */
bool test_client_secure(struct test_client *client, SSL_CTX *context);
void test_client_close(struct test_client *client);
void test_client_half_close(struct test_client *client);

/* Sends all of it, reading meanwhile whatever comes; false if the server closed first. */
bool test_client_send(struct test_client *client, const void *bytes, size_t count);
/* Sends pieces: one of `first` bytes, then each of `then` bytes, the next one not before the server has read
 * the one before (Unix sockets). */
void test_client_send_cut(struct test_client *client, const void *bytes, size_t count, size_t first,
                          size_t then);
/* Sends what the socket takes now, without reading; returns how much. Plain connections only. */
size_t test_client_push(struct test_client *client, const void *bytes, size_t count);
/* Reads what there is into the buffer, at most `limit` bytes; false at the end. */
bool test_client_fill(struct test_client *client, size_t limit);

/* ---- frames ---- */

enum test_outcome test_client_next(struct test_client *client, struct test_frame *frame, int timeout_ms);
/* The next frame must have this type. */
void test_client_expect(struct test_client *client, enum protocol_type type, struct test_frame *frame);
/* The next frame must be this ERROR; after a fatal one the server must close. */
void test_client_expect_error(struct test_client *client, enum protocol_error code, uint32_t id, bool fatal);
void test_client_expect_end(struct test_client *client);

/* dial and HELLO, for version 1; welcome may be NULL. */
void test_client_connect(struct test_client *client, const struct core_address *address,
                         struct protocol_welcome *welcome);
void test_client_hello(struct test_client *client, struct protocol_welcome *welcome);
/* The same for this version, which the server must take. */
void test_client_hello_version(struct test_client *client, uint16_t version,
                               struct protocol_welcome *welcome);

/* LANE with a memory as it must be, and LANED: frames go through it from then on where it is true, else the server's
 * reason is in text. */
bool test_client_share(struct test_client *client, uint32_t ring_bytes,
                       char text[PROTOCOL_CONTROL_BYTES_MAX]);
/* LANE with any file (-1: none); LANED is not awaited. */
void test_client_send_lane(struct test_client *client, uint32_t ring_bytes, int file);
/* With other bytes behind it, in one send, so that they are read with it. */
void test_client_send_lane_with(struct test_client *client, uint32_t ring_bytes, int file, uint8_t *behind,
                                uint32_t bytes);

/* OPEN or QUERY and its answer, which must be the next frame: true if OPENED. opened and refused may be NULL.
 */
bool test_client_ask(struct test_client *client, enum protocol_type type, const struct protocol_open *open,
                     struct protocol_opened *opened, struct protocol_refused *refused);

/* PING and its PONG, the next frame: everything before it has been handled. */
void test_client_ping(struct test_client *client);

/* Header of a DATA frame. */
void test_data_header(uint8_t frame[PROTOCOL_HEADER_BYTES], uint32_t stream, uint32_t sequence,
                      uint32_t bytes);

#endif
