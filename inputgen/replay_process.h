/* What another process uses, for reports: CPU time, memory, descriptors, threads. */
#ifndef MILLRACE_INPUTGEN_REPLAY_PROCESS_H
#define MILLRACE_INPUTGEN_REPLAY_PROCESS_H

#include "core/time.h"

#include <sys/types.h>

/* The process at the other end of a connected Unix socket; 0 if it can not be told (another kind of socket,
 * another pid namespace). */
pid_t inputgen_process_behind(int socket);

/* User and system time of all its threads so far, to the kernel's tick (10 ms); -1 if there is no such
 * process. Children do not count. */
core_ns inputgen_process_cpu_ns(pid_t process);

/* Resident memory in bytes; -1 if there is no such process. */
int64_t inputgen_process_resident_bytes(pid_t process);

/* Open descriptors; -1 if there is no such process, or they may not be listed. */
int64_t inputgen_process_descriptors(pid_t process);

/* Threads; -1 if there is no such process. */
int64_t inputgen_process_threads(pid_t process);

#endif
