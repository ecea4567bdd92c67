/* A worker's demand on a fixed grid of window lengths: admission in time independent of the number of
 * streams.
 *
 * The grid is geometric, 64 windows an octave, from 1 us to 2^42 ns (73 min), each g_j. The object keeps
 * H_j = sum_i dbf_i(g_j) exactly (integers; adding and removing a stream leave no trace). The set is accepted
 * if H_(j+1) + 2q <= g_j   for every j with H_(j+1) > 0,   and   U < 1 beyond the last window, which implies
 * dbf(Z) + 2q <= Z for all Z in [g_j, g_(j+1)] because dbf grows with Z: sound, and it gives away at most the
 * grid's step (1.1 %) of a window. Beyond the last window the bound m C (k + Z/t) is used.
 *
 * Pure. One owner (the planner thread, or a test). */
#ifndef MILLRACE_PERFMODEL_DEMAND_H
#define MILLRACE_PERFMODEL_DEMAND_H

#include "perfmodel/cpu.h"
#include "perfmodel/edf.h"

struct perfmodel_demand;

CORE_CHECKED core_status perfmodel_demand_create(struct perfmodel_demand **demand, core_ns burst_ns /* q */);
CORE_CHECKED core_status perfmodel_demand_copy(const struct perfmodel_demand *demand,
                                               struct perfmodel_demand **copy);
void perfmodel_demand_destroy(struct perfmodel_demand *demand);

void perfmodel_demand_add(struct perfmodel_demand *demand, const struct perfmodel_cpu_task *task);
void perfmodel_demand_remove(struct perfmodel_demand *demand,
                             const struct perfmodel_cpu_task *task); /* one added */

/* Would the set with `task` added (NULL: as it stands) be accepted? `steps` is 0. Stops at the first
 * violation, so a refusal is cheaper than an acceptance. */
struct perfmodel_edf_result perfmodel_demand_test(const struct perfmodel_demand *demand,
                                                  const struct perfmodel_cpu_task *task);

int64_t perfmodel_demand_utilisation_ppb(const struct perfmodel_demand *demand);

/* Smallest relative headroom over all windows, (g_j - 2q - H_(j+1)) / g_j in ppb, and the window where it is.
 */
int64_t perfmodel_demand_headroom_ppb(const struct perfmodel_demand *demand, core_ns *window_ns);

size_t perfmodel_demand_streams(const struct perfmodel_demand *demand);

#endif
