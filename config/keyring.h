/* The keyring file: named keys, one a line:
 *
 *   # name      cipher        key in hexadecimal
 *   camera-7    aes-128-cbc   000102030405060708090a0b0c0d0e0f
 *
 * The file must be a regular file of the effective user (or root) with no permission for group and others.
 * Keys go straight into secret memory (core/secret.h); nothing of them passes through ordinary buffers. */
#ifndef MILLRACE_CONFIG_KEYRING_H
#define MILLRACE_CONFIG_KEYRING_H

#include "core/status.h"
#include "core/stream.h"

#include <stddef.h>
#include <stdint.h>

#define CONFIG_KEY_NAME_MAX 63 /* letters, digits, '.', '_', '-' */

struct config_keyring;

/* error: "file:line: what, and what to do". */
CORE_CHECKED core_status config_keyring_load(const char *path, struct config_keyring **keyring,
                                             struct core_error *error);
CORE_CHECKED core_status config_keyring_parse(const char *text, size_t bytes, const char *name,
                                              struct config_keyring **keyring, struct core_error *error);

/* The key (core_cipher_key_bytes(*cipher) bytes, owned by the keyring), or NULL. Safe from many threads as
 * long as nobody frees the keyring. */
const uint8_t *config_keyring_find(const struct config_keyring *keyring, const char *name,
                                   enum core_cipher *cipher);

size_t config_keyring_size(const struct config_keyring *keyring);
void config_keyring_free(struct config_keyring *keyring); /* wipes */

#endif
