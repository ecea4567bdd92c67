/* What encryption costs on this machine, measured through cpu_scheduler: push, queue, cut, encrypt, hand
 * back.
 *
 * The result is a bound. With cost figures c0 (per_piece_ns), c1 (per_byte_fs, by cipher) and l (lane_ns, by
 * cipher), a burst of n <= burst_pieces pieces of x_j <= piece_bytes bytes takes at most
 *
 *     sum_j (c0 + c1 * x_j)  +  sum of l over the ciphers in it
 *
 * c1 is the slope of full bursts, c0 a full burst of short pieces divided by its pieces, l what one longest
 * piece alone takes beyond its c0 + c1 x (list scheduling on `lanes` lanes: Graham's bound). They are fitted
 * on medians of cold streams and buffers (more memory than the caches hold, in random order), then all raised
 * by one factor until only one in a hundred of random bursts (any count, lengths and ciphers) exceeds the
 * bound. These are attributed to the system (interrupts, preemption); worst_ratio reports the longest.
 *
 * Bursts that decrypt are drawn alike, and compared with the same bound: decrypt_more_percent is by how much all but
 * one in a hundred of them exceed it at most, 0 if they do not. Decryption is quicker where the data is at hand, and waits for memory where it is not.
 *
 * B and Q are chosen from B = lanes * {1, 2, 4, 8} (at most CPU_BURST_MAX) and Q = {1, 2, 4, 8, 16} KiB: with
 * q = B (c0 + c1 Q) + sum l the longest burst, the pair of smallest q whose throughput is within 5 % of the
 * best. Throughput is that of the charge C = c0 + sum l / B + c1 x which admission makes, for traffic half of
 * whose bytes come in packets of 1,408 bytes and half in packets of 16 KiB.
 *
 * Any thread, one at a time; pin and prioritise the caller as the workers will be. Takes about 70 MiB
 * meanwhile. */
#ifndef MILLRACE_CPU_MEASURE_H
#define MILLRACE_CPU_MEASURE_H

#include "core/status.h"
#include "core/stream.h"
#include "core/time.h"
#include "cpu/engine.h"

#include <stdint.h>

struct cpu_cost {
    uint32_t lanes;
    uint32_t burst_pieces;                  /* B, a multiple of lanes */
    uint32_t piece_bytes;                   /* Q, a multiple of 16 */
    core_ns per_piece_ns;                   /* c0 */
    int64_t per_byte_fs[CORE_CIPHER_COUNT]; /* c1, femtoseconds (1e-6 ns) per byte, by cipher - 1 */
    core_ns lane_ns[CORE_CIPHER_COUNT];     /* l, by cipher - 1 */
    uint32_t decrypt_more_percent;          /* so much more, for bursts that decrypt */
};

struct cpu_measure_options {
    const struct cpu_engine_ops *ops;
    core_ns budget_ns;                /* how long it may take, set-up apart (about 0.1 s); 100 ms or more */
    uint32_t burst_pieces;            /* use this B, a multiple of the engine's lanes; 0: choose */
    uint32_t piece_bytes;             /* use this Q, a multiple of 16 up to 16 KiB; 0: choose */
    core_ns (*clock)(void *argument); /* NULL: core_time_now_ns; tests measure a simulated engine */
    void *clock_argument;
};

struct cpu_measure_result {
    struct cpu_cost cost;
    core_ns burst_ns;      /* q of the chosen B and Q */
    int64_t bytes_per_s;   /* of the charge, on the traffic above, AES-128 */
    double raised;         /* factor between the fit on medians and the bound, 1 or more */
    double worst_ratio;    /* longest burst seen / its bound; over 1 where the system interfered */
    uint32_t bursts, over; /* random bursts checked, and how many of them took longer than the bound */
};

/* CORE_INVALID for options out of range, CORE_UNSUPPORTED, CORE_NO_MEMORY or CORE_SYSTEM from the engine. */
CORE_CHECKED core_status cpu_measure(const struct cpu_measure_options *options,
                                     struct cpu_measure_result *result, struct core_error *error);

/* The bound above, rounded up, for pieces of one burst: ciphers[j] and bytes[j], j < count. */
core_ns cpu_cost_bound_ns(const struct cpu_cost *cost, const enum core_cipher *ciphers, const uint32_t *bytes,
                          uint32_t count);

#endif
