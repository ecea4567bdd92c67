/* A file that a playlist names, or will: a segment, a part or an initialisation section, on its way from clear to
 * published. All files of a process are in one tree, by their paths. One thread. */
#ifndef MILLRACE_CLIENT_HLS_FILE_H
#define MILLRACE_CLIENT_HLS_FILE_H

#include "client/hls/hls.h"
#include "client/hls/playlist.h"

enum hls_file_state {
    HLS_FILE_MISSING, /* named, and not there */
    HLS_FILE_CLEAR,   /* here, in clear */
    HLS_FILE_SENT,    /* on its way */
    HLS_FILE_CIPHER,  /* encrypted; the output has no room for it now */
    HLS_FILE_READY,   /* encrypted and in the output */
    HLS_FILE_GONE     /* given up */
};

struct hls_file {
    char *path;
    enum hls_file_state state;
    uint8_t *clear; /* if CLEAR */
    size_t bytes;
    core_ns since_ns;            /* MISSING, or here */
    struct stat source;          /* the input folder's file that was read */
    struct hls_rendition *owner; /* whose playlist named it; NULL: none yet */
    uint64_t turn;               /* of the owner, that named it last */
    enum hls_item_kind kind;
    struct hls_cover cover; /* its IV is always there */
    uint64_t sequence;
    struct hls_job *job;          /* if SENT or CIPHER */
    struct hls_file *next_unused; /* while such are dropped */
};

struct hls_file *hls_file_find(const struct hls *hls, const char *path); /* NULL: none */
struct hls_file *hls_file_make(struct hls *hls, const char *path);       /* or finds it; NULL: no memory */

/* Whatever it was, it is MISSING now. */
void hls_file_clear(struct hls *hls, struct hls_file *file);
/* It is CLEAR, with this content, which is taken over. */
void hls_file_fill(struct hls *hls, struct hls_file *file, uint8_t *content, size_t bytes);
void hls_file_drop(struct hls *hls, struct hls_file *file);

/* Drops those that no playlist names any more; with CORE_NS_NEVER all. */
void hls_files_sweep(struct hls *hls, core_ns now_ns);

/* ---- encryption (file_encrypt.c) ---- */

/* Brings a file that has an owner as far as it gets now, as this item of its playlist. */
void hls_file_advance(struct hls_file *file, const struct hls_item *item);

/* Its job, which is taken over, is done: the output gets the file. */
void hls_file_done(struct hls *hls, struct hls_job *job);

#endif
