/* A worker thread: takes packets from the I/O threads, schedules them with cpu_scheduler, hands them back.
 *
 * Queues: per (I/O thread, worker) pair one ring in and one ring out (ring.h: single producer, single
 * consumer each, cpu_packet pointers in batches). Nothing on the way allocates, locks or logs. A worker with
 * nothing to do sleeps in read() of an eventfd; a producer writes to it only if the worker has announced that
 * it sleeps. A worker never waits for a producer to collect: finished packets that find no room in a ring are
 * kept, in order, while it continues.
 *
 * To wake a thread, on another core that may have to leave its own sleep first, costs more than to encrypt a few
 * packets: a producer that has time for it may do a burst of a worker that sleeps (cpu_worker_serve). The worker has
 * one owner at each time, its thread or that producer; what is queued, cut and counted is the same.
 *
 * Lost time: a worker is *wanted* from the end of a burst, or from a producer's wake-up, until it has polled
 * its rings and found nothing. The time of a burst counts from then on, so that the delay of a worker that
 * woke late, or lost its core between two bursts, is lost time (cpu_scheduler_want); each such delay is a
 * stall (core/stalls.h). */
#ifndef MILLRACE_CPU_WORKER_H
#define MILLRACE_CPU_WORKER_H

#include "core/realtime.h"
#include "core/stalls.h"
#include "cpu/scheduler.h"

#include <stdbool.h>

struct cpu_worker;

struct cpu_worker_options {
    struct core_thread_options thread;
    struct cpu_scheduler_options scheduler;
    uint32_t producers;    /* I/O threads, numbered from 0 */
    uint32_t ring_packets; /* capacity of each ring, a power of two */
    /* Called on the worker's thread, or on that of a producer that serves another one's, after it put packets into producer p's ring, at most once until that
     * producer next calls cpu_worker_collect. Must not block: writes an eventfd. */
    void (*notify)(void *argument, uint32_t producer);
    void *notify_argument;
};

CORE_CHECKED core_status cpu_worker_start(struct cpu_worker **worker,
                                          const struct cpu_worker_options *options,
                                          struct core_error *not_permitted, struct core_error *error);

/* Producer p: hands over packets; returns how many the ring took (from the front). The rest stays with the
 * caller, who tries again after the next completion. Wakes the worker if it sleeps. */
uint32_t cpu_worker_submit(struct cpu_worker *worker, uint32_t producer, struct cpu_packet *const *packets,
                           uint32_t count);

/* Producer p: as cpu_worker_submit, but a sleeping worker sleeps on. cpu_worker_serve or _nudge must follow. */
uint32_t cpu_worker_put(struct cpu_worker *worker, uint32_t producer, struct cpu_packet *const *packets,
                        uint32_t count);

/* Producer p: does one burst of a worker that sleeps, on this thread. False: the worker does not sleep, and will find
 * what was put. True: this producer is not notified of what the burst has finished, and must call cpu_worker_poll or
 * _collect; what the burst did not finish, and what others have put meanwhile, is the worker's own thread's. So others
 * wait for it no longer than for any burst, if this thread keeps its core as a worker does. */
bool cpu_worker_serve(struct cpu_worker *worker, uint32_t producer);

/* Producer p: takes up to `count` finished packets; packets of one stream come in order. When fewer than
 * `count` come, the next completion notifies again. */
uint32_t cpu_worker_collect(struct cpu_worker *worker, uint32_t producer, struct cpu_packet **packets,
                            uint32_t count);

/* As cpu_worker_collect, without asking for a notification: for a producer that is awake and will collect
 * before it sleeps. */
uint32_t cpu_worker_poll(struct cpu_worker *worker, uint32_t producer, struct cpu_packet **packets,
                         uint32_t count);

/* Producer p: no notification until it next calls cpu_worker_collect. For a producer that polls. */
void cpu_worker_mute(struct cpu_worker *worker, uint32_t producer);

/* Finishes all submitted packets and ends the thread. No packet may be submitted from this call on; finished
 * packets can be collected during and after it. One thread calls it; repeated calls do nothing. */
void cpu_worker_finish(struct cpu_worker *worker);

/* cpu_worker_finish, then frees everything; NULL is fine. No other thread may be inside a call or make one
 * any more. Packets not collected stay the submitters' (encrypted). */
void cpu_worker_stop(struct cpu_worker *worker);

/* Any thread: wakes a sleeping worker for one turn of its loop, which changes its counters. */
void cpu_worker_nudge(struct cpu_worker *worker);

/* Any thread. */
const struct core_stalls *cpu_worker_stalls(const struct cpu_worker *worker);
const struct cpu_scheduler_counters *cpu_worker_counters(const struct cpu_worker *worker);
int32_t
cpu_worker_thread_id(const struct cpu_worker *worker); /* the system's, 0 before it runs; any thread */
core_ns cpu_worker_cpu_time_ns(const struct cpu_worker *worker); /* CPU time of its thread; any thread */

#endif
