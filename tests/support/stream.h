/* A stream as its owner sees it: packets of pseudo-random content, and a reference cipher (OpenSSL, in
 * software of the client's own) that knows what every RESULT must hold. One thread at a time. */
#ifndef MILLRACE_TESTS_STREAM_H
#define MILLRACE_TESTS_STREAM_H

#include "tests/support/client.h"

#include <openssl/evp.h>

#define TEST_WINDOW 16384 /* packets that may be on their way */

struct test_stream {
    struct test_client *client;
    uint32_t id;
    struct core_stream_spec spec;
    struct protocol_opened opened;
    uint64_t seed;
    uint32_t sent, received;
    uint32_t sizes[TEST_WINDOW];                       /* by sequence */
    enum protocol_result_status statuses[TEST_WINDOW]; /* that the server must answer with, by sequence */
    uint64_t key_bytes, bytes_per_key;                 /* used, and what the server allows */
    EVP_CIPHER_CTX *reference;
    uint8_t *scratch, *expected; /* one packet, plain and encrypted */
};

/* 1408-byte packets, a burst of 64, one a millisecond, 10 s to come back, AES-128, no padding. */
extern const struct core_stream_spec test_spec;

/* An OPEN body for `spec` with an inline key of the right length. */
struct protocol_open test_open_inline(const struct core_stream_spec *spec, const uint8_t *key);

/* A keyring for servers that are to be talked to over TCP. */
#define TEST_KEYRING                                                                                         \
    "test-1 aes-128-cbc 000102030405060708090a0b0c0d0e0f listener=tcp:127.0.0.1:0\n"                         \
    "test-2 aes-192-cbc 000102030405060708090a0b0c0d0e0f1011121314151617 listener=tcp:127.0.0.1:0\n"         \
    "test-3 aes-256-cbc 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f "                   \
    "listener=tcp:127.0.0.1:0\n"

/* Opens with a key made from the seed, or one of TEST_KEYRING where inline keys are not allowed; the server
 * must accept. */
struct test_stream *test_stream_open(struct test_client *client, const struct core_stream_spec *spec,
                                     uint64_t seed);
/* The same for a stream that the test opened itself. */
struct test_stream *test_stream_adopt(struct test_client *client, const struct core_stream_spec *spec,
                                      uint64_t seed, const uint8_t *key,
                                      const struct protocol_opened *opened);
void test_stream_free(struct test_stream *stream);

/* Reads one RESULT of any of the streams (streams[id - 1]) and checks it. */
struct protocol_result test_streams_take(struct test_client *client, struct test_stream *const *streams);

/* Writes the next DATA frame (header and payload) to `frame`; returns its length. */
size_t test_stream_frame(struct test_stream *stream, uint32_t bytes, uint8_t *frame);
/* Sends the next packet; false if the server closed. */
bool test_stream_send(struct test_stream *stream, uint32_t bytes);
/* A RESULT of this stream: it must be the next one, of the right status, and right in every byte. */
struct protocol_result test_stream_check(struct test_stream *stream, const struct test_frame *frame);
/* Reads and checks RESULTs until all that was sent is back. Nothing else may come meanwhile. */
void test_stream_drain(struct test_stream *stream);
/* CLOSE, and CLOSED with these totals of the stream. */
struct protocol_closed test_stream_close(struct test_stream *stream);

#endif
