/* What the system says of this process, under the names that all monitoring knows. Reads /proc, where the
 * kernel may let the reader wait: an ordinary thread only. */
#ifndef MILLRACE_SERVER_PROCESS_H
#define MILLRACE_SERVER_PROCESS_H

#include "core/time.h"

#include <stdint.h>

struct server_process {
    core_ns cpu_ns;          /* of all threads, since it began */
    uint64_t resident_bytes; /* 0: /proc can not be read; so with the next */
    uint64_t open_fds;
    uint64_t max_fds; /* the soft limit */
};

void server_process_look(struct server_process *process);

#endif
