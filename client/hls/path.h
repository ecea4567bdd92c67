/* Names of files below a folder, as URIs of playlists and requests say them. Pure functions; any thread. */
#ifndef MILLRACE_CLIENT_HLS_PATH_H
#define MILLRACE_CLIENT_HLS_PATH_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

#define HLS_PATH_BYTES 1024 /* of a file's name below the folder, terminated */

/* The file that `uri` means in the playlist at path `base`: relative, decoded, without query, inside of the
 * folder; the base of the folder itself is "". CORE_INVALID: the URI leads elsewhere, or a name in it is empty,
 * begins with a dot or has a character that is no text. */
CORE_CHECKED core_status hls_path_resolve(const char *base, const char *uri, size_t uri_bytes,
                                          char path[HLS_PATH_BYTES]);

/* Does the name end as that of a playlist, .m3u8 or .m3u? */
bool hls_path_is_playlist(const char *path);

#endif
