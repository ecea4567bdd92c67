/* What server and client have in common of TLS: a private key from its file, and OpenSSL's errors in words.
 */
#ifndef MILLRACE_CORE_TLS_H
#define MILLRACE_CORE_TLS_H

#include "core/status.h"

#include <openssl/types.h>

/* Is OpenSSL there? CORE_NO_MEMORY: it could not set itself up, and most of its functions would crash. Before
 * the first of them; any thread. */
CORE_CHECKED core_status core_tls_ready(struct core_error *error);

/* The private key in a PEM file that is private (core/keyfile.h). The file's text and the key's secret
 * numbers lie in secret memory (core/secret.h) where that is set up; while it is decoded OpenSSL has a copy
 * in ordinary memory, which it wipes. A key with a pass phrase is refused: nobody is there to be asked. */
CORE_CHECKED core_status core_tls_key_read(const char *path, EVP_PKEY **key, struct core_error *error);

/* What OpenSSL, whose errors of this thread are forgotten, says of the first of them, or the system, if that
 * is where it came from: "No such file or directory". */
const char *core_tls_reason(void);

#endif
