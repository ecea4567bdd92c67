/* An adversary: looks for the releases and execution times of a set of jobs that come nearest to its bounds.
 *
 * It draws phases of the tasks, and whether their jobs take all their time or less; then it changes one thing at a
 * time and keeps what comes nearer. One thread. */
#ifndef MILLRACE_BENCH_PAPERS_ATTACK_H
#define MILLRACE_BENCH_PAPERS_ATTACK_H

#include "bench/papers/stations.h"
#include "inputgen/random.h"

struct papers_attack {
    size_t task_count;
    int64_t period[PAPERS_STATION_TASKS]; /* jobs of a task are at least so far apart */
    unsigned tries;                       /* simulations */
    int64_t periods;                      /* of the longest period, that one simulation covers; 1 or more */
    bool synchronous;                     /* the first try releases all tasks at once, with all their time */
    /* Simulates these jobs. Returns how near they come to what is attacked: 1 reaches it, more exceeds it. */
    double (*run)(const void *context, const struct papers_job_source *source, int64_t horizon);
    const void *context;
};

/* Returns the greatest score. */
double papers_attack_run(const struct papers_attack *attack, struct inputgen_random *random);

/* Uniform in [low, high]. */
int64_t papers_random_in(struct inputgen_random *random, int64_t low, int64_t high);

/* Uniform in the logarithm, in [low, high], low 1 or more. */
int64_t papers_random_log(struct inputgen_random *random, int64_t low, int64_t high);

#endif
