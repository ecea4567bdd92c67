/* What a producer beside the server could have at best, without it: the limits that `millrace-bench lanes` sets lanes
 * against. Packets have whole blocks; streams take turns. One call at a time. */
#ifndef MILLRACE_BENCH_LANE_LIMITS_H
#define MILLRACE_BENCH_LANE_LIMITS_H

#include "core/status.h"
#include "core/time.h"

#include <stdbool.h>
#include <stdint.h>

struct bench_lane_limits_options {
    uint32_t streams;      /* 1 .. 1,000,000 */
    uint32_t packet_bytes; /* a multiple of 16, at most 65,520 */
    core_ns duration_ns;
};

/* CPU time of a packet, and packets in a second of all of the time. */
struct bench_lane_limits_result {
    double server_ns, client_ns, packets_per_s;
};

/* The bare ring: a thread writes packets into a lane (core/lane.h) and takes them back, another one takes them out and
 * puts them in again, or encrypts them before that: with the fastest engine, in bursts, where the bytes lie. */
CORE_CHECKED core_status bench_lane_ring(const struct bench_lane_limits_options *options, bool encrypts,
                                         struct bench_lane_limits_result *result, struct core_error *error);

/* OpenSSL in the producer itself: one context for each stream. All of it is the client's. */
CORE_CHECKED core_status bench_lane_openssl(const struct bench_lane_limits_options *options,
                                            struct bench_lane_limits_result *result,
                                            struct core_error *error);

#endif
