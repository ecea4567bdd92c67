/* Measuring this machine through the server's own code: a hardware profile from a few seconds of work.
 *
 * Encryption costs come from cpu/measure.h. The I/O thread's cost of a packet and the margins come from a
 * private server that talks to the caller over a socket pair: cost is CPU time of its I/O thread by packets
 * of two sizes, as many at once as a busy thread finds in a socket; a margin is the 99.9th percentile of a
 * lone packet's way through both threads, so that waking two threads on this machine is inside it. Call it on
 * the machine, with the real-time settings, and at the load that will be. */
#ifndef MILLRACE_SERVER_CALIBRATE_CALIBRATE_H
#define MILLRACE_SERVER_CALIBRATE_CALIBRATE_H

#include "config/profile.h"
#include "config/server.h"
#include "cpu/engine.h"

struct server_calibrate_options {
    const struct cpu_engine_ops *engine;
    enum config_realtime realtime;
    core_ns time_ns;       /* about how long in all, at least 0.5 s */
    uint32_t burst_pieces; /* measure with this B and Q; 0: choose them */
    uint32_t piece_bytes;
    /* Called now and then with what is being done and the share that is done; may be NULL. */
    void (*progress)(void *argument, const char *what, double share);
    void *progress_argument;
};

/* *profile is to be given to config_profile_free. */
CORE_CHECKED core_status server_calibrate(const struct server_calibrate_options *options,
                                          struct config_profile **profile, struct core_error *error);

/* The processor, its cores and the kernel, as a profile names them. */
void server_calibrate_machine(char *text, size_t size);

#endif
