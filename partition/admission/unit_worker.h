/* Placement of streams on the CPU workers of one server, with reasons and offers: the planner's CPU half.
 *
 * Worst fit: a stream is placed on the least utilised worker that accepts it (perfmodel_demand), if its I/O
 * thread has capacity too. Queries and admissions run the same code; a query does not commit. Pure; one
 * owner. */
#ifndef MILLRACE_PARTITION_ADMISSION_UNIT_WORKER_H
#define MILLRACE_PARTITION_ADMISSION_UNIT_WORKER_H

#include "config/profile.h"
#include "core/stream.h"
#include "perfmodel/cpu.h"
#include "perfmodel/edf.h"
#include "perfmodel/limit.h"

#include <stdbool.h>
#include <stddef.h>

/* The nearest contracts that would be accepted now; 0 where none is. Both are themselves accepted if asked
 * for with no change in between. */
struct partition_offer {
    core_ns interval_ns; /* shortest interval (highest rate) at the asked latency, packet size and burst */
    core_ns latency_ns;  /* shortest latency at the asked rate */
};

struct partition_placement {
    bool accepted;
    uint32_t worker;                 /* accepted: where */
    struct perfmodel_cpu_task task;  /* accepted: what was charged; needed to remove it */
    int64_t io_ppb;                  /* accepted: charge on the I/O thread */
    core_ns bound_ns;                /* accepted: guaranteed latency, <= spec->latency_ns */
    enum perfmodel_limit constraint; /* refused: the binding one */
    struct perfmodel_edf_result
        test; /* figures of the last test run (refused: of the worker that came closest) */
    struct partition_offer offer; /* refused */
    char reason[256];             /* refused: a sentence with the figures */
};

struct partition_workers;
struct perfmodel_demand;

CORE_CHECKED core_status partition_workers_create(struct partition_workers **workers,
                                                  const struct config_profile *profile, uint32_t worker_count,
                                                  uint32_t io_count, struct core_error *error);
void partition_workers_destroy(struct partition_workers *workers);

/* Would this stream, on a connection of I/O thread `io`, be accepted? Fills the whole placement; with_offer =
 * false skips the search for an offer. Commits nothing. */
void partition_workers_query(const struct partition_workers *workers, const struct core_stream_spec *spec,
                             uint32_t io, bool with_offer, struct partition_placement *placement);

/* Decides as partition_workers_query does, without a reason or an offer where the stream is refused.
 * Commits nothing. */
bool partition_workers_place(const struct partition_workers *workers, const struct core_stream_spec *spec,
                             uint32_t io, struct partition_placement *placement);

/* Decides as partition_workers_query does, without an offer; commits if the stream is accepted. */
void partition_workers_admit(struct partition_workers *workers, const struct core_stream_spec *spec,
                             uint32_t io, struct partition_placement *placement);

/* Gives back what partition_workers_admit took. Not before a grace period of the worker has begun and ended
 * since the stream's last packet: counters.pauses of its scheduler exceeds the packet's `pauses`
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
void partition_workers_release(struct partition_workers *workers, const struct partition_placement *placement,
                               uint32_t io);

struct partition_worker_load {
    size_t streams;
    int64_t utilisation_ppb;
    int64_t headroom_ppb; /* smallest over all windows */
    core_ns tightest_window_ns;
    int64_t reserved_ppb; /* reserved for backups, in the failure scenario that reserves most */
};
struct partition_worker_load partition_workers_load(const struct partition_workers *workers, uint32_t worker);
int64_t partition_workers_io_ppb(const struct partition_workers *workers, uint32_t io);

/* ---- building blocks of the combined admission of workers and GPUs (admission.h) ---- */

CORE_CHECKED core_status partition_workers_copy(const struct partition_workers *workers,
                                                struct partition_workers **copy);

/* Does worker `worker` accept the stream? The I/O thread is not asked. Fills the whole placement, but for
 * the offer and, where the spec leaves time for the work, the reason. */
bool partition_workers_ask(const struct partition_workers *workers, uint32_t worker,
                           const struct core_stream_spec *spec, struct partition_placement *placement);

