/* A folder that is watched, with the folders in it: whole files that come, and files that go. One thread. */
#ifndef MILLRACE_CLIENT_HLS_WATCH_H
#define MILLRACE_CLIENT_HLS_WATCH_H

#include "client/hls/hls.h"

#define HLS_WATCH_FOLDERS 256

struct hls_watch {
    int descriptor; /* of inotify, for poll */
    const char *root;
    struct hls *hls;
    struct hls_watched {
        int number;
        char path[HLS_PATH_BYTES]; /* below the root; "" is the root */
    } folders[HLS_WATCH_FOLDERS];
    size_t count;
};

/* Begins, and tells `hls` of everything that is there already. */
CORE_CHECKED core_status hls_watch_start(struct hls_watch *watch, struct hls *hls, const char *root,
                                         struct core_error *error);
void hls_watch_read(struct hls_watch *watch); /* the descriptor is readable */

#endif
