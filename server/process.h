/* The standard figures of this process for monitoring. Reads /proc, which may block: not for real-time
 * threads.
 */
#ifndef MILLRACE_SERVER_PROCESS_H
#define MILLRACE_SERVER_PROCESS_H

#include "core/time.h"

#include <stdint.h>

struct server_process {
    core_ns cpu_ns;          /* of all threads, since it began */
    uint64_t resident_bytes; /* 0: /proc can not be read; then open_fds is 0, too */
    uint64_t open_fds;
    uint64_t max_fds; /* the soft limit */
};

void server_process_poll(struct server_process *process);

#endif
