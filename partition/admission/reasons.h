/* Private to partition: why a stream was refused, as a sentence with the figures. */
#ifndef MILLRACE_PARTITION_ADMISSION_REASONS_H
#define MILLRACE_PARTITION_ADMISSION_REASONS_H

#include "partition/admission/unit_worker.h"
#include "perfmodel/flow.h"

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

/* ---- of standing plans ---- */

#define PARTITION_REASON_BYTES 256

/* No unit could keep the latency bound, even idle, and least_ns is the shortest that one could. */
void partition_explain_latency(const struct core_stream_spec *spec, core_ns least_ns,
                               char reason[PARTITION_REASON_BYTES]);

/* This GPU would take the stream if it were in service. */
void partition_explain_out(uint32_t gpu, char reason[PARTITION_REASON_BYTES]);

/* This GPU would take a guaranteed stream as a standard one. */
void partition_explain_backup(uint32_t gpu, char reason[PARTITION_REASON_BYTES]);

/* A change that leaves a guaranteed stream on this GPU without a backup. */
void partition_explain_change_backup(uint32_t gpu, char reason[PARTITION_REASON_BYTES]);

/* This unit would take the stream but for the share that it keeps from newcomers. */
void partition_explain_reserve(const char *unit, uint32_t number, int64_t share_ppb,
                               char reason[PARTITION_REASON_BYTES]);

/* The worker that a stream is on refuses a change of its contract: partition_workers_ask's answer. */
void partition_explain_change(const struct partition_placement *worker, char reason[PARTITION_REASON_BYTES]);

/* What the closest of the GPUs lacks, or the one that a stream to be changed is on. */
struct partition_gpu_refusal {
    const struct perfmodel_flow_verdict *verdict; /* with the stream */
    uint32_t gpu, gpus;
    bool change;
    uint64_t streams; /* that are there */
    core_ns shortest_ns;
};
void partition_explain_gpu(const struct partition_gpu_refusal *refusal, char reason[PARTITION_REASON_BYTES]);

#endif
