/* Lines, tags and attributes of HLS playlists (RFC 8216, 4.1 and 4.2), as pieces of a text that somebody else owns.
 *
 * Pure functions; any thread. */
#ifndef MILLRACE_CLIENT_HLS_TAGS_H
#define MILLRACE_CLIENT_HLS_TAGS_H

#include "core/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hls_text { /* a piece of a line, not terminated */
    const char *at;
    size_t bytes;
};

bool hls_text_is(struct hls_text text, const char *wanted);

struct hls_line {
    const char *text;
    size_t bytes;     /* without its end */
    size_t end_bytes; /* of "\n" or "\r\n"; 0: the last one has none */
};

/* Is the line this tag, as "#EXTINF"? What follows its colon, if it has one, is in *value. */
bool hls_tag_is(const struct hls_line *line, const char *name, struct hls_text *value);

/* Is it NAME=value or NAME="value", one or more, with commas between them? */
bool hls_attributes_are_sound(struct hls_text list);

/* The value of the first attribute of that name, without quotes. False: there is none. */
bool hls_attribute_find(struct hls_text list, const char *name, struct hls_text *value);

double hls_text_number(struct hls_text text); /* 0: it is none, or not between 0 and 10^9 */
bool hls_text_count(struct hls_text text, uint64_t maximum, uint64_t *count);
bool hls_text_iv(struct hls_text text, uint8_t iv[CORE_BLOCK_BYTES]); /* 0x and up to 32 digits */

#endif
