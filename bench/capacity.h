/* How many streams of a pool a machine carries under a method of partitioning: the largest N such that the
 * first N have a schedulable plan (SYSTOR 2012, section 5.3).
 *
 * Found by bisection. A method need not be monotone: it may refuse N streams and have a plan for more. So a
 * few numbers around the answer are tried too, a few below and up to twice as many above, and where one above
 * has a plan the search goes on from there. What is found is a number that holds; that no greater one does is
 * not proven.
 * (Not with a method that only gives a bound: it looks at sums, which grow with the streams.)
 * Two neighbours are always known in the end: N streams were accepted, N + 1 were refused. Deterministic but
 * for planning_ns. One thread. */
#ifndef MILLRACE_BENCH_CAPACITY_H
#define MILLRACE_BENCH_CAPACITY_H

#include "bench/machine.h"
#include "bench/pool.h"
#include "partition/plan.h"

/* Called before every plan: the numbers of streams between which the answer is looked for, `refused` 0 as
 * long as none was refused. */
typedef void bench_capacity_progress(void *argument, const struct partition_plan_method *method,
                                     size_t accepted, size_t refused);

struct bench_capacity_options {
    const struct partition_plan_method *method;
    const struct bench_machine *machine;
    const struct bench_pool *pool;
    bool paper;                        /* as in struct partition_plan_input */
    uint64_t seed;                     /* of methods that deal at random */
    size_t hint;                       /* where the answer may be; 0: no idea */
    bench_capacity_progress *progress; /* NULL: none */
    void *argument;
};

struct bench_capacity {
    const struct partition_plan_method *method;
    size_t streams;              /* N */
    bool whole_pool;             /* the pool was too small to tell: N is all of it */
    size_t refused_below;        /* a number below N that was refused; 0: none of those tried */
    struct partition_plan *plan; /* of the N streams; owned */
    /* Payload, bit/s; of a method that only gives a bound, the total alone. */
    double total_bits_per_s, cpu_bits_per_s, gpu_bits_per_s;
    core_ns planning_ns; /* for the plan of the N streams */
    /* Why N + 1 are refused; NONE, and reason says nothing, with whole_pool. */
    enum perfmodel_limit binding;
    char reason[sizeof((struct partition_plan *)NULL)->reason];
    unsigned plans; /* made in all */
};

CORE_CHECKED core_status bench_capacity_find(const struct bench_capacity_options *options,
                                             struct bench_capacity *capacity, struct core_error *error);
void bench_capacity_free(struct bench_capacity *capacity);

/* Least d' and least and greatest period of the GPUs that have streams; 0 where none has. */
struct bench_capacity_gpus {
    uint32_t used;
    core_ns shortest_ns, period_low_ns, period_high_ns;
};
struct bench_capacity_gpus bench_capacity_gpus(const struct bench_capacity *capacity);

#endif
