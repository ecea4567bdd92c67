/* From a stream's contract and a hardware profile to the task that a worker must schedule.
 *
 * Shaping. A stream (p, t, k, d) leaves d' = d - in_ns - out_ns - rest(d) for the work
 * (perfmodel_io_rest_ns). Its packets, eligible at e_n, are in the worker's queue by e_n + in_ns, and
 * released to it at least s = min(c, floor(d' / k)) apart, c = max(7t/8, t - M), M = in_ns + out_ns +
 * rest_max_ns (t alone would do for the deadlines; see perfmodel_cpu_backlog_packets for why it is less):
 *
 *     rel_n = max(e_n + in_ns, rel_(n-1) + s)
 *
 * Policing keeps e_(n+j) - e_n >= a(j) = max(0, (j + 1 - k) t). With rel_n = e_i + in_ns + (n-i) s for the i
 * where the last pause ended: rel_n - e_n - in_ns <= (n-i) s - a(n-i) <= (k-1) s because s <= t, so finishing
 * each packet within s of its release keeps d'. And shaping keeps the arrival curve: rel_(n+j) >= e_(i+j) +
 * in_ns + (n-i) s >= rel_n + a(j). So packet j of any run is released r_j = max(j s, a(j)) or more after its
 * first.
 *
 * A packet is cut into m pieces of at most Q bytes; piece j is released j*delta after the packet and has the
 * relative deadline delta = floor(s / m). So pieces of one stream are delta apart, always, and a piece is due
 * when the next one is released. A window of length x that is closed on both sides sees at most
 *
 *     count(x) = m (P-1) + min(m, floor((x - r_(P-1)) / delta) + 1)
 *     P        = min(floor(x/s) + 1, k + floor(x/t))
 *
 * pieces: P packets are released by x when all come as early as they may, only the last of them in part. A
 * window that starts inside a packet, j pieces late, misses j pieces in front and gains at most j behind. The
 * bound is attained, so it can not be made tighter.
 *
 * The worker's queue tells deadlines apart only to its granularity G: all pieces due less than G after a
 * piece may go before it. So a piece counts as demand of every window of at least u = delta - G from its
 * release:
 *
 *     dbf(Z) = C * count(Z - u) for Z >= u, 0 below.
 *
 * Charges. The profile promises that a burst with pieces x_j of the ciphers K takes at most
 * sum (c0 + c1 x_j) + l(K), where l(K) is the sum of the l of its ciphers: each is an engine call of its own.
 * So a burst full of B pieces takes no more than the sum of their C = c0 + c1 x + l(K)/B, and no burst takes
 * more than q = l(K) + the B largest c0 + c1 x, since it has one piece of a stream, with K and these taken
 * over the streams of the worker: a worker whose streams all have the same key size pays for one engine call
 * a burst, few streams and short packets block shortly. All of it is multiplied by 1 + m, the profile's
 * margin, and rounded up.
 *
 * This departs from model.md section 3 where it is tighter: there k t > d' is refused, and all m pieces of a
 * packet are charged at the first piece's deadline. It is stricter in one point: G is taken off every piece,
 * not every packet, since the proof needs each piece done before the next one of its stream is released. */
#ifndef MILLRACE_PERFMODEL_CPU_H
#define MILLRACE_PERFMODEL_CPU_H

#include "config/profile.h"
#include "core/stream.h"

#include <stdint.h>

#define PERFMODEL_CPU_BURST_MAX   128 /* largest B of a profile */
#define PERFMODEL_CPU_CIPHER_SETS (1U << CORE_CIPHER_COUNT)

/* Packets that are this close to being eligible may be handed to a worker, which may start before the release
 * anyway; closer by what an I/O thread rests, for one that will not look again before. */
#define PERFMODEL_CPU_EARLY_NS (100 * CORE_NS_PER_US)

/* All times > 0 and at most one hour. deadline_ns is more than 1 us and k m delta <= d', so pieces *
 * burst_packets is below 3.6e9 and no count of pieces in a window of x ns exceeds x / 1000 + 2^17. */
struct perfmodel_cpu_task {
    core_ns cost_ns;        /* (1+m) (c0 + c1 x) of one piece, rounded up: C less its share of l(K) */
    core_ns deadline_ns;    /* delta: relative deadline, and least distance, of pieces */
    core_ns urgency_ns;     /* u: delta less the queue's granularity, at least 1 us */
    core_ns spacing_ns;     /* s: least distance of packets */
    core_ns interval_ns;    /* t: long-run distance of packets */
    uint32_t pieces;        /* m */
    uint32_t burst_packets; /* k */
    uint32_t piece_bytes;   /* ceil(p^ / m) rounded up to 16 */
    enum core_cipher cipher;
};

/* CORE_OK, or CORE_REFUSED if no work time is left: u would be under 1 us. error says the shortest latency
 * bound that leaves any, or that none does. spec must have passed core_stream_spec_check. */
