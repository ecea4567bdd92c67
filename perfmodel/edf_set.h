/* The burst test of perfmodel/edf.h for callers that test many sets, or large ones: its answers in a small
 * part of its time.
 *
 * A set is kept as its pieces, each with what a window's demand needs of it, so that a window costs a few
 * additions and multiplications a piece and no division. Piece j of a packet (0 .. m-1) is released j delta
 * after it, so with cpu.h's P(x) = min(floor(x/s) + 1, k + floor(x/t))
 *
 *     count(x) = sum over j of P(x - j delta),      P(x) = 0 for -s <= x < 0,
 *
 * and x - j delta >= -s for every window Z >= 0, because u + j delta <= m delta <= s. Where s = t the first
 * of the two in P is never more than the second, and beyond x = k s t / (t - s) the second is not.
 *
 * Floors of quotients are taken in double precision and are exact: for whole numbers a >= 0 and t >= 1,
 * floor(a / t) is what (a + 1/2) / t - 1/2 rounds to, which is 1 / 2t or more away from the middle between
 * two whole numbers; that is more than the rounding errors, (a + t) / t * 2^-51 together, for a + t < 2^49.
 * So are the sums, whole numbers below 2^53. A set for which that is not certain is tested by
 * perfmodel_edf_test, and so is one of nearly full utilisation, of very many pieces a packet, or without
 * memory.
 *
 * Pure; one owner. */
#ifndef MILLRACE_PERFMODEL_EDF_SET_H
#define MILLRACE_PERFMODEL_EDF_SET_H

#include "perfmodel/edf.h"

struct perfmodel_edf_set;

CORE_CHECKED core_status perfmodel_edf_set_create(struct perfmodel_edf_set **set);
void perfmodel_edf_set_destroy(struct perfmodel_edf_set *set); /* NULL is fine */

/* Makes it the set of these tasks, with a surcharge and a blocking as perfmodel_edf_test has them. The tasks
 * must stay as they are until the next fill. */
void perfmodel_edf_set_fill(struct perfmodel_edf_set *set, const struct perfmodel_cpu_task *tasks,
                            size_t count, core_ns surcharge_ns, core_ns blocking_ns);

/* Tests these windows alone, each 1 ns .. 2^48 ns: a necessary condition. Refused: the demand of one exceeds
 * it, so the set is infeasible. Accepted: the set may still fail at another window. For a quick refusal at
 * windows where similar sets have failed. */
struct perfmodel_edf_result perfmodel_edf_set_test_windows(const struct perfmodel_edf_set *set,
                                                           const core_ns *windows_ns, size_t count);

/* As perfmodel_edf_test: accepted or refused for the same reason. The window it names may be another one
 * that fails. */
struct perfmodel_edf_result perfmodel_edf_set_test(const struct perfmodel_edf_set *set);

#endif
