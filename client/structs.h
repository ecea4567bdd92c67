/* Structs of client/millrace.h that begin with their size: read from, and written to, those of a caller that
 * was built with another version of that header. Pure; any thread.
 *
 * least_bytes are those of the struct's first version, up to its last member: CLIENT_STRUCT_END. They never
 * change. A struct that callers fill must not end in padding, which would become a member full of chance. */
#ifndef MILLRACE_CLIENT_STRUCTS_H
#define MILLRACE_CLIENT_STRUCTS_H

#include "core/status.h"

#include <stddef.h>

#define CLIENT_STRUCT_BYTES_MAX 4096 /* no struct of any version is longer */

#define CLIENT_STRUCT_END(type, member) (offsetof(type, member) + sizeof(((type *)0)->member))

/* Copies `given` into `own`, whose size is own_bytes: what the caller's lacks is 0. CORE_INVALID: a size that
 * the struct never had; CORE_UNSUPPORTED: more than is known here, and that is not 0. */
CORE_CHECKED core_status client_struct_read(void *own, size_t own_bytes, size_t least_bytes,
                                            const void *given, const char *name, struct core_error *error);

/* Whether client_struct_write may follow: asked before anything is done whose result would be lost. */
CORE_CHECKED core_status client_struct_check(const void *given, size_t least_bytes, const char *name,
                                             struct core_error *error);

/* Fills `given` (NULL: nothing to do) but for its size: what `own` lacks becomes 0. */
void client_struct_write(void *given, const void *own, size_t own_bytes);

#endif
