/* What a replay counts, for one class of streams or for all.
 *
 * Each sending thread fills a set of its own; they are added up when the threads have ended. */
#ifndef MILLRACE_INPUTGEN_REPLAY_FIGURES_H
#define MILLRACE_INPUTGEN_REPLAY_FIGURES_H

#include "core/histogram.h"
#include "core/time.h"

#include <stdbool.h>
#include <stdint.h>

/* What is counted of a class of streams, or of all: one field for each figure of the report. */
struct inputgen_figures {
    uint64_t opened, refused;      /* streams */
    uint64_t planned;              /* packets that the timetable has, of opened streams */
    uint64_t sent;                 /* of these, given to a connection */
    uint64_t received;             /* RESULTs */
    uint64_t met, missed;          /* as the server says; met + missed + rejected = received */
    uint64_t rejected;             /* RESULTs whose status is not 0 */
    uint64_t reader_late;          /* met, says the server, but taken late by us */
    uint64_t late;                 /* received after intended time + latency bound, for any cause */
    uint64_t untrue;               /* met, says the server, and took longer than the bound, for certain */
    core_ns untrue_ns;             /* by so much at the most */
    uint64_t fault, fault_missed;  /* went the way round a lost device; of these, missed */
    uint64_t gaps;                 /* of a pool: times that a stream went on at another node, */
    uint64_t resent, gap_late;     /* packets sent again then, and deadlines that it cost */
    core_ns gap_ns;                /* the longest */
    uint64_t policed;              /* held back by the server because they came too early */
    uint64_t lost;                 /* sent, never answered */
    uint64_t mismatched;           /* wrong length, padding or byte */
    uint64_t disordered;           /* not the sequence that had to come */
    uint64_t payload_bytes;        /* of RESULTs with a right ciphertext, before padding */
    uint64_t cipher_bytes;         /* the same, as it came back */
    struct core_histogram latency; /* intended time to receipt of the RESULT */
    struct core_histogram service; /* of that, what the server says it took: eligible time to hand-over */
    struct core_histogram slack;   /* latency bound - latency; what is negative was late */
};

void inputgen_figures_init(struct inputgen_figures *figures);

/* target += source. */
void inputgen_figures_add(struct inputgen_figures *target, const struct inputgen_figures *source);

#endif
