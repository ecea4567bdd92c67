/* An independent check of what guaranteed streams are promised: that the loss of one GPU leaves nobody short.
 *
 * What every unit would have to serve is put together from the streams' contracts, straight from the
 * definitions of docs/model.md, and the certificate of the units after the loss is held against just that
 * (partition/check/check.h). Shares no code with the standing plan. Pure; any thread. */
#ifndef MILLRACE_TESTS_SUPPORT_CHECK_FAILOVER_H
#define MILLRACE_TESTS_SUPPORT_CHECK_FAILOVER_H

#include "partition/plan.h"

/* What one stream was told. */
struct check_failover_promise {
    struct core_stream_spec contract; /* (t, k, d), and the class; the join of contracts while it changes */
    uint32_t unit;
    bool backed;          /* it has a backup; without one on a GPU a stream is not guaranteed any more */
    uint32_t backup_unit; /* backed */
    core_ns gpu_bound_ns; /* backed: d_g */
    core_ns detection_ns; /* backed: delta */
};

/* CORE_OK if, GPU `lost` being lost, `after` accepts for all others, in their order, without the standard
 * streams of that GPU. CORE_REFUSED with what does not hold; CORE_NO_MEMORY. Fails for any guaranteed stream
 * on a GPU, this or another, that has no backup elsewhere, or none that could be in time. */
CORE_CHECKED core_status check_failover(const struct config_profile *profile, uint32_t workers,
                                        const struct check_failover_promise *promise, size_t count,
                                        uint32_t lost, const struct partition_plan *after,
                                        struct core_error *error);

#endif
