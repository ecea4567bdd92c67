/* The backlog rule: the delay bound of each stage of a GPU (copy up, kernel, copy back), from sums over its
 * streams.
 *
 * In the words of network calculus: the bytes that batches bring have an arrival curve, the time in which a
 * stage works them off is its service, and the delay bound of the stage is the largest horizontal deviation
 * between the two. Here the arrival curve is the straight line P + rho T L, of which a sum per GPU is enough,
 * or, per stream, a line closer to the staircase arrival curve k + floor(L T/t) ("Stairs" below).
 *
 * perfmodel/gpu.h judges a batch that is as full as it can be, and asks each of its stages to fit the period
 * T. But two neighbouring batches can not both be that full: a batch holds at most N(T) = k + floor(T/t)
 * packets of a stream, L batches in a row at most N(LT) <= k + LT/t. So a stage may take longer than T for
 * some batches, as long as it catches up. What counts is how late it can be.
 *
 * **The load.** With p^ the padded packet, over the streams of a GPU:
 *
 *     P = sum k p^ bytes        rho = sum p^ / t bytes per ns
 *     n = sum 1                         no batch has more jobs
 *     w = max k p^ + max (p^ / t) T     no job is longer; and where all p^ are multiples of some bytes,
 *                                       jobs are too, so w is rounded down to one
 *
 * and L batches in a row hold at most P + L rho T bytes. Of a stream whose packets stand alone
 * (core_stream_packets_alone) each packet is a job: it adds k + T/t to n, not 1, and in w p^ stands for its k p^ and
 * nothing for its p^ / t. The proofs ask nothing else of n and w, so that they hold for any mix. P, rho and n are
 * sums: after a stream has been added and removed they are what they were (each p^ / t is rounded up once, to
 * 2^-32). The maxima in w, the divisor and the least d' are not sums: a removal leaves them as they are, which is
 * safe but may be too
 * strict. A caller that needs them exact keeps the values sorted, or adds up all loads again.
 *
 * **The stages** of a batch of x bytes, each a concave function that never falls, m_C and m_K the margins of
 * copies and kernels:
 *
 *     U(x) = (1+m_C) up^(x + n job_bytes)     R(x) = (1+m_C) down^(x)
 *     K(x) = (1+m_K) (launch + w g^(x/w) / Phi)
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
 *     S^ = max over L >= 1 of L S(P/L + rho T) - (L-1) T,
 *
 * which is the delay bound of the stage. *Proof.* Let s be the last time before that end when the stage ran
 * out of batches up to n. From then on it serves batches m .. n without a pause; m came at s <= mT + B; they
 * are L = n-m+1 in a row. For a line a + b x above S, L S(P/L + rho T) - (L-1) T <= T + b P + L (a + b rho T
 * - T), which does not grow with L if
 *
 *     a + b rho T <= T     (the line is stable: it catches up).
 *
 * So S^ <= a + b (P + rho T) on every stable line above S, mixtures of two edges of S among them. The bound
 * returned is the least of these (which is S^ for real L). A set without any stable line is refused.
 *
 * **The latency,** from a packet's eligible time to the end of its batch's copy back, is T + H + U^ + K^ + R^,
 * H = T_H (perfmodel_gpu_host_ns) of the most packets that a batch may have. Batch n is closed at nT, or up to
 * in_ns later (which d' leaves out). H <= T is asked for, so the batcher is through with it H after that at the
 * most: it was with the one before by (n-1)T + in_ns + H. Two copy engines: the stages follow one another, from
 * B = in_ns + H for the copy up, B growing from one to the next. In what follows in_ns stands for in_ns + H.
 *
 * **One copy engine** serves each direction in the order of the batches, and is idle only when no copy waits;
 * in which order the two directions take it does not matter here. Take a line above U and one above R, and
 * what each takes of a period in the long run,
 *
 *     u = a_u + b_u rho T     r = a_r + b_r rho T     u + r <= T     (the two are stable together).
 *
 * Then U^ and R^ may be the least with
 *
 *     U^ >= a_u + b_u (P + rho T) + b_r P + (U^ + K^) r/T
 *     R^ >= a_r + b_r (P + rho T) + a_u + b_u (P + rho T) + (R^ + in_ns) u/T,
 *
 * and the bound returned is the least over any two such lines. (The L copies up of a run have copies back of
 * L other batches between them, but not of L in a row: with bursts that were earned back in between, these
 * hold more than P + L rho T bytes. So the bound asks which batches they can be.)
 *   *Proof.* Every batch has a bound for each stage: nT + in_ns + U^ for the copy up, K^ more for the kernel,
 * R^ more for the copy back. Of the bounds that are not kept take the one that passes first, at v. It is no
 * kernel's: that stage had its batches at hand in time. Let the engine be busy from q to v and idle just
 * before q, so that every copy in [q, v] came at q or later, and together they take at least v - q.
 *   - *The copy up of batch n*, v = nT + in_ns + U^. It waits from nT + in_ns at the latest, so that
 *     w = nT + in_ns - q >= 0. The copies up are of batches m .. n, closed at q or later, mT + in_ns >= q, so
 *     (n-m) T <= w: they take a_u + b_u (P + rho T) + w u/T at most. The copies back are of batches i .. n-1,
 *     whose kernels ended at q or later and kept their bounds or have later ones, iT + in_ns + U^ + K^ >= q.
 *     These are n - i <= (w + U^ + K^) / T batches and take b_r P + (w + U^ + K^) r/T at most. Batch n is not
 *     through, so that w + U^ = v - q is less than both, in which w (u + r) / T <= w: U^ is less than it is.
 *   - *The copy back of batch n*, v = nT + in_ns + U^ + K^ + R^. Its kernel kept its bound, which was before
 *     v, so w = nT + in_ns + U^ + K^ - q >= 0. The copies back are of batches i .. n as above,
 *     (n-i) T <= w: a_r + b_r (P + rho T) + w r/T. The copies up are of batches closed in [q, v], whose
 *     periods end in [q - in_ns, v]; the last ends less than w + R^ + in_ns after the first:
 *     a_u + b_u (P + rho T) + (w + R^ + in_ns) u/T. Again w + R^ = v - q is less than both.
 * Where U + R of the fullest batch is no more than T, both bounds may be that instead, if the directions take
 * turns: perfmodel_gpu_latency_ns has the proof, which asks nothing of the kernel but its bound.
 *
 * **Arenas.** That of batch n is in use from (n-1)T until its results are taken, nT + in_ns + the bounds of
 * the stages + the rest of an I/O thread + out_ns (in_ns with H), so A = 1 + ceil((sum of all that) / T) of them do, in
 * rotation; never less than five.
 *
 * If no stage of the fullest batch outlasts T (one engine: both copies together), that batch's exact times
 * bound the stages as well, and perfmodel/gpu.h is the sharper rule. Above that, this one carries more.
 *
 * **Stairs.** The staircase arrival curve of each stream gives a sharper bound, for one given period: L
 * batches in a row hold k + floor(L T/t) packets of a stream, which rises in steps below the straight line k
 * + L T/t. With T = q t + f, 0 < f < t, and j the largest whole number with j f < t, floor(L f/t) is a whole
 * number below L/j and so at most (L-1)/j:
 *
 *     k + floor(L T/t) <= k - 1/j + L (q + 1/j).
 *
 * Compared with the straight line k + L T/t, this line begins lower by the j-th part of a packet, is exact at
 * L = 1, and rises faster, by q + 1/j - T/t packets a batch. perfmodel_flow_load_at uses it for each stream
 * for which this extra rise is at most a quarter of what the line begins lower, and the straight line for the
 * rest; w is then the longest job itself. Such sums are valid for this T alone. All proofs above hold for
 * them, since they use nothing but a bound on what L batches in a row hold. In addition, if a stage
 * takes at most T for the fullest batch, this time is a delay bound of the stage, too.
 *
 * **Changing the period.** (H is that of the longer period: after one of its batches the batcher is behind by
 * less than that, and catches up, as H <= T of the other.) Let a set be accepted at two periods, T_s < T_l, and let its batches change from
 * one to the other at some boundary, whatever is in the stages then. Take a run of a stage, batches m .. n
 * that it serves without a pause, and a line above S at every batch in it: a_j + b x for batch j, where a_j
 * grows with the longest job that T_j lets be. They hold P + rho sum T_j bytes at most, and batch n is closed
 * sum over j > m of T_j after batch m. So the run ends behind the closing of n (and what the stages before
 * had as their bound) by at most
 *
 *     a_m + b (P + rho T_m) + sum over j > m of (a_j + b rho T_j - T_j) <= a_m + b (P + rho T_m)
 *
 * on any line that is stable at both periods: what counts is the period of the run's first batch.
 *
 *   - Shrinking: a batch of T_s may be in a run that began with one of T_l. Batches of T_s are back within
 *     T_s + the sum of those bounds for m of T_l. A batch of T_l is only behind other batches of T_l, so its
 *     bound is unchanged.
 *   - Growing: a batch of T_l may be in a run that began with one of T_s. Batches of T_l are back within
 *     T_l + the sum, stage by stage, of the larger of the bound for m of T_s (lines stable at both) and of S^
 *     at T_l. The bound of batches of T_s is unchanged.
 *
 * If T_s + sum S^(T_s) <= 4 T_s, and 4 T_l <= d' for all streams present, as with the default period d'/4, and no
 * packets stand alone, shrinking is always safe on two copy engines: a line stable at T_s gains at most b rho (T_l - T_s) <= T_l -
 * T_s, and there are three stages.
 *
 * One copy engine: the kernel is as above. The copies of all batches, of the old period and of the new one,
 * have the bounds of "One copy engine" with T_l for the T in P + rho T, with T_s for the T in u, in r and in
 * the divisions by T, and with b_r rho (T_l - T_s) added to U^. *Proof.* Let c_j be the end of the period of
 * batch j; the proof is the one above with nT = c_n. In a time w at most w / T_s periods end, with at most
 * rho w bytes, so that copies up in it take w u/T_s, and copies back w r/T_s; lines stable at T_s are stable
 * at T_l. In addition there is the first batch of each direction, with rho T_l bytes. The copies back in U^
 * are of batches i .. n-1, which hold P + rho (c_(n-1) - c_(i-1)), and c_(n-1) - c_(i-1) is c_n - c_i plus
 * the period of i less that of n. The kernels of batches of both periods keep U^ + K^, since no bound above
 * is less than it is at either period. A batch of the old period may be behind newer ones: copies up that
 * were closed after it go first. So a batch of either period is back within that period plus the sum of these
 * bounds.
 *
 * Pure; any thread. A card is not modified after its creation. Integers (128-bit inside), rounded to the safe
 * side: a bound is never less than perfmodel_gpu_stages of any batch. No time falls as a load grows, except
 * by a few nanoseconds of rounding. */
