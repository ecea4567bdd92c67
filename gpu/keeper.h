/* Starts an engine's processes and collects them when they have ended, on a thread of ordinary priority.
 *
 * Both can take long. To start a process the kernel copies tables and reads a program from the disk. To
 * collect one it frees the entries of /proc/PID, and spins until all readers of these are done. If a reader
 * is an ordinary thread that was preempted by the very real-time thread that collects, this is a priority
 * inversion: neither continues until the kernel grants ordinary threads their minimum share of the core, up
 * to a second later. So a real-time thread only requests a process, sees by a descriptor that it has ended
 * (gpu/process.h), and leaves the rest to this thread.
 *
 * The kernel ends a process with the thread that started it (PR_SET_PDEATHSIG): this one, which ends last.
 *
 * One thread makes all calls (the engine's). None of them but stop waits for anything. */
#ifndef MILLRACE_GPU_KEEPER_H
#define MILLRACE_GPU_KEEPER_H

#include "gpu/process.h"

struct gpu_keeper;

/* `options` say what is started, and outlive the keeper. `wake` is an eventfd, written to when a process was
 * started or could not be. */
CORE_CHECKED core_status gpu_keeper_start(struct gpu_keeper **keeper,
                                          const struct gpu_process_options *options, int wake,
                                          struct core_error *error);

/* Asks for a process. Not while one is asked for. */
void gpu_keeper_ask(struct gpu_keeper *keeper);

/* The outcome of gpu_keeper_ask, reported once: CORE_OK and the process; CORE_AGAIN: not started yet;
 * CORE_SYSTEM: it could not be started. */
CORE_CHECKED core_status gpu_keeper_asked(struct gpu_keeper *keeper, struct gpu_process *process,
                                          struct core_error *error);

/* Whether it can take one more: false only where it has not come to run for many processes. */
bool gpu_keeper_has_room(const struct gpu_keeper *keeper);

/* Takes over a process that has ended or was killed, with its descriptors: *process is none any more. There
 * must be room. */
void gpu_keeper_take(struct gpu_keeper *keeper, struct gpu_process *process);

/* Collects all that it has, and ends. A process that was asked for and not fetched ends too. NULL is fine. */
void gpu_keeper_stop(struct gpu_keeper *keeper);

#endif
