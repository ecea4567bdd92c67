/* What a GPU carries in the long run, from sums over its streams: the backlog rule.
 *
 * perfmodel/gpu.h judges a batch that is as full as it can be, and asks each of its stages to fit the period
 * T. But two neighbouring batches can not both be that full: a batch holds at most N(T) = k + floor(T/t)
 * packets of a stream, L batches in a row at most N(LT) <= k + LT/t. So a stage may outlast T now and then,
 * as long as it catches up. What counts is how late it can be.
 *
 * **The load.** With p^ the padded packet, over the streams of a GPU:
 *
 *     P = sum k p^ bytes        rho = sum p^ / t bytes per ns        n streams
 *     w = max k p^ + max (p^ / t) T     no job is longer; and where all p^ are multiples of some bytes,
 *                                       jobs are too, so w is rounded down to one
 *
 * and L batches in a row hold at most P + L rho T bytes. P, rho and n are sums: adding a stream and removing
 * it leave no trace (each p^ / t is rounded up once, to 2^-32). The maxima in w, the divisor, the longest
 * rest and the least d' are no sums: after a removal they stay, which is safe and may be too strict; who
 * wants them exact keeps the values in order, or adds up anew.
 *
 * **The stages** of a batch of x bytes, each a concave function that never falls, m the margin:
 *
 *     U(x) = (1+m) up^(x + n job_bytes)     R(x) = (1+m) down^(x)
 *     K(x) = (1+m) (launch + w g^(x/w) / Phi)
 *
 * up^ and down^ are the least concave functions above perfmodel_copy_ns, for batches up to the fullest. g(N)
 * = c(ceil(N/M)) is how much longer the fullest of M SMs takes with N equal jobs in all; g^ the least concave
 * function above it for N = 0 .. n, g(0) = 0. Each is a minimum of straight lines.
 *   Why K: jobs are dealt in falling order, the first SM is the longest, and of N(y) jobs longer than y it
 * has ceil(N(y)/M), so it takes the integral of g(N(y)) / Phi over y from 0 to w. On each line g <= a + b N,
 * and the integral is at most (a w + b x) / Phi. The least of the lines is w g^(x/w) / Phi, and grows with w.
 *
 * L batches in a row, of x_1 .. x_L bytes, take a stage at most sum S(x_j) <= L S(P/L + rho T), by concavity.
 *
 * **The bound of a stage.** A stage that serves batches in their order, and has batch n at hand by nT + B,
 * ends it by nT + B + S^,
 *
 *     S^ = max over L >= 1 of L S(P/L + rho T) - (L-1) T.
 *
 * Let s be the last time before that end when the stage ran out of batches up to n. From then on it serves
 * batches m .. n without a pause; m came at s <= mT + B; they are L = n-m+1 in a row. For a line a + b x
 * above S, L S(P/L + rho T) - (L-1) T <= T + b P + L (a + b rho T - T), which does not grow with L if
 *
 *     a + b rho T <= T     (the line is stable: it catches up).
 *
 * So S^ <= a + b (P + rho T) on every stable line above S, mixtures of two edges of S among them, and the
 * least of those is what is told here (it is S^ for real L). Without any stable line the set is refused.
 *
 * **The latency,** from a packet's eligible time to the end of its batch's copy back:
 *
 *     two copy engines   T + U^ + K^ + R^
 *     one copy engine    T + E^ + K^ + E^       E = U + R
 *
 * Two engines: batch n is closed at nT, and the stages follow one another, B growing from one to the next.
 * One engine takes turns as perfmodel_gpu_latency_ns says. While copies up wait from mT on, until that of
 * batch n ends, there are L = n-m+1 of them and before each at most one copy back: at most L, consecutive
 * ones. They take L E(P/L + rho T) at the most, so the copy up ends by nT + E^. Likewise the copy back, which
 * is handed over by nT + E^ + K^.
 *
 * **Arenas.** That of batch n is in use from (n-1)T until its results are taken, nT + out_ns and the bounds
 * of the stages, so A = 1 + ceil((sum of the bounds + out_ns) / T) of them do, in rotation; never less than
 * five.
 *
 * If no stage of the fullest batch outlasts T (one engine: both copies together), that batch's exact times
 * bound the stages as well, and perfmodel/gpu.h is the sharper rule. Above that, this one carries more.
 *
 * **Stairs.** Who knows the streams one by one at a period, and not their sums alone, can do with less. L
 * batches in a row hold at most W_L = sum N(L T) p^, N(D) = k + floor(D / t), which rises in steps below the
 * straight line P + L rho T; so W_1 is the fullest batch, and no job is longer than w = max N(T) p^. With S_1
 * the exact time of the fullest batch (one engine: of both its copies), no batch takes longer than S_1, and
 *
 *     S^ = S_1, if S_1 <= T;  else the largest of
 *          min(L S_1, L S(W_L / L)) - (L-1) T             for L = 1 .. PERFMODEL_FLOW_STEPS,
 *          L S(P/L + rho T) - (L-1) T                     for all longer L.
 *
 * The proof of a stage's bound above asks only for the most that L batches in a row take, of each stage by
 * itself, and this is it: a batch is never above S_1 (perfmodel_gpu_stages never falls as jobs grow), L of
 * them take at most L a + b W_L on any line a + b x above S for 0 <= x <= W_1, stable or not. For S_1 <= T,
 * L S_1 - (L-1) T is largest at L = 1. What stands for the longer L falls with L on every stable line, so
 * their largest is at the first of them, on the least of the stable lines and mixtures there.
 *   Every term is at most that of the sums alone, as W_L <= P + L rho T and w is no longer. A stage with S_1
 * <= T needs no stable line. The lines are those up to the fullest batch, and W_L / L <= W_1, since k >= 1;
 * where P/L + rho T is above W_1, S stays as high as there.
 *
 * **Another period.** Batches of a set that holds at two periods, T_s < T_l, go from one to the other at some
 * boundary, whatever is in the stages then. Take a run of a stage, batches m .. n that it serves without a
 * pause, and a line above S at every batch in it: a_j + b x for batch j, where a_j grows with the longest job
 * that T_j lets be. They hold P + rho sum T_j bytes at most, and batch n is closed sum over j > m of T_j
 * after batch m. So the run ends behind the closing of n (and what the stages before had as their bound) by
 * at most
 *
 *     a_m + b (P + rho T_m) + sum over j > m of (a_j + b rho T_j - T_j) <= a_m + b (P + rho T_m)
 *
 * on any line that is stable at both periods: what counts is the period of the run's first batch.
 *
 *   - Shrinking: a batch of T_s may be in a run that began with one of T_l. Batches of T_s are back within
 *     T_s + the sum of those bounds for m of T_l. Those of T_l are only behind others of T_l.
 *   - Growing: a batch of T_l may be in a run that began with one of T_s. T_l + the sum, stage by stage, of
 *     the larger of the bound for m of T_s (lines stable at both) and of S^ at T_l. Those of T_s as ever.
 *
 * With T_s + sum S^(T_s) <= 4 T_s and 4 T_l <= d' for those who stand, as in the rhythm, shrinking always
 * holds: a line stable at T_s gains at most b rho (T_l - T_s) <= T_l - T_s, and there are three stages.
 *
 * One copy engine: the copies of the other direction, one before each, are consecutive batches as well, but
 * not the same ones. Copies up of short batches may have those back of long ones between them (shrinking), or
 * copies back of short ones those up of long ones (growing). Everything is back within d', so there are at
 * most d'/T_l of these pairs, and a row has that many times rho (T_l - T_s) bytes more to copy one way.
 *
 * Pure; any thread. A card is read only once made. Integers (128-bit inside), rounded against the promise: a
 * bound is never less than perfmodel_gpu_stages of any batch. No time falls as a load grows, but for
 * few nanoseconds by rounding. */