/* Decides as partition_workers_ask does, without figures. A number that no worker has stands for an idle
 * worker. */
bool partition_workers_fits(const struct partition_workers *workers, uint32_t worker,
                            const struct core_stream_spec *spec);

/* Decides as partition_workers_fits does, as if no capacity were withheld (partition_workers_set_reserve). */
bool partition_workers_fits_all(const struct partition_workers *workers, uint32_t worker,
                                const struct core_stream_spec *spec);

/* Withholds this share of any window of a worker from admission, 0 .. 10^9 ppb. Admitted streams keep their
 * reservations. */
void partition_workers_set_reserve(struct partition_workers *workers, uint32_t worker, int64_t share_ppb);
int64_t partition_workers_reserve_ppb(const struct partition_workers *workers, uint32_t worker);

/* The latency that a worker guarantees to the stream if it accepts it. */
core_ns partition_workers_bound_ns(const struct partition_workers *workers,
                                   const struct core_stream_spec *spec);

/* Puts a stream on a worker, proven or not, and takes it away; without its I/O thread's share. False: there
 * is no time for its work, and nothing changed. */
bool partition_workers_put(struct partition_workers *workers, uint32_t worker,
                           const struct core_stream_spec *spec);
void partition_workers_take(struct partition_workers *workers, uint32_t worker,
                            const struct core_stream_spec *spec);

/* ---- failure scenarios ----
 *
 * A worker has one failure scenario per GPU: its own streams plus the backups that it serves while that GPU
 * is out of service. A stream must pass the test in all scenarios, a backup only in that of its own GPU. So
 * the failure of any one GPU never asks more of a worker than it can do, and the scenarios share the
 * reserved capacity. A scenario costs memory (a demand grid) and time only while it has backups. */

/* Sets the number of GPUs. Before the first stream. */
CORE_CHECKED core_status partition_workers_set_losses(struct partition_workers *workers, uint32_t gpus);

/* Worst fit of a backup in the scenario that GPU `loss` fails. Fills the placement as
 * partition_workers_place does, but does not ask the I/O thread. */
bool partition_workers_place_backup(const struct partition_workers *workers,
                                    const struct core_stream_spec *spec, uint32_t loss,
                                    struct partition_placement *placement);

/* Does worker `worker` accept the backup `spec` in the place of its backup `instead_of`? Commits nothing. */
bool partition_workers_ask_backup(struct partition_workers *workers, uint32_t worker, uint32_t loss,
                                  const struct core_stream_spec *instead_of,
                                  const struct core_stream_spec *spec, struct partition_placement *placement);

/* Memory for backups of the loss on the worker. */
CORE_CHECKED core_status partition_workers_reserve_backup(struct partition_workers *workers, uint32_t worker,
                                                          uint32_t loss);

/* Enter and remove a backup as partition_workers_put and _take do a stream. Memory must have been reserved,
 * and the spec must leave time for the work. */
void partition_workers_put_backup(struct partition_workers *workers, uint32_t worker, uint32_t loss,
                                  const struct core_stream_spec *spec);
void partition_workers_take_backup(struct partition_workers *workers, uint32_t worker, uint32_t loss,
                                   const struct core_stream_spec *spec);
void partition_workers_replace_backup(struct partition_workers *workers, uint32_t worker, uint32_t loss,
                                      const struct core_stream_spec *spec, const struct core_stream_spec *by);

/* The demand of a worker in the scenario that GPU `loss` fails, for tests. NULL: no backups. */
const struct perfmodel_demand *partition_workers_case(const struct partition_workers *workers,
                                                      uint32_t worker, uint32_t loss);

/* The I/O thread's share of a stream. */
bool partition_workers_io_fits(const struct partition_workers *workers, const struct core_stream_spec *spec,
                               uint32_t io);
void partition_workers_io_put(struct partition_workers *workers, const struct core_stream_spec *spec,
                              uint32_t io);
void partition_workers_io_take(struct partition_workers *workers, const struct core_stream_spec *spec,
                               uint32_t io);

#endif
