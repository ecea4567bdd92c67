/* The server inside a process: what libmillraced gives to libmillrace, which loads it where a client connects to
 * "embedded:CONFIG.yaml", so that no other program has a server's code. The library exports one symbol of this type,
 * CORE_EMBEDDED_SYMBOL. Both libraries are of one version. */
#ifndef MILLRACE_CORE_EMBEDDED_H
#define MILLRACE_CORE_EMBEDDED_H

#include "core/status.h"

#define CORE_EMBEDDED_LIBRARY "libmillraced.so.1"
#define CORE_EMBEDDED_SYMBOL  "millraced_embedded"

struct core_embedded {
    const char *version; /* first in every version; where it is another one the rest is not looked at */

    /* A connected socket of this process's server: the caller's, as is one release. The server is started if there is
     * none, which takes up to 2 s where its configuration names no profile. CORE_INVALID: what there is has another
     * configuration; or the configuration's own error. Any thread. */
    core_status (*connect)(const char *path, int *descriptor, struct core_error *error);

    /* After the socket was closed. The last one stops the server, within timeouts.drain_ms and a second: then its
     * threads, processes, descriptors and locked memory are gone. Any thread. */
    void (*release)(void);
};

#endif
