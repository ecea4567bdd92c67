#include "tests/support/check_failover.h"

#include "partition/check/check.h"

#include <stdlib.h>

/* Packets that became eligible within d_g + delta before the hand-over may all be missing, so that as many
 * more than the burst come at once: k + ceil((d_g + delta) / t), and d - d_g - delta is left for each. */
static core_status contract_after(const struct check_failover_promise *promise, size_t stream,
                                  struct core_stream_spec *spec, struct core_error *error)
{
    core_ns away_ns = promise->gpu_bound_ns + promise->detection_ns, t = promise->contract.interval_ns;
    core_ns burst = (core_ns)promise->contract.burst_packets + away_ns / t + (away_ns % t > 0);
    *spec = promise->contract;
    spec->latency_ns -= away_ns;
    if (spec->latency_ns < CORE_LATENCY_NS_MIN || burst > CORE_BURST_MAX)
        return core_error_set(error, CORE_REFUSED, "stream %zu has no time left after a failover", stream);
    spec->burst_packets = (uint32_t)burst;
    return CORE_OK;
}

static core_status check_backup(const struct check_failover_promise *promise, uint32_t workers, size_t stream,
                                struct core_error *error)
{
    if (promise->unit < workers || !promise->contract.guaranteed) {
        if (promise->backed)
            return core_error_set(error, CORE_REFUSED, "stream %zu needs no backup, and has one", stream);
        return CORE_OK;
    }
    if (!promise->backed || promise->backup_unit == promise->unit)
        return core_error_set(error, CORE_REFUSED, "stream %zu is guaranteed, and has no backup", stream);
    if (promise->gpu_bound_ns < 1 || promise->detection_ns < 0)
        return core_error_set(error, CORE_REFUSED, "stream %zu has no latency bound", stream);
    return CORE_OK;
}

/* What one stream asks once the GPU is lost. *there: it asks something. */
static core_status find(const struct check_failover_promise *promise, uint32_t lost_unit, size_t stream,
                        struct core_stream_spec *spec, uint32_t *unit, bool *there, struct core_error *error)
{
    *there = true;
    *unit = promise->unit;
    *spec = promise->contract;
    if (promise->unit != lost_unit) {
        if (promise->backed)
            spec->latency_ns = promise->gpu_bound_ns;
        return CORE_OK;
    }
    *there = promise->backed;
    *unit = promise->backup_unit;
    return promise->backed ? contract_after(promise, stream, spec, error) : CORE_OK;
}

core_status check_failover(const struct config_profile *profile, uint32_t workers,
                           const struct check_failover_promise *promise, size_t count, uint32_t lost,
                           const struct partition_plan *after, struct core_error *error)
{
    struct core_stream_spec *specs = malloc((count + 1) * sizeof *specs);
    struct partition_plan_input input = {.specs = specs, .profile = profile, .workers = workers};
    core_status status = CORE_OK;
    if (specs == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for a check of %zu streams", count);
    for (size_t i = 0; status == CORE_OK && i < count; i++) {
        uint32_t unit;
        bool there = false;
        status = check_backup(&promise[i], workers, i, error);
        if (status == CORE_OK)
            status = find(&promise[i], workers + lost, i, &specs[input.count], &unit, &there, error);
        if (status != CORE_OK || !there)
            continue;
        if (!after->accepted || input.count >= after->count || after->unit[input.count] != unit)
            status =
                core_error_set(error, CORE_REFUSED, "stream %zu is not on the unit that was asked for", i);
        input.count++;
    }
    if (status == CORE_OK)
        status = partition_check(&input, after, error);
    free(specs);
    return status == CORE_OK || status == CORE_NO_MEMORY
               ? status
               : core_error_prefix(error, status, "GPU %u lost", lost);
}
