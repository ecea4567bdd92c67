#include "server/net/buckets.h"

#define BURST_NS (2 * CORE_NS_PER_S)

bool server_buckets_consume(struct server_buckets *buckets, uint32_t bucket, uint32_t per_s, core_ns now_ns)
{
    core_ns *full_ns = &buckets->full_ns[bucket];

    if (per_s == 0)
        return true;
    const core_ns base_ns = core_time_max(*full_ns, now_ns);
    /* rounded up: never more than per_s */
    const core_ns then_ns = base_ns + (CORE_NS_PER_S + per_s - 1) / per_s;
    if (then_ns - now_ns > BURST_NS)
        return false;
    *full_ns = then_ns;
    return true;
}
