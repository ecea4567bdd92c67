/* A playlist, media or master: what the packager has in it, and what of it players may have. One thread. */
#ifndef MILLRACE_CLIENT_HLS_RENDITION_H
#define MILLRACE_CLIENT_HLS_RENDITION_H

#include "client/hls/hls.h"
#include "client/hls/path.h"
#include "client/hls/playlist.h"
#include "client/hls/stream.h"

#define HLS_PLAYLIST_BYTES_MAX ((size_t)8 << 20)

struct hls_rendition {
    struct hls_rendition *next;
    struct hls *hls;
    char *path, *name;
    struct hls_playlist playlist; /* the newest; no lines: none yet */
    bool changed;                 /* there is something to be looked at now, */
    struct hls_rendition *next_changed;
    core_ns look_ns; /* or then; CORE_NS_NEVER */
    uint64_t turn;
    struct hls_stream stream;
    struct hls_key *key;   /* of the newest segment; NULL: none yet */
    uint64_t key_sequence; /* the newest media sequence number under it */
    char *published;       /* what the output has; NULL: not known */
    size_t published_bytes;
};

struct hls_rendition *hls_rendition_find(const struct hls *hls, const char *path); /* NULL: none */

/* Finds it, or begins one, with what the output has of it. NULL: no memory. */
struct hls_rendition *hls_rendition_make(struct hls *hls, const char *path);

/* Its playlist is this one from now on, which is taken over. */
void hls_rendition_set(struct hls_rendition *rendition, struct hls_playlist *playlist);

/* Neither it nor what the output had of it is there any more; both may come back. */
void hls_rendition_clear(struct hls_rendition *rendition);

/* It is to be looked at in this turn, or in the next. */
void hls_rendition_touch(struct hls_rendition *rendition);

/* Of each that was touched, or whose time has come: brings its files as far as they get now, and publishes what has
 * come of it. */
void hls_renditions_update(struct hls *hls, core_ns now_ns);

/* The path of a file that its playlist names. False: the URI leads elsewhere. */
bool hls_rendition_path(const struct hls_rendition *rendition, const struct hls_item *item,
                        char path[HLS_PATH_BYTES]);

/* Takes over what the output has of it (restore.c): its playlist, and the files that this names. */
void hls_rendition_restore(struct hls_rendition *rendition);

void hls_renditions_close(struct hls *hls);

#endif
