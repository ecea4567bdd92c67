/* Collects processes that have ended, on a thread of ordinary priority.
 *
 * To collect a process the kernel throws away what it keeps of /proc/PID, and waits, without sleeping, for
 * whoever reads there. Where that reader is an ordinary thread that a real-time thread has pushed off its
 * core, and the real-time thread is the one that collects, neither goes on until the kernel grants ordinary
 * threads their least share of the core: up to a second later. So a real-time thread sees by a descriptor
 * that a process has ended (gpu/process.h), and leaves the rest to this thread.
 *
 * One thread makes all calls (the engine's). None of them but stop waits for anything. */
#ifndef MILLRACE_GPU_REAPER_H
#define MILLRACE_GPU_REAPER_H

#include "gpu/process.h"

struct gpu_reaper;

CORE_CHECKED core_status gpu_reaper_start(struct gpu_reaper **reaper, struct core_error *error);

/* Whether it can take one more: false only where it has not come to run for many processes. */
bool gpu_reaper_has_room(const struct gpu_reaper *reaper);

/* Takes over a process that has ended or was killed, with its descriptors: *process is none any more. There
 * must be room. */
void gpu_reaper_take(struct gpu_reaper *reaper, struct gpu_process *process);

/* Collects all that it has, and ends. NULL is fine. */
void gpu_reaper_stop(struct gpu_reaper *reaper);

#endif
