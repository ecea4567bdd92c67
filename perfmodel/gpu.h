/* The GPU performance model: from the jobs of a batch to the times of its stages, and from these to a
 * verdict.
 *
 * Sources: Verner et al., SYSTOR 2012, sections 3.2 and 3.3 (utilisation, stage times, schedulability), and
 * model.md section 2. Pure; any thread. Integers (128-bit inside), rounded against the promise, so that no
 * time is ever too short by rounding. Times are monotone to the last nanosecond: more bytes or more jobs are
 * never faster (but for `measured` ones).
 *
 * A profile must have passed config_profile_check. Any number of bytes, up to 2^32 jobs and any ns >= 0 are
 * allowed: a time longer than CORE_NS_NEVER is CORE_NS_NEVER, and so are those of a job over 2^53 bytes (no
 * SM ends it within two hours) and of one where a byte takes over 8 s. */
#ifndef MILLRACE_PERFMODEL_GPU_H
#define MILLRACE_PERFMODEL_GPU_H

#include "config/profile.h"
#include "core/stream.h"
#include "perfmodel/limit.h"

#include <stdbool.h>
#include <stddef.h>

/* ---- copies ---- */

enum perfmodel_direction { PERFMODEL_UP, PERFMODEL_DOWN };

/* Time of one copy. On a straight line between two rows, in time; below the first row its time; beyond the
 * last row at the last segment's slope, or at the last row's own rate if that is slower. `busy`: the
 * contended columns, and never less than alone. 0 bytes take 0. Rounded up.
 *
 * Safe where the true curve does not rise above its chords: a start and a price per byte, or one that bends
 * upwards. */
core_ns perfmodel_copy_ns(const struct config_profile_gpu *gpu, enum perfmodel_direction direction, bool busy,
                          uint64_t bytes);

/* ---- kernels ---- */

/* The share of an SM's peak that n >= 1 equal jobs reach together, parts per million, rounded down:
 *
 *     U(n) = n / c(n),     c(n) = max over rows (j, u) with j <= n, and the first row with j >= n, of j / u
 *
 * up to the last row, of N jobs. c(n) is how much longer n jobs of a size take than one job at the peak. So n
 * jobs are charged like the next row's, since an SM is not slower with fewer jobs to do, and no less than any
 * row below: the table is measured, has noise and is saw-toothed, but c never falls. More than N jobs take no
 * longer than whole passes of N and one of the r < N that are left, one after the other: q c(N) + c(r) for
 * n = q N + r. The least straight line above that is charged, which at the end of the table is a step up by
 * the worst pass that is begun (a longer table has a smaller one):
 *
 *     c(n) = c(N) n / N + max over r < N of (c(r) - c(N) r / N)     for n > N
 *
 * Up to N this makes U the largest table below the measured one in which fewer jobs never take longer, and that
 * is what a bound needs: a batch is judged with all the jobs it may have, and often most of them do not come.
 * (U itself may fall, from a full warp to the next one begun. An envelope of U
 * alone, such as min over n' >= n of U(n'), would not do: where U rises faster than n, one job alone takes
 * longer than two.) */
uint32_t perfmodel_utilisation_ppm(const struct config_profile_gpu *gpu, uint32_t jobs);

/* Time of one SM for n jobs of the given sizes, in rising order; launch and margin not included:
 *     sum over k = 1..n of (w(k) - w(k-1)) c(n-k+1) / Phi,     w(0) = 0
 * which is the paper's sum of (n-k+1) (w(k) - w(k-1)) / (U(n-k+1) Phi). Never less than the time of the
 * longest job alone. With `measured`, c(n) is that of the row above alone (to reproduce a paper's figure):
 * with a row for each n, U is the table itself. */
core_ns perfmodel_sm_ns(const struct config_profile_gpu *gpu, const uint64_t *sorted_bytes, size_t count,
                        bool measured);

/* Jobs are dealt to `sms` SMs one by one: the job that an SM gets in a turn, both counted from 0. The kernel
 * deals as this says (gpu/kernel.h, "Dealing", which has what follows for warps). */
size_t perfmodel_kernel_dealt(uint32_t sms, uint32_t sm, size_t turn);

/* Longest time of any of `sms` >= 1 SMs when jobs are dealt so in the given order, without launch and margin. Sorts within scratch (room for count). A job more at the end, or bytes more in any job, never
 * make it shorter. In falling order the first SM is the longest (its k-th job is no shorter than any other's)
 * and only it is looked at; then a job more anywhere, in falling order again, never makes it shorter. */
core_ns perfmodel_kernel_ns(const struct config_profile_gpu *gpu, uint32_t sms, const uint64_t *job_bytes,
                            size_t count, bool measured, uint64_t *scratch);

/* So many jobs of a size, at least one. */
struct perfmodel_jobs {
    uint64_t bytes, count;
};

/* perfmodel_kernel_ns of all these jobs, whose sizes fall; CORE_NS_NEVER with more than 2^32 of them. */
core_ns perfmodel_kernel_falling_ns(const struct config_profile_gpu *gpu,
                                    const struct perfmodel_jobs *falling, size_t sizes);

/* ---- batches ---- */

/* The stages of one batch, margins included, and the host's work before them. */
struct perfmodel_stages {
    core_ns up_ns, kernel_ns, down_ns; /* T_D, T_K, T_R */
    core_ns host_ns;                   /* T_H; perfmodel_gpu_stages leaves it 0 */
};

/* Stage times of a batch of these jobs on one card, with W the sum of their bytes:
 *     T_D = (1+m_C) up(W + count job_bytes)     T_K = (1+m_K) (launch + kernel)     T_R = (1+m_C) down(W)
 * with the margins of copies and kernels, all 0 without jobs. `busy`: charge copies at their contended times. scratch: room for count. */
