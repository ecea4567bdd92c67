/* An independent check of the guarantee of guaranteed streams: after the failure of any one GPU every
 * remaining stream keeps its bound.
 *
 * The load of every unit after the failure is derived from the streams' contracts, straight from the
 * definitions of docs/model.md, and the certificate of the units is checked against it
 * (partition/check/check.h). Shares no code with partition/admission. Pure; any thread. */
#ifndef MILLRACE_TESTS_SUPPORT_CHECK_FAILOVER_H
#define MILLRACE_TESTS_SUPPORT_CHECK_FAILOVER_H

#include "partition/plan.h"

/* What admission has promised to one stream. */
struct check_failover_promise {
    struct core_stream_spec contract; /* (t, k, d), and the class; the join of contracts while it changes */
    uint32_t unit;
    bool backed;          /* it has a backup; a stream on a GPU without one is not guaranteed */
    uint32_t backup_unit; /* backed */
    core_ns gpu_bound_ns; /* backed: d_g */
    core_ns detection_ns; /* backed: delta */
};

/* CORE_OK if the plan `after` accepts the load after the failure of GPU `lost`: all streams in their order,
 * except for the standard streams of that GPU. CORE_REFUSED, with what does not hold in error, else; so, too,
 * if any guaranteed stream on any GPU has no backup on another unit, or one that can not keep its bound.
 * CORE_NO_MEMORY. */
CORE_CHECKED core_status check_failover(const struct config_profile *profile, uint32_t workers,
                                        const struct check_failover_promise *promise, size_t count,
                                        uint32_t lost, const struct partition_plan *after,
                                        struct core_error *error);

#endif
