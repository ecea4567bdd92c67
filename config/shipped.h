/* Finding the examples that come with Millrace: workloads ("demo") and hardware profiles ("gtx285-x2"), by
 * their bare names. */
#ifndef MILLRACE_CONFIG_SHIPPED_H
#define MILLRACE_CONFIG_SHIPPED_H

#include "core/status.h"

#include <stddef.h>

enum config_shipped_kind { CONFIG_SHIPPED_WORKLOAD, CONFIG_SHIPPED_PROFILE };

/* Writes the path of the file into path. A name with a '/' or a '.' is a path already: as seen from the
 * folder of the file `from`, or from the current one where that is NULL. Any other name is looked
 * for as <name>.yaml in ../share/millrace/workloads (or profiles) as seen from the program, then in the
 * source tree, then where this build installs. CORE_NOT_FOUND lists the shipped ones in error; CORE_INVALID
 * for a path that does not fit in size. */
CORE_CHECKED core_status config_shipped_find(enum config_shipped_kind kind, const char *name,
                                             const char *from, char *path, size_t size,
                                             struct core_error *error);

#endif