#ifndef MILLRACE_PERFMODEL_FLOW_H
#define MILLRACE_PERFMODEL_FLOW_H

#include "perfmodel/gpu.h"

/* The load of a set of at most 2^20 streams. Zeroed: no streams. */
struct perfmodel_flow_load {
    uint64_t streams;
    uint64_t jobs;            /* of n, whatever the period */
    uint64_t jobs_rate;       /* of n, sum of 1/t of streams whose packets stand alone, per ns times 2^44 */
    uint64_t burst_bytes;     /* P */
    uint64_t rate;            /* rho, bytes per ns times 2^32 */
    uint64_t job_burst_bytes; /* largest k p^; of packets that stand alone, p^ */
    uint64_t job_rate;        /* largest p^ / t, bytes per ns times 2^32; of packets that stand alone, 0 */
    uint32_t unit_bytes;      /* all p^ are multiples of this: a cipher's block, unless set to more */
    core_ns shortest_ns;      /* least d'; <= 0: the bound of some stream leaves no time for the GPU */
    uint64_t burst_packets;   /* sum of k */
    uint64_t packet_rate;     /* sum of 1/t, packets per ns times 2^44 */
};

/* The load of one stream, by the straight line; spec has passed core_stream_spec_check. */
struct perfmodel_flow_load perfmodel_flow_load_of(const struct core_stream_spec *spec,
                                                  const struct config_profile *profile);

