/* Migrations on a running server that nothing but a test has a reason for: streams of one unit to another,
 * one after the other. The planner's own calls, made on its thread. Test thread. */
#ifndef MILLRACE_TESTS_SHIFT_H
#define MILLRACE_TESTS_SHIFT_H

#include "server/planner/planner.h"

struct test_shift {
    struct server_message message; /* first member */
    struct server_planner *planner;
    uint32_t from, to; /* units (partition/admission/admission.h numbers them) */
    size_t streams;
    core_ns timeout_ns;
    size_t asked, moved; /* of these, that the unit accepted; that went there */
    /* the planner thread's, while it looks: */
    uint32_t source, target; /* reservations of the migration in progress; source NONE: there is none */
    uint64_t born;           /* of the target */
    uint64_t moved_before;   /* streams that the server had migrated before it */
    bool over;
    _Atomic bool looking; /* atomic: set by the test, cleared by the planner thread */
};

/* Up to `streams` of the streams of unit `from` are to go to unit `to`, each within timeout_ns, until it
 * refuses one. */
void test_shift_begin(struct test_shift *shift, struct server_planner *planner, uint32_t from, uint32_t to,
                      size_t streams, core_ns timeout_ns);

/* To be asked again and again until it is true; `asked` and `moved` are right then. */
bool test_shift_is_over(struct test_shift *shift);

/* Waits for that. */
void test_shift_await(struct test_shift *shift);

#endif
