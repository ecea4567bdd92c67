/* What the batcher's thread takes for a packet of a batch: grouping, timed on made-up records. */
#ifndef MILLRACE_BENCH_GPU_HOST_H
#define MILLRACE_BENCH_GPU_HOST_H

#include "core/status.h"
#include "core/time.h"

/* The time of gpu_grouping_run for a packet, rounded up, that 19 of 20 batches do not exceed: of batches with
 * one packet of each stream, or with several, whichever takes longer. The records are in no cache of this
 * core, as they are where I/O threads have written them. Takes about a second. CORE_NO_MEMORY. */
CORE_CHECKED core_status bench_gpu_host_packet_ns(core_ns *packet_ns, struct core_error *error);

#endif
