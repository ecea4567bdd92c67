/* Private to partition: why a stream was refused, as a sentence with the figures. */
#ifndef MILLRACE_PARTITION_ADMISSION_REASONS_H
#define MILLRACE_PARTITION_ADMISSION_REASONS_H

#include "core/stream.h"
#include "perfmodel/edf.h"
#include "perfmodel/flow.h"

#define PARTITION_REASON_BYTES 256

/* Even an idle worker refuses: its test; least_ns: the shortest latency bound that it could keep, 0: none. */
void partition_explain_idle_worker(const struct core_stream_spec *spec,
                                   const struct perfmodel_edf_result *test, core_ns least_ns,
                                   char reason[PARTITION_REASON_BYTES]);

/* Of the workers this one comes closest: its test; what the stream adds to its load. */
void partition_explain_worker(const struct perfmodel_edf_result *test, uint32_t worker, uint32_t workers,
                              int64_t stream_ppb, char reason[PARTITION_REASON_BYTES]);

/* The I/O thread has no time left: what it would need with the stream, the stream's part, its limit. */
void partition_explain_io(uint32_t io, int64_t taken_ppb, int64_t stream_ppb, int64_t limit_ppb,
                          char reason[PARTITION_REASON_BYTES]);

/* No unit could keep the latency bound, even idle, and least_ns is the shortest that one could. */
void partition_explain_latency(const struct core_stream_spec *spec, core_ns least_ns,
                               char reason[PARTITION_REASON_BYTES]);

/* This GPU would take the stream if it were in service. */
void partition_explain_out(uint32_t gpu, char reason[PARTITION_REASON_BYTES]);

/* This GPU would take a guaranteed stream as a standard one. */
void partition_explain_backup(uint32_t gpu, char reason[PARTITION_REASON_BYTES]);

/* A change that leaves a guaranteed stream on this GPU without a backup. */
void partition_explain_change_backup(uint32_t gpu, char reason[PARTITION_REASON_BYTES]);

/* This unit would take the stream but for the share that it keeps from new streams. */
void partition_explain_reserve(const char *unit, uint32_t number, int64_t share_ppb,
                               char reason[PARTITION_REASON_BYTES]);

/* The worker that a stream is on refuses a change of its contract: its test. */
void partition_explain_change(uint32_t worker, const struct perfmodel_edf_result *test,
                              char reason[PARTITION_REASON_BYTES]);

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
