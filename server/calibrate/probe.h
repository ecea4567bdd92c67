/* The I/O half of a calibration: what a packet costs an I/O thread, and the latency of packets that are sent
 * one at a time. Private to the folder. */
#ifndef MILLRACE_SERVER_CALIBRATE_PROBE_H
#define MILLRACE_SERVER_CALIBRATE_PROBE_H

#include "config/profile.h"
#include "config/server.h"

struct server_probe_options {
    const struct config_profile_cpu *cpu; /* whose engine, burst and piece size the server has */
    enum config_realtime realtime;
    core_ns time_ns; /* about */
    /* millrace-gpu: packets go through batches of an emulated card, and no lone ones are sent; NULL: through a
     * worker. */
    const char *gpu_program;
};

struct server_probe {
    core_ns per_packet_ns;
    int64_t per_byte_fs;
    core_ns by_lane_per_packet_ns; /* the same, by a lane */
    int64_t by_lane_per_byte_fs;
    int64_t pattern_per_byte_fs, mac_per_byte_fs; /* through a worker alone */
    core_ns latency_p999_ns; /* packets one at a time: from arrival to the hand-over to the socket */
};

CORE_CHECKED core_status server_probe_run(const struct server_probe_options *options,
                                          struct server_probe *probe, struct core_error *error);

#endif
