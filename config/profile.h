/* The hardware profile: what calibration measured, and nothing that was not measured (or said to be assumed).
 *
 * Written by `millrace-bench calibrate`, read by the server, the estimator and the tests. One YAML file; the
 * structs mirror it. `workers`, `pinned_bytes` and `gpus` may be left out of the file. */
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
    uint32_t decrypt_more_percent; /* of c0 and c1, for streams that decrypt; a file without it: see below */
    core_ns queue_granularity_ns;  /* the EDF queue's bucket */
};

/* Cost of one packet on an I/O thread: read, parse, police, hand over, collect, write. */
struct config_profile_io {
    core_ns per_packet_ns;
    int64_t per_byte_fs;
    /* And for each byte more: of a stream with a pattern, whose packets are sorted and put back; and of one with a
     * MAC, for each byte and PERFMODEL_MAC_BYTES of each packet. A file without them has the values below. */
    int64_t pattern_per_byte_fs;
    int64_t mac_per_byte_fs;
    /* In the place of the first two: of one whose connection has a lane (core/lane.h). A file without them has the
     * first two. */
    core_ns by_lane_per_packet_ns;
    int64_t by_lane_per_byte_fs;
    /* And of one that was encrypted by a GPU and is audited (core_stream_spec): alone, piece after piece of
     * cpu.piece_bytes, so c0 + l each, and c1. Not in files: from what the CPU's part says there. */
    core_ns audit_per_piece_ns[CORE_CIPHER_COUNT];
    int64_t audit_per_byte_fs[CORE_CIPHER_COUNT];
    uint32_t limit_percent; /* of an I/O thread that may be promised, 1..100 */
    core_ns rest_max_ns; /* longest that the thread lets packets gather at once: the smaller of this and 1/32
                            of what the margins leave of the shortest latency bound; 0: never */
};

#define CONFIG_PROFILE_DECRYPT_MORE_PERCENT 10 /* the most that was measured: docs/model.md */
#define CONFIG_PROFILE_PATTERN_FS           INT64_C(500000)
#define CONFIG_PROFILE_MAC_FS               INT64_C(5000000) /* without instructions for SHA-256 */

#define CONFIG_PROFILE_MARGIN_PPM UINT32_C(1000000) /* as long again */

/* What is taken off every deadline before anything is promised, and added to every execution time. A file
 * without copies_ppm or kernels_ppm has `percent` for them. */
struct config_profile_margins {
    core_ns in_ns;        /* delta_in: from the arrival stamp to the worker's queue */
    core_ns out_ns;       /* delta_out: from the end of the burst to the socket */
    uint32_t percent;     /* m: on execution times of workers and I/O threads, 0..100 */
    uint32_t copies_ppm;  /* m_C: on a GPU's copies, both directions; 0..1,000,000 */
    uint32_t kernels_ppm; /* m_K: on its kernels, launch included; 0..1,000,000 */
};

/* Ranges of the GPU part. They keep every product of perfmodel/gpu.h inside 128 bits. */
#define CONFIG_PROFILE_WORKERS_MAX          UINT32_C(1024)
#define CONFIG_PROFILE_GPU_KINDS_MAX        16
#define CONFIG_PROFILE_GPU_COUNT_MAX        64
#define CONFIG_PROFILE_SMS_MAX              4096
#define CONFIG_PROFILE_SM_RATE_MAX          INT64_C(1000000000000) /* bytes per second */
#define CONFIG_PROFILE_MEMORY_BYTES_MAX     (UINT64_C(1) << 50)
#define CONFIG_PROFILE_COPY_BYTES_MAX       (UINT64_C(1) << 44)
#define CONFIG_PROFILE_COPY_NS_MAX          (3600 * CORE_NS_PER_S)
#define CONFIG_PROFILE_COPY_ROWS_MAX        4096
#define CONFIG_PROFILE_JOBS_MAX             (UINT32_C(1) << 20) /* side by side on one SM */
#define CONFIG_PROFILE_SHARE_PPM            UINT32_C(1000000)
#define CONFIG_PROFILE_UTILISATION_ROWS_MAX 65536
#define CONFIG_PROFILE_GPU_JOB_BYTES_MAX    UINT32_C(65536)

/* One row of a transfer table: how long a copy of `bytes` takes. Rows are in rising order of bytes; no time
 * falls from one row to the next. `busy`: while every other GPU copies at the same time, and the other
 * direction too where the card has two copy engines. */
struct config_profile_copy {
    uint64_t bytes;                   /* 1 .. 2^44 */
    core_ns up_ns, down_ns;           /* host to device, device to host, alone; 1 ns .. 1 h */
    core_ns up_busy_ns, down_busy_ns; /* no less than alone; .. 1 h */
};

/* One row of the utilisation table: the share of an SM's peak that `jobs` equal jobs side by side reach.
 * Measured, and saw-toothed where jobs share warps, so it may fall; perfmodel/gpu.h uses a safe envelope. */
struct config_profile_utilisation {
    uint32_t jobs;      /* rising, first row 1, at most 2^20; rows may be left out */
    uint32_t share_ppm; /* 1 .. 1,000,000 */
};

/* `count` like cards. */
struct config_profile_gpu {
    char *name;             /* no two kinds have the same */
    char *kernel;           /* form of the kernel that the figures are of, "whole" or "quad"; NULL: any */
    uint32_t count;         /* 1..64 */
    uint32_t sms;           /* streaming multiprocessors, M; 1..4096 */
    uint32_t copy_engines;  /* 1: copies in both directions take turns; 2: they run side by side */
    uint64_t memory_bytes;  /* of the card; 1 .. 2^50 */
    int64_t sm_bytes_per_s; /* Phi: peak of one SM with jobs enough; 1 .. 10^12 */
    core_ns launch_ns;      /* overhead of one kernel; 0 .. 1 s */
    uint32_t job_bytes;     /* table entry, key and chaining values that go up with a job; 0 .. 65,536 */
    core_ns host_batch_ns;  /* of the host for a batch, before its copy up starts; 0 .. 1 s */
    core_ns host_packet_ns; /* and for each packet in it, on the batcher's thread; 0 .. 1 ms */
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
    /* CPU workers that estimates count on; the server has its own setting. 1..1024, 1 where the file has
     * none. 0 in a struct made by hand counts as 1. */
    uint32_t workers;
    uint64_t pinned_bytes;           /* host memory that batch arenas may pin; 1 .. 2^50, or 0 without GPUs */
    struct config_profile_gpu *gpus; /* kinds of cards, at most 16; NULL: none */
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

/* Writes the profile as YAML that config_profile_load reads back the same (workers: 0 as the 1 it counts as;
 * margins of copies and kernels only where there are GPUs).
 * `comment` (may be NULL) goes on top, each line behind "# ". Replaces the file atomically. */
CORE_CHECKED core_status config_profile_save(const struct config_profile *profile, const char *path,
                                             const char *comment, struct core_error *error);

/* A deep copy, CORE_NO_MEMORY on failure. */
CORE_CHECKED core_status config_profile_copy(const struct config_profile *profile,
                                             struct config_profile **copy);

/* Keeps count[kind] cards of each kind, no more than there are, and drops kinds of which none is left. */
void config_profile_keep_gpus(struct config_profile *profile, const uint32_t *count);

void config_profile_free(struct config_profile *profile); /* NULL is fine */

#endif
