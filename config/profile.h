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

struct config_profile {
    char *name;     /* of the machine or the assumption: "measured at start", "emulated-small" */
    char *machine;  /* processor, cores, kernel, as text */
    char *measured; /* ISO date, or "assumed" */
    struct config_profile_cpu cpu;
    struct config_profile_io io;
    struct config_profile_margins margins;
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
