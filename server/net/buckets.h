/* Token buckets: a rate limit for each of many peers. A bucket outlives the connections of its peer, so that
 * reconnecting does not refill it.
 *
 * In any t seconds a bucket lets at most (2 + t) x per_s through: a burst of two seconds' worth, then per_s a
 * second. The table is of fixed size, found by a hash that no peer can choose: peers of the same hash share a
 * bucket. One thread; the clock is the caller's. */
#ifndef MILLRACE_SERVER_NET_BUCKETS_H
#define MILLRACE_SERVER_NET_BUCKETS_H

#include "core/time.h"

#include <stdbool.h>
#include <stdint.h>

#define SERVER_BUCKETS_BITS 12
#define SERVER_BUCKETS      (1U << SERVER_BUCKETS_BITS)

/* All zero: all full. */
struct server_buckets {
    core_ns full_ns[SERVER_BUCKETS]; /* the time at which a bucket will be full if no token is taken */
};

/* Takes a token; false: there is none now. `bucket` is below SERVER_BUCKETS, `per_s` at most 10^9 (0: no
 * limit), `now_ns` never below that of an earlier call. */
bool server_buckets_consume(struct server_buckets *buckets, uint32_t bucket, uint32_t per_s, core_ns now_ns);

#endif
