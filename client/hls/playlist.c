/* Reading playlists. */
#include "client/hls/playlist.h"

#include <stdlib.h>
#include <string.h>

void hls_sequence_iv(uint64_t sequence, uint8_t iv[CORE_BLOCK_BYTES])
{
    memset(iv, 0, CORE_BLOCK_BYTES);
    for (int i = 0; i < 8; i++)
        iv[CORE_BLOCK_BYTES - 1 - i] = (uint8_t)(sequence >> (8 * i));
}

struct reading {
    struct hls_playlist *playlist;
    struct hls_cover cover; /* in force */
    uint64_t sequence;      /* of the next segment */
    size_t first_line;      /* of the next segment's tags; SIZE_MAX: none yet */
    bool gap, variant;      /* said of what the next URI names */
};

static core_status add_item(struct reading *reading, enum hls_item_kind kind, struct hls_text uri,
                            size_t line)
{
    struct hls_playlist *playlist = reading->playlist;
    if ((playlist->item_count & (playlist->item_count + 1)) == 0) { /* full: 2^n - 1 */
        size_t room = 2 * playlist->item_count + 1;
        struct hls_item *larger = realloc(playlist->items, (room + 1) * sizeof *larger);
        if (larger == NULL)
            return CORE_NO_MEMORY;
        playlist->items = larger;
    }
    playlist->items[playlist->item_count++] = (struct hls_item){.kind = kind,
                                                                .uri = uri.at,
                                                                .uri_bytes = uri.bytes,
                                                                .sequence = reading->sequence,
                                                                .line = line,
                                                                .first_line = line,
                                                                .cover = reading->cover,
                                                                .gap = reading->gap};
    return CORE_OK;
}

static core_status read_key(struct reading *reading, struct hls_text list, struct core_error *error)
{
    struct hls_text method, uri, iv;
    reading->cover = (struct hls_cover){0};
    if (!hls_attribute_find(list, "METHOD", &method))
        return core_error_set(error, CORE_INVALID, "EXT-X-KEY without METHOD");
    if (hls_text_is(method, "NONE"))
        return CORE_OK;
    if (!hls_text_is(method, "AES-128"))
        return core_error_set(error, CORE_UNSUPPORTED, "EXT-X-KEY with METHOD=%.*s", (int)method.bytes,
                              method.at);
    if (!hls_attribute_find(list, "URI", &uri) || uri.bytes == 0 || uri.bytes >= HLS_URI_BYTES)
        return core_error_set(error, CORE_INVALID, "EXT-X-KEY without URI, or with one that is too long");
    memcpy(reading->cover.key_uri, uri.at, uri.bytes);
    reading->cover.has_iv = hls_attribute_find(list, "IV", &iv);
    if (reading->cover.has_iv && !hls_text_iv(iv, reading->cover.iv))
        return core_error_set(error, CORE_INVALID, "EXT-X-KEY with an IV that is none");
    return CORE_OK;
}

/* EXT-X-PART and EXT-X-MAP. */
static core_status read_named(struct reading *reading, enum hls_item_kind kind, struct hls_text list,
                              size_t line, struct core_error *error)
{
    struct hls_text uri, other;
    if (!hls_attributes_are_sound(list) || !hls_attribute_find(list, "URI", &uri))
        return core_error_set(error, CORE_INVALID, "line %zu names no URI", line + 1);
    if (hls_attribute_find(list, "BYTERANGE", &other))
        return core_error_set(error, CORE_UNSUPPORTED, "line %zu names a byte range", line + 1);
    bool gap = reading->gap;
    reading->gap = kind == HLS_PART && hls_attribute_find(list, "GAP", &other);
    if (reading->gap && !hls_text_is(other, "YES"))
        return core_error_set(error, CORE_INVALID, "line %zu has a GAP that is not YES", line + 1);
    core_status status = add_item(reading, kind, uri, line);
    reading->gap = gap;
    return status;
}

static core_status read_sequence(struct reading *reading, struct hls_text value, struct core_error *error)
{
    if (reading->playlist->item_count > 0 || !hls_text_count(value, INT64_MAX, &reading->sequence))
        return core_error_set(error, CORE_INVALID,
                              "EXT-X-MEDIA-SEQUENCE is no number, or comes after a segment");
    return CORE_OK;
}

