/* What a producer pays that has its packets at hand and does nothing but give them to the server: the client's cost in
 * `millrace-bench lanes`, where a generator's also has its calendar and the comparison of every byte. */
#ifndef MILLRACE_BENCH_LANE_PRODUCER_H
#define MILLRACE_BENCH_LANE_PRODUCER_H

#include "core/status.h"
#include "core/time.h"

#include <stdint.h>
#include <sys/types.h>

struct bench_lane_producer_options {
    const char *address;
    pid_t server;
    uint32_t streams;      /* 1 .. 1,000,000 */
    uint32_t packet_bytes; /* 1 .. 65,504 */
    double bytes_per_s;    /* of payload, of all streams together */
    core_ns duration_ns;
};

struct bench_lane_producer_result {
    double server_ns, client_ns; /* CPU time of a packet that came back */
    double bytes_per_s;
    uint64_t sent, back,
        missed; /* back: encrypted, as long as it must be, in order (the library sees to that) */
};

/* Streams take turns, so that each one's packets are evenly spaced; every 500 us those that are due are written where
 * the library keeps them (millrace_data_reserve), and what has come back is counted. On one connection; its thread is
 * the caller's. */
CORE_CHECKED core_status bench_lane_producer(const struct bench_lane_producer_options *options,
                                             struct bench_lane_producer_result *result,
                                             struct core_error *error);

#endif
