/* From a stream's contract and a hardware profile to the task that a worker must schedule.
 *
 * Shaping. A stream (p, t, k, d) leaves d' = d - in_ns - out_ns - granularity for the work. Its packets are
 * released to the worker at least s = min(t, floor(d' / k)) apart: rel_n = max(eligible_n, rel_(n-1) + s).
 * Since at most k packets are backlogged, rel_n <= eligible_n + (k-1) s, so finishing each packet within s of
 * its release keeps d'. Two facts bound the demand. Releases are s apart; and shaping keeps the arrival curve
 * (max-plus: with rel_n = e_i + (n-i) s, rel_(n+j) >= e_(i+j) + (n-i) s >= rel_n + a(j)), so a window of
 * length x still sees at most k + floor(x / t) releases. A packet is cut into m equal pieces of at most Q
 * bytes, piece j released j*delta after the packet with relative deadline delta = floor(s / m); so pieces of
 * one stream are delta apart, always. In a window of length x the number of pieces released is at most
 *
 *     count(x) = min( floor(x/delta) + 1,  m * (floor(x/s) + 1),  m * (k + floor(x/t)) )
 *
 * and the demand bound function is dbf(Z) = C * count(Z - delta) for Z >= delta, 0 below.
 *
 * This departs from model.md section 3 where it is tighter: there k t > d' is refused, and all m pieces of a
 * packet are charged at the first piece's deadline. */
#ifndef MILLRACE_PERFMODEL_CPU_H
#define MILLRACE_PERFMODEL_CPU_H

#include "config/profile.h"
#include "core/stream.h"

#include <stdint.h>

/* All times > 0 and at most one hour; pieces * burst_packets at most 2^30. */
struct perfmodel_cpu_task {
    core_ns cost_ns;        /* C: charge of one piece, margin included, rounded up */
    core_ns deadline_ns;    /* delta: relative deadline, and least distance, of pieces */
    core_ns spacing_ns;     /* s: least distance of packets */
    core_ns interval_ns;    /* t: long-run distance of packets */
    uint32_t pieces;        /* m */
    uint32_t burst_packets; /* k */
    uint32_t piece_bytes;   /* ceil(p^ / m) rounded up to 16 */
    enum core_cipher cipher;
};

/* CORE_OK, or CORE_REFUSED if no work time is left: d <= margins, or delta would be under 1 us; error says
 * the shortest latency bound that leaves any. spec must have passed core_stream_spec_check. */
CORE_CHECKED core_status perfmodel_cpu_task_from(const struct core_stream_spec *spec,
                                                 const struct config_profile *profile,
                                                 struct perfmodel_cpu_task *task, struct core_error *error);

/* C = ceil((1+m) * (c0 + l/B + c1 x)) for a piece of x bytes; l is the sum over all ciphers, since a burst
 * may hold every key size and each is a call of its own. */
core_ns perfmodel_cpu_piece_cost_ns(const struct config_profile *profile, enum core_cipher cipher,
                                    uint32_t bytes);

/* q = (1+m) * (B * (c0 + max c1 * Q) + sum l): no burst takes longer. The burst test adds it twice. */
core_ns perfmodel_cpu_burst_ns(const struct config_profile *profile);

/* Long-run share of one worker in parts per billion, rounded up: m C / t. */
int64_t perfmodel_cpu_utilisation_ppb(const struct perfmodel_cpu_task *task);

/* Number of pieces released in any window of length x_ns >= 0: count(x) above. */
int64_t perfmodel_cpu_count(const struct perfmodel_cpu_task *task, core_ns x_ns);

/* dbf(Z), saturating at INT64_MAX. */
core_ns perfmodel_cpu_demand_ns(const struct perfmodel_cpu_task *task, core_ns window_ns);

/* Share of one I/O thread in ppb, rounded up: (1+m) * (per_packet + per_byte * p^) / t. */
int64_t perfmodel_io_utilisation_ppb(const struct core_stream_spec *spec,
                                     const struct config_profile *profile);

/* Room for an I/O thread to promise, in ppb: limit_percent of it. */
int64_t perfmodel_io_limit_ppb(const struct config_profile *profile);

#endif
