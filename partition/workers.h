/* Placement of streams on the CPU workers of one server, with reasons and offers: the planner's CPU half.
 *
 * Worst fit: a newcomer goes to the least utilised worker that accepts it (perfmodel_demand), if its I/O
 * thread has room too. Asking and admitting run the same code; asking does not commit. Pure; one owner. */
#ifndef MILLRACE_PARTITION_WORKERS_H
#define MILLRACE_PARTITION_WORKERS_H

#include "config/profile.h"
#include "core/stream.h"
#include "perfmodel/cpu.h"
#include "perfmodel/edf.h"

#include <stdbool.h>
#include <stddef.h>

enum partition_constraint { /* values are sent in REFUSED: never renumber */
                            PARTITION_FITS = 0,
                            PARTITION_DEADLINE = 1, /* latency bound below what any empty worker could keep */
                            PARTITION_CPU_UTILISATION = 2, /* long-run demand on every worker */
                            PARTITION_CPU_DEMAND = 3,      /* demand within some window on every worker */
                            PARTITION_IO = 4               /* the connection's I/O thread */
};

const char *partition_constraint_name(enum partition_constraint constraint);

/* The nearest contracts that would be accepted now; 0 where none is. Both are themselves accepted if asked
 * for with no change in between. */
struct partition_offer {
    core_ns interval_ns; /* shortest interval (highest rate) at the asked latency, packet size and burst */
    core_ns latency_ns;  /* shortest latency at the asked rate */
};

struct partition_placement {
    bool accepted;
    uint32_t worker;                      /* accepted: where */
    struct perfmodel_cpu_task task;       /* accepted: what was charged; needed to remove it */
    int64_t io_ppb;                       /* accepted: charge on the I/O thread */
    core_ns bound_ns;                     /* accepted: guaranteed latency, <= spec->latency_ns */
    enum partition_constraint constraint; /* refused: the binding one */
    struct perfmodel_edf_result
        test; /* figures of the last test run (refused: of the worker that came closest) */
    struct partition_offer offer; /* refused */
    char reason[256];             /* refused: a sentence with the figures */
};

struct partition_workers;

CORE_CHECKED core_status partition_workers_create(struct partition_workers **workers,
                                                  const struct config_profile *profile, uint32_t worker_count,
                                                  uint32_t io_count, struct core_error *error);
void partition_workers_destroy(struct partition_workers *workers);

/* Would this stream, on a connection of I/O thread `io`, be accepted? Fills the whole placement; with_offer =
 * false skips the search for an offer. Commits nothing. */
void partition_workers_query(const struct partition_workers *workers, const struct core_stream_spec *spec,
                             uint32_t io, bool with_offer, struct partition_placement *placement);

/* The same and, if accepted, commits. */
void partition_workers_admit(struct partition_workers *workers, const struct core_stream_spec *spec,
                             uint32_t io, struct partition_placement *placement);

/* Gives back what partition_workers_admit took. Not before the worker has paused since the stream's last
 * packet: counters.pauses of its scheduler exceeds the packet's `pauses` (cpu/scheduler.h).
 *
 * Why: the test bounds what one accepted set asks for in any window. A window that holds a burst of a stream
 * that has left and a burst of one that took its room holds more. A pause parts them: a burst of fewer than B
 * pieces is not full of urgent ones for any piece that it leaves, so the window of every later deadline
 * begins with that burst or after it, when nothing of the stream that left remains to be done; and an idle
 * worker likewise. With room given away at once, 3 % of random sets at the brim miss deadlines in the
 * simulator; with a pause none. */
void partition_workers_release(struct partition_workers *workers, const struct partition_placement *placement,
                               uint32_t io);

struct partition_worker_load {
    size_t streams;
    int64_t utilisation_ppb;
    int64_t headroom_ppb; /* smallest over all windows */
    core_ns tightest_window_ns;
};
struct partition_worker_load partition_workers_load(const struct partition_workers *workers, uint32_t worker);
int64_t partition_workers_io_ppb(const struct partition_workers *workers, uint32_t io);

#endif