struct perfmodel_stages perfmodel_gpu_stages(const struct config_profile_gpu *gpu,
                                             const struct config_profile_margins *margins,
                                             const uint64_t *job_bytes, size_t count, bool busy,
                                             uint64_t *scratch);

/* The same by the utilisation table itself (`measured` of perfmodel_sm_ns), as SYSTOR 2012 computes: for plans in paper
 * mode. No bound: a batch with fewer jobs may take longer, where the table falls. */
struct perfmodel_stages perfmodel_gpu_stages_measured(const struct config_profile_gpu *gpu,
                                                      const struct config_profile_margins *margins,
                                                      const uint64_t *job_bytes, size_t count, bool busy,
                                                      uint64_t *scratch);

/* The same of all these jobs, whose sizes fall. */
struct perfmodel_stages perfmodel_gpu_stages_falling(const struct config_profile_gpu *gpu,
                                                     const struct config_profile_margins *margins,
                                                     const struct perfmodel_jobs *falling, size_t sizes,
                                                     bool busy);

/* T_H of a batch of so many packets: from its closing to the start of its copy up, if no other batch is in the
 * way. The batcher, one thread, closes it, groups its packets into jobs and hands it over, batch for batch:
 *     T_H = host_batch_ns + packets host_packet_ns
 * Measured as a bound: without a margin. */
core_ns perfmodel_gpu_host_ns(const struct config_profile_gpu *gpu, uint64_t packets);

/* Most packets of a stream in one batch of period T > 0: N(T) = k + floor(T/t). */
uint64_t perfmodel_gpu_job_packets(const struct core_stream_spec *spec, core_ns period_ns);

/* The jobs of a stream in the fullest batch of period T > 0: one of all its N(T) packets, or where these stand
 * alone (core_stream_packets_alone) N(T) of one each. Any other batch has no more jobs, and its i-th longest is no
 * longer. `paper`: one, of perfmodel_gpu_job_bytes. */
struct perfmodel_jobs perfmodel_gpu_jobs(const struct core_stream_spec *spec, core_ns period_ns, bool paper);

/* Most bytes of a stream in one batch of period T > 0: N(T) p^ = (k + floor(T/t)) p^. Holds if a batch takes
 * the packets that became eligible in its period, however late they reach it (what in_ns is for); a batch of
 * whatever arrived in a period could hold N(T + in_ns). `paper`: fluid, ceil(r T) of the unpadded payload,
 * which is no bound: with t > T a batch has a whole packet or none. Below 2^53 for periods up to an hour. */
uint64_t perfmodel_gpu_job_bytes(const struct core_stream_spec *spec, core_ns period_ns, bool paper);

/* ---- verdicts ---- */

/* d' on a GPU: latency - in - out, and without the time that the I/O thread lets packets gather
 * (perfmodel_io_rest_ns). What is left for waiting, copies and kernel. <= 0: none is left. */
core_ns perfmodel_gpu_work_ns(const struct core_stream_spec *spec, const struct config_profile *profile);

/* From a packet's eligible time to the end of its batch's copy back, at the most, if the stages fit the
 * period T (COPY and KERNEL below), and so does T_H:
 *
 *   two copy engines   T + T_H + T_D + T_K + T_R
 *   one copy engine    T + T_H + (T_D + T_R) + T_K + (T_D + T_R)
 *
 * A packet waits T at the most until batch n is closed. The card has the batch T_H later at the most, as the
 * batcher was through with the one before by (n-1)T + T_H <= nT: let that moment be nT in what follows.
 *
 * Two engines: the copy up starts at nT, as the one before ended by (n-1)T + T_D <= nT; the kernel starts by
 * nT + T_D, as the one before ended by (n-1)T + T_D + T_K <= nT + T_D; likewise the copy back.
 *
 * One engine, D = T_D, R = T_R, D + R <= T. It must take turns: when copies of both directions wait, the next
 * is of the other direction than the last (first come, first served is not enough, see below); each direction
 * in the order of the batches; a copy back is handed to the engine once its kernel ended, not before.
 *   - The copy up of batch n ends by nT + D + R: the one before ended by nT, so at most one copy back goes
 *     first, and then it is its turn.
 *   - The kernel ends by x = nT + D + R + T_K, as before.
 *   - The copy back of batch n ends by x + D + R: that of batch n-1 ended by x - T + D + R <= x, so by x none
 *     is before it but one copy up, and then it is its turn.
 * First come, first served breaks this where stages vary: two copies back can be before one copy up, what
 * comes late holds up what follows, and the bound is exceeded by more than a period (the tests show it). */
core_ns perfmodel_gpu_latency_ns(const struct config_profile_gpu *gpu, const struct perfmodel_stages *stages,
                                 core_ns period_ns);

/* Judges stage times at period T > 0 against the shortest d' of the set: NONE (accepted), or the first of
 * GPU_COPY, GPU_KERNEL and GPU_LATENCY (T_H <= T, and the latency) that fails. `paper`: max(T_D, T_K, T_R) <= T, and T <= d_min / 4,
 * else LATENCY; unsafe with one copy engine. Whatever fits in paper mode fits by the default rule for the
 * same stage times and two copy engines. (The stage times are not the same, though: packets make larger
 * jobs than a fluid does.) */
enum perfmodel_limit perfmodel_gpu_judge(const struct config_profile_gpu *gpu,
                                         const struct perfmodel_stages *stages, core_ns period_ns,
                                         core_ns shortest_ns, bool paper);

#endif
