/* GPU-SAM and GPU-SPARC in the simulator, and random sets of theirs. One thread. */
#ifndef MILLRACE_BENCH_PAPERS_PIPELINE_STATIONS_H
#define MILLRACE_BENCH_PAPERS_PIPELINE_STATIONS_H

#include "bench/analyses/pipeline.h"
#include "bench/papers/stations.h"
#include "inputgen/random.h"

/* The set with parallelism m[i] as stations: CPUs preempt, the bus and the GPUs do not. */
void papers_pipeline_stations(const struct analyses_pipeline_set *set, const unsigned *m,
                              struct papers_stations *stations);

/* Section 5.2 of GPU-SAM, IV-D of GPU-SPARC; 1 tick is 0.01 (ms). T = D uniform in [100, 1000]; 1 + 4k stages {CPU
 * PCI GPU PCI}^k CPU, k in 1 .. 5; C uniform in [5, T], spread over the stages at random. How it is spread is not
 * printed: a resource that binds the task (GPU-SAM: 70 % GPU, 20 % PCI, 10 % CPU; GPU-SPARC: always GPU) has weights
 * five times as great. With m GPUs copies take m times as long and kernels 1 / m; a merge of the outputs takes
 * CPU time of half a copy down for each more GPU; data that kernels hand on double the copies again. Adds tasks until
 * the GPUs' utilisation with one GPU each exceeds the target (and takes the last one off again), by priority of the
 * shortest deadline. Returns false where two tasks are too many already. */
struct papers_pipeline_draw {
    double gpu_utilisation;
    double dependent; /* P_D: the share of tasks whose kernels hand data on */
    bool mixed;       /* 70 / 20 / 10 % bound by GPU, PCI, CPU */
    size_t tasks;     /* that many, whatever the utilisation; 0: by the target */
};
bool papers_pipeline_draw_set(const struct papers_pipeline_draw *draw, struct inputgen_random *random,
                              struct analyses_pipeline_set *set);

/* Small numbers, few tasks and stages: any units; all on one resource of two or more; or one chain of stages and tasks
 * that meet it on one resource. Where bounds are exceeded most. */
void papers_pipeline_draw_small(struct inputgen_random *random, struct analyses_pipeline_set *set,
                                unsigned *m);

#endif