/* The load of one stream at one period, 1 ns .. 1 h, by the sharper line of "Stairs". Add only loads made for
 * the same period. */
struct perfmodel_flow_load perfmodel_flow_load_at(const struct core_stream_spec *spec,
                                                  const struct config_profile *profile, core_ns period_ns);

/* Adds a load to *load; unit_bytes becomes the greatest common divisor. */
void perfmodel_flow_load_add(struct perfmodel_flow_load *load, const struct perfmodel_flow_load *more);

/* Component-wise maximum of two loads (gcd for unit_bytes): an upper bound for either. Stored in *load. */
void perfmodel_flow_load_cover(struct perfmodel_flow_load *load, const struct perfmodel_flow_load *other);

/* Subtracts the sums of streams that were added before; the maxima and the least d' stay. When the last
 * stream is removed, all fields become zero. */
void perfmodel_flow_load_remove(struct perfmodel_flow_load *load, const struct perfmodel_flow_load *less);

/* A: the arenas of batches whose stages have delay bounds of bounds_ns in all, at a period of at least 1 ns.
 * A result above PERFMODEL_FLOW_ARENAS_MAX means that the period is too short for so many batches in flight.
 * */
uint64_t perfmodel_flow_arenas(const struct config_profile *profile, core_ns bounds_ns, core_ns period_ns);
#define PERFMODEL_FLOW_ARENAS_MAX 64

