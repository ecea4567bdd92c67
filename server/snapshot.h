/* The figures of the whole server at one moment, as /status and /metrics tell them.
 *
 * Taken from atomics that the threads publish anyway: nobody is asked and nobody waits. Each figure is whole;
 * between two of them a packet may have passed. */
#ifndef MILLRACE_SERVER_SNAPSHOT_H
#define MILLRACE_SERVER_SNAPSHOT_H

#include "core/histogram.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct server;

/* As in struct server_stats. */
struct server_counts {
    uint64_t connections, streams, opened, refused, packets, bytes, met, missed, reader_late, policed,
        rejected, lost, errors;
};

struct server_snapshot_io {
    struct server_counts counts;
    int64_t utilisation_ppb; /* promised share of the thread */
    core_ns cpu_ns;
};

struct server_snapshot_worker {
    uint64_t streams;
    int64_t utilisation_ppb, headroom_ppb; /* promised share; smallest room over all windows */
    uint64_t bursts, pieces, packets, bytes;
    core_ns busy_ns, burst_max_ns, cpu_ns;
};

struct server_snapshot {
    core_ns uptime_ns, process_cpu_ns;
    bool draining;
    const char *engine, *profile; /* the server's: valid as long as it */
    core_ns burst_bound_ns;       /* no burst may take longer (perfmodel_cpu_burst_ns) */
    uint32_t io_count, worker_count;
    struct server_snapshot_io *ios;
    struct server_snapshot_worker *workers;
    struct server_counts totals;
    struct core_histogram latency, slack, admission; /* of all I/O threads */
};

/* Any thread, between server_start and server_stop. CORE_NO_MEMORY. */
CORE_CHECKED core_status server_snapshot_take(const struct server *server, struct server_snapshot **snapshot);
void server_snapshot_free(struct server_snapshot *snapshot); /* NULL is fine */

#endif
