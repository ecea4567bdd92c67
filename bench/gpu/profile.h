/* The GPU part of a machine's profile, measured. */
#ifndef MILLRACE_BENCH_GPU_PROFILE_H
#define MILLRACE_BENCH_GPU_PROFILE_H

#include "bench/gpu/measurer.h"

#include <stdio.h>

struct bench_gpu_profile_options {
    struct bench_gpu_machine_options machine;
    core_ns time_ns;                   /* of each kind of card */
    uint64_t pinned_bytes;             /* host memory that batches may pin; 0: a quarter of this machine's */
    bool progress;                     /* on standard error */
    struct bench_gpu_journal *journal; /* bench_gpu_calibrate_options.journal */
};

/* Measures all cards and puts them into a profile that has none: the kinds, pinned_bytes, their names,
 * drivers and kernels behind the machine's, and margins as the cards need. Tells the figures on
 * `report`. CORE_AGAIN: as of bench_gpu_calibrate. Without a card the profile stays as it is, and the report says why. */
CORE_CHECKED core_status bench_gpu_profile_measure(const struct bench_gpu_profile_options *options,
                                                   struct config_profile *profile, FILE *report,
                                                   struct core_error *error);

#endif
