/* Measuring a GPU: the figures of its kind in a profile, from batches of chosen shapes through the stages
 * that the server's batches go through, timed by the device's own child process.
 *
 *   copies    one job of a block, and payload from 4 KiB up. Alone: one by one; one each 10 ms, so that the
 *             card idles between; one by one while the processor writes memory. Busy: back to back on all
 *             cards at once, so that both directions are busy; the same while the processor writes memory
 *   kernels   n equal jobs for each SM, short and long ones, n from 1 up: one by one; one each 10 ms; back to
 *             back, so that copies go on beside them. Unequal jobs of some n likewise, which no figure comes
 *             from: they show what the model is worth
 *   margins   how far single times lie above the tables (of unequal jobs: above the model's time), and how
 *             long a batch waits to be copied, and to be noticed
 *
 * **A table has the worst** of these ways, and of all cards of the kind: one entry of the profile is for all
 * of them. So whichever way the server's batches come, and to whichever card, the median of their times is
 * not above the table; what single times take beyond it is what the margin covers.
 *
 * Each shape is repeated, each way and on each card, until the middle half of its times lies within 2 % of
 * the median, or the time is up. Each card is warmed up before. A copy and a kernel are measured at the
 * beginning and again at the end: how much longer they took then is added to the margins. */
#ifndef MILLRACE_BENCH_GPU_CALIBRATE_H
#define MILLRACE_BENCH_GPU_CALIBRATE_H

#include "config/profile.h"
#include "gpu/device.h"
#include "gpu/nvml.h"

#include <stdbool.h>

struct bench_gpu_shape {
    uint64_t bytes; /* of payload: jobs * blocks * 16, or less of unequal ones */
    uint32_t jobs;
    uint32_t
        blocks;  /* of each job; copies: 0 for one job that has a block and payload that it leaves alone */
    bool uneven; /* jobs from nearly twice as long down to a block; else all alike */
};

/* Blocks of the job-th job. */
static inline uint32_t bench_gpu_shape_blocks(const struct bench_gpu_shape *shape, uint32_t job)
{
    if (!shape->uneven || shape->jobs < 2)
        return shape->blocks > 0 ? shape->blocks : 1;
    return 1 + (uint32_t)((uint64_t)(2 * shape->blocks - 2) * (shape->jobs - 1 - job) / (shape->jobs - 1));
}

/* A way to run batches of a shape. */
struct bench_gpu_way {
    bool together; /* back to back on all cards of the machine; else one by one, on one card */
    bool spaced;   /* one each 10 ms, not together */
    bool traffic;  /* while the processor writes memory with half of its cores */
};

struct bench_gpu_timing {
    core_ns stage_ns[GPU_STAGE_COUNT];
    double up_overlap, down_overlap; /* share of the copy during which the other direction copied */
    core_ns start_ns;                /* from the submission to the start of the copy up; not together */
    core_ns tell_ns;                 /* from the end of the copy down until it was seen; likewise */
};

/* What is measured: a kind of card, of which `count` are there. */
struct bench_gpu_measurer {
    const char *name;
    const char *with; /* which driver, kernel and cipher, in words; NULL: not known */
    uint32_t count, sms, copy_engines;
    uint64_t memory_bytes;
    uint64_t bytes_max; /* of payload in a batch */
    uint32_t jobs_max;  /* of a batch */
    bool others;        /* there are cards of other kinds, too */
    /* Runs `count` batches of this shape in this way, and tells the times of the card-th card of the kind. */
    core_status (*measure)(void *argument, uint32_t card, const struct bench_gpu_shape *shape,
                           const struct bench_gpu_way *way, uint32_t count, struct bench_gpu_timing *timings,
                           struct core_error *error);
    /* How that card is doing. Not CORE_OK: nobody knows, and why. NULL: nobody knows. */
    core_status (*health)(void *argument, uint32_t card, struct gpu_nvml_health *health,
                          struct core_error *why);
    void *argument;
};

struct bench_gpu_journal;

struct bench_gpu_calibrate_options {
    core_ns time_ns; /* about how long for each card; a shape is measured some times however short it is */
    void (*progress)(void *argument, const char *what, double share); /* may be NULL */
    void *progress_argument;
    struct bench_gpu_journal *journal; /* with what was measured before; NULL: all is measured now */
};

/* A margin, and what it is made of: times of 100 us and more beside the tables. */
struct bench_gpu_margin {
    uint32_t ppm;         /* (1 + seen) (1 + drift) - 1, and no less than the least that is given whatever was
                             measured; at most as long again */
    double seen, longest; /* 999 of 1000 times (of fewer: all), and all, were longer by no more than this */
    double drift;         /* at the end of the calibration beside its beginning, of the card and the direction
                             that changed most; < 0: all were shorter */
    uint32_t times;
    bool exceeded; /* `seen` and `drift` are more than a margin can be */
};

/* What was seen of the cards' health while they were measured. */
struct bench_gpu_health {
    uint32_t readings;            /* 0: nothing is known, */
    struct core_error why;        /* and why */
    uint32_t least_mhz, most_mhz; /* clocks that were seen, 0: not known */
    uint32_t reasons;             /* set of GPU_NVML_*, of all readings */
    int32_t celsius;              /* the highest */
};

/* What calibration says beside the profile's figures. */
struct bench_gpu_calibration {
    struct config_profile_gpu gpu; /* to be freed by bench_gpu_calibration_free */
    struct bench_gpu_margin copies, kernels;
    struct bench_gpu_health health;
    core_ns start_ns, tell_ns;  /* 999 of 1000 were not longer, one by one and without traffic */
    double spread_worst;        /* largest middle half of any shape, over its median */
    uint32_t shapes, unsettled; /* of these, so many did not settle in their time; each way, on each card */
    double model_least, model_most; /* times of unequal jobs over the model's, less 1: medians, all ways */
    uint32_t raised;     /* figures of kernels that were below what they can be; see bench_gpu_fit_kernel */
    double apart;        /* how much longer than on another card of the kind times of 100 us and more were, */
    uint32_t apart_card; /* and on which */
};

/* CORE_AGAIN: some is measured and in the journal, and its time is up. */
CORE_CHECKED core_status bench_gpu_calibrate(const struct bench_gpu_measurer *measurer,
                                             const struct bench_gpu_calibrate_options *options,
                                             struct bench_gpu_calibration *calibration,
                                             struct core_error *error);
void bench_gpu_calibration_free(struct bench_gpu_calibration *calibration);

#endif
