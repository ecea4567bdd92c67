/* Calibration: a hardware profile of this machine, measured in a few seconds with the server's own code.
 *
 * The costs of encryption come from cpu/measure.h. The I/O thread's costs and the margins come from a private
 * server that talks to the caller over a socket pair. A packet's cost is the CPU time of the I/O thread for
 * packets of two sizes, sent as many at once as a busy thread finds in a socket. A margin is the 99.9th
 * percentile of the latency of packets sent one at a time, so that it includes the time in which this machine
 * wakes two threads. What a pattern and a MAC cost is what a packet of such a stream costs more. Where there are
 * GPUs, packets of streams on them are measured the same way. The result holds for the real-time settings and the background load during the
 * measurement: they should be those of the server. */
#ifndef MILLRACE_SERVER_CALIBRATE_CALIBRATE_H
#define MILLRACE_SERVER_CALIBRATE_CALIBRATE_H

#include "config/profile.h"
#include "config/server.h"
#include "cpu/engine.h"

struct server_calibrate_options {
    const struct cpu_engine_ops *engine;
    enum config_realtime realtime;
    core_ns time_ns;       /* of the whole measurement, roughly; at least 0.5 s */
    uint32_t burst_pieces; /* B and Q of the profile; 0: the best ones are chosen */
    uint32_t piece_bytes;
    /* Called now and then with what is measured, and the share (0 to 1) that is done; may be NULL. */
    void (*progress)(void *argument, const char *what, double share);
    void *progress_argument;
};

/* Returns when it is done; the caller frees *profile with config_profile_free. */
CORE_CHECKED core_status server_calibrate(const struct server_calibrate_options *options,
                                          struct config_profile **profile, struct core_error *error);

/* Raises io.per_packet_ns and per_byte_fs of a profile to what an I/O thread takes for packets of streams on
 * GPUs, where that is more: into a batch and out of it, with an emulated card, whose own work is not the
 * thread's. time_ns is about the whole; gpu_program is the path of millrace-gpu. *gpu: what it takes. */
CORE_CHECKED core_status server_calibrate_io_of_gpus(struct config_profile *profile, const char *gpu_program,
                                                     enum config_realtime realtime, core_ns time_ns,
                                                     struct config_profile_io *gpu, struct core_error *error);

/* The processor, its cores and the kernel, as a profile names them. */
void server_calibrate_machine(char *text, size_t size);

#endif
