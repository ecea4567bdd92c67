/* How long an emulated card takes, from a table that the server or a test hands over, and how it is told to
 * fail.
 *
 * A copy's time comes from the rows of a transfer table: below the first row its time, between two rows on
 * the straight line, beyond the last at the last row's rate or the last segment's slope, whichever is slower.
 * A kernel's time is its launch and that of its slowest SM, each SM running the jobs that the launch deals it
 * (gpu_kernel_job). While n is the last of an SM's places that still has work, the SM is as slow as with n
 * equal jobs, by the utilisation table: at a row what was measured, between two rows the straight line, beyond
 * the last in proportion. So equal jobs take what the table says of them.
 *
 * None of this is the performance model's code, nor its formula: that charges for n jobs the dearest of the
 * row above and all rows below, and assumes its own dealing. What the model gives away shows as its error,
 * and so would a launch that the model does not bound. Pure; any thread. */
#ifndef MILLRACE_GPU_EMULATION_H
#define MILLRACE_GPU_EMULATION_H

#include "core/status.h"
#include "core/time.h"
#include "gpu/kernel.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Times of copies of so many bytes, alone and while the other direction copies too. Rows rise. */
struct gpu_emulation_copy {
    uint64_t bytes;
    core_ns up_ns, down_ns, up_busy_ns, down_busy_ns;
};

/* The share of an SM's peak that so many jobs side by side reach. Rows rise; the first is for one job. */
struct gpu_emulation_share {
    uint32_t jobs;
    uint32_t share_ppm; /* 1 .. 1,000,000 */
};

/* What an emulated card does wrong, for tests: once, at the batch of that number; SLOW: from it to another.
 */
enum gpu_failure {
    GPU_FAILURE_NONE = 0,
    GPU_FAILURE_ERROR,   /* the device reports an error in the kernel stage */
    GPU_FAILURE_HANG,    /* the kernel does not end */
    GPU_FAILURE_FREEZE,  /* the child's main thread stops */
    GPU_FAILURE_DIE,     /* the child kills itself with SIGKILL */
    GPU_FAILURE_EXIT,    /* the child exits with status 9 */
    GPU_FAILURE_CORRUPT, /* one bit of the output is wrong */
    GPU_FAILURE_GARBAGE, /* the child writes noise over all the shared memory that it can write */
    GPU_FAILURE_SLOW,    /* kernels take longer, by failure_ns each */
    GPU_FAILURE_PIN,     /* at whatever batch: arenas can not grow beyond failure_bytes */
    GPU_FAILURE_COUNT
};

#define GPU_EMULATION_COPIES_MAX 4096
#define GPU_EMULATION_SHARES_MAX 65536

struct gpu_emulation {
    char name[64];
    uint64_t memory_bytes;
    uint32_t sms;           /* 1 .. 4096 */
    uint32_t copy_engines;  /* 1 or 2 */
    int64_t sm_bytes_per_s; /* peak of one SM, Phi */
    core_ns launch_ns;
    uint32_t always_busy; /* 1: copies take the busy columns always, as if other cards copied too */
    uint32_t failure;     /* enum gpu_failure */
    uint64_t failure_batch;
    uint64_t failure_last;  /* SLOW: the last batch that is */
    core_ns failure_ns;     /* SLOW: 0 .. one hour */
    uint64_t failure_bytes; /* PIN */
    const struct gpu_emulation_copy *copies;
    const struct gpu_emulation_share *shares;
    uint32_t copy_count, share_count; /* at least 1 each */
};

/* CORE_INVALID with the reason where a table can not be used. */
CORE_CHECKED core_status gpu_emulation_check(const struct gpu_emulation *emulation, struct core_error *error);

/* Time of one copy; 0 bytes take 0. Rounded up. */
core_ns gpu_emulation_copy_ns(const struct gpu_emulation *emulation, bool up, bool busy, uint64_t bytes);

/* Time of a kernel, launch included; 0 without jobs. In any order of jobs; a long job behind short ones makes
 * an SM slower than the same jobs sorted. */
core_ns gpu_emulation_kernel_ns(const struct gpu_emulation *emulation, enum gpu_kernel_form form,
                                const struct gpu_job *jobs, uint32_t count);

#endif
