/* Real-time settings of threads and of the process, and a plain account of what the system did not permit. */
#ifndef MILLRACE_CORE_REALTIME_H
#define MILLRACE_CORE_REALTIME_H

#include "core/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct core_thread_options {
    const char *name;   /* at most 15 characters, shown by ps and top */
    int fifo_priority;  /* 1..99: SCHED_FIFO at that priority; 0: the default policy, whatever
                           the starter has */
    int cpu;            /* pin to the core of this number, or -1 */
    size_t stack_bytes; /* 0: 256 KiB */
};

/* Starts a thread with these settings. A setting that the system refuses is left out and named in
 * `not_permitted` (may be NULL; empty text when everything was granted); only failure to start the thread at
 * all is an error. */
CORE_CHECKED core_status core_thread_start(pthread_t *thread, const struct core_thread_options *options,
                                           void *(*run)(void *), void *argument,
                                           struct core_error *not_permitted, struct core_error *error);

/* Gives this thread SCHED_FIFO at that priority, 1 to 99, or, with 0, the default policy. Threads that it
 * starts begin alike, and to stay at a priority, or to give it up, needs no right: a process takes one before
 * it gives up its rights, for those that it starts afterwards. What is refused is left out. */
void core_thread_priority_take(int fifo_priority);

/* A mutex that real-time threads may take: while one waits, who holds it runs at that thread's priority, and
 * is not kept from letting go by threads in between. */
void core_mutex_init(pthread_mutex_t *mutex);

/* mlockall(MCL_CURRENT | MCL_FUTURE). CORE_DENIED with the reason and what to do if the system refuses. */
CORE_CHECKED core_status core_memory_lock(struct core_error *error);

/* Cores this process may run on. */
unsigned core_cpu_count(void);

/* The number that one of them has on this machine. Index: 0 to core_cpu_count() - 1; beyond that -1, no core.
 */
int core_cpu_number(unsigned index);

/* Thousandths of a core that this process may use: of those it may run on, and no more than the cpu.max of
 * its cgroup (version 2) and of those above it allow. */
unsigned core_cpu_thousandths(void);

/* The latter alone, of the cgroup that the file `membership` names ("/proc/self/cgroup"), in the tree at
 * `root` ("/sys/fs/cgroup"). UINT_MAX: no limit, or no such tree. */
unsigned core_cpu_quota(const char *membership, const char *root);

#endif
