/* Streams driven through a plan in one process, without sockets: generator threads make packets on schedule,
 * as the Input Generator of SYSTOR 2012 (section 5.2) does, and hand them to CPU workers and to the arenas of
 * GPUs, which run in their children as they do under the server. Every packet's deadline is watched, every
 * stage of every batch is held against the model, and some streams are compared to the byte.
 *
 * A packet's latency runs from the time it is due to the time its result lies in memory and the batcher or
 * the worker knows: there is no socket and no I/O thread here. Everything else is the server's own code. */
#ifndef MILLRACE_BENCH_PIPELINE_PIPELINE_H
#define MILLRACE_BENCH_PIPELINE_PIPELINE_H

#include "bench/gpu/card.h"
#include "core/histogram.h"
#include "cpu/engine.h"
#include "partition/plan.h"

#define BENCH_PIPELINE_GENERATORS_MAX 62

struct bench_pipeline_options {
    const struct partition_plan_input *input; /* streams, profile, workers */
    const struct partition_plan *plan;        /* accepted, of this input */
    struct bench_gpu_program program;
    const struct gpu_listed *cards;      /* GPU by GPU; NULL: emulated */
    const struct cpu_engine_ops *engine; /* of the workers */
    uint32_t generators;                 /* threads, 1 .. BENCH_PIPELINE_GENERATORS_MAX */
    uint32_t compared;                   /* streams whose every packet is compared with OpenSSL's result */
    bool copied;         /* every packet's payload is written; no: only those of compared streams, the others
                            send what their place in memory holds */
    core_ns duration_ns; /* packets that are due in this time are sent */
    core_ns grace_ns;    /* for so long after it, those that found no room are tried again; then they count as
                            missed. 0: 2 s */
    uint64_t seed;       /* of keys and of the streams' phases */
};

/* Times of one stage over all batches, in nanoseconds, and how far the model is off: its time for that very
 * batch, margin included, over the measured one, less 1. */
struct bench_pipeline_stage {
    double median_ns, p99_ns, max_ns;
    double bound_ns; /* of the fullest batch, by the plan */
    double error_least, error_median, error_most;
};

struct bench_pipeline_gpu {
    struct gpu_device_facts facts;
    const struct partition_plan_gpu *plan;
    uint64_t batches, bytes, largest_bytes;
    uint64_t late;    /* packets that came after their batch was closed: hand-over took longer than in_ns */
    uint64_t held_up; /* batches that were opened late for want of a free arena */
    struct bench_pipeline_stage stages[GPU_STAGE_COUNT];
    double start_p99_ns, start_max_ns; /* from a batch's due close, and in_ns, to the start of its copy */
    double tell_p99_ns, tell_max_ns;   /* from the end of its copy back until the batcher knew */
    double copy_limit_bytes_per_s;     /* of the profile: both directions at once, its largest row */
    core_ns batcher_cpu_ns, child_cpu_ns;
    struct gpu_nvml_health health; /* as the child read it last, in the run's last second; zeros: not known */
};

/* One kind of unit. */
struct bench_pipeline_tally {
    uint64_t packets, bytes, missed;
    uint64_t compared, wrong; /* packets */
    uint64_t refused;         /* attempts to hand over that found no room, and were repeated */
    core_ns least_slack_ns;   /* CORE_NS_NEVER without packets */
    core_ns last_ns;          /* when the last one was finished, since the start */
    struct core_histogram *latency;
};

struct bench_pipeline_result {
    core_ns elapsed_ns;                   /* from the start to the last finished packet */
    struct bench_pipeline_tally cpu, gpu; /* whose histograms are freed with the result */
    uint32_t gpus, generators, workers;
    struct bench_pipeline_gpu *gpu_results;
    core_ns *generator_cpu_ns, *worker_cpu_ns;
    uint64_t started_late_packets; /* made over 1 ms after they were due: the generators did not keep up */
};

CORE_CHECKED core_status bench_pipeline_run(const struct bench_pipeline_options *options,
                                            struct bench_pipeline_result *result, struct core_error *error);
void bench_pipeline_result_free(struct bench_pipeline_result *result);

/* Bytes in each direction per second that this kind moves when both directions copy: the largest row of its
 * table at the contended times, one after the other where there is one copy engine. */
double bench_pipeline_copy_limit(const struct config_profile_gpu *kind);

#endif
