/* Reading a whole file into memory and replacing one atomically. Private to this folder. */
#ifndef MILLRACE_CONFIG_FILE_H
#define MILLRACE_CONFIG_FILE_H

#include "core/status.h"

#include <stddef.h>

/* The file's bytes, to be freed, with a terminating NUL that does not count. Regular files
 * of at most bytes_max bytes only. */
CORE_CHECKED core_status config_file_read(const char *path, size_t bytes_max, char **text, size_t *bytes,
                                          struct core_error *error);

/* Writes beside the path, syncs, and renames over it: readers see the old file or the new one, whole. */
CORE_CHECKED core_status config_file_replace(const char *path, const char *text, size_t bytes,
                                             struct core_error *error);

/* `path` as seen from the folder that holds the file `from`: unchanged if absolute. NULL: no memory. To be
 * freed. */
char *config_file_beside(const char *from, const char *path);

#endif
