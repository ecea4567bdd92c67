/* Many streams on one connection, opened and closed with many requests in flight. One thread. */
#ifndef MILLRACE_BENCH_CROWD_H
#define MILLRACE_BENCH_CROWD_H

#include "client/contract.h"

#include <stdint.h>

struct bench_crowd {
    struct millrace *connection; /* borrowed */
    uint32_t *streams;           /* ids of the open ones */
    uint32_t count, capacity;
    /* while a call runs */
    uint32_t answered;
    uint32_t refused;
    char reason[MILLRACE_TEXT_BYTES]; /* of the last refusal */
};

CORE_CHECKED core_status bench_crowd_init(struct bench_crowd *crowd, struct millrace *connection,
                                          uint32_t capacity, struct core_error *error);
void bench_crowd_free(struct bench_crowd *crowd);

/* The contract of stream `index`: 256-byte packets, bursts of two, intervals of 0.5 to 2 s and bounds of 20
 * to 100 ms, spread so that no two streams are alike. */
struct core_stream_spec bench_crowd_spec(uint32_t index);

/* Opens streams first .. first + count - 1; waits for every answer. CORE_REFUSED with the reason if one was
 * refused. */
CORE_CHECKED core_status bench_crowd_open(struct bench_crowd *crowd, uint32_t first, uint32_t count,
                                          struct core_error *error);

/* Closes all; waits for every CLOSED. */
CORE_CHECKED core_status bench_crowd_close(struct bench_crowd *crowd, struct core_error *error);

#endif
