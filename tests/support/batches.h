/* Private to the pipeline: what each batch holds. */
#ifndef MILLRACE_TESTS_BATCHES_H
#define MILLRACE_TESTS_BATCHES_H

#include "perfmodel/gpu.h"
#include "tests/support/pipeline.h"
#include "tests/support/random.h"

struct batch {
    uint64_t packets;               /* 0: it is empty, and none of its stages runs */
    core_ns due_ns, work_ns;        /* of its most urgent packet: end of the copy back, and d' */
    struct perfmodel_stages stages; /* as long as the model says */
    core_ns closed_ns;
    core_ns ready_ns;                /* the batcher is through with it: when the copy up may start */
    core_ns end_ns[PIPELINE_STAGES]; /* what became of it */
};

/* Policing of one stream (GCRA), by whole batches. */
struct batches_policed {
    core_ns interval_ns, tolerance_ns, theoretical_ns;
};

/* Of packets that all want to be eligible at from_ns, the number that are by to_ns (exclusive), at most
 * `most`; the first of them is eligible at *first_ns. */
uint64_t batches_police(struct batches_policed *policed, core_ns from_ns, core_ns to_ns, uint64_t most,
                        core_ns *first_ns);

/* Fills the contents, the stages and the most urgent packet of batch[1 .. pattern->batches]. */
CORE_CHECKED core_status batches_fill(const struct pipeline_gpu *gpu, const struct pipeline_pattern *pattern,
                                      struct test_random *random, struct batch *batch);

#endif
