/* Live replay: sends streams to a server in real time, at the times they were meant to be sent, and checks
 * everything that comes back.
 *
 * Open loop: packet n of a stream is due at a time that depends on nothing the server does, and latency is
 * counted from that time until its RESULT has been received, so neither a stalled sender nor a stalled server
 * can hide a miss. Every returned byte is decrypted independently and compared (replay_check.h).
 *
 * The caller's thread connects, opens every stream, starts the sending threads, shows progress, closes the
 * streams and adds up; one replay at a time in a process. */
#ifndef MILLRACE_INPUTGEN_REPLAY_H
#define MILLRACE_INPUTGEN_REPLAY_H

#include "client/millrace.h"
#include "core/status.h"
#include "core/stream.h"
#include "core/time.h"
#include "inputgen/replay_report.h"
#include "inputgen/streams.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The options of a replay: one field for each. */
struct inputgen_replay_options {
    const char *address;            /* of the server, core/address.h */
    const struct millrace_tls *tls; /* NULL: the defaults */
    unsigned connections;           /* 0: 16, or one a stream if there are fewer */
    unsigned threads;               /* 0: one for every two cores; never more than connections */
    core_ns duration_ns;            /* 0: until the last stream stops */
    const char *name;               /* of the workload, for the report */
    uint64_t seed;                  /* payloads, lengths and phases */
    double scale;                   /* of every rate: intervals are divided by it; 0: 1 */
    double slower;                  /* packets come so much slower than declared: 0.1: every 1.1 intervals */
    bool uniform_sizes;             /* lengths uniform in 1..packet_bytes instead of packet_bytes */
    bool random_phases;             /* streams begin up to an interval later than listed, at random */
    bool bursts;                    /* packets come burst_packets at once, as the contract just allows */
    bool ordinary_priority;         /* do not ask for SCHED_FIFO, which keeps the schedule under other load */
    core_ns tick_ns;                /* shortest time between two batches of a thread; 0: chosen */
    core_ns drain_ns;               /* to wait for results past the last deadline; 0: 5 s */
    int timeout_ms;                 /* to connect, to open all streams, to close them; 0: 10 s */
    const char *key_name;           /* NULL: an inline key of its own for every stream */
    const uint8_t *key;             /* the named key, to decrypt with */
    enum core_cipher key_cipher;    /* of the named key: overrides the streams' own */
    pid_t server;                   /* for its CPU time; 0: the process behind a Unix socket */
    void (*progress)(void *argument, const struct inputgen_progress *progress); /* 5 a second; may be NULL */
    void *progress_argument;
    const atomic_bool *stop; /* set by a signal handler: stop sending, take what is due; may be NULL */
};

/* Runs the whole replay. CORE_OK: *report is filled and the caller's (inputgen_report_free), whatever it
 * says about the server. Anything else: the streams could not be brought to run (no connection, no answer to
 * OPEN in time, no memory), with the reason in error; there is no report then. */
CORE_CHECKED core_status inputgen_replay_run(const struct inputgen_replay_options *options,
                                             const struct inputgen_streams *list,
                                             struct inputgen_report **report, struct core_error *error);

#endif
