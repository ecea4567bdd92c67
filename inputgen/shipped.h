/* Finding a workload by path or by the bare name of a shipped one ("demo"). */
#ifndef MILLRACE_INPUTGEN_SHIPPED_H
#define MILLRACE_INPUTGEN_SHIPPED_H

#include "config/workload.h"
#include "core/status.h"

/* Loads the workload: a path, or the bare name of a shipped one (config/shipped.h says where that is looked
 * for, and which errors there are). */
CORE_CHECKED core_status inputgen_workload_open(const char *name, struct config_workload **workload,
                                                struct core_error *error);

#endif
