/* An engine with a real child and a crowd of streams, for tests: every batch that comes back is the oldest
 * one, and right to the byte, or the test ends (abort). */
#ifndef MILLRACE_TESTS_SUPPORT_GPU_RIG_H
#define MILLRACE_TESTS_SUPPORT_GPU_RIG_H

#include "tests/support/gpu_crowd.h"

#define GPU_RIG_PERIOD_NS (2 * CORE_NS_PER_MS)

struct gpu_rig {
    struct gpu_crowd *crowd;
    struct gpu_engine *engine;
    struct gpu_order under_way[GPU_REGION_ARENAS_MAX]; /* ring */
    uint64_t submitted, back;
    core_ns back_ns; /* when the last one came back */
};

/* Opens the engine (options NULL: gpu_crowd_options), starts it and hands all keys over. The crowd is the
 * rig's. */
void gpu_rig_open(struct gpu_rig *rig, struct gpu_crowd *crowd, const struct gpu_emulation *emulation,
                  const struct gpu_engine_options *options);
void gpu_rig_close(struct gpu_rig *rig);

/* Starts the child, also after a fault and its back-off, and hands the keys over. */
void gpu_rig_start(struct gpu_rig *rig);

void gpu_rig_submit(struct gpu_rig *rig, uint32_t jobs, uint32_t bytes_max);
void gpu_rig_take_back(struct gpu_rig *rig);
void gpu_rig_take_all(struct gpu_rig *rig);

/* Takes batches back until fewer than `most` are under way, and submits one. */
void gpu_rig_go_on(struct gpu_rig *rig, uint32_t most, uint32_t jobs, uint32_t bytes_max);

/* The same until a fault comes, which must list exactly what is under way; each is run in the GPU's stead. */
struct gpu_fault gpu_rig_fault(struct gpu_rig *rig, uint32_t most, uint32_t jobs, uint32_t bytes_max);

#endif
