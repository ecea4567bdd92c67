/* A simulator of globally scheduled tasks of which some use one GPU: G-EDF (or any fixed points of priority) on m
 * processors, and a lock for the GPU. It knows how these schedule, and none of their bounds.
 *
 * A job executes `before`, asks for the lock, executes half of section_cpu, is suspended for section_gpu, executes the
 * other half, gives the lock back, and executes `after`. Who holds the lock has the priority of the first of those who
 * wait, if that is higher. Jobs of a task come one after the other. Exact ticks; pure, one thread. */
#ifndef MILLRACE_BENCH_PAPERS_GLOBAL_H
#define MILLRACE_BENCH_PAPERS_GLOBAL_H

#include "bench/papers/stations.h"

#define PAPERS_GLOBAL_TASKS 16

enum papers_lock {
    PAPERS_LOCK_FIFO, /* FMLP; also the container's first come first served */
    PAPERS_LOCK_OMLP  /* m in a queue first come first served, the others behind it by priority */
};

struct papers_global_task {
    int64_t point; /* of priority, after a job's release: its deadline, in G-EDF */
    int64_t before, section_cpu, section_gpu, after;
};

struct papers_global {
    unsigned m;
    enum papers_lock lock;
    size_t count;
    struct papers_global_task tasks[PAPERS_GLOBAL_TASKS];
};

struct papers_global_result {
    int64_t response[PAPERS_GLOBAL_TASKS]; /* the longest; 0: no job was done */
    bool overflowed; /* more jobs at a time than there is room for: the run ended there */
};

/* Runs all jobs released before `horizon` to their ends. source->length is asked with stage 0, 1, 2, 3 for before,
 * section_cpu, section_gpu, after. */
void papers_global_run(const struct papers_global *global, const struct papers_job_source *source,
                       int64_t horizon, struct papers_global_result *result);

#endif
