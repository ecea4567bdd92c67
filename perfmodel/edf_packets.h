/* The burst test by packets: for workers with few streams, which the test by pieces (edf.h) refuses.
 *
 * perfmodel_edf_test asks every piece of a packet to be in time, and sets two whole bursts aside for each.
 * But only packets have deadlines, a stream puts one piece into a burst, and never more pieces than it has.
 * Letters as in cpu.h; l is the lanes' time of the ciphers present, e = l/B the surcharge, n the streams.
 *
 * **Premise.** Let J, a packet of stream j with m_j pieces, be the first whose deadline t_d passes with J
 * unfinished. Until t_d no packet has missed its deadline. So of the packets of a stream that were released
 * before a time only one may still be there, released no more than s_i before. J is the head of its stream
 * from a time a <= t_d - s_j on. From a on a burst either has a piece of J, which m_j bursts have, or is full
 * of *urgent* pieces, those in the queue's bucket of t_d or before it, with deadlines below t_d + G: an F
 * burst.
 *
 * **Supply.** In a window of length L at most
 *
 *     A_i(L) = m_i (k_i + 1 + floor((L + M) / t_i))
 *
 * pieces of stream i are encrypted, M = in_ns + the time by which packets may be handed over before they are
 * eligible. Of these packets the first, n0, was released s_i before the window or later, and the last, n1, is
 * eligible by its end, or soon. With r the first packet of the run (cpu.h), (n1 - r + 1 - k) t is at most the
 * time from where r is eligible to where n1 is, and n0 was released in_ns + (n0 - r) s after the former: so
 * that (n1 - n0 + 1 - k) t <= L + s + M + (n0 - r)(s - t), and s <= t.
 *
 * **n <= B.** Each burst has a piece of every stream that has one, and F bursts there are none. J waits for
 * the burst at hand at a, and is in the m_j after it. From the start of that burst on
 *
 *     g_j(L) = (m_j + 1) l + m_j c_j + sum over i other than j of c_i min(m_j + 1, A_i(L))
 *
 * is the most that all of them take which start within L. If g_j(L) <= L for some L <= s_j, J is done by
 * then: the set is accepted if that is so for every stream. A stream alone needs m (l + c).
 *
 * **n > B.** Let N, from s < a on, be the last burst before a that was not full of urgent pieces; where the
 * worker was idle after it, s is the end of that, and there is no N. N has a piece of every stream with an
 * urgent one, so that these are at most B - 1. From s to the end of J there are N, the F bursts, and m_j with
 * J. With Z = t_d - s >= s_j:
 *
 *   - Urgent pieces released at s or later: n_i(Z) = count_i(Z - u_i) of stream i (cpu.h).
 *   - What is left, after N, of urgent pieces released before s: of at most B - 1 streams, r_i pieces each. F
 *     bursts hold one of each at most, so each F burst has a piece of the first kind, not of J. So there are
 *     at most sum n_i - m_j of them, and what they hold of these streams takes at most
 *     H_c = min(the largest B - 1 of r_i (c_i + e), (sum n_i - m_j) * the largest B - 1 of c_i + e, m_i > 1).
 *     What is encrypted of it beside J is of the third kind.
 *   - All else is in N and beside J: at most B + m_j (B - 1) pieces, of a stream no more than m_j + 1, and no
 *     more than A_i(Z) - n_i(Z). With B = 1 it is the piece of N, which is not urgent, nor is any later one
 *     of its stream: so only of a stream with n_i(Z) = 0.
 *
 * F bursts are full, so that their lanes' time is e a piece. So J is in time if for every Z >= s_j
 *
 *     sum n_i(Z) (c_i + e) + H_c + l + m_j (l - e) + (the dearest of the third kind) <= Z.          (1)
 *
 * *Lag.* r_i is at most m_i - 1. It is less if all pieces but the last of a packet are done theta after their
 * own deadlines: of pieces released before s, delta_i apart, those with deadlines from s - theta on are
 * still there, so r_i <= ceil(theta / delta_i). The same proof is that of piece p = 1 .. m_j - 1 of J, with
 * what is due by v, theta after the piece's deadline, as urgent: the queue puts late pieces into the bucket
 * of now, so that until v others may go before them that are due by then. It asks for (1) with p for m_j, for
 * every Z = v - s >= p delta_j + theta. Both are premises of one another, up to the first time that one
 * fails.
 *
 * The left side of (1) grows with m_j, but for H_c, and with Z. It is asked for once at every Z no less than
 * the least s, with the largest and (in H_c) the least m_j of the streams with s_j <= Z; for the lag with the
 * largest p for Z - theta. From a horizon H down; in steps of a 64th of an octave, the left side at the top of
 * each against its foot.
 *
 * **Horizon.** With a the most that all but the first sum can be, n_i(Z) is 0 for Z < u_i and at most m_i (k_i +
 * (Z - u_i) / t_i) from there on, so that the left side is at most
 *
 *     G(Z) = a + sum over the i with u_i <= Z of m_i (c_i + e) (k_i + (Z - u_i) / t_i).
 *
 * H is the least window from which on G(Z) <= Z: G rises with a slope below one, and by a burst at each u_i.
 * From the latest u_i down, where the line that holds there crosses Z is H if it is above u_i, else G holds
 * from u_i on. A line of all streams alone, the L of edf.h, would be a horizon too, but not one that falls
 * wherever less is asked: a longer interval of a stream with u_i > L moves it up, and in windows there that
 * hold, but not in steps, a set could be refused that was accepted when it asked for more.
 *
 * Monotone: no n_i, A_i, r_i or m_j falls as an interval or a deadline becomes shorter or a stream comes, nor
 * does G(Z), and so neither does H; and steps and thetas are the same for all sets. So a set that is accepted
 * stays so with longer ones, and with fewer streams.
 *
 * Pure; any thread; integers, 128-bit inside. About 10 ns a stream and step. */
#ifndef MILLRACE_PERFMODEL_EDF_PACKETS_H
#define MILLRACE_PERFMODEL_EDF_PACKETS_H

#include "perfmodel/edf.h"

/* Most streams of a worker for this test: the more there are, the less it accepts that edf.h refuses. */
#define PERFMODEL_EDF_PACKETS_MOST 64

/* Would a worker with these tasks and no others, of at most PERFMODEL_EDF_PACKETS_MOST, keep all deadlines
 * with reserve_ppb of every window (0 .. 10^9, rounded up) taken away? `blocking_ns` of the result is what is
 * not due of the window that was looked at last; refused: the window that fails, or for n <= B the s_j of a
 * stream that fails, and in demand_ns what is due. A count of 0 is accepted. */
struct perfmodel_edf_result perfmodel_edf_packets_test(const struct perfmodel_cpu_task *tasks, size_t count,
                                                       const struct perfmodel_cpu_worker *worker,
                                                       int64_t reserve_ppb);

#endif
