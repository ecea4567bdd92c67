/* The bare echo: what sockets alone cost, with no protocol, no cipher and no promise.
 *
 * One thread echoes (epoll, read what is there, write it back), one thread is the client and keeps
 * `outstanding` messages under way on each of several Unix socket pairs. The yardstick for the server's own
 * throughput over the same connections and packet sizes. */
#ifndef MILLRACE_BENCH_ECHO_H
#define MILLRACE_BENCH_ECHO_H

#include "core/status.h"
#include "core/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bench_echo_options {
    size_t connections;  /* 1 .. 10,000 */
    size_t packet_bytes; /* 1 .. 1 MiB */
    size_t outstanding;  /* messages under way on a connection, 1 .. 1,024 */
    core_ns duration_ns; /* of the measurement, after a fifth of it to warm up */
    bool batch;          /* false: a write a message; true: all that one read allows in one write */
};

struct bench_echo_result {
    double bytes_per_s; /* each way */
};

CORE_CHECKED core_status bench_echo_run(const struct bench_echo_options *options,
                                        struct bench_echo_result *result, struct core_error *error);

#endif
