/* Stream sets of a given number that a method of partitioning just accepts, or just refuses: what planning
 * takes longest over. One thread.
 *
 * They are the streams of a pool in slow motion: intervals and latency bounds are a multiple of the pool's,
 * so that any number of streams fits a machine when they are slow enough. */
#ifndef MILLRACE_BENCH_PLAN_SETS_H
#define MILLRACE_BENCH_PLAN_SETS_H

#include "bench/machine.h"
#include "bench/pool.h"
#include "partition/plan.h"

struct bench_plan_case {
    const struct partition_plan_method *method;
    const struct bench_machine *machine;
    const struct bench_pool *pool; /* at least `streams` */
    size_t streams;
    bool paper;
    uint64_t seed;
};

/* Fills specs (room for streams) with the first streams of the pool, `slowness` > 0 times as slow.
 * CORE_INVALID where that leaves the ranges of core_stream_spec_check. */
CORE_CHECKED core_status bench_plan_slow_down(const struct bench_plan_case *of, double slowness,
                                              struct core_stream_spec *specs, struct core_error *error);

/* One plan of these specs; the caller destroys it. */
CORE_CHECKED core_status bench_plan_make(const struct bench_plan_case *of,
                                         const struct core_stream_spec *specs, struct partition_plan **plan,
                                         struct core_error *error);

/* What is wrong with an accepted plan of these specs, by partition/check/check.h. One that is
 * refused, or of a method that only gives a bound, passes. */
CORE_CHECKED core_status bench_plan_check(const struct bench_plan_case *of,
                                          const struct core_stream_spec *specs,
                                          const struct partition_plan *plan, struct core_error *error);

/* Finds two slownesses within 10 % of each other, the greater accepted and the smaller refused, beginning at
 * `hint` > 0. 0 for one that there is not within the ranges of streams. */
struct bench_plan_edge {
    double accepted, refused;
};
CORE_CHECKED core_status bench_plan_find_edge(const struct bench_plan_case *of, double hint,
                                              struct core_stream_spec *specs, struct bench_plan_edge *edge,
                                              struct core_error *error);

#endif
