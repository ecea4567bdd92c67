#include "server/stats.h"

#include <stdlib.h>

const char *server_turned_name(enum server_turned reason)
{
    static const char *const names[SERVER_TURNED_COUNT] = {
        [SERVER_TURNED_CONNECTIONS] = "connections",
        [SERVER_TURNED_LISTENER] = "listener",
        [SERVER_TURNED_PEER] = "peer",
        [SERVER_TURNED_HANDSHAKES] = "handshakes",
        [SERVER_TURNED_RATE] = "handshake_rate",
        [SERVER_TURNED_MEMORY] = "memory",
        [SERVER_TURNED_NO_CERTIFICATE] = "no_certificate",
        [SERVER_TURNED_CERTIFICATE] = "certificate",
        [SERVER_TURNED_VERSION] = "version",
        [SERVER_TURNED_NOT_TLS] = "not_tls",
        [SERVER_TURNED_GONE] = "gone",
        [SERVER_TURNED_PROTOCOL] = "protocol",
        [SERVER_TURNED_TIMEOUT] = "timeout",
        [SERVER_TURNED_MESSAGES] = "messages",
        [SERVER_TURNED_PROXY] = "proxy",
    };
    return names[reason];
}

core_status server_stats_make(struct server_stats *stats, uint32_t unit_count)
{
    stats->units = calloc(unit_count, sizeof *stats->units);
    if (stats->units == NULL)
        return CORE_NO_MEMORY;
    stats->unit_count = unit_count;
    for (uint32_t i = 0; i < unit_count; i++) {
        core_histogram_init(&stats->units[i].slack);
        core_histogram_init(&stats->units[i].lateness);
    }
    server_tail_latency_init(&stats->worst);
    core_histogram_init(&stats->turn);
    core_histogram_init(&stats->latency);
    core_histogram_init(&stats->admission);
    core_histogram_init(&stats->in_force);
    return CORE_OK;
}

void server_stats_free(struct server_stats *stats)
{
    free(stats->units);
}
