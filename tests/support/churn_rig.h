/* A churn against a server of this process with one emulated card: what standing and opened streams are drawn
 * from, and options that suit a slow machine. */
#ifndef TESTS_SUPPORT_CHURN_RIG_H
#define TESTS_SUPPORT_CHURN_RIG_H

#include "inputgen/churn.h"
#include "tests/support/server.h"

#define CHURN_RIG_STANDING 60 /* streams that stand */

struct churn_rig {
    struct test_server server;
    char address[160], admin[160];
    struct inputgen_streams *standing, *opened;
    struct inputgen_churn_options options;
};

/* yaml: of the server, beside its admin port. */
void churn_rig_start(struct churn_rig *rig, const char *yaml);
void churn_rig_stop(struct churn_rig *rig);

/* Aborts the test program where it could not begin. The caller frees the report. */
struct inputgen_churn_report *churn_rig_run(const struct churn_rig *rig);

/* The verdict's status; its sentence must have these words. */
int churn_rig_judge(const struct inputgen_churn_report *report,
                    const struct inputgen_churn_judgement *judgement, const char *words);

#endif
