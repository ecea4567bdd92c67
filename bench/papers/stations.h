/* A simulator of jobs that pass from station to station: the task models of RGEM, GPU-SAM and GPU-SPARC.
 *
 * It knows how these systems schedule, and none of their bounds: bounds are compared with what happens here.
 *
 * A task releases jobs; a job goes through its stages one after the other. A stage asks its station for
 * `parallel` pieces at once, `pieces` times in a row. A piece has a head, which is preempted by whatever comes
 * first in the order of the station, and a body, which is not; both may be 0. So a stage on preemptive
 * processors is all head, a kernel all body, and a chunk of RGEM has its overhead as the head and the DMA as the
 * body. A station serves as many pieces at a time as it has units.
 *
 * Time is in ticks, exact. Pure, one thread. */
#ifndef MILLRACE_BENCH_PAPERS_STATIONS_H
#define MILLRACE_BENCH_PAPERS_STATIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAPERS_STATIONS      3
#define PAPERS_STATION_TASKS 32
#define PAPERS_STATION_JOBS  128 /* that are not done, at a time */
#define PAPERS_STAGES        24

struct papers_stage {
    unsigned station;
    int64_t head, body; /* of a piece, at most */
    int64_t pieces;     /* one after the other; 0: the stage is passed at once */
    unsigned parallel;  /* at the same time, 1 or more; with more than one, pieces is 1 */
    bool joined;        /* its time is told from the request of the stage before it on */
};

struct papers_job_source {
    void *context;
    /* When job 0, 1, ... of the task is released; not before the one before it. */
    int64_t (*release)(void *context, size_t task, size_t job);
    /* How long a head or a body takes, 0 .. most; NULL: most. Asked once for each when a stage begins. */
    int64_t (*length)(void *context, size_t task, size_t job, size_t stage, int64_t most);
    /* Told of each job that is done; may be NULL. */
    void (*done)(void *context, size_t task, size_t job, int64_t response);
};

struct papers_stations {
    unsigned units[PAPERS_STATIONS];
    bool
        by_arrival; /* stations serve who asked first, else the task of the lowest index, then the older job */
    bool eager;     /* who waits gets a unit before the job that left it has asked again */
    size_t task_count;
    struct {
        bool
            one_at_a_time; /* a job is released when the one before it is done, or at its time if that is later */
        size_t stage_count;
        struct papers_stage stages[PAPERS_STAGES];
    } tasks[PAPERS_STATION_TASKS];
};

struct papers_stations_result {
    int64_t
        response[PAPERS_STATION_TASKS]; /* the longest from a job's release to its end; 0: no job was done */
    int64_t stage[PAPERS_STATION_TASKS][PAPERS_STAGES]; /* the longest from a stage's request to its end */
    bool overflowed; /* more jobs at a time than there is room for: the run ended there */
};

/* Runs all jobs released before `horizon` to their ends. Returns the result by pointer: it is large. */
void papers_stations_run(const struct papers_stations *stations, const struct papers_job_source *source,
                         int64_t horizon, struct papers_stations_result *result);

#endif
