/* Private to partition: a worker, as a unit of the admission state (unit.h).
 *
 * Its test is that of perfmodel/demand.h, monotone in interval and latency bound. A scenario costs memory (a
 * demand grid) and time only while it has backups.
 *
 * **When a released reservation may be used again.** Not before a grace period of the worker has begun and
 * ended since the stream's last packet: counters.pauses of its scheduler exceeds the packet's `pauses`
 * (cpu/scheduler.h).
 *
 * Why: the test bounds what one accepted set asks for in any window. A window that holds a burst of a stream
 * that has left and a burst of one that took its room holds more. Let N be the burst with which the grace
 * period begins, after the last of the leaver's.
 *   - By pieces (perfmodel/edf.h). N is not full of urgent pieces for any piece that it leaves, so the window
 *     of every piece that is finished later begins with N or after it; N itself has no piece of the leaver,
 *     and its q is that of those who stay. No piece is late when N begins, which the proof by pieces builds
 *     on, and which sets that were accepted by packets alone do not promise.
 *   - By packets (perfmodel/edf_packets.h). The window of a packet that heads its stream only after N has
 *     begun begins with N or after it. The others are finished when the grace period ends, under the old set.
 *     What pieces lag behind N follows from the set without the leaver: a packet that N takes on by its p-th
 *     next piece has that due (p - 1) delta or more after N begins, since none is late then.
 * The burst that finishes the leaver's last packet can not be N: in the windows that begin with it, it may
 * be longer than the q of those who stay. */
#ifndef MILLRACE_PARTITION_ADMISSION_UNIT_WORKER_H
#define MILLRACE_PARTITION_ADMISSION_UNIT_WORKER_H

#include "partition/admission/admission.h"
#include "partition/admission/unit.h"
#include "perfmodel/demand.h"

/* The profile must outlive it; gpus: that may fail. */
CORE_CHECKED core_status partition_worker_create(struct partition_unit **unit,
                                                 const struct config_profile *profile, uint32_t gpus);

/* Load of the worker in a scenario. */
int64_t partition_worker_utilisation_ppb(const struct partition_unit *unit, uint32_t scenario);

/* What one stream more adds to the load of the worker's own streams. */
int64_t partition_worker_added_ppb(const struct partition_unit *unit, const struct partition_demand *demand);

struct admission_worker partition_worker_load(const struct partition_unit *unit);

/* The demand of a scenario, for tests. NULL: no backups. */
const struct perfmodel_demand *partition_worker_scenario(const struct partition_unit *unit,
                                                         uint32_t scenario);

#endif
