/* HLS playlists (RFC 8216, and the parts of LL-HLS): which files one names, and the same playlist with the keys
 * under which these files are encrypted.
 *
 * A line that is not known here passes through as it is. Pure functions; any thread. */
#ifndef MILLRACE_CLIENT_HLS_PLAYLIST_H
#define MILLRACE_CLIENT_HLS_PLAYLIST_H

#include "client/hls/tags.h"
#include "core/status.h"

#define HLS_URI_BYTES 2048 /* of a key's URI, terminated */

/* What a file is encrypted with, as EXT-X-KEY says it. Without an IV it is the media sequence number. */
struct hls_cover {
    char key_uri[HLS_URI_BYTES]; /* "": not encrypted */
    bool has_iv;
    uint8_t iv[CORE_BLOCK_BYTES];
};

/* That IV. */
void hls_sequence_iv(uint64_t sequence, uint8_t iv[CORE_BLOCK_BYTES]);

enum hls_item_kind { HLS_SEGMENT, HLS_PART, HLS_MAP, HLS_VARIANT };

/* A file that a playlist names: a media segment, a part of one, an initialisation section or, in a master
 * playlist, a media playlist. */
struct hls_item {
    enum hls_item_kind kind;
    const char *uri; /* in the text, not terminated */
    size_t uri_bytes;
    uint64_t sequence; /* media sequence number: of a part its segment's, of a map that of the next segment */
    size_t line;       /* that names it */
    size_t first_line; /* of its own tags: EXTINF of a segment; else `line` */
    struct hls_cover cover; /* by the EXT-X-KEY in force */
    bool gap;               /* said to be missing */
};

struct hls_playlist {
    char *text; /* all lines and URIs point into it */
    struct hls_line *lines;
    size_t line_count;
    struct hls_item *items;
    size_t item_count;
    bool master;
    double target_s, part_target_s; /* 0: not said */
    unsigned version;               /* 1: not said */
};

/* Reads a playlist; the text is copied. CORE_INVALID: it is none. CORE_UNSUPPORTED: it names pieces of files
 * (byte ranges), which can not be encrypted each by itself, leaves lines out (EXT-X-SKIP), or is encrypted by
 * something else than AES-128. CORE_NO_MEMORY. On success *playlist is to be given to hls_playlist_free. */
CORE_CHECKED core_status hls_playlist_parse(const char *text, size_t bytes, struct hls_playlist *playlist,
                                            struct core_error *error);
void hls_playlist_free(struct hls_playlist *playlist);

/* How an item stands. WAITING: it is not there yet. GONE: it will never be there. */
enum hls_state { HLS_READY, HLS_WAITING, HLS_GONE };

/* Where an item stands, and its cover if it is READY. */
struct hls_place {
    enum hls_state state;
    const struct hls_cover *cover;
};

/* The media playlist as players may have it, given the places of its items: with EXT-X-KEY wherever the cover
 * changes, segments and parts that are gone marked as gaps (EXT-X-GAP, GAP=YES), and cut before the first item
 * that is WAITING. A map that is gone is waited for. What EXT-X-KEY it had is left out.
 *
 * *text, terminated, is the caller's to free; NULL if no segment or part would be left. CORE_NO_MEMORY. */
CORE_CHECKED core_status hls_playlist_render(const struct hls_playlist *playlist,
                                             const struct hls_place *places, char **text, size_t *bytes);

#endif
