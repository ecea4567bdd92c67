/* Files with keys: a keyring, the private key of a certificate, the key of one stream. One rule holds for all
 * of them: the file belongs to the process's user or to root, and nobody else may read or write it. It is the
 * opened file that is looked at, so links may lead to it. */
#ifndef MILLRACE_CORE_KEYFILE_H
#define MILLRACE_CORE_KEYFILE_H

#include "core/status.h"

#include <stddef.h>

/* The rule, of an open file; `path` is for the error. CORE_DENIED. */
CORE_CHECKED core_status core_keyfile_check(int descriptor, const char *path, struct core_error *error);

/* Opens a regular file of at most bytes_max bytes to which the rule applies. */
CORE_CHECKED core_status core_keyfile_open(const char *path, size_t bytes_max, int *descriptor,
                                           struct core_error *error);

/* The same, and the whole of it in secret memory (core/secret.h), to be freed with core_secret_free and
 * bytes_max + 1. A NUL behind it does not count. */
CORE_CHECKED core_status core_keyfile_read(const char *path, size_t bytes_max, char **text, size_t *bytes,
                                           struct core_error *error);

#endif
