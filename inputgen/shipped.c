#include "inputgen/shipped.h"

#include "config/shipped.h"

#include <limits.h>

core_status inputgen_workload_open(const char *name, struct config_workload **workload,
                                   struct core_error *error)
{
    char path[PATH_MAX];
    const core_status status =
        config_shipped_find(CONFIG_SHIPPED_WORKLOAD, name, NULL, path, sizeof path, error);

    return status == CORE_OK ? config_workload_load(path, workload, error) : status;
}