#ifndef MILLRACE_PERFMODEL_FLOW_H
#define MILLRACE_PERFMODEL_FLOW_H

#include "perfmodel/gpu.h"

/* Of at most 2^20 streams. Zeroed: no streams. */
struct perfmodel_flow_load {
    uint64_t streams;         /* n */
    uint64_t burst_bytes;     /* P */
    uint64_t rate;            /* rho, bytes per ns times 2^32 */
    uint64_t job_burst_bytes; /* largest k p^ */
    uint64_t job_rate;        /* largest p^ / t, bytes per ns times 2^32 */
    uint32_t unit_bytes;      /* all p^ are multiples of this: a cipher's block, unless set to more */
    core_ns shortest_ns;      /* least d'; not positive: some stream leaves no time */
};

/* One stream; spec has passed core_stream_spec_check. */
struct perfmodel_flow_load perfmodel_flow_load_of(const struct core_stream_spec *spec,
                                                  const struct config_profile *profile);

/* *load becomes that of both together; unit_bytes the greatest common divisor. */
void perfmodel_flow_load_add(struct perfmodel_flow_load *load, const struct perfmodel_flow_load *more);

/* *load becomes one that neither exceeds in any figure, for whoever has the one or the other. */
void perfmodel_flow_load_cover(struct perfmodel_flow_load *load, const struct perfmodel_flow_load *other);

/* Takes streams that were added out of the sums; the maxima and the least d' stay. The last stream out leaves
 * all zero. */
void perfmodel_flow_load_remove(struct perfmodel_flow_load *load, const struct perfmodel_flow_load *less);

/* A: what batches need whose stages take bounds_ns together, at a period of 1 ns and more. More than
 * PERFMODEL_FLOW_ARENAS_MAX: T is too short for what is on the way. */