/* Memory of `arenas` arenas, each with input, output and its table of jobs, keys and chaining values:
 * A (2 W + jobs job_bytes). Needed on the card, and again pinned on the host. Saturates at UINT64_MAX. */
uint64_t perfmodel_flow_memory_bytes(const struct config_profile_gpu *gpu, uint64_t arenas,
                                     uint64_t batch_bytes, uint64_t jobs);

/* The most packets that one batch may hold: sum of k + T/t, rounded up, plus one; saturating. */
uint64_t perfmodel_flow_batch_packets(const struct perfmodel_flow_load *load, core_ns period_ns);

/* n: the most jobs that one batch may have, rounded up; saturating. */
uint64_t perfmodel_flow_batch_jobs(const struct perfmodel_flow_load *load, core_ns period_ns);

/* The stage functions U, R and g of one model of GPU, as straight lines. `busy`: charge copies at their
 * contended times. The profile must outlive it. */
struct perfmodel_flow_gpu;
CORE_CHECKED core_status perfmodel_flow_gpu_create(struct perfmodel_flow_gpu **card,
                                                   const struct config_profile *profile,
                                                   const struct config_profile_gpu *gpu, bool busy);
void perfmodel_flow_gpu_destroy(struct perfmodel_flow_gpu *card); /* NULL is fine */

struct perfmodel_flow_verdict {
    /* NONE (accepted), or the first that fails: GPU_COPY and GPU_KERNEL (no stable line), GPU_LATENCY (>
     * shortest d', or H > T), GPU_MEMORY (the arenas exceed the card, or ARENAS_MAX) */
    enum perfmodel_limit binding;
    core_ns period_ns;
    struct perfmodel_stages bounds; /* U^, K^, R^, CORE_NS_NEVER if unstable; and H */
    core_ns latency_ns;
    uint32_t arenas;       /* A; 0 if unstable */
    uint64_t batch_bytes;  /* room of an arena: P + rho T */
    uint64_t memory_bytes; /* A (2 batch_bytes + n job_bytes), on the card and pinned */
    /* The least relative headroom, in ppb, rounded down, of four: of T over the time S(rho T) that each
     * stage takes of a period in the long run (one engine: both copies together); of T over H; of the shortest d' over the
     * latency; of the card's memory over what the arenas take. Negative exactly if refused; at least -10^9.
     * */
    int64_t headroom_ppb;
    int64_t busiest_ppb; /* long-run share of T that the busiest stage takes; at most 10^12 */
};

/* Judges a load at a period of 1 ns .. 1 h. A load of no streams fits, with all figures 0 and a headroom of
 * 10^9. Takes about a microsecond, whatever the number of streams. */
struct perfmodel_flow_verdict perfmodel_flow_judge(const struct perfmodel_flow_gpu *card,
                                                   const struct perfmodel_flow_load *load, core_ns period_ns);

struct perfmodel_flow_change {
    bool holds;                     /* latency_ns is within the least d' */
    struct perfmodel_stages bounds; /* of the stages, for batches with the new period */
    core_ns latency_ns;             /* from a packet's eligible time to the end of its batch's copy back */
    /* as latency_ns, of batches with the old period; two copy engines: unchanged, and 0 here */
    core_ns old_latency_ns;
};

/* May batches change from one period to another at any boundary ("Changing the period")? The load must have
 * been accepted at both (perfmodel_flow_judge), and no run of batches may have a third period in it. Always
 * true without streams, or if the periods are equal. */
struct perfmodel_flow_change perfmodel_flow_judge_change(const struct perfmodel_flow_gpu *card,
                                                         const struct perfmodel_flow_load *load,
                                                         core_ns from_ns, core_ns to_ns);

/* Judges a load of perfmodel_flow_load_at at the period that it was made for. `fullest` is
 * perfmodel_gpu_stages of the fullest batch: the perfmodel_gpu_jobs of all streams. Where both the lines and
 * the fullest batch bound a stage, `busiest_ppb` has the shorter time. */
struct perfmodel_flow_verdict perfmodel_flow_judge_staircase(const struct perfmodel_flow_gpu *card,
                                                             const struct perfmodel_flow_load *load,
                                                             const struct perfmodel_stages *fullest,
                                                             core_ns period_ns);

/* The verdict at the best period: the default period d'/4 where the load is accepted there; else the period
 * with most headroom among some between d'/50 and 0.45 d'. (If all of these fail, another one may still
 * hold.) */
struct perfmodel_flow_verdict perfmodel_flow_fit(const struct perfmodel_flow_gpu *card,
                                                 const struct perfmodel_flow_load *load);

#endif
