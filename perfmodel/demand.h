/* A worker's demand on a fixed grid of window lengths: admission in time independent of the number of
 * streams.
 *
 * The grid is w_0 = 0, then geometric, 64 windows an octave, from w_1 = 1024 ns to w_N = 2^42 ns (73 min).
 * For every w_j the object keeps the number of pieces N_j and the sum of their own costs, exactly (integers;
 * adding and removing a stream leave no trace), and the company of its streams, which sets q and the
 * surcharge e of a piece (cpu.h). With H_j = own_j + e N_j the set is accepted if
 *
 *     H_j + 2q <= w_(j-1)   for every j >= 1 with H_j > 0,
 *     sum m C (k + (w_N - u) / t) + 2q <= w_N   and   U < 1.
 *
 * The first line implies dbf(Z) + 2q <= Z for all Z in [w_(j-1), w_j] because dbf grows with Z; the second
 * does beyond w_N, where the left side bounds dbf and then grows by U < 1 a nanosecond. So it is sound: what
 * it accepts, perfmodel_edf_test accepts. It gives away at most the grid's step (1.1 %) of a window, and what
 * comes due within that step. Where it refuses for the demand, and the set is of no more than
 * PERFMODEL_EDF_PACKETS_MOST streams, the test by packets is asked (edf_packets.h).
 *
 * Monotone: no dbf_i(Z), tail or share grows when a stream's interval or latency bound does, so a set that is
 * accepted stays so; by packets as well.
 *
 * Cost: adding or removing recomputes one dbf at every point; removing also looks through the list, four
 * bytes a stream. Testing first holds the smallest room of a block of points against the demand at its end,
 * and looks at single points only where that does not settle it. The smallest rooms are kept for the present
 * ciphers and for those with one more. The test by packets takes tens of microseconds, and below a
 * millisecond at the worst.
 *
 * At most PERFMODEL_DEMAND_STREAMS_MAX streams (a test for one more refuses, for the utilisation), all tasks
 * from the profile that the object was made with (cost_ns follows from cipher and piece_bytes). Pure. One
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

/* Would the set with `task` added (NULL: as it stands) be accepted? `steps` is 0. If not
 * for DEMAND, window_ns is w_(j-1) of the first j that fails, and demand_ns the H_j there (or the tail's
 * sum).
 */
struct perfmodel_edf_result perfmodel_demand_test(const struct perfmodel_demand *demand,
                                                  const struct perfmodel_cpu_task *task);

/* The same with less time: reserve_ppb of every window, 0 .. 10^9, rounded up, is not there. `blocking_ns`,
 * `demand_ns` and `utilisation_ppb` are without it. */
struct perfmodel_edf_result perfmodel_demand_test_within(const struct perfmodel_demand *demand,
                                                         const struct perfmodel_cpu_task *task,
                                                         int64_t reserve_ppb);

/* U of the set as it stands. */
int64_t perfmodel_demand_utilisation_ppb(const struct perfmodel_demand *demand);

/* Smallest relative headroom over all windows with demand, (w_(j-1) - 2q - H_j) / w_(j-1) in ppb, rounded
 * down; of a set that is accepted by packets alone the reserve that these leave, in steps of 2^-10. And the
 * window w_(j-1) where it is (may be NULL). 10^9 and 0 while empty; -10^9 at the least. */
int64_t perfmodel_demand_headroom_ppb(const struct perfmodel_demand *demand, core_ns *window_ns);

size_t perfmodel_demand_streams(const struct perfmodel_demand *demand);

#endif
