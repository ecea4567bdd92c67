/* A worker in virtual time: the server's own scheduler (cpu/scheduler.h), and bursts that take as long as the
 * profile allows, or less.
 *
 * Time is told by the caller, and never runs backwards. Packets that come while a burst runs are seen when it
 * has ended. */
#ifndef MILLRACE_TESTS_HISTORY_WORKER_H
#define MILLRACE_TESTS_HISTORY_WORKER_H

#include "config/profile.h"
#include "perfmodel/cpu.h"
#include "tests/support/history_packet.h"
#include "tests/support/random.h"

#define HISTORY_WAITING 4096 /* packets that may come during a burst */

struct history_worker {
    const struct config_profile *profile;
    struct cpu_scheduler *scheduler;
    struct test_random random;
    int least_percent; /* of bursts that take less than they may */
    core_ns end_ns;    /* of the burst that runs; CORE_NS_NEVER: none */
    uint64_t pauses;   /* the scheduler's counter, as it is to be seen now */
    struct cpu_packet *arrived[HISTORY_WAITING];
    uint32_t arrived_count;
    struct cpu_packet *finished[CPU_BURST_MAX];
    uint32_t finished_count;
};

CORE_CHECKED core_status history_worker_create(struct history_worker *worker,
                                               const struct config_profile *profile, int least_percent,
                                               uint64_t seed);
void history_worker_destroy(struct history_worker *worker);

/* Memory of a stream's part, and its figures for this contract. */
size_t history_worker_stream_bytes(void);
void history_worker_arm(struct cpu_stream *stream, const struct perfmodel_cpu_task *task);

void history_worker_put(struct history_worker *worker, struct cpu_packet *packet);

/* The burst that runs ends now; its packets are in `finished`. */
void history_worker_end(struct history_worker *worker);
/* Begins a burst, if there is work: no burst runs. Forgets what was finished. */
void history_worker_begin(struct history_worker *worker, core_ns now_ns);

#endif
