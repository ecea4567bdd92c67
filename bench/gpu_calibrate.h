/* Measuring a GPU: the figures of its kind in a profile, from batches of chosen shapes through the stages
 * that the server's batches go through, timed by the device's own child process.
 *
 *   copies    one job of a block, and payload from 4 KiB up: alone; and back to back on all cards at once,
 *             so that both directions are busy
 *   kernels   n equal jobs for each SM, short and long ones, n from 1 up
 *   margins   how far single times lie above their median, and how long a batch waits to be copied, and to
 *             be noticed
 *
 * Each shape is repeated until the middle half of its times lies within 2 % of the median, or the time is up.
 */
#ifndef MILLRACE_BENCH_GPU_CALIBRATE_H
#define MILLRACE_BENCH_GPU_CALIBRATE_H

#include "config/profile.h"
#include "gpu/device.h"

#include <stdbool.h>

struct bench_gpu_shape {
    uint64_t bytes; /* of payload: jobs * blocks * 16 */
    uint32_t jobs;  /* all alike */
    uint32_t
        blocks; /* of each job; copies: 0 for one job that has a block and payload that it leaves alone */
};

struct bench_gpu_timing {
    core_ns stage_ns[GPU_STAGE_COUNT];
    double up_overlap, down_overlap; /* share of the copy during which the other direction copied */
    core_ns start_ns;                /* from the submission to the start of the copy up; alone only */
    core_ns tell_ns;                 /* from the end of the copy down until it was seen; alone only */
};

/* What is measured: a kind of card, of which `count` are there. */
struct bench_gpu_measurer {
    const char *name;
    uint32_t count, sms, copy_engines;
    uint64_t memory_bytes;
    uint64_t bytes_max; /* of payload in a batch */
    uint32_t jobs_max;  /* of a batch */
    bool others;        /* there are cards of other kinds, too */
    /* Runs `count` batches of this shape: one by one on one card, or (`together`) back to back on all cards
     * of the machine. */
    core_status (*measure)(void *argument, const struct bench_gpu_shape *shape, bool together, uint32_t count,
                           struct bench_gpu_timing *timings, struct core_error *error);
    void *argument;
};

struct bench_gpu_calibrate_options {
    core_ns time_ns; /* about how long, in all; a shape is measured some times however short it is */
    void (*progress)(void *argument, const char *what, double share); /* may be NULL */
    void *progress_argument;
};

/* How far single times of 100 us and more lay above the tables. */
struct bench_gpu_margin {
    uint32_t ppm; /* covers 999 of 1000 of them (of fewer: all), and no less than the least that is given
                     whatever was measured; at most as long again */
    double seen, longest; /* 999 of 1000, and all, took no longer than the table by this part */
    uint32_t times;
};

/* What calibration says beside the profile's figures. */
struct bench_gpu_calibration {
    struct config_profile_gpu gpu; /* to be freed by bench_gpu_calibration_free */
    struct bench_gpu_margin copies, kernels;
    core_ns start_ns, tell_ns;  /* 999 of 1000 were not longer */
    double spread_worst;        /* largest middle half of any shape, over its median */
    uint32_t shapes, unsettled; /* of these, so many did not settle in their time */
    uint32_t raised; /* figures of kernels that were below what they can be; see bench_gpu_fit_kernel */
};

CORE_CHECKED core_status bench_gpu_calibrate(const struct bench_gpu_measurer *measurer,
                                             const struct bench_gpu_calibrate_options *options,
                                             struct bench_gpu_calibration *calibration,
                                             struct core_error *error);
void bench_gpu_calibration_free(struct bench_gpu_calibration *calibration);

#endif
