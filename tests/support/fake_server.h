/* A scripted server for tests of the client: a thread that accepts one connection on an abstract Unix socket
 * and runs a script on it. Nothing in a script asserts (cmocka can do that on its own thread only); it
 * returns early when the client is gone. */
#ifndef TESTS_SUPPORT_FAKE_SERVER_H
#define TESTS_SUPPORT_FAKE_SERVER_H

#include "core/protocol.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_PACKET_BYTES_MAX 65536
#define FAKE_BURST_REFUSED    13 /* what fake_serve refuses a MODIFY for */
#define FAKE_MESSAGE_REFUSED  13 /* and a REKEY */

typedef void fake_script(int descriptor, void *argument);

struct fake_server {
    char address[64]; /* to connect to */
    int listener;
    fake_script *script;
    void *argument;
    pthread_t thread;
};

/* Aborts the test program if it can not be set up. */
void fake_server_start(struct fake_server *server, fake_script *script, void *argument);
void fake_server_join(struct fake_server *server); /* after the script's end */

/* Whole, or false. */
bool fake_read(int descriptor, void *bytes, size_t count);
bool fake_write(int descriptor, const void *bytes, size_t count);
bool fake_read_frame(int descriptor, struct protocol_header *header, uint8_t body[FAKE_PACKET_BYTES_MAX]);
/* Reads frames until one of this type. */
bool fake_await_frame(int descriptor, enum protocol_type type, struct protocol_header *header,
                      uint8_t body[FAKE_PACKET_BYTES_MAX]);
bool fake_write_error(int descriptor, enum protocol_error code, bool fatal, const char *text);

/* Reads HELLO, writes WELCOME; the newest version, or this one. */
bool fake_welcome(int descriptor);
bool fake_welcome_version(int descriptor, uint16_t version);
/* The newest that both have, up to this one; 0: none. */
uint16_t fake_welcome_up_to(int descriptor, uint16_t version);

/* Grants every OPEN (streams 1, 2, ...) and "encrypts" by fake_encrypt, until the client goes. */
void fake_serve(int descriptor, void *argument);

/* Pads (PKCS#7 if asked) and inverts every bit; returns the ciphertext's length. */
uint32_t fake_encrypt(enum core_padding padding, const uint8_t *packet, uint32_t bytes, uint8_t *ciphertext);

#endif
