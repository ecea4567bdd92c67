/* What calibration found of a kind of card, for people. */
#ifndef MILLRACE_BENCH_GPU_REPORT_H
#define MILLRACE_BENCH_GPU_REPORT_H

#include "bench/gpu/calibrate.h"

#include <stdio.h>

void bench_gpu_report(FILE *report, const struct bench_gpu_calibration *calibration,
                      const struct gpu_device_facts *facts);

#endif
