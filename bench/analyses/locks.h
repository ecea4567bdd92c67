/* Blocking by locks, suspension-oblivious: how long a job can wait for resources that others hold, as if it executed.
 *
 * Sources: Block, Leontyev, Brandenburg, Anderson 2007 (FMLP, long); Brandenburg and Anderson 2010, with the appendix'
 * lemmas and Brandenburg's dissertation 2011 (global OMLP, clustered OMLP, clustered k-exclusion OMLP). A job issues
 * its requests one at a time, without nesting; per request
 *
 *   FMLP            one request of each other task
 *   OMLP            up to m + 1 tasks: as FMLP; else the 2m - 1 longest of all, of each task two at most
 *   OMLP_PRINTED    as Elliott and Anderson 2012 print it: up to m tasks as FMLP, else the 2m - 1 longest of all
 *   CLUSTERED       of each cluster the c longest, of its own c - 1, of each task one; and once, on release, the longest
 *                   span of a request of a task of its cluster whose deadline may be later (priority donation)
 *   CLUSTERED_KX    k replicas of each resource: of what CLUSTERED has, the ceil((m - k) / k) longest
 *
 * where a task issues ceil((R_i + R_j) / T_j) times its requests while one job is pending. All are sound if the
 * response times R are.
 *
 * Integer ticks, exact. Pure functions, any thread. */
#ifndef MILLRACE_ANALYSES_LOCKS_H
#define MILLRACE_ANALYSES_LOCKS_H

#include "bench/analyses/ticks.h"

#include <stdbool.h>
#include <stddef.h>

#define ANALYSES_LOCK_TASKS    256
#define ANALYSES_LOCK_REQUESTS 8

enum analyses_lock_protocol {
    ANALYSES_LOCK_FMLP,
    ANALYSES_LOCK_OMLP,
    ANALYSES_LOCK_OMLP_PRINTED,
    ANALYSES_LOCK_CLUSTERED,
    ANALYSES_LOCK_CLUSTERED_KX
};

struct analyses_lock_request {
    unsigned resource;
    int64_t count, length; /* of a job, each so long at most */
};

struct analyses_lock_task {
    int64_t period, response;
    unsigned cluster; /* 0, 1, ...: its processors */
    size_t request_count;
    struct analyses_lock_request requests[ANALYSES_LOCK_REQUESTS]; /* one for each resource that it uses */
};

struct analyses_lock_system {
    unsigned m, per_cluster; /* processors */
    unsigned replicas;       /* k */
};

/* How long a job of the task is blocked; *arrival is the part of it that its release can cost (clustered only). */
int64_t analyses_lock_blocking(const struct analyses_lock_system *system,
                               const struct analyses_lock_task *tasks, size_t count,
                               enum analyses_lock_protocol protocol, size_t task, int64_t *arrival);

#endif
