/* A millraced of our own, on a private Unix socket, for as long as a bench needs it. One thread. */
#ifndef MILLRACE_BENCH_DAEMON_H
#define MILLRACE_BENCH_DAEMON_H

#include "core/status.h"

#include <stddef.h>
#include <sys/types.h>

struct bench_daemon {
    pid_t process;
    char folder[64];   /* under TMPDIR or /tmp, removed at the end */
    char address[128]; /* to connect to */
    char admin[128];   /* its admin port */
};

struct bench_daemon_options {
    const char *program;
    const char *profile;   /* a path as seen from here, or a shipped one's name; NULL: it measures */
    const char *listeners; /* more of them, as its configuration has them, indented by two; NULL: none */
    const char *keys;      /* more of its configuration, whole lines; NULL: none */
    const char *level;     /* of its log; NULL: warning */
    int log;               /* where that goes; 0: to a file in the folder, which goes with it */
};

/* Starts the program with a configuration that has defaults for everything but the socket and what the
 * options say; waits until it answers. It may not start: CORE_SYSTEM, with the last line of its log. */
CORE_CHECKED core_status bench_daemon_start(struct bench_daemon *daemon,
                                            const struct bench_daemon_options *options,
                                            struct core_error *error);

/* The file that the log goes to by default. */
void bench_daemon_log(const struct bench_daemon *daemon, char *path, size_t size);

/* SIGTERM, then waits. CORE_OK if it stopped with status 0, else CORE_SYSTEM with what it said. */
CORE_CHECKED core_status bench_daemon_stop(struct bench_daemon *daemon, struct core_error *error);

#endif