uint64_t perfmodel_flow_arenas(const struct config_profile *profile, core_ns bounds_ns, core_ns period_ns);
#define PERFMODEL_FLOW_ARENAS_MAX 64

/* Input and output of so many arenas, with the table of jobs, keys and chaining values of each: A (2 W + jobs
 * job_bytes). On the card, and pinned on the host. Saturates at UINT64_MAX. */
uint64_t perfmodel_flow_memory_bytes(const struct config_profile_gpu *gpu, uint64_t arenas,
                                     uint64_t batch_bytes, uint64_t jobs);

/* P + rho T, rounded up, saturating: what one batch may hold at most. */
uint64_t perfmodel_flow_batch_bytes(const struct perfmodel_flow_load *load, core_ns period_ns);

/* The stage functions of one kind of card, as lines. `busy`: copies at their contended times. The profile
 * must outlive it. */
struct perfmodel_flow_card;
CORE_CHECKED core_status perfmodel_flow_card_create(struct perfmodel_flow_card **card,
                                                    const struct config_profile *profile,
                                                    const struct config_profile_gpu *gpu, bool busy);
void perfmodel_flow_card_destroy(struct perfmodel_flow_card *card); /* NULL is fine */

struct perfmodel_flow_verdict {
    /* FITS, or the first that fails: COPY and KERNEL (no stable line), LATENCY (> shortest d'), MEMORY (the
     * arenas exceed the card, or ARENAS_MAX) */
    enum perfmodel_gpu_binding binding;
    core_ns period_ns;
    struct perfmodel_stages bounds; /* U^, K^, R^; one copy engine: E^, K^, E^; CORE_NS_NEVER if unstable */
    core_ns latency_ns;
    uint32_t arenas;       /* A; 0 if unstable */
    uint64_t batch_bytes;  /* room of an arena: P + rho T */
    uint64_t memory_bytes; /* A (2 batch_bytes + n job_bytes), on the card and pinned */
    /* The least room left, in ppb and rounded down: of T, beside what each stage takes of a period in the
     * long run, S(rho T) (one engine: E); of the shortest d' beside the latency; of the card's memory.
     * Negative exactly if refused, and -10^9 at the least. */
    int64_t headroom_ppb;
    int64_t busiest_ppb; /* of T, what the busiest stage takes of it in the long run, 10^12 at the most */
};

/* At a period of 1 ns .. 1 h. A load of no streams fits, with all figures 0 and a headroom of 10^9. Takes
 * about a microsecond, however many streams there are. */
struct perfmodel_flow_verdict perfmodel_flow_judge(const struct perfmodel_flow_card *card,
                                                   const struct perfmodel_flow_load *load, core_ns period_ns);

struct perfmodel_flow_change {
    bool holds;                     /* latency_ns is within the least d' */
    struct perfmodel_stages bounds; /* of the stages, for batches with the new period */
    core_ns latency_ns;             /* from a packet's eligible time to the end of its batch's copy back */
};

/* Another period, see above: may batches go from one to the other at any boundary? The load holds at both
 * (perfmodel_flow_judge), and no run of batches has any but these two. Always, without streams or to the same
 * period. */
struct perfmodel_flow_change perfmodel_flow_judge_change(const struct perfmodel_flow_card *card,
                                                         const struct perfmodel_flow_load *load,
                                                         core_ns from_ns, core_ns to_ns);

#define PERFMODEL_FLOW_STEPS 8

/* Streams at a period, one by one. Starts zeroed, but for the period. */
struct perfmodel_flow_stairs {
    core_ns period_ns;
    uint64_t job_bytes;                       /* w */
    uint64_t row_bytes[PERFMODEL_FLOW_STEPS]; /* W_1, W_2 ... */
    struct perfmodel_stages fullest;          /* perfmodel_gpu_stages of jobs of N(T) p^ of all streams */
};

/* One stream; period_ns is set, 1 ns .. 1 h. `fullest` is the caller's to fill in. */
void perfmodel_flow_stairs_add(struct perfmodel_flow_stairs *stairs, const struct core_stream_spec *spec);

/* perfmodel_flow_judge of a load of just these streams, at their period, by the stairs; batch_bytes is W_1.
 * No bound is above those of perfmodel_flow_judge, but for few nanoseconds by rounding; one that may keep up
 * in two ways takes the shorter in `busiest_ppb`, too. */
struct perfmodel_flow_verdict perfmodel_flow_judge_stairs(const struct perfmodel_flow_card *card,
                                                          const struct perfmodel_flow_load *load,
                                                          const struct perfmodel_flow_stairs *stairs);

/* The verdict at the period that suits the load: d'/4 where that holds, the system's rhythm; else the one
 * with most headroom of some between d'/50 and 0.45 d' (that none of them holds is no proof that no other
 * does). */
struct perfmodel_flow_verdict perfmodel_flow_fit(const struct perfmodel_flow_card *card,
                                                 const struct perfmodel_flow_load *load);

#endif
