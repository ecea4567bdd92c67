/* The child process as the engine holds it: started with nothing but what it needs, seen to end at once. */
#ifndef MILLRACE_GPU_PROCESS_H
#define MILLRACE_GPU_PROCESS_H

#include "core/status.h"

#include <stdbool.h>
#include <sys/types.h>

struct gpu_process {
    pid_t pid;       /* 0: none */
    int descriptor;  /* pidfd: readable when it has ended; -1 */
    int socket;      /* its other end closes with us, which the child sees; -1 */
    int wait_status; /* of the last one that ended, as waitpid has it */
};

/* Starts `program --serve --backend NAME --device INDEX`, to log in the format in which we do, with the
 * descriptors of gpu/child.h, /dev/null as standard input and output, our standard error, default signals,
 * and nothing else. inherited: region, channel, wake, server. */
CORE_CHECKED core_status gpu_process_start(struct gpu_process *process, const char *program,
                                           const char *backend, unsigned index, const int inherited[4],
                                           struct core_error *error);

/* Collects it if it has ended, with its wait_status. True: there is none any more. */
bool gpu_process_ended(struct gpu_process *process);

void gpu_process_kill(const struct gpu_process *process); /* SIGKILL */

#endif
