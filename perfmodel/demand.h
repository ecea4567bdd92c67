/* A worker's demand on a fixed grid of window lengths: admission in time independent of the number of
 * streams.
 *
 * The grid is w_0 = 0, then geometric, 64 windows an octave, from w_1 = 1024 ns to w_N = 2^42 ns (73 min).
 * For every w_j the object keeps the number of pieces N_j and the sum of their own costs, exactly (integers:
 * adding and then removing a stream restores them), and the task mix of its streams, which determines q and
 * the surcharge e of a piece (cpu.h). With H_j = own_j + e N_j the set is accepted if
 *
 *     H_j + 2q <= w_(j-1)   for every j >= 1 with H_j > 0,
 *     sum m C (k + (w_N - u) / t) + 2q <= w_N   and   U < 1.
 *
 * The first line implies dbf(Z) + 2q <= Z for all Z in [w_(j-1), w_j] because dbf grows with Z; the second
 * does beyond w_N, where the left side bounds dbf and then grows by U < 1 a nanosecond. So it is sound: what
 * it accepts, perfmodel_edf_test accepts. It loses at most the grid's step (1.1 %) of a window, and what
 * comes due within that step. Where it refuses for the demand, and the set has at most
 * PERFMODEL_EDF_PACKETS_MOST streams, the test by packets decides (edf_packets.h).
 *
 * Monotone: no dbf_i(Z), tail or share grows when a stream's interval or latency bound does, so a set that is
 * accepted stays accepted. The test by packets is monotone, too.
 *
 * Cost: adding or removing recomputes one dbf at every point; removing also looks through the list, four
 * bytes a stream. Testing first compares the smallest headroom in a block of points with the demand at its
 * end, and examines single points only where that is inconclusive. The smallest headrooms are kept for the
 * present set of ciphers and for this set with one more. The test by packets takes tens of microseconds, and
 * below a millisecond at the worst.
 *
 * At most PERFMODEL_DEMAND_STREAMS_MAX streams (a test for one more refuses, for the utilisation), all tasks
 * from the profile that the object was made with (cost_ns follows from cipher, direction and piece_bytes). Pure. One
 * owner (the planner thread, or a test). */
#ifndef MILLRACE_PERFMODEL_DEMAND_H
#define MILLRACE_PERFMODEL_DEMAND_H

#include "perfmodel/cpu.h"
#include "perfmodel/edf.h"

struct perfmodel_demand;

#define PERFMODEL_DEMAND_STREAMS_MAX ((size_t)1 << 19)

CORE_CHECKED core_status perfmodel_demand_create(struct perfmodel_demand **demand,
                                                 const struct config_profile *profile);
CORE_CHECKED core_status perfmodel_demand_copy(const struct perfmodel_demand *demand,
                                               struct perfmodel_demand **copy);
void perfmodel_demand_destroy(struct perfmodel_demand *demand);

void perfmodel_demand_add(struct perfmodel_demand *demand, const struct perfmodel_cpu_task *task);
void perfmodel_demand_remove(struct perfmodel_demand *demand,
                             const struct perfmodel_cpu_task *task); /* one added */

/* Would the set with `task` added (NULL: the set as it is) be accepted? `steps` is 0. Refused for DEMAND:
 * window_ns is w_(j-1) of the first j that fails, and demand_ns the H_j there (or the tail's sum). */
struct perfmodel_edf_result perfmodel_demand_test(const struct perfmodel_demand *demand,
                                                  const struct perfmodel_cpu_task *task);

/* As perfmodel_demand_test, with reserve_ppb (0 .. 10^9, rounded up) of every window withheld. `blocking_ns`,
 * `demand_ns` and `utilisation_ppb` do not contain what is withheld. */
struct perfmodel_edf_result perfmodel_demand_test_within(const struct perfmodel_demand *demand,
                                                         const struct perfmodel_cpu_task *task,
                                                         int64_t reserve_ppb);

/* Utilisation U of the set. */
int64_t perfmodel_demand_utilisation_ppb(const struct perfmodel_demand *demand);

/* Smallest relative headroom over all windows with demand, (w_(j-1) - 2q - H_j) / w_(j-1) in ppb, rounded
 * down, at least -10^9; *window_ns (may be NULL) is that window w_(j-1). For a set that only the test by
 * packets accepts: the largest reserve_ppb with which it still does, in steps of 2^-10. An empty set has 10^9
 * and a window of 0. */
int64_t perfmodel_demand_headroom_ppb(const struct perfmodel_demand *demand, core_ns *window_ns);

size_t perfmodel_demand_streams(const struct perfmodel_demand *demand);

#endif
