/* What millrace-bench plan tells: a table that grows while it measures, or one JSON document at the end. One
 * thread. */
#ifndef MILLRACE_BENCH_PLAN_REPORT_H
#define MILLRACE_BENCH_PLAN_REPORT_H

#include "bench/plan/sets.h"
#include "bench/plan/standing.h"
#include "bench/setup.h"

#include <jansson.h>

/* Times of plans of one set, in milliseconds. */
struct bench_plan_timing {
    const struct bench_plan_case *of;
    bool accepted;
    double slowness;
    struct bench_samples wall, cpu;
};

struct bench_plan_report {
    json_t *document; /* NULL: a table */
    bool standing;    /* the table's second head is printed */
};

CORE_CHECKED core_status bench_plan_report_begin(struct bench_plan_report *report,
                                                 const struct bench_setup *setup,
                                                 const struct bench_machine *machine,
                                                 struct core_error *error);
void bench_plan_report_cold(struct bench_plan_report *report, struct bench_plan_timing *timing);

/* The method is not asked for so many streams, since it took `ms` for fewer. */
void bench_plan_report_skipped(struct bench_plan_report *report, const struct bench_plan_case *of, double ms);
void bench_plan_report_standing(struct bench_plan_report *report, struct bench_standing_times *times);

/* Prints the document, if it is one; releases it. */
CORE_CHECKED core_status bench_plan_report_end(struct bench_plan_report *report, struct core_error *error);

#endif
