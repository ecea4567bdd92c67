/* A connection to the server inside this process (core/embedded.h). */
#ifndef MILLRACE_CLIENT_EMBEDDED_H
#define MILLRACE_CLIENT_EMBEDDED_H

#include "core/status.h"

/* Loads libmillraced, once for the process's life, and connects. Then *descriptor is the caller's, and is closed
 * before *release is called, once. Any thread. CORE_UNSUPPORTED: there is no such library, or of another version. */
CORE_CHECKED core_status client_embedded_connect(const char *path, int *descriptor, void (**release)(void),
                                                 struct core_error *error);

#endif