static core_status read_tag(struct reading *reading, size_t number, struct core_error *error)
{
    struct hls_playlist *playlist = reading->playlist;
    const struct hls_line *line = &playlist->lines[number];
    struct hls_text value, found;
    uint64_t count;
    if (hls_tag_is(line, "#EXTINF", &value)) {
        reading->first_line = number;
    } else if (hls_tag_is(line, "#EXT-X-KEY", &value)) {
        return read_key(reading, value, error);
    } else if (hls_tag_is(line, "#EXT-X-MAP", &value)) {
        return read_named(reading, HLS_MAP, value, number, error);
    } else if (hls_tag_is(line, "#EXT-X-PART", &value)) {
        return read_named(reading, HLS_PART, value, number, error);
    } else if (hls_tag_is(line, "#EXT-X-MEDIA-SEQUENCE", &value)) {
        return read_sequence(reading, value, error);
    } else if (hls_tag_is(line, "#EXT-X-GAP", &value)) {
        reading->gap = true;
    } else if (hls_tag_is(line, "#EXT-X-TARGETDURATION", &value)) {
        playlist->target_s = hls_text_number(value);
    } else if (hls_tag_is(line, "#EXT-X-PART-INF", &value) &&
               hls_attribute_find(value, "PART-TARGET", &found)) {
        playlist->part_target_s = hls_text_number(found);
    } else if (hls_tag_is(line, "#EXT-X-VERSION", &value) && hls_text_count(value, 1000, &count)) {
        playlist->version = (unsigned)count;
    } else if (hls_tag_is(line, "#EXT-X-STREAM-INF", &value)) {
        playlist->master = reading->variant = true;
    } else if (hls_tag_is(line, "#EXT-X-MEDIA", &value)) {
        playlist->master = true;
        return hls_attribute_find(value, "URI", &found) ? add_item(reading, HLS_VARIANT, found, number)
                                                        : CORE_OK;
    } else if (hls_tag_is(line, "#EXT-X-BYTERANGE", &value) || hls_tag_is(line, "#EXT-X-SKIP", &value)) {
        return core_error_set(error, CORE_UNSUPPORTED, "line %zu: %.*s", number + 1, (int)line->bytes,
                              line->text);
    }
    return CORE_OK;
}

static core_status read_uri(struct reading *reading, size_t number)
{
    const struct hls_line *line = &reading->playlist->lines[number];
    core_status status = add_item(reading, reading->variant ? HLS_VARIANT : HLS_SEGMENT,
                                  (struct hls_text){line->text, line->bytes}, number);
    if (status == CORE_OK && reading->first_line != SIZE_MAX)
        reading->playlist->items[reading->playlist->item_count - 1].first_line = reading->first_line;
    reading->first_line = SIZE_MAX;
    reading->gap = reading->variant = false;
    reading->sequence++;
    return status;
}

static core_status split_lines(struct hls_playlist *playlist, size_t bytes)
{
    size_t count = 1;
    for (size_t i = 0; i < bytes; i++)
        count += playlist->text[i] == '\n';
    playlist->lines = calloc(count, sizeof *playlist->lines);
    if (playlist->lines == NULL)
        return CORE_NO_MEMORY;
    for (const char *at = playlist->text, *end = at + bytes; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        struct hls_line line = {at, (size_t)((stop == NULL ? end : stop) - at), stop != NULL};
        at += line.bytes + line.end_bytes;
        if (line.bytes > 0 && line.text[line.bytes - 1] == '\r') {
            line.bytes--;
            line.end_bytes++;
        }
        playlist->lines[playlist->line_count++] = line;
    }
    return CORE_OK;
}

static core_status read_lines(struct hls_playlist *playlist, struct core_error *error)
{
    struct reading reading = {.playlist = playlist, .first_line = SIZE_MAX};
    struct hls_text value;
    core_status status = CORE_OK;
    if (playlist->line_count == 0 || !hls_tag_is(&playlist->lines[0], "#EXTM3U", &value))
        return core_error_set(error, CORE_INVALID, "it does not begin with #EXTM3U");
    for (size_t i = 1; i < playlist->line_count && status == CORE_OK; i++)
        if (playlist->lines[i].bytes > 0)
            status = playlist->lines[i].text[0] == '#' ? read_tag(&reading, i, error) : read_uri(&reading, i);
    return status == CORE_NO_MEMORY ? core_error_set(error, status, "no memory for a playlist") : status;
}

core_status hls_playlist_parse(const char *text, size_t bytes, struct hls_playlist *playlist,
                               struct core_error *error)
{
    *playlist = (struct hls_playlist){.version = 1};
    if (memchr(text, '\0', bytes) != NULL)
        return core_error_set(error, CORE_INVALID, "it is no text");
    playlist->text = malloc(bytes + 1);
    core_status status = CORE_NO_MEMORY;
    if (playlist->text != NULL) {
        memcpy(playlist->text, text, bytes);
        playlist->text[bytes] = '\0';
        status = split_lines(playlist, bytes);
    }
    if (status)
        (void)core_error_set(error, status, "no memory for a playlist");
    else
        status = read_lines(playlist, error);
    if (status)
        hls_playlist_free(playlist);
    return status;
}

void hls_playlist_free(struct hls_playlist *playlist)
{
    free(playlist->text);
    free(playlist->lines);
    free(playlist->items);
    *playlist = (struct hls_playlist){0};
}
