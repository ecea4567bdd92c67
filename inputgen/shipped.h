/* Finding a workload by path or by the bare name of a shipped one ("demo"). */
#ifndef MILLRACE_INPUTGEN_SHIPPED_H
#define MILLRACE_INPUTGEN_SHIPPED_H

#include "config/workload.h"
#include "core/status.h"

/* Loads the workload. A name with a '/' or a '.' is a path. Any other is looked for as <name>.yaml in
 * ../share/millrace/workloads as seen from the program, then in the source tree, then where this build
 * installs. CORE_NOT_FOUND lists the shipped ones in error. */
CORE_CHECKED core_status inputgen_workload_open(const char *name, struct config_workload **workload,
                                                struct core_error *error);

#endif
