/* One-processor EDF with a blocking term: exact tests on integers.
 *
 * The burst test of model.md section 3 is perfmodel_edf_test with the surcharge of the set's task mix (cpu.h)
 * and with `blocking_ns` = 2q of that mix. A set is accepted if its long-run share U = sum m C / t is below
 * one and
 *
 *     h(Z) = sum_i dbf_i(Z) + blocking <= Z      for all Z > 0 with a demand.
 *
 * Checked by QPA (Zhang and Burns 2009, "Schedulability analysis for real-time systems with EDF scheduling"):
 * from L downwards, Z <- h(Z), or the next deadline below Z where h(Z) = Z, until no demand is left. h never
 * falls, so h(Z) <= Z clears all of [h(Z), Z]. No violation is at or above
 * L = (blocking + sum m C (k - u/t)) / (1 - U), because dbf(Z) <= m C (k + (Z - u)/t).
 *
 * Pure; any thread; integers only. U is a sum of shares rounded up to 2^-62: a set so full that 1 - U is
 * below count * 2^-62, or that L exceeds 2^61 ns (73 years), is refused as one of utilisation 1. */
#ifndef MILLRACE_PERFMODEL_EDF_H
#define MILLRACE_PERFMODEL_EDF_H

#include "perfmodel/cpu.h"
#include "perfmodel/limit.h"

#include <stdbool.h>
#include <stddef.h>

struct perfmodel_edf_result {
    bool accepted;
    enum perfmodel_limit binding; /* NONE (accepted), CPU_UTILISATION or CPU_DEMAND */
    core_ns window_ns;            /* a window where demand + blocking > window (DEMAND), else 0 */
    core_ns demand_ns;            /* sum of dbf there, saturating (DEMAND), else 0 */
    core_ns blocking_ns;          /* as given, or 2q of the worker with the stream */
    int64_t utilisation_ppb;      /* rounded up */
    bool by_packets; /* accepted by the test by packets (edf_packets.h), which the test by pieces refused */
    core_ns lag_ns;  /* by_packets: the lag theta with which it was accepted */
};

/* Tasks as pieces of streams (cpu.h), each charged surcharge_ns a piece on top of its cost_ns. count = 0 is
 * accepted. */
struct perfmodel_edf_result perfmodel_edf_test(const struct perfmodel_cpu_task *tasks, size_t count,
                                               core_ns surcharge_ns, core_ns blocking_ns);

#endif
