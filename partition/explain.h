/* Private to partition: why a stream was refused, as a sentence with the figures. */
#ifndef MILLRACE_PARTITION_EXPLAIN_H
#define MILLRACE_PARTITION_EXPLAIN_H

#include "partition/workers.h"

struct partition_refusal {
    const struct core_stream_spec *spec;
    uint32_t worker_count;
    core_ns latency_least_ns; /* shortest that an empty worker could keep, 0 if none */
    int64_t stream_ppb;       /* what the stream adds to the worker's load */
    bool idle;                /* even an empty worker refuses */
    uint32_t io;
    int64_t io_taken_ppb, io_limit_ppb; /* of the I/O thread, with this stream; its limit */
};

/* Fills placement->reason from its constraint, worker, io_ppb and test. */
void partition_explain(const struct partition_refusal *refusal, struct partition_placement *placement);

#endif
