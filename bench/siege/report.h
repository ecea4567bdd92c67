/* Private to the bench `siege`: what came of an attack, whether that is what was to be reached, and how both
 * are told. */
#ifndef MILLRACE_BENCH_SIEGE_REPORT_H
#define MILLRACE_BENCH_SIEGE_REPORT_H

#include "bench/siege/honest.h"

#include <jansson.h>

enum siege_verdict {
    SIEGE_PASS,
    SIEGE_FAIL,
    SIEGE_UNSURE /* packets were late or missed, and the generator's own lateness may be the reason */
};

/* All zero but the attack, before its first round. */
struct siege_row {
    const struct siege_attack *attack;
    struct siege_figures figures;
    uint64_t done;
    uint64_t log_lost, turned; /* by the server's metrics: lines; connections that it ended */
    core_ns notice_ns;         /* as struct siege has them, from round to round */
    uint64_t noticed_late;
    char note[240];
    bool failed;
    enum siege_verdict verdict;
    char why[200]; /* it is not PASS */
};

/* Sets verdict and why. */
void siege_judge(struct siege_row *row);

/* The table for a person, on standard output, and a row as JSON. */
void siege_head_print(void);
void siege_row_print(const struct siege_row *row);
void siege_legend_print(void);
json_t *siege_row_json(const struct siege_row *row);

#endif
