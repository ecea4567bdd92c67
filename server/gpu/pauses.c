#include "server/gpu/pauses.h"

void server_gpu_pauses_done(struct server_gpu_pauses *pauses, const struct server_gpu_pauses_batch *batch,
                            uint32_t copy_engines)
{
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++) {
        const core_ns came_ns = stage == GPU_STAGE_UP ? batch->submitted_ns
                                                      : batch->times[stage - 1].end_ns - batch->uncertain_ns;
        if (copy_engines > 1 && pauses->ended_ns[stage] < came_ns)
            pauses->before[stage] = batch->number;
        pauses->ended_ns[stage] = batch->times[stage].end_ns + batch->uncertain_ns;
    }
}

void server_gpu_pauses_idle(struct server_gpu_pauses *pauses, uint64_t next)
{
    for (int stage = 0; stage < GPU_STAGE_COUNT; stage++)
        pauses->before[stage] = next;
}

uint64_t server_gpu_pauses_least(const struct server_gpu_pauses *pauses)
{
    uint64_t least = pauses->before[0];
    for (int stage = 1; stage < GPU_STAGE_COUNT; stage++)
        least = pauses->before[stage] < least ? pauses->before[stage] : least;
    return least;
}
