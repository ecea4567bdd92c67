/* The folders of `millrace hls`: whole files in, whole files out, by path below a folder. One thread. */
#ifndef MILLRACE_CLIENT_HLS_FOLDER_H
#define MILLRACE_CLIENT_HLS_FOLDER_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* Opens and locks a folder: nobody else writes into it meanwhile. CORE_IN_USE. */
CORE_CHECKED core_status hls_folder_open(const char *folder, int *descriptor, struct core_error *error);

/* Reads a regular file of at most bytes_max bytes, and tells about it. *content is the caller's to free.
 * CORE_NOT_FOUND, CORE_INVALID (it is longer, or no regular file), CORE_SYSTEM, CORE_NO_MEMORY. */
CORE_CHECKED core_status hls_folder_read(int folder, const char *path, size_t bytes_max, uint8_t **content,
                                         size_t *bytes, struct stat *about, struct core_error *error);

/* False: there is no such regular file. */
bool hls_folder_look(int folder, const char *path, struct stat *about);

/* Is it the same file, with the same content? One that was written over within a tick of the clock, and has the length
 * that it had, seems so. */
bool hls_stat_is_same(const struct stat *one, const struct stat *two);

/* Was one changed later? */
bool hls_stat_is_later(const struct stat *one, const struct stat *two);

/* Puts a whole file in the place of what was there, or nothing: readers see the one before or this one, also after
 * the process was killed. Makes folders that are not there. CORE_FULL: there is no room on the disk, or for one more
 * open file, now; CORE_SYSTEM: it can not be written, there and under that name. */
CORE_CHECKED core_status hls_folder_publish(int folder, const char *path, const void *content, size_t bytes,
                                            struct core_error *error);
void hls_folder_remove(int folder, const char *path);

#endif
