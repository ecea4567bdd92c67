/* A server of messages for tests of `millrace hls`, which does on purpose what a server seldom does. Its cipher is to
 * add the first byte of the message's key to every byte. */
#ifndef TESTS_SUPPORT_HLS_SERVER_H
#define TESTS_SUPPORT_HLS_SERVER_H

#include "tests/support/fake_server.h"

struct hls_server {
    /* how often it does so, set before start */
    unsigned mute;      /* it takes a connection and says nothing on it */
    unsigned old;       /* it speaks version 2 only */
    unsigned refused;   /* OPENs are refused for want of capacity, */
    unsigned busy;      /* REKEYs because the stream has two keys, */
    unsigned unrekeyed; /* and for want of capacity */
    core_ns offer_ns;   /* what it would admit, told with a refusal; 0: nothing */
    unsigned dropped;   /* REKEYs with which the connection ends */
    unsigned closed;    /* messages in which it ends the stream */
    unsigned failing;   /* packets that are not encrypted */
    unsigned too_long;  /* packets that come back longer than they may */
    unsigned strangers; /* answers to what nobody has asked for, before that to an OPEN */
    /* to be looked at after stop */
    unsigned asked;    /* REKEYs that came */
    bool broken_rules; /* by the client */
    /* its thread's */
    struct fake_server fake;
    uint32_t count; /* of streams */
    struct hls_server_stream {
        uint8_t key, next_key;
        uint64_t messages, next_first;
    } streams[16]; /* by number, modulo */
    uint8_t body[FAKE_PACKET_BYTES_MAX], frame[FAKE_PACKET_BYTES_MAX + 256];
};

void hls_server_start(struct hls_server *server);
void hls_server_stop(struct hls_server *server); /* when the client is gone */

/* Is that what it makes of the clear bytes, PKCS#7 behind them? */
bool hls_server_is_cipher(const uint8_t *cipher, size_t cipher_bytes, const uint8_t *clear, size_t bytes,
                          uint8_t key);

#endif
