#include "partition/admission/demand.h"

struct perfmodel_flow_load partition_demand_load(const struct core_stream_spec *spec,
                                                 const struct config_profile *profile)
{
    struct perfmodel_flow_load load = perfmodel_flow_load_of(spec, profile);
    load.unit_bytes = core_stream_packet_bytes(spec);
    return load;
}

struct partition_demand partition_demand_of(const struct core_stream_spec *spec,
                                            const struct config_profile *profile)
{
    struct partition_demand demand = {.spec = *spec,
                                      .load = partition_demand_load(spec, profile),
                                      .io_ppb = perfmodel_io_utilisation_ppb(spec, profile)};
    if (perfmodel_cpu_task_from(spec, profile, &demand.task, NULL) != CORE_OK)
        demand.task = (struct perfmodel_cpu_task){.pieces = 0};
    return demand;
}
