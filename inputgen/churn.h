/* Churn: streams are opened, changed and closed on a running server while others stay open, and every
 * deadline must be met.
 *
 *   1. the capacity is probed: identical streams are opened until the server refuses, and closed again,
 *      until two counts in a row are the same;
 *   2. the standing streams are opened, and send for the whole run;
 *   3. at the same time streams are opened and closed at random (churn_operate.h), each of which sends from
 *      its OPENED to its CLOSE;
 *   4. all are closed, and when the server is idle again the capacity is probed again: the counts must become
 *      the same.
 *
 * A server that speaks only version 1 of the protocol is asked for no change.
 *
 * Every packet of every stream is sent at its own time and every byte that comes back is compared, as
 * replay.h says. Runs on the caller's thread and those of replay_crew.h; one at a time in a process. */
#ifndef MILLRACE_INPUTGEN_CHURN_H
#define MILLRACE_INPUTGEN_CHURN_H

#include "inputgen/churn_figures.h"
#include "inputgen/churn_probe.h"
#include "inputgen/churn_watch.h"
#include "inputgen/replay.h"
#include "inputgen/streams.h"

#include <stdio.h>

struct inputgen_churn_options {
    struct inputgen_replay_options run;    /* of all streams */
    const struct inputgen_streams *opened; /* what is opened is drawn from; starts and stops do not matter */
    double operations_per_s;               /* above 0 */
    double weights[INPUTGEN_OPERATION_KINDS]; /* 0 or more each, one of them above 0 */
    double guaranteed;                        /* share of all streams that ask for that class, 0 to 1 */
    size_t open_max;                          /* opened streams at once, beside those that stand; 1 or more */
    uint64_t probe_max;                       /* streams of a probe at most; 0: no probe */
    double probe_bits_per_s; /* a slower stream is probed at this rate: so fewer fill the server */
    const char *admin;       /* the server's admin port; NULL: periods are not looked at */
    FILE *samples;           /* see churn_watch.h; may be NULL */
    core_ns sample_every_ns;
};

/* A probe of the first stream of a class, before and after. */
struct inputgen_capacity {
    char class_name[INPUTGEN_CLASS_NAME_MAX + 1];
    struct core_stream_spec spec;
    struct inputgen_probe before, after;
};

struct inputgen_churn_report {
    struct inputgen_report *live; /* of all packets: classes "standing" and "opened", and both of guaranteed
                                     streams if there may be any */
    struct inputgen_churn_figures figures;
    double operations_per_s;
    struct inputgen_capacity *capacities; /* one a class of the list; none without a probe */
    size_t capacity_count;
    bool probed_after; /* false: interrupted, or the server did not become idle */
    char remain[512];  /* what was still there when all had been closed; "": nothing, or not known */
    struct inputgen_watch watch; /* its files and addresses are gone */
};

/* Runs all of it. CORE_OK: *report is filled and the caller's (inputgen_churn_report_free), whatever it says
 * about the server. Anything else: the churn could not begin, with the reason in error. */
CORE_CHECKED core_status inputgen_churn_run(const struct inputgen_churn_options *options,
                                            const struct inputgen_streams *standing,
                                            struct inputgen_churn_report **report, struct core_error *error);
void inputgen_churn_report_free(struct inputgen_churn_report *report); /* NULL is fine */

struct inputgen_churn_judgement {
    bool allow_refused; /* a standing stream that is refused is no fault; one that is opened never is */
    bool allow_missed;  /* a missed deadline is no fault: where cards are made to fail on purpose */
};

/* The verdict, as an exit status (0 or 1) and one sentence about why. */
int inputgen_churn_judge(const struct inputgen_churn_report *report,
                         const struct inputgen_churn_judgement *judgement, char *sentence, size_t size);

/* Both return CORE_SYSTEM on a write error. */
CORE_CHECKED core_status inputgen_churn_print(const struct inputgen_churn_report *report,
                                              const struct inputgen_churn_judgement *judgement, FILE *file);
CORE_CHECKED core_status inputgen_churn_json(const struct inputgen_churn_report *report,
                                             const struct inputgen_churn_judgement *judgement, FILE *file);

#endif
