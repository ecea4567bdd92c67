#include "partition/search/baseline.h"

#include "partition/search/candidate.h"

#include <stdlib.h>

/* splitmix64 */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void shuffle(uint32_t *streams, size_t count, uint64_t seed)
{
    for (size_t left = count; left > 1; left--) {
        size_t chosen = random_next(&seed) % left;
        uint32_t stream = streams[chosen];
        streams[chosen] = streams[left - 1];
        streams[left - 1] = stream;
    }
}

static bool fill_gpus(struct partition_problem *problem, uint32_t *rest, size_t count,
                      struct partition_plan *plan)
{
    shuffle(rest, count, problem->input->seed);
    for (size_t k = 0; k < count; k++)
        plan->unit[rest[k]] = partition_unit_of_gpu(plan->workers, (uint32_t)(k % problem->gpus));
    return partition_evaluate_gpus(problem, plan);
}

core_status partition_baseline_make(struct partition_problem *problem, uint32_t *to_workers,
                                    struct partition_plan *plan)
{
    uint8_t *on_gpu = calloc(problem->count + 1, sizeof *on_gpu);
    if (on_gpu == NULL)
        return CORE_NO_MEMORY;
    bool fits;
    if (problem->gpus == 0) {
        fits = partition_evaluate_workers(problem, on_gpu, plan);
    } else {
        size_t first = partition_candidate_fill(problem, to_workers, on_gpu, plan);
        fits = fill_gpus(problem, to_workers + first, problem->count - first, plan);
    }
    if (fits)
        partition_plan_conclude(problem, plan);
    free(on_gpu);
    return CORE_OK;
}
