/* The figures of the whole server at one moment, as /status and /metrics tell them.
 *
 * Read from atomics that the threads publish anyway, so that no thread is interrupted or waits. Each figure
 * is consistent in itself; packets may pass between the reading of two figures. */
#ifndef MILLRACE_SERVER_ADMIN_SNAPSHOT_H
#define MILLRACE_SERVER_ADMIN_SNAPSHOT_H

#include "core/histogram.h"
#include "core/status.h"
#include "server/process.h"
#include "server/stats.h"

#include <stdbool.h>
#include <stdint.h>

struct server;

struct server_counts {
#define SERVER_COUNT(member, ...) uint64_t member; /* as in struct server_stats */
#include "server/counts.def"
#undef SERVER_COUNT
};

struct server_snapshot_io {
    struct server_counts counts;
    int64_t utilisation_ppb; /* promised share of the thread */
    core_ns cpu_ns;
    core_ns turn_max_ns, excess_ns, lost_ns,
        level_ns; /* of its turns: struct server_stats, overload/reserve.h */
};

struct server_snapshot_worker {
    uint64_t streams;
    int64_t utilisation_ppb, headroom_ppb; /* promised share; smallest room over all windows */
    uint64_t backups;                      /* as in struct server_planner_load */
    int64_t reserved_ppb;
    uint64_t bursts, pieces, packets, bytes;
    core_ns busy_ns, burst_max_ns, cpu_ns;
    uint64_t bursts_exceeded; /* took longer than burst_bound_ns, */
    core_ns burst_excess_ns;  /* by so much together */
    core_ns burst_bound_ns;   /* no burst may take longer: as in struct server_snapshot */
};

/* One stage of a GPU's batches, the whole from closing to the last byte, or how late that was noticed. */
struct server_snapshot_stage {
    core_ns bound_ns, max_ns, total_ns, mean_ns;
    int64_t worst_ppb; /* largest share of its bound that a batch took */
    uint64_t exceeded; /* batches that took longer than their bound, */
    core_ns excess_ns; /* by so much together */
};

/* What /status and /metrics tell of a GPU: one field for each figure. */
struct server_snapshot_gpu {
    const char
        *card; /* the profile's name of it; this and the next two are the server's: valid as long as it */
    const char *uuid, *pci; /* which it is (gpu/device.h); empty: emulated */
    uint64_t up;            /* 1: in service */
    uint64_t process;
    core_ns state_ns; /* for how long it has been so */
    char fault[288];  /* the last one; empty: none so far */
    uint64_t backups; /* as in struct server_gpu_figures */
    int64_t reserved_ppb;
    uint64_t streams, guaranteed, faults, restarts, batches, packets, bytes, lost_batches;
    uint64_t late, full, held_up; /* packets in a later batch, turned away; batches opened late */
    uint64_t batch_bytes, arena_bytes;
    uint64_t memory_bytes, memory_refused;
    core_ns period_ns, latency_ns; /* of the plan: of batches; period and stages, at the most */
    uint64_t period_changes;
    uint64_t sm_hz, sm_most_hz, celsius, throttled; /* 0: not told; throttled: 0 or 1 */
    char throttled_by[160];                         /* what holds the clock down: gpu_nvml_reasons_text */
    struct server_snapshot_stage copy_up, kernel, copy_down, whole, notice;
};

/* A worker, a GPU or the fallback worker, and the packets that it encrypted. */
struct server_snapshot_unit {
    char name[16];                /* "cpu-0", "standby", "gpu-0" */
    uint64_t packets;             /* delivered */
    uint64_t missed, reader_late; /* as in struct server_unit_stats */
    core_ns lost_ns, level_ns;    /* overload/reserve.h; the fallback worker: 0 */
    int64_t withheld_ppb;         /* share that is withheld from admission */
    struct core_histogram slack, lateness;
};

struct server_snapshot_listener {
    char address[300];
    uint64_t turned[SERVER_TURNED_COUNT]; /* connections that came to nothing, by reason */
};

/* All that /status and /metrics tell, read in one go: one field for each thing that can be told. */
struct server_snapshot {
    core_ns uptime_ns;
    double started_s; /* Unix time */
    struct server_process process;
    bool draining;
    double cores, core_share;     /* for all threads; of one, promised to each */
    const char *engine, *profile; /* the server's: valid as long as it */
    const char *profile_doubt;    /* the same; empty: of this machine */
    core_ns burst_bound_ns;       /* no burst may take longer (perfmodel_cpu_burst_ns) */
    uint32_t io_count, worker_count, gpu_count, unit_count, listener_count;
    struct server_snapshot_io *ios;
    struct server_snapshot_worker *workers;
    struct server_snapshot_gpu *gpus;
    struct server_snapshot_unit *units; /* by number (server_units) */
    struct server_snapshot_listener *listeners;
    struct server_counts totals;
    uint64_t missed_by[SERVER_CAUSES];                     /* totals.missed by cause */
    uint64_t refused[SERVER_ASKED_COUNT][SERVER_REFUSALS]; /* as in struct server_stats */
    uint64_t turned[SERVER_TURNED_COUNT];                  /* of all listeners */
    uint64_t handshakes, handshakes_done;      /* of TLS: under way now; established since the start */
    uint64_t moved, stayed, checked, rejected; /* as in struct server_planner_figures */
    core_ns held_max_ns;
    uint64_t log_lost;                                                    /* core_log_lost */
    core_ns started_ns;                                                   /* CLOCK_MONOTONIC */
    struct server_tail_latency_packet worst[SERVER_TAIL_LATENCY_PACKETS]; /* the least slack first */
    uint32_t worst_count;
    struct core_histogram latency, slack, gpu_slack, admission, in_force, turn; /* of all I/O threads */
    struct core_histogram batch;                                                /* of all GPUs */
};

/* The units in the order in which they are listed: the workers, the fallback worker, the GPUs. */
const struct server_snapshot_unit *server_snapshot_unit_in_row(const struct server_snapshot *snapshot,
                                                               uint32_t row);

/* Any thread, between server_start and server_stop. CORE_NO_MEMORY. */
CORE_CHECKED core_status server_snapshot_take(const struct server *server, struct server_snapshot **snapshot);
void server_snapshot_free(struct server_snapshot *snapshot); /* NULL is fine */

#endif
