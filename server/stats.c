#include "server/stats.h"

#include <stdlib.h>

core_status server_stats_make(struct server_stats *stats, uint32_t unit_count)
{
    stats->units = calloc(unit_count, sizeof *stats->units);
    if (stats->units == NULL)
        return CORE_NO_MEMORY;
    stats->unit_count = unit_count;
    for (uint32_t i = 0; i < unit_count; i++)
        core_histogram_init(&stats->units[i].slack);
    server_worst_init(&stats->worst);
    core_histogram_init(&stats->latency);
    core_histogram_init(&stats->admission);
    core_histogram_init(&stats->in_force);
    return CORE_OK;
}

void server_stats_free(struct server_stats *stats)
{
    free(stats->units);
}
