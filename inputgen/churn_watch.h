/* Reads a server's admin port while streams run: the batch periods of its GPUs and, for long runs, a line of
 * figures at intervals: memory, descriptors and threads of the server and of its GPU processes, histograms,
 * counters. On one thread; a look takes as long as the admin port's answer. */
#ifndef MILLRACE_INPUTGEN_CHURN_WATCH_H
#define MILLRACE_INPUTGEN_CHURN_WATCH_H

#include "core/status.h"
#include "core/time.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define INPUTGEN_WATCH_GPUS 16

struct inputgen_watch_gpu {
    core_ns period_ns; /* the last one seen; a GPU without streams has none, which is ignored; 0: none yet */
    core_ns shortest_ns, longest_ns;                         /* of the periods seen */
    uint64_t changes, faults, restarts;                      /* by the server's count, since the first look */
    uint64_t changes_before, faults_before, restarts_before; /* its count at that look */
    pid_t process;
    bool up; /* in service */
};

struct inputgen_watch {
    const char *admin; /* NULL: there is nothing to look at */
    pid_t server;      /* whose memory, descriptors and threads; 0: unknown */
    FILE *samples;     /* where the lines go; may be NULL */
    core_ns sample_every_ns;
    core_ns start_ns; /* of the first look; samples count from it */
    core_ns next_look_ns, next_sample_ns;

    uint64_t looks, failures; /* that brought figures, that did not */
    char failure[512];        /* the first one's words */
    uint64_t streams;         /* at the last look */
    double held_back;         /* at the last poll: largest share of a unit that is withheld from admission */
    struct inputgen_watch_gpu gpus[INPUTGEN_WATCH_GPUS];
    size_t gpu_count;
};

/* A look if one is due: ten a second at most. */
void inputgen_watch_look(struct inputgen_watch *watch, core_ns now_ns);

/* A look now, and a sample where there is a file. */
CORE_CHECKED core_status inputgen_watch_now(struct inputgen_watch *watch, struct core_error *error);

/* Looks until the server has no stream, and all cards are in service, for timeout_ms at most. CORE_TIMEOUT:
 * it has one, or some card is not. */
CORE_CHECKED core_status inputgen_watch_await_idle(struct inputgen_watch *watch, int timeout_ms,
                                                   struct core_error *error);

/* Looks until new streams find all of every unit, which a server that lost time to its machine keeps from
 * them for a while, or until patience_ms are over: watch->held_back tells which. */
CORE_CHECKED core_status inputgen_watch_await_calm(struct inputgen_watch *watch, int patience_ms,
                                                   struct core_error *error);

/* The first line of a file of samples: names of the columns, separated by commas. */
void inputgen_watch_head(FILE *file);

#endif
