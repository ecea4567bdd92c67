/* Plans: which stream goes to which CPU worker or GPU, in which batch period, and the figures that prove it.
 *
 * An accepted plan guarantees that every stream keeps its latency bound as long as it keeps its contract:
 *
 *   each worker   the burst test of perfmodel/edf.h accepts its streams, charged as perfmodel/cpu.h says;
 *   each GPU      at its period T, by one of three rules, T and the bounds of the stages together fit the
 *                 shortest d' of its streams: each stage of the fullest batch fits T (perfmodel/gpu.h); or
 *                 the stages catch up, by sums over the streams, or by staircase arrival curves
 *                 (perfmodel/flow.h);
 *   memory        the arenas of each GPU fit the card, and those of all the pinned budget.
 *
 * T is the default period, a quarter of the shortest d' on the GPU, wherever one of the first two rules
 * accepts that, in this order; else a period at which one of the three rules does, the staircase being tried
 * last.
 *
 * The jobs of a batch are dealt to the SMs round robin from the longest to the shortest. Copies are charged
 * at their contended times where the machine has several GPUs or the card two copy engines.
 *
 * `paper` mode is that of SYSTOR 2012 and promises less: jobs are a fluid, kernels take what the utilisation
 * table itself says (perfmodel_gpu_stages_measured), T is at most d_min / 4, the longest stage is at most T,
 * and a worker is full at a long-run share of 1. Only for reproducing its figures.
 *
 * The I/O threads are not part of a plan: the I/O thread of a stream is that of its connection.
 *
 * Pure: the same input gives the same plan. Any thread. */
#ifndef MILLRACE_PARTITION_PLAN_H
#define MILLRACE_PARTITION_PLAN_H

#include "config/profile.h"
#include "core/stream.h"
#include "partition/unit_number.h"
#include "perfmodel/edf.h"
#include "perfmodel/gpu.h"
#include "perfmodel/limit.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PARTITION_PLAN_STREAMS_MAX ((size_t)1 << 20)
#define PARTITION_PLAN_WORKERS_MAX 1024

struct partition_plan_input {
    const struct core_stream_spec *specs; /* each within the ranges of core_stream_spec_check */
    size_t count;                         /* 0 .. PARTITION_PLAN_STREAMS_MAX */
    const struct config_profile *profile; /* has passed config_profile_check */
    uint32_t workers;                     /* CPU workers, 1 .. PARTITION_PLAN_WORKERS_MAX */
    bool paper;
    bool sums;     /* only the sum-based backlog rule, which online admission maintains in O(1) */
    uint64_t seed; /* of the methods that deal at random */
};

struct partition_plan_worker {
    size_t streams;
    core_ns surcharge_ns;             /* of a piece, for the task mix of its streams; 0 in paper mode */
    struct perfmodel_edf_result test; /* blocking_ns is 2q; in paper mode only the share is set */
};

enum partition_plan_rule {
    PARTITION_PLAN_BATCH,    /* the fullest batch, exactly: no stage outlasts T */
    PARTITION_PLAN_BACKLOG,  /* sums over the streams: a stage may outlast T, and catches up */
    PARTITION_PLAN_STAIRCASE /* staircase arrival curves, for this period alone (perfmodel/flow.h) */
};

struct partition_plan_gpu {
    uint32_t kind; /* index into profile->gpus */
    size_t streams;
    core_ns period_ns;   /* T; 0 without streams, as all below */
    core_ns shortest_ns; /* least d' of its streams */
    enum partition_plan_rule rule;
    /* Bounds of a batch's stages. BATCH: each at most T; one copy engine: up and down together. Else: U^, K^
     * and R^. */
    struct perfmodel_stages stages;
    core_ns latency_ns;    /* BATCH: perfmodel_gpu_latency_ns; at most shortest_ns (not in paper mode) */
    uint64_t batch_bytes;  /* room of an arena: BATCH: the fullest batch; else P + rho T */
    uint32_t arenas;       /* in rotation: perfmodel_flow_arenas; five in paper mode */
    uint64_t memory_bytes; /* of them */
    int64_t busiest_ppb;   /* of T, what the busiest stage takes in the long run, at the most */
};

/* A rectangle over latency bound and rate: streams inside are on GPUs, streams outside on workers. Of several
 * streams exactly on an edge, with one rate or latency bound, some may be on workers. */
struct partition_plan_rectangle {
    bool used; /* false: another method was used, or no stream is on a GPU */
    core_ns latency_low_ns, latency_high_ns;
    double rate_low, rate_high; /* bytes of payload per second */
};

struct partition_plan_method;

struct partition_plan {
    const struct partition_plan_method *method;
    bool accepted;
    bool paper;
    size_t count;
    uint32_t workers, gpus;
    /* By stream: its unit. NULL if the plan was refused, or the method only gives a bound. */
    uint32_t *unit;
    struct partition_plan_worker *worker;
    struct partition_plan_gpu *gpu; /* in the order of the profile's kinds */
    struct partition_plan_rectangle rectangle;
    /* Accepted: the limit with the least headroom. Refused: the limit that failed in the closest attempt. */
    enum perfmodel_limit binding;
    uint32_t binding_unit;
    int64_t headroom_ppb; /* accepted: headroom there, relative to the limit; not set by the bound */
    char reason[256];     /* binding limit and headroom as a sentence with the figures */
};

/* One way of partitioning. */
struct partition_plan_method {
    const char *name;
    const char *description;
    bool places; /* false: only says whether a plan may exist, as the bound does */
    core_status (*make)(const struct partition_plan_input *input, struct partition_plan *plan);
};

/* All methods; ends with a name of NULL. */
extern const struct partition_plan_method partition_plan_methods[];

/* NULL for an unknown name. */
const struct partition_plan_method *partition_plan_method_find(const char *name);

/* CORE_OK, with a plan that is accepted or refused; CORE_INVALID where the input is not as asked for above;
 * CORE_NO_MEMORY. */
CORE_CHECKED core_status partition_plan_make(const struct partition_plan_method *method,
                                             const struct partition_plan_input *input,
                                             struct partition_plan **plan, struct core_error *error);
void partition_plan_destroy(struct partition_plan *plan); /* NULL is fine */

#endif
