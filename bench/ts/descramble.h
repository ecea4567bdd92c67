/* A receiver's descrambler of DVB-CISSA, version 1, written for itself, on libcrypto: it shares nothing with what it
 * checks. It knows the words one after the other, and takes the next one when the parity of the packets changes. One
 * thread. */
#ifndef MILLRACE_BENCH_TS_DESCRAMBLE_H
#define MILLRACE_BENCH_TS_DESCRAMBLE_H

#include <openssl/evp.h>
#include <stdbool.h>
#include <stdint.h>

#define BENCH_WORD_BYTES 16

struct bench_descrambler {
    /* set by the caller: the word of this number, from 0 on, the first one even */
    void (*word)(void *argument, uint64_t number, uint8_t word[BENCH_WORD_BYTES]);
    void *argument;
    /* its own */
    EVP_CIPHER_CTX *context;
    uint64_t number; /* of the word in use */
    bool begun;
    uint64_t scrambled; /* packets */
};

/* Descrambles a packet of 188 bytes in place, and takes the marks off it; one in clear stays as it is. False: no such
 * packet, or OpenSSL failed. */
bool bench_descramble(struct bench_descrambler *descrambler, uint8_t packet[188]);

void bench_descrambler_close(struct bench_descrambler *descrambler);

#endif
