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
 * Cost model. The profile guarantees that a burst with pieces x_j of the ciphers K takes at most
 * sum (c0 + c1 x_j) + l(K), where l(K) is the sum of the l of its ciphers: each is an engine call of its own.
 * So a burst full of B pieces takes no more than the sum of their C = c0 + c1 x + l(K)/B, and no burst takes
 * more than q = l(K) + the B largest c0 + c1 x, since it has at most one piece of each stream. K and the
 * largest pieces are those of the worker's own streams: if all have the same key size, a burst pays for one
 * engine call, and few streams or short packets make q small. All of it is multiplied by 1 + m, the
 * profile's margin, and rounded up.
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

/* A packet may be handed to a worker this long before it is eligible, since the worker may start it before
 * its release anyway; and by the rest of an I/O thread (perfmodel_io_rest_ns) earlier, if that thread will
 * not run again before. */
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
    enum core_direction direction;
};

/* CORE_OK, or CORE_REFUSED if no work time is left: u would be under 1 us. error says the shortest latency
 * bound that leaves any, or that none does. spec must have passed core_stream_spec_check. */
CORE_CHECKED core_status perfmodel_cpu_task_from(const struct core_stream_spec *spec,
                                                 const struct config_profile *profile,
                                                 struct perfmodel_cpu_task *task, struct core_error *error);

/* The most packets of the stream that are inside the server at once (eligible, and not yet handed back) while
 * every bound is kept: k - 1 + ceil((M + s) / t). This is k where t >= 8 M, the burst alone; s < t serves
 * that. *Proof.* A packet is eligible no earlier than it has been read, so only the rest before its result is
 * written delays it: packet n leaves by rel_n + s + out_ns + rest_max_ns. Let n0 be a packet that is still
 * inside at time tau, and n1 the last that has come by then, in a run that began with packet i. Then (n1 - i
 * + 1 - k) t <= tau - e_i < M + (n0 - i + 1) s, so that n1 - n0 + 1 <= k - 1 + ceil((M + s) / t). */
uint32_t perfmodel_cpu_backlog_packets(const struct core_stream_spec *spec,
                                       const struct config_profile *profile);

/* (1+m) (c0 + c1 x) of a piece of x bytes, and decrypt_more_percent of it where it is decrypted, rounded up, at least 1. */
core_ns perfmodel_cpu_piece_cost_ns(const struct config_profile *profile, enum core_cipher cipher,
                                    enum core_direction direction, uint32_t bytes);

/* The task mix of a worker: the terms of the cost model that all its streams share (the ciphers present,
 * the largest piece costs). Zeroed: a worker without streams. */
struct perfmodel_cpu_mix {
    uint32_t ciphers;                          /* bit c - 1: there is a stream with cipher c */
    uint32_t count;                            /* entries of piece_ns: min(streams, B) */
    core_ns pieces_ns;                         /* sum of piece_ns */
    core_ns piece_ns[PERFMODEL_CPU_BURST_MAX]; /* the largest cost_ns of streams, falling */
};

/* Adds one stream to the mix, at bursts of B pieces. */
void perfmodel_cpu_mix_add(struct perfmodel_cpu_mix *mix, uint32_t burst_pieces,
                           const struct perfmodel_cpu_task *task);

/* The surcharge of each piece on top of its cost_ns: (1+m) l(K) / B, rounded up. */
core_ns perfmodel_cpu_surcharge_ns(const struct config_profile *profile, uint32_t ciphers);

/* q, the blocking time of the mix: the longest burst. The burst test adds it twice. Never falls when a stream
 * is added. */
core_ns perfmodel_cpu_blocking_ns(const struct config_profile *profile, const struct perfmodel_cpu_mix *mix);

/* Figures of a worker that follow from the profile alone, computed once. */
struct perfmodel_cpu_worker {
    core_ns burst_ns;                                /* q of the worst mix */
    uint32_t burst_pieces;                           /* B */
    core_ns lanes_ns[PERFMODEL_CPU_CIPHER_SETS];     /* (1+m) l(K), by mix.ciphers */
    core_ns surcharge_ns[PERFMODEL_CPU_CIPHER_SETS]; /* (1+m) l(K) / B */
    core_ns ahead_ns; /* a packet is handed over at most ahead_ns + in_ns before it is eligible */
};
struct perfmodel_cpu_worker perfmodel_cpu_worker_of(const struct config_profile *profile);

/* q of the worst mix: the longest burst of any set of streams. */
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

/* rest(d): how long the rests of an I/O thread (in which it lets packets gather) may delay a packet of a
 * stream with this latency bound: half of it before the packet is read, half before its result is written. It
 * is a 16th of what the margins in_ns and out_ns leave of the bound, at most 2 rest_max; 0 where they leave
 * nothing. d' is net of it. The server rests for at most half of it, for the shortest latency bound it
 * serves. */
core_ns perfmodel_io_rest_ns(core_ns latency_ns, const struct config_profile *profile);

/* Of the code of a message: four blocks of SHA-256, beside those of its bytes. */
#define PERFMODEL_MAC_BYTES 256

/* Share of one I/O thread in ppb, rounded up: (1+m) * (per_packet + per_byte * p^ + pattern_per_byte * p^ with a
 * pattern + mac_per_byte * (p^ + PERFMODEL_MAC_BYTES) with a MAC + a) / t, where a is the audit_one_in-th part of
 * ceil(p^ / Q) * (c0 + l) + c1 * p^ (config_profile_io), or 0 without audits; by_lane_per_packet and
 * by_lane_per_byte where it has a lane. No more than 10^12. */
int64_t perfmodel_io_utilisation_ppb(const struct core_stream_spec *spec,
                                     const struct config_profile *profile);

/* The share of an I/O thread that admission may reserve, in ppb: the profile's limit_percent. */
int64_t perfmodel_io_limit_ppb(const struct config_profile *profile);

#endif
