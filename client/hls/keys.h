/* The keys of `millrace hls`: drawn at random into a folder of private files, or as an hls_key_info_file says.
 *
 * One thread. A key is shared by reference, and wiped with the last one. */
#ifndef MILLRACE_CLIENT_HLS_KEYS_H
#define MILLRACE_CLIENT_HLS_KEYS_H

#include "client/hls/path.h"
#include "client/hls/playlist.h"

#include <sys/stat.h>

#define HLS_KEY_BYTES 16

struct hls_key {
    uint8_t *bytes; /* HLS_KEY_BYTES of secret memory */
    char uri[HLS_URI_BYTES];
    bool has_iv; /* for everything under this key; else by media sequence number */
    uint8_t iv[CORE_BLOCK_BYTES];
    unsigned references;
};

struct hls_keys {
    /* set before start */
    const char *folder, *uri_template; /* either these, */
    const char *info_file;             /* or this */
    unsigned rotate;                   /* media segments under a key that is drawn */
    /* */
    struct hls_key *given; /* of the info file; NULL: not read yet */
    struct stat given_by;  /* the info file, when it was read */
    uint64_t made;         /* keys drawn, or read anew */
};

/* Draws a key, writes it to "<folder>/<id>.key" (0600, on the disk when this returns; the id is 32 random
 * hexadecimal digits) and makes its URI: {id} and {rendition} in the template are replaced. *key has one
 * reference. CORE_SYSTEM, CORE_INVALID (the URI is too long), CORE_NO_MEMORY. */
CORE_CHECKED core_status hls_keys_draw(struct hls_keys *keys, const char *rendition, struct hls_key **key,
                                       struct core_error *error);

/* The key of the info file, read again if the file has changed; *key has a reference of its own. The file has a
 * line with the key's URI, one with the path of a file of 16 bytes and, if wanted, one with an IV of 32 digits.
 * After an error *key is the one before, if there was one, else NULL. */
CORE_CHECKED core_status hls_keys_given(struct hls_keys *keys, struct hls_key **key,
                                        struct core_error *error);

struct hls_key *hls_key_take(struct hls_key *key); /* one more reference */
void hls_key_drop(struct hls_key *key);            /* one less; NULL is fine */
void hls_keys_close(struct hls_keys *keys);

/* The template with the two put in for {id} and {rendition}. False: it does not fit, or would break the quotes
 * around it. Pure. */
bool hls_key_uri(const char *uri_template, const char *id, const char *rendition, char uri[HLS_URI_BYTES]);

/* Reads an info file's text. CORE_INVALID with the reason. Pure. */
struct hls_key_info {
    char uri[HLS_URI_BYTES], path[HLS_PATH_BYTES];
    bool has_iv;
    uint8_t iv[CORE_BLOCK_BYTES];
};
CORE_CHECKED core_status hls_key_info_parse(const char *text, struct hls_key_info *info,
                                            struct core_error *error);

#endif
