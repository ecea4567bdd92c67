/* Private to partition: what a contract asks of each kind of unit. Made once, at the entry of a question, and
 * handed on. */
#ifndef MILLRACE_PARTITION_ADMISSION_DEMAND_H
#define MILLRACE_PARTITION_ADMISSION_DEMAND_H

#include "perfmodel/cpu.h"
#include "perfmodel/flow.h"

struct partition_demand {
    struct core_stream_spec spec;
    struct perfmodel_cpu_task task;  /* of a worker; no pieces: the contract leaves no time for the work */
    struct perfmodel_flow_load load; /* of a GPU; its packet as the divisor */
    int64_t io_ppb;                  /* of an I/O thread */
};

/* spec has passed core_stream_spec_check. */
struct partition_demand partition_demand_of(const struct core_stream_spec *spec,
                                            const struct config_profile *profile);

/* Its load alone, where many contracts are tried on a GPU. */
struct perfmodel_flow_load partition_demand_load(const struct core_stream_spec *spec,
                                                 const struct config_profile *profile);

#endif
