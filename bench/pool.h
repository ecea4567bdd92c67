/* A pool of streams drawn from a workload, as contracts for plans. One thread. */
#ifndef MILLRACE_BENCH_POOL_H
#define MILLRACE_BENCH_POOL_H

#include "config/workload.h"
#include "core/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BENCH_POOL_MAX 1000000

struct bench_pool {
    struct core_stream_spec *specs;
    size_t count;
};

struct bench_pool_request {
    const char *workload;   /* its path, or the bare name of a shipped one */
    uint32_t count;         /* 1 .. BENCH_POOL_MAX */
    uint64_t seed;          /* the same workload and seed give the same streams */
    uint32_t packet_bytes;  /* of every stream, at the same rate; 0: as the workload says */
    uint32_t burst_packets; /* likewise */
    bool messages;          /* every packet is a message, with its number for an IV */
};

/* Draws the streams. The first n of a larger pool are the pool of n. */
CORE_CHECKED core_status bench_pool_open(struct bench_pool *pool, const struct bench_pool_request *request,
                                         struct core_error *error);
void bench_pool_free(struct bench_pool *pool);

#endif
