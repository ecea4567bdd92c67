/* The highest rate that a server sustains without a single miss, found by bisection.
 *
 * A trial replays 2,000 streams of equal packets with latency bounds of 20 to 100 ms for a few seconds and
 * passes if every stream was admitted, every byte was right and every deadline held, by the server's account
 * and by ours. One thread. */
#ifndef MILLRACE_BENCH_SUSTAIN_H
#define MILLRACE_BENCH_SUSTAIN_H

#include "core/status.h"
#include "core/time.h"
#include "inputgen/replay.h"

#include <stddef.h>
#include <stdint.h>

struct bench_sustain_options {
    const char *address; /* of the server */
    size_t connections;
    uint32_t packet_bytes;
    size_t streams;
    core_ns trial_ns;
};

struct bench_sustained {
    double bytes_per_s; /* payload each way of the best trial that passed; 0 if none did */
    char beyond[400];   /* what went wrong in the trial at the next higher rate; empty if none failed */
};

/* The streams of a trial: together bytes_per_s of payload, evenly spread in time. Its streams are the caller's to
 * free. CORE_NO_MEMORY. */
CORE_CHECKED core_status bench_sustain_list(const struct bench_sustain_options *options, double bytes_per_s,
                                            struct inputgen_streams *list);

/* Looks up to `ceiling_bytes_per_s`, to within 4 %. Fails only if a trial could not be made. */
CORE_CHECKED core_status bench_sustain_find(const struct bench_sustain_options *options,
                                            double ceiling_bytes_per_s, struct bench_sustained *found,
                                            struct core_error *error);

#endif
