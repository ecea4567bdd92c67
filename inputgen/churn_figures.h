/* What a churn counts of its operations. Each sending thread fills a set of its own; they are added up when
 * the threads have ended. */
#ifndef MILLRACE_INPUTGEN_CHURN_FIGURES_H
#define MILLRACE_INPUTGEN_CHURN_FIGURES_H

#include "core/histogram.h"
#include "inputgen/replay_report.h"

#include <stddef.h>
#include <stdint.h>

enum inputgen_operation {
    INPUTGEN_OPERATION_OPEN,
    INPUTGEN_OPERATION_CLOSE,
    INPUTGEN_OPERATION_MODIFY,
    INPUTGEN_OPERATION_KINDS
};

/* "open", "close", "modify" */
const char *inputgen_operation_name(enum inputgen_operation kind);

struct inputgen_operation_figures {
    uint64_t asked;            /* requests sent; granted + refused + unanswered */
    uint64_t granted, refused; /* by the server's answer; a CLOSE is always granted */
    uint64_t unanswered;       /* at the end of the run: a fault */
    uint64_t unsent;           /* there was no room for the request in the output buffer */
    /* As the server says: how long the decision took, of those granted and refused (not for want of a moment,
     * REFUSED 9); and until the contract was in force, of those granted. */
    struct core_histogram decided, in_force;
    struct core_histogram round_trip; /* from when the operation was due to its answer's receipt */
};

struct inputgen_churn_figures {
    struct inputgen_operation_figures kinds[INPUTGEN_OPERATION_KINDS];
    struct inputgen_refusal refusals[INPUTGEN_REFUSAL_KINDS];
    size_t refusal_kinds;
    uint64_t on_gpus;         /* of the streams opened, by the server's word */
    uint64_t notices[4];      /* by kind (enum millrace_notice_kind); 0: kinds of later versions */
    uint64_t ended;           /* streams that the server ended unasked */
    uint64_t accounts_differ; /* closed streams whose CLOSED counts other packets than were received */
    uint64_t open_peak;       /* most of them open at once (of several threads: the sum of their peaks) */
};

void inputgen_churn_figures_init(struct inputgen_churn_figures *figures);

/* target += source. */
void inputgen_churn_figures_add(struct inputgen_churn_figures *target,
                                const struct inputgen_churn_figures *source);

#endif
