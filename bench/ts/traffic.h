/* Transport streams for a bench, and what becomes of them: a thread that sends N services to their groups, and one
 * that takes what comes out, descrambles it and compares it with what was sent, byte by byte.
 *
 * Each datagram carries its number and the time at which it was sent, scrambled like all else, so that nothing need be
 * remembered. */
#ifndef MILLRACE_BENCH_TS_TRAFFIC_H
#define MILLRACE_BENCH_TS_TRAFFIC_H

#include "core/histogram.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bench_ts_options {
    size_t services;
    double rate_bits_per_s; /* of each */
    core_ns bound_ns;
    bool rtp;
    uint64_t seed;
};

struct bench_ts_figures {
    uint64_t sent, received, packets; /* datagrams, but the last */
    uint64_t lost, reordered, late, wrong, changes;
    uint64_t overflow;           /* not read in time by this bench itself: of no use for figures */
    struct core_histogram delay; /* from sending to the receiver's socket */
};

struct bench_ts_traffic;

/* Groups of service n: 239.1.x.y in, 239.2.x.y out, port 5000, on the interface lo. */
#define BENCH_TS_PORT 5000
void bench_ts_group(size_t service, bool out, char text[32]);

/* The word of a service with this number. */
void bench_ts_word(uint64_t seed, size_t service, uint64_t number, uint8_t word[16]);

/* Both threads run from here on. What is received is judged from the call of bench_ts_measure on. */
CORE_CHECKED core_status bench_ts_start(const struct bench_ts_options *options,
                                        struct bench_ts_traffic **traffic, struct core_error *error);
/* Services of which something has come out. */
size_t bench_ts_heard(const struct bench_ts_traffic *traffic);
void bench_ts_measure(struct bench_ts_traffic *traffic);
/* Stops, and frees all. */
void bench_ts_stop(struct bench_ts_traffic *traffic, struct bench_ts_figures *figures);

#endif
