/* A millraced of our own, on a private Unix socket, for as long as a bench needs it. One thread. */
#ifndef MILLRACE_BENCH_DAEMON_H
#define MILLRACE_BENCH_DAEMON_H

#include "core/status.h"

#include <sys/types.h>

struct bench_daemon {
    pid_t process;
    char folder[64];   /* under TMPDIR or /tmp, removed at the end */
    char address[128]; /* to connect to */
};

/* Starts the program with a configuration that has defaults for everything but the socket and, if not NULL,
 * the profile (a path as seen from here, or the name of a shipped one); waits until it answers. */
CORE_CHECKED core_status bench_daemon_start(struct bench_daemon *daemon, const char *program,
                                            const char *profile, struct core_error *error);

/* SIGTERM, then waits. CORE_OK if it stopped with status 0, else CORE_SYSTEM with what it said. */
CORE_CHECKED core_status bench_daemon_stop(struct bench_daemon *daemon, struct core_error *error);

#endif
