/* The keyring file: named keys, one a line, and behind each who may use it:
 *
 *   # name      cipher        key in hexadecimal                 who may use it
 *   camera-7    aes-128-cbc   000102030405060708090a0b0c0d0e0f   user=camera certificate=camera-7.example
 *
 *   user=NAME or user=NUMBER     of the process at the other end of a Unix socket
 *   certificate=NAME             a TLS client whose certificate, which the listener's client_ca vouches for,
 *                                has this common name, or this DNS name or URI as a subjectAltName
 *   certificate=sha256:DIGITS    a TLS client that shows the very certificate of this fingerprint
 *   listener=ADDRESS             every client of this listener, written as in `listeners`
 *   client-iv                    clients that may use the key may also choose the IV of a stream
 *   audit                        every packet that a GPU encrypts with the key is also encrypted on the CPU
 *                                and compared, as gpus.audit: 1 does for all keys
 *
 * A client may use a key if at least one of its words user, certificate and listener matches. A key without
 * such a word may be used by every client that the server has identified: on a Unix socket, or by a TLS
 * certificate. A client that chooses IVs can use the key as an oracle, block by block; so client-iv alone
 * does not admit any client.
 *
 * The words are here and not in the configuration so that a key is never in force without its words, so that
 * both are reloaded together, and so that the access rules are as private as the keys.
 *
 * The file must be private (core/keyfile.h). Keys go straight into secret memory (core/secret.h); nothing of
 * them passes through ordinary buffers. */
#ifndef MILLRACE_CONFIG_KEYRING_H
#define MILLRACE_CONFIG_KEYRING_H

#include "config/server.h"
#include "core/address.h"
#include "core/status.h"
#include "core/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONFIG_KEY_NAME_MAX          63 /* letters, digits, '.', '_', '-' */
#define CONFIG_KEY_FINGERPRINT_BYTES 32 /* SHA-256 */

struct config_keyring;
struct config_key_word;

struct config_key {
    char name[CONFIG_KEY_NAME_MAX + 1];
    enum core_cipher cipher;
    size_t line;    /* where it was given, from 1 */
    uint8_t *bytes; /* core_cipher_key_bytes(cipher) of secret memory */
    bool client_iv, audit;
    struct config_key_word *words; /* who may use it */
    size_t word_count;
};

/* Who is at the other end of a connection, as far as the server knows. */
struct config_key_user {
    const struct core_address *listener; /* as configured; NULL: it did not come by one */
    bool has_uid, has_certificate;
    uint32_t uid;
    uint8_t fingerprint[CONFIG_KEY_FINGERPRINT_BYTES];
    char *names; /* of the certificate, each ended by NUL, the last by two; NULL: none */
};

/* error: "file:line: what, and what to do". */
CORE_CHECKED core_status config_keyring_load(const char *path, struct config_keyring **keyring,
                                             struct core_error *error);
CORE_CHECKED core_status config_keyring_parse(const char *text, size_t bytes, const char *name,
                                              struct config_keyring **keyring, struct core_error *error);

/* Is each listener that a key names one of these? If not, error names the key's line. */
CORE_CHECKED core_status config_keyring_check(const struct config_keyring *keyring,
                                              const struct config_listener *listeners, size_t count,
                                              struct core_error *error);

/* The key, owned by the keyring, or NULL. Any thread, as long as the keyring is not freed. */
const struct config_key *config_keyring_find(const struct config_keyring *keyring, const char *name);
bool config_key_is_for(const struct config_key *key, const struct config_key_user *user);

size_t
config_keyring_wordless(const struct config_keyring *keyring); /* keys that do not say who may use them */
void config_keyring_free(struct config_keyring *keyring);      /* wipes */

#endif
