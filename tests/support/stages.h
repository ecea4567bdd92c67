/* Batches through the stages of a card in virtual time: copy up, kernel, copy back, each in the order of the
 * batches, one at a time. The caller says when each batch is closed and what its stages take. */
#ifndef MILLRACE_TESTS_SUPPORT_STAGES_H
#define MILLRACE_TESTS_SUPPORT_STAGES_H

#include "perfmodel/gpu.h"

#include <stdbool.h>

#define STAGES_BATCHES_MAX 60

struct stages {
    int count;                            /* batches, at most STAGES_BATCHES_MAX */
    core_ns close_ns[STAGES_BATCHES_MAX]; /* from then on a batch may be copied; never falls */
    struct perfmodel_stages takes[STAGES_BATCHES_MAX];
    /* out: */
    core_ns up_end_ns[STAGES_BATCHES_MAX], kernel_end_ns[STAGES_BATCHES_MAX], down_end_ns[STAGES_BATCHES_MAX];
};

/* Each direction has a copy engine. */
void stages_two_engines(struct stages *stages);

/* Whether a copy up goes next where both directions wait since these times. */
typedef bool stages_up_next(void *argument, bool last_up, core_ns now_ns, core_ns up_ready_ns,
                            core_ns down_ready_ns);

/* The directions share one. NULL: they take turns, as if the last copy had been up (last_up) or back. */
void stages_one_engine(struct stages *stages, bool last_up, stages_up_next *up_next, void *argument);

#endif
