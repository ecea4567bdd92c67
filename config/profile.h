/* The hardware profile: what calibration measured, and nothing that was not measured (or said to be assumed).
 *
 * Written by `millrace-bench calibrate`, read by the server, the estimator and the tests. One YAML file; the
 * structs mirror it. The GPU part joins with the GPU folder. */
#ifndef MILLRACE_CONFIG_PROFILE_H
#define MILLRACE_CONFIG_PROFILE_H

#include "core/status.h"
#include "core/stream.h"
#include "core/time.h"

#include <stddef.h>
#include <stdint.h>

/* Cost of encryption on one worker, through the worker's own code (queue, burst, hand-back), such that any
 * burst of n <= burst_pieces pieces of x_j bytes takes at most sum_j (per_piece_ns + per_byte_fs[c] * x_j *
 * 1e-6 ns) + lane_ns[c] for each cipher c in it (a burst with several key sizes is one engine call for each).
 */
struct config_profile_cpu {
    char *engine; /* "vaes", "ipsec-mb" or "openssl": a profile holds for the engine it was measured with */
    uint32_t lanes;
    uint32_t burst_pieces;                  /* B, a multiple of lanes, 1..128 */
    uint32_t piece_bytes;                   /* Q, multiple of 16, 16..65520 */
    core_ns per_piece_ns;                   /* c0 */
    int64_t per_byte_fs[CORE_CIPHER_COUNT]; /* c1, femtoseconds per byte, by cipher - 1 */
    core_ns lane_ns[CORE_CIPHER_COUNT];     /* l: a piece of Q bytes alone in its lane, by cipher - 1 */
    core_ns queue_granularity_ns;           /* the EDF queue's bucket */
};

/* Cost of one packet on an I/O thread: read, parse, police, hand over, collect, write. */
struct config_profile_io {
    core_ns per_packet_ns;
    int64_t per_byte_fs;
    uint32_t limit_percent; /* of an I/O thread that may be promised, 1..100 */
    core_ns rest_max_ns; /* longest that the thread lets packets gather: the smaller of this and 1/32 of the
                            shortest latency bound; 0: never */
};

/* What is taken off every deadline before anything is promised, and added to every execution time. */
struct config_profile_margins {
    core_ns in_ns;    /* delta_in: from the arrival stamp to the worker's queue */
    core_ns out_ns;   /* delta_out: from the end of the burst to the socket */
    uint32_t percent; /* m: on execution times, 0..100 */
};

/* One row of a transfer table: how long a copy of `bytes` takes. Rows are in rising order of bytes; no time
 * falls from one row to the next. `busy`: while the other direction and every other GPU copy at the same
 * time. */
struct config_profile_copy {
    uint64_t bytes;
    core_ns up_ns, down_ns;           /* host to device, device to host, alone */
    core_ns up_busy_ns, down_busy_ns; /* >= the above */
};

/* One row of the utilisation table: the share of an SM's peak that `jobs` jobs side by side reach. Measured,
 * and saw-toothed where jobs share warps; perfmodel/gpu.h uses its monotone envelope. */
struct config_profile_utilisation {
    uint32_t jobs;      /* 1, 2, ... in rising order, first row 1 */
    uint32_t share_ppm; /* 1 .. 1,000,000 */
};

/* `count` like cards. */
struct config_profile_gpu {
    char *name;
    uint32_t count;         /* 1..64 */
    uint32_t sms;           /* streaming multiprocessors, M */
    uint32_t copy_engines;  /* 1: copies in both directions take turns; 2: they run side by side */
    uint64_t memory_bytes;  /* of the card */
    int64_t sm_bytes_per_s; /* Phi: peak of one SM with jobs enough */
    core_ns launch_ns;      /* overhead of one kernel */
    uint32_t job_bytes;     /* table entry, key and chaining values that go up with a job, bytes */
    struct config_profile_copy *copies; /* at least one row */
    uint32_t copy_count;
    struct config_profile_utilisation *utilisation; /* at least one row */
    uint32_t utilisation_count;
};

struct config_profile {
    char *name;     /* of the machine or the assumption: "measured at start", "emulated-small" */
    char *machine;  /* processor, cores, kernel, as text */
    char *measured; /* ISO date, or "assumed" */
    struct config_profile_cpu cpu;
    struct config_profile_io io;
    struct config_profile_margins margins;
    uint32_t workers;      /* CPU workers that estimates count on; the server has its own setting. 1..1024 */
    uint64_t pinned_bytes; /* host memory that batch arenas may pin; 0 where there are no GPUs */
    struct config_profile_gpu *gpus; /* kinds of cards; NULL: none */
    uint32_t gpu_count;              /* kinds */
};

/* Reads and checks a profile. On failure error has "file:line: what, and what to do" and *profile is
 * untouched. */
CORE_CHECKED core_status config_profile_load(const char *path, struct config_profile **profile,
                                             struct core_error *error);

/* The same from memory; `name` stands for the path in messages. */
CORE_CHECKED core_status config_profile_parse(const char *text, size_t bytes, const char *name,
                                              struct config_profile **profile, struct core_error *error);

/* Checks ranges of a profile that did not come from a file. */
CORE_CHECKED core_status config_profile_check(const struct config_profile *profile, struct core_error *error);

/* Writes the profile as YAML that config_profile_load reads back the same. `comment` (may be NULL) goes on
 * top, each line behind "# ". Replaces the file atomically. */
CORE_CHECKED core_status config_profile_save(const struct config_profile *profile, const char *path,
                                             const char *comment, struct core_error *error);

/* A deep copy, CORE_NO_MEMORY on failure. */
CORE_CHECKED core_status config_profile_copy(const struct config_profile *profile,
                                             struct config_profile **copy);

void config_profile_free(struct config_profile *profile); /* NULL is fine */

#endif
