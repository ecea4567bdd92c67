/* What the batcher's thread takes for a packet of a batch: grouping, timed on made-up records. */
#ifndef MILLRACE_BENCH_GPU_HOST_H
#define MILLRACE_BENCH_GPU_HOST_H

#include "core/status.h"
#include "core/time.h"

/* The time of gpu_grouping_run for a packet, rounded up, that 19 of 20 batches do not exceed: of batches with
 * one packet of each stream, with several, or with several that stand alone, whichever takes longest. Another
 * thread has written the records, as I/O threads do. Takes less than a second. CORE_NO_MEMORY. */
CORE_CHECKED core_status bench_gpu_host_packet_ns(core_ns *packet_ns, struct core_error *error);

#endif
