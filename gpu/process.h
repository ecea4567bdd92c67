/* The child process as the engine holds it: started with nothing but what it needs, seen to end at once.
 *
 * It is awaited and killed by a pidfd: where the server is inside a process that collects all its children
 * (core/embedded.h) this one's number may be another's by then.
 *
 * A socket joins the two; a byte wakes the other side up. Each has an end of its own, with flags of its own:
 * of an eventfd, which both would share, the child could make a read or a write of the server wait. */
#ifndef MILLRACE_GPU_PROCESS_H
#define MILLRACE_GPU_PROCESS_H

#include "core/status.h"
#include "core/user.h"

#include <stdbool.h>
#include <sys/types.h>

struct gpu_process {
    pid_t pid;      /* 0: none */
    int descriptor; /* pidfd: readable when it has ended; -1 */
    int socket;     /* does not block; its other end, the child's, closes with us; -1 */
};

/* How a process ended. */
struct gpu_process_end {
    bool signalled;
    int code; /* exit code, or signal */
};

#define GPU_PROCESS_WAKES 512 /* more than fit into the socket one by one */

#define GPU_PROCESS_NONE ((struct gpu_process){.descriptor = -1, .socket = -1})

struct gpu_process_options {
    const char *program; /* path of millrace-gpu */
    const char *backend;
    unsigned device;              /* index of the card */
    const char *uuid;             /* of the card, the only one that the child sees then; NULL: by index */
    const struct core_user *user; /* that it becomes; NULL: it stays ours */
    int inherited[2];             /* region, channel */
};

/* Our environment for a child. `visible` is the UUID of the only card that CUDA shows there; NULL: those that
 * it shows us. To be freed, in one piece, and before our own environment changes. NULL: no memory. */
char **gpu_process_environment(const char *visible);

/* Starts `program --serve --backend NAME --device INDEX [--uuid UUID] [--user USER]`, to log in the format in which we do,
 * with the descriptors of gpu/child.h, /dev/null as standard input and output, our standard error and
 * environment, default signals, and nothing else. CORE_SYSTEM: there is none. The kernel must have pidfds, and waitid of them (Linux 5.4). Not on
 * a real-time thread: see gpu/keeper.h. */
CORE_CHECKED core_status gpu_process_start(struct gpu_process *process,
                                           const struct gpu_process_options *options,
                                           struct core_error *error);

/* Whether a process that was started has ended, all its threads, and how. It stays to be collected. Waits for
 * nothing: a real-time thread may ask. */
bool gpu_process_ended(const struct gpu_process *process, struct gpu_process_end *end);

/* Whether this thread of it has ended, whatever its others do. Waits for nothing. A thread's number comes
 * from the process: one that is wrong tells nothing, or that the thread has ended. */
bool gpu_process_thread_ended(const struct gpu_process *process, pid_t thread);

/* Waits for its end, collects it, and closes what is open. Not on a real-time thread: see gpu/keeper.h. */
void gpu_process_collect(struct gpu_process *process);

void gpu_process_kill(const struct gpu_process *process); /* SIGKILL */

#endif
