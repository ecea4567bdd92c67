/* Whole plans in virtual time: every worker's streams through the workers' own scheduler (simulator.h), every
 * GPU's through the pipeline (pipeline.h), under several patterns of arrivals and execution times. */
#ifndef MILLRACE_TESTS_PLAN_SIMULATION_H
#define MILLRACE_TESTS_PLAN_SIMULATION_H

#include "partition/plan.h"
#include "tests/support/pipeline.h"

struct plan_simulation_effort {
    uint32_t batches;  /* of each pattern on a GPU, 1 .. PIPELINE_BATCHES_MAX */
    uint32_t mixtures; /* random mixtures of patterns on a GPU, beside every pattern at its most hostile */
    uint64_t worker_pieces; /* about so many of each pattern on a worker */
    uint64_t seed;
};

struct plan_simulation_tally {
    uint64_t gpus, workers; /* with streams */
    uint64_t packets, batches, bursts;
    uint64_t misses;         /* packets of workers, batches of GPUs */
    uint64_t broken;         /* stages that ended later than the plan's bounds, bursts longer than theirs */
    uint64_t arenas_missing; /* times that a plan's arenas did not suffice */
    int64_t least_gpu_ppb;   /* least slack relative to d' */
    int64_t least_promised_ppb; /* least room that the plans themselves leave there */
    core_ns least_worker_ns;
    char first[256]; /* the first of these as a sentence; empty without */
};

void plan_simulation_tally_init(struct plan_simulation_tally *tally);

/* Runs an accepted plan of the default mode and adds to the tally. CORE_NO_MEMORY. */
CORE_CHECKED core_status plan_simulation_run(const struct partition_plan_input *input,
                                             const struct partition_plan *plan,
                                             const struct plan_simulation_effort *effort,
                                             struct plan_simulation_tally *tally);

/* One GPU of the plan as the pipeline takes it; *specs is the caller's to free. */
CORE_CHECKED core_status plan_simulation_gpu(const struct partition_plan_input *input,
                                             const struct partition_plan *plan, uint32_t g,
                                             struct pipeline_gpu *gpu, struct core_stream_spec **specs);

#endif