CORE_CHECKED core_status perfmodel_cpu_task_from(const struct core_stream_spec *spec,
                                                 const struct config_profile *profile,
                                                 struct perfmodel_cpu_task *task, struct core_error *error);

/* Packets of the stream that may be inside the server at once while every promise is kept: eligible, and not
 * yet handed over. It is eligible when it has been read at the earliest, so that it meets one rest: packet n
 * leaves by rel_n + s + out_ns + rest_max_ns; a packet n0 that is still inside at a time
 * tau and the last one n1 that has come by then, in a run that began with packet i, satisfy (n1 - i + 1 - k)
 * t <= tau - e_i < M + (n0 - i + 1) s, so that n1 - n0 + 1 <= k - 1 + ceil((M + s) / t). That is k where t >=
 * 8 M: the burst, and no room beyond it, which is what s < t is for. */
uint32_t perfmodel_cpu_backlog_packets(const struct core_stream_spec *spec,
                                       const struct config_profile *profile);

/* (1+m) (c0 + c1 x) of a piece of x bytes, rounded up, at least 1. */
core_ns perfmodel_cpu_piece_cost_ns(const struct config_profile *profile, enum core_cipher cipher,
                                    uint32_t bytes);

/* The task mix of a worker: the terms of the cost model that all its streams share (the ciphers present,
 * the largest piece costs). Zeroed: a worker without streams. */
struct perfmodel_cpu_company {
    uint32_t ciphers;                          /* bit c - 1: there is a stream with cipher c */
    uint32_t count;                            /* entries of piece_ns: min(streams, B) */
    core_ns pieces_ns;                         /* sum of piece_ns */
    core_ns piece_ns[PERFMODEL_CPU_BURST_MAX]; /* the largest cost_ns of streams, falling */
};

/* Adds one stream to the mix, at bursts of B pieces. */
void perfmodel_cpu_company_add(struct perfmodel_cpu_company *company, uint32_t burst_pieces,
                               const struct perfmodel_cpu_task *task);

/* (1+m) l(K) / B, rounded up: what each piece is charged on top of its cost_ns. */
core_ns perfmodel_cpu_surcharge_ns(const struct config_profile *profile, uint32_t ciphers);

/* q, the blocking time of the mix: no burst takes longer. The burst test adds it twice. Grows with the
 * mix. */
core_ns perfmodel_cpu_blocking_ns(const struct config_profile *profile,
                                  const struct perfmodel_cpu_company *company);

/* A worker's figures, of its profile, for tests that keep them. */
struct perfmodel_cpu_worker {
    core_ns burst_ns;                                /* q of the worst mix */
    uint32_t burst_pieces;                           /* B */
    core_ns lanes_ns[PERFMODEL_CPU_CIPHER_SETS];     /* (1+m) l(K), by company.ciphers */
    core_ns surcharge_ns[PERFMODEL_CPU_CIPHER_SETS]; /* (1+m) l(K) / B */
    core_ns ahead_ns; /* a packet is handed over no earlier than it is eligible less this, and in_ns */
};
struct perfmodel_cpu_worker perfmodel_cpu_worker_of(const struct config_profile *profile);

/* q of the worst mix: no burst of any streams takes longer. */
core_ns perfmodel_cpu_burst_ns(const struct config_profile *profile);

/* Shortest latency bound that leaves any work time; CORE_NS_NEVER if none in range does: the
 * interval is too short for the pieces of one packet, or the burst too long. */
core_ns perfmodel_cpu_latency_floor_ns(const struct core_stream_spec *spec,
                                       const struct config_profile *profile);

/* Long-run share of one worker in parts per billion, rounded up: m cost / t. No more than 10^12, so that sums
 * over a million streams fit. */
int64_t perfmodel_cpu_utilisation_ppb(const struct perfmodel_cpu_task *task);

/* Number of pieces released in any window of length x_ns >= 0: count(x) above. x_ns at
 * most 2^62. */
int64_t perfmodel_cpu_count(const struct perfmodel_cpu_task *task, core_ns x_ns);

/* How long the rests of an I/O thread may keep a packet of a stream with this latency bound: half of it
 * before the packet is read, and half of it before its result is written. A 16th of what the margins leave of
 * the bound, 2 rest_max at the most; 0 where they leave nothing. d' is without it. The server rests for no
 * longer than half of this, for the shortest latency bound it serves. */
core_ns perfmodel_io_rest_ns(core_ns latency_ns, const struct config_profile *profile);

/* Share of one I/O thread in ppb, rounded up: (1+m) * (per_packet + per_byte * p^ + a) / t, where a is the
 * audit_one_in-th part of ceil(p^ / Q) * (c0 + l) + c1 * p^ (config_profile_io), or 0 without audits. No more
 * than 10^12. */
int64_t perfmodel_io_utilisation_ppb(const struct core_stream_spec *spec,
                                     const struct config_profile *profile);

/* Room for an I/O thread to promise, in ppb: limit_percent of it. */
int64_t perfmodel_io_limit_ppb(const struct config_profile *profile);

#endif
