/* When the batches of one GPU end: batch n takes the packets that become eligible in
 *
 *   (close(n - 1), close(n)],   close(n) = close(n - 1) + period
 *
 * where the period may change from one batch to the next. Pure arithmetic: no clock, no thread. The owner of
 * the schedule (the batcher) serialises its use; any thread may read a copy. */
#ifndef MILLRACE_GPU_SCHEDULE_H
#define MILLRACE_GPU_SCHEDULE_H

#include "core/status.h"
#include "core/time.h"

#include <stdint.h>

/* From batch `first` on, until the next row. */
struct gpu_schedule_row {
    uint64_t first;
    core_ns base_ns;   /* close(first - 1) */
    core_ns period_ns; /* 1 .. one hour */
};

/* The periods decided last, in order. Batches before rows[0].first are no longer known. */
#define GPU_SCHEDULE_ROWS 8
struct gpu_schedule {
    struct gpu_schedule_row rows[GPU_SCHEDULE_ROWS];
    uint32_t count; /* of rows in use, at least 1 */
};

/* Batch 1 begins at base_ns. CORE_INVALID: no such period. */
CORE_CHECKED core_status gpu_schedule_init(struct gpu_schedule *schedule, core_ns base_ns, core_ns period_ns);

/* Sets the period from batch `first` on, which must not have been opened. Earlier changes that would take
 * effect with this batch or later are dropped. With the eighth pending change the oldest period is forgotten;
 * since each change begins with another batch, at least the last seven batches before `first` stay known.
 * CORE_INVALID: no such period, or the batch is not behind rows[0].first (nothing is changed). */
CORE_CHECKED core_status gpu_schedule_change(struct gpu_schedule *schedule, uint64_t first,
                                             core_ns period_ns);

/* close(batch), for batch >= rows[0].first - 1. */
core_ns gpu_schedule_close_ns(const struct gpu_schedule *schedule, uint64_t batch);

/* The batch of a packet that becomes eligible then; rows[0].first for times before it. */
uint64_t gpu_schedule_batch(const struct gpu_schedule *schedule, core_ns eligible_ns);

/* What the batcher has to have done by now_ns. */
struct gpu_schedule_due {
    uint64_t open_until;  /* all batches up to this one are open (or were): those that begin within lead_ns */
    uint64_t close_until; /* all up to this one are closed: those that ended in_ns ago, or earlier */
    core_ns wake_ns;      /* when one of the two next changes; later than now_ns */
};

/* lead_ns: how long before its beginning a batch is opened; in_ns: how long after its close time a batch
 * stays open for packets on their way. Both at least 0. open_until is at least close_until + 1. */
struct gpu_schedule_due gpu_schedule_due(const struct gpu_schedule *schedule, core_ns now_ns, core_ns lead_ns,
                                         core_ns in_ns);

#endif
