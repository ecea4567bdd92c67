/* Threads that read and write memory as a server's I/O threads do at full load: what a GPU's copies take beside
 * them is measured. One thread owns it. */
#ifndef MILLRACE_BENCH_GPU_TRAFFIC_H
#define MILLRACE_BENCH_GPU_TRAFFIC_H

#include "core/status.h"

struct bench_gpu_traffic;

/* Takes the memory: for half of the cores, a thread each, at least one. */
CORE_CHECKED core_status bench_gpu_traffic_open(struct bench_gpu_traffic **traffic, struct core_error *error);
void bench_gpu_traffic_close(struct bench_gpu_traffic *traffic); /* stopped; NULL is fine */

/* Starts the threads; none runs on where that fails. */
CORE_CHECKED core_status bench_gpu_traffic_start(struct bench_gpu_traffic *traffic, struct core_error *error);
void bench_gpu_traffic_stop(struct bench_gpu_traffic *traffic);

#endif
