/* What `millrace hls` knows: the playlists that it was given, the files that these name, and how far each file is
 * on its way from clear to published.
 *
 * Nothing is kept beside the output folder: what a process that begins finds in its playlists is published, and
 * all else is to be encrypted. A playlist is published up to the first file in it that is not there yet, so that
 * no player is ever told of a file that it can not have. One thread. */
#ifndef MILLRACE_CLIENT_HLS_HLS_H
#define MILLRACE_CLIENT_HLS_HLS_H

#include "client/hls/folder.h"
#include "client/hls/link.h"

#include "core/histogram.h"

struct hls_rendition; /* a playlist, media or master */

struct hls_counts {
    uint64_t segments, parts, maps, playlists; /* published */
    uint64_t late;                             /* files that were encrypted later than they may wait */
    uint64_t gone; /* files that a playlist named and that never came, or could not be encrypted or written */
    uint64_t refused; /* playlists that can not be encrypted */
    uint64_t bytes;   /* of ciphertext */
};

struct hls {
    /* set before start */
    int input;         /* folder that is watched; -1: files come by hls_put */
    int output;        /* folder */
    core_ns wait_ns;   /* that a file may wait; 0: by the playlist */
    size_t memory_max; /* bytes of clear files that wait for their encryption */
    struct hls_keys keys;
    struct hls_link link;
    void (*say)(const char *format, ...) CORE_PRINTF(1, 2);
    /* */
    void *files; /* a tree, by path */
    struct hls_rendition *renditions, *changed;
    core_ns look_ns; /* when time alone changes something of a rendition */
    size_t rendition_count, clear_bytes;
    core_ns swept_ns;
    core_ns publish_not_before_ns; /* since the output has no room; 0: it has */
    struct hls_counts counts;
    struct core_histogram delay;               /* of a file, from its arrival until it was encrypted */
    char key_error[sizeof(struct core_error)]; /* told already */
};

/* Once keys, link and folders are set. */
void hls_start(struct hls *hls);

/* A whole file has come. A playlist (by its name) is read; else the content is kept in memory until a playlist
 * has named it and it is encrypted. `content` is taken over in any case. CORE_INVALID: no playlist, or one that
 * can not be encrypted. CORE_FULL: no memory for it now. */
CORE_CHECKED core_status hls_put(struct hls *hls, const char *path, uint8_t *content, size_t bytes,
                                 struct core_error *error);

/* The same for a file of the input folder, which is read when it is needed. */
void hls_notice(struct hls *hls, const char *path);

/* The packager has no more use for it: the output has none either. */
void hls_remove(struct hls *hls, const char *path);

/* Writes a file of the output. CORE_FULL: there is no room for it now, which has been told; then nothing is written
 * for a second. */
CORE_CHECKED core_status hls_publish(struct hls *hls, const char *path, const void *content, size_t bytes,
                                     struct core_error *error);

bool hls_has_room(const struct hls *hls, size_t bytes);

/* Does what can be done now: gives files to the link, publishes what is encrypted. */
void hls_turn(struct hls *hls, core_ns now_ns);

/* Whether something waits for its encryption. */
bool hls_is_busy(const struct hls *hls);
void hls_close(struct hls *hls);

#endif
