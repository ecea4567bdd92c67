/* The result of a replay, and its three forms: a page for a person, a JSON document, an .hgrm histogram. */
#ifndef MILLRACE_INPUTGEN_REPLAY_REPORT_H
#define MILLRACE_INPUTGEN_REPLAY_REPORT_H

#include "client/millrace.h"
#include "core/status.h"
#include "core/time.h"
#include "inputgen/replay_figures.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define INPUTGEN_REFUSAL_KINDS 16

struct inputgen_refusal {
    unsigned code, constraint; /* docs/protocol.md, section 4 */
    uint64_t streams;
    char text[512]; /* the server's words to the first of them */
};

struct inputgen_class_report {
    char *name;
    struct inputgen_figures figures;
};

/* What a run tells at its end: one field for each line of the report. */
struct inputgen_report {
    char *name;
    struct inputgen_class_report *classes;
    size_t class_count;
    struct inputgen_figures all;

    uint64_t connections, threads;
    double scale;
    core_ns open_ns;                     /* from the first OPEN to the last answer */
    uint64_t streams_on_gpus;            /* of those opened, by the server's own word */
    core_ns decision_max_ns;             /* longest decision on an OPEN, as the server measured it */
    core_ns run_ns;                      /* from the first intended time to the last result */
    core_ns latency_bound_min_ns;        /* the smallest bound among the opened streams */
    struct core_histogram send_lateness; /* intended time to hand-over to the socket */

    core_ns generator_cpu_ns, server_cpu_ns; /* while packets ran; server: -1 unknown */
    int64_t server_resident_bytes;           /* at the end; -1 unknown */
    pid_t server;

    struct inputgen_refusal refusals[INPUTGEN_REFUSAL_KINDS];
    size_t refusal_kinds;
    uint64_t accounts_differ; /* streams whose CLOSED counts other packets than we received */
    uint64_t connections_failed;
    char connection_error[512]; /* of the first that failed */
    bool interrupted;
};

struct inputgen_progress {
    core_ns elapsed_ns, duration_ns;
    uint64_t sent, received, missed, bad; /* missed: also late; bad: wrong or out of order */
};

struct inputgen_judgement {
    bool allow_refused; /* refused streams are no fault */
    bool server_only;   /* deadlines are judged by the server's word only */
    bool allow_missed;  /* missed deadlines are no fault */
};

/* An empty report with that many classes, whose names are the caller's to fill (malloc). NULL: no memory. */
struct inputgen_report *inputgen_report_create(const char *name, size_t class_count);

/* Counts a refusal under its kind, in a list of INPUTGEN_REFUSAL_KINDS of which `kinds` are in use. */
void inputgen_refusal_note(struct inputgen_refusal *refusals, size_t *kinds,
                           const struct millrace_refused *refused);
/* target += source. */
void inputgen_refusals_add(struct inputgen_refusal *target, size_t *kinds,
                           const struct inputgen_refusal *source, size_t source_kinds);

/* The verdict, as an exit status (0 or 1) and one sentence about why. */
int inputgen_report_judge(const struct inputgen_report *report, const struct inputgen_judgement *judgement,
                          char *sentence, size_t size);

/* Could the generator not keep its schedule, so that figures say more about it than about the server? True
 * when 1 % of the packets were handed over later than a quarter of the smallest latency bound. */
bool inputgen_report_generator_slow(const struct inputgen_report *report);

/* The page for a person but for its last line, the verdict; and the whole of the JSON document, the caller's
 * to add to and to release, which dumps as inputgen_report_json does. */
void inputgen_report_page(const struct inputgen_report *report, FILE *file);
struct json_t *inputgen_report_document(const struct inputgen_report *report, int status,
                                        const char *sentence);

/* The last line of a page: PASS or FAIL, and the counts. What these leave out (a failed connection, say) is
 * in the row of the outcome. */
void inputgen_report_verdict(const struct inputgen_report *report, int status, FILE *file);

/* Percentiles of a histogram as a JSON object of nanoseconds: p50, p99, p99.9, p99.99, min, mean, max. */
struct json_t *inputgen_report_percentiles(const struct core_histogram *histogram);
struct json_t *inputgen_report_refusals(const struct inputgen_refusal *refusals, size_t kinds);
CORE_CHECKED core_status inputgen_report_dump(struct json_t *document, FILE *file); /* releases it */

/* The whole page: at most INPUTGEN_TEXT_COLUMNS wide (text.h); its last line begins with PASS or FAIL and has
 * the counts. This one and the next two return CORE_SYSTEM on a write error. */
CORE_CHECKED core_status inputgen_report_print(const struct inputgen_report *report,
                                               const struct inputgen_judgement *judgement, FILE *file);
CORE_CHECKED core_status inputgen_report_json(const struct inputgen_report *report,
                                              const struct inputgen_judgement *judgement, FILE *file);
CORE_CHECKED core_status inputgen_report_hgrm(const struct inputgen_report *report, const char *path,
                                              struct core_error *error);

void inputgen_report_free(struct inputgen_report *report);

#endif
