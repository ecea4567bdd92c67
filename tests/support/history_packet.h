/* One packet in a history. */
#ifndef MILLRACE_TESTS_HISTORY_PACKET_H
#define MILLRACE_TESTS_HISTORY_PACKET_H

#include "cpu/scheduler.h"

#include <stdbool.h>

#define HISTORY_SOURCES 128 /* streams at once, those that are leaving included */

struct history_stream;

struct history_packet {
    struct cpu_packet cpu; /* first member */
    struct history_stream *stream;
    struct history_packet *next; /* of a batch, or free */
    uint32_t source;             /* number of the stream, below HISTORY_SOURCES */
    core_ns eligible_ns;         /* the contract's clock starts */
    core_ns deadline_ns;         /* eligible + latency bound */
    core_ns due_ns;              /* its unit has to have finished it, so that it is returned by then */
    bool policed;                /* had to wait for that */
    bool alone;                  /* a job of its own on a GPU */
    bool promised;
};

/* The memory of one, in a list of all that were ever made: a history may end with packets anywhere. */
struct history_made {
    struct history_packet packet; /* first member */
    struct history_made *next;
};

#endif
