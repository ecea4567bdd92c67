/* Reading and writing playlists: lines, tags and their attributes. */
#include "client/hls/playlist.h"

#include "core/value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- lines, tags, attributes ---- */

struct text { /* a piece of a line */
    const char *at;
    size_t bytes;
};

/* Is the line this tag? What follows its colon, if it has one, is in *value. */
static bool is_tag(const struct hls_line *line, const char *name, struct text *value)
{
    size_t bytes = strlen(name);
    if (line->bytes < bytes || memcmp(line->text, name, bytes) != 0)
        return false;
    if (line->bytes > bytes && line->text[bytes] != ':')
        return false;
    size_t skipped = line->bytes > bytes ? bytes + 1 : bytes;
    *value = (struct text){line->text + skipped, line->bytes - skipped};
    return true;
}

/* Takes NAME=value or NAME="value" off the front of a list. */
static bool take_attribute(struct text *list, struct text *name, struct text *value)
{
    const char *end = list->at + list->bytes;
    const char *equals = memchr(list->at, '=', list->bytes);
    if (equals == NULL)
        return false;
    while (list->at < equals && (*list->at == ' ' || *list->at == ','))
        list->at++;
    *name = (struct text){list->at, (size_t)(equals - list->at)};
    const char *at = equals + 1;
    bool quoted = at < end && *at == '"';
    at += quoted;
    const char *stop = memchr(at, quoted ? '"' : ',', (size_t)(end - at));
    if (quoted && (stop == NULL || (stop + 1 < end && stop[1] != ',')))
        return false;
    if (stop == NULL)
        stop = end;
    *value = (struct text){at, (size_t)(stop - at)};
    list->at = stop + quoted;
    list->bytes = (size_t)(end - list->at);
    return true;
}

static bool is_attribute_list(struct text list)
{
    struct text name, value;
    while (list.bytes > 0)
        if (!take_attribute(&list, &name, &value))
            return false;
    return true;
}

static bool find_attribute(struct text list, const char *wanted, struct text *value)
{
    struct text name;
    while (take_attribute(&list, &name, value))
        if (name.bytes == strlen(wanted) && memcmp(name.at, wanted, name.bytes) == 0)
            return true;
    return false;
}

static bool is_text(struct text text, const char *wanted)
{
    return text.bytes == strlen(wanted) && memcmp(text.at, wanted, text.bytes) == 0;
}

static double number_of(struct text text)
{
    char copy[32];
    snprintf(copy, sizeof copy, "%.*s", (int)(text.bytes < 31 ? text.bytes : 31), text.at);
    double number = strtod(copy, NULL);
    return number > 0 && number < 1e9 ? number : 0;
}

static bool count_of(struct text text, uint64_t maximum, uint64_t *count)
{
    char copy[24];
    if (text.bytes == 0 || text.bytes >= sizeof copy)
        return false;
    memcpy(copy, text.at, text.bytes);
    copy[text.bytes] = '\0';
    return core_count_parse(copy, maximum, count);
}

static bool parse_iv(struct text text, uint8_t iv[CORE_BLOCK_BYTES])
{
    char digits[2 * CORE_BLOCK_BYTES];
    size_t count;
    if (text.bytes < 3 || text.bytes > 2 + sizeof digits || text.at[0] != '0' || (text.at[1] | 32) != 'x')
        return false;
    memset(digits, '0', sizeof digits);
    memcpy(digits + sizeof digits - (text.bytes - 2), text.at + 2, text.bytes - 2);
    return core_hex_parse(digits, sizeof digits, iv, CORE_BLOCK_BYTES, &count);
}

/* ---- reading ---- */

struct reading {
    struct hls_playlist *playlist;
    struct hls_cover cover; /* in force */
    uint64_t sequence;      /* of the next segment */
    size_t first_line;      /* of the next segment's tags; SIZE_MAX: none yet */
    bool gap, variant;      /* said of what the next URI names */
};

static core_status add_item(struct reading *reading, enum hls_item_kind kind, struct text uri, size_t line)
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

static core_status read_key(struct reading *reading, struct text list, struct core_error *error)
{
    struct text method, uri, iv;
    reading->cover = (struct hls_cover){0};
    if (!find_attribute(list, "METHOD", &method))
        return core_error_set(error, CORE_INVALID, "EXT-X-KEY without METHOD");
    if (is_text(method, "NONE"))
        return CORE_OK;
    if (!is_text(method, "AES-128"))
        return core_error_set(error, CORE_UNSUPPORTED, "EXT-X-KEY with METHOD=%.*s", (int)method.bytes,
                              method.at);
    if (!find_attribute(list, "URI", &uri) || uri.bytes == 0 || uri.bytes >= HLS_URI_BYTES)
        return core_error_set(error, CORE_INVALID, "EXT-X-KEY without URI, or with one that is too long");
    memcpy(reading->cover.key_uri, uri.at, uri.bytes);
    reading->cover.has_iv = find_attribute(list, "IV", &iv);
    if (reading->cover.has_iv && !parse_iv(iv, reading->cover.iv))
        return core_error_set(error, CORE_INVALID, "EXT-X-KEY with an IV that is none");
    return CORE_OK;
}

/* EXT-X-PART and EXT-X-MAP. */
static core_status read_named(struct reading *reading, enum hls_item_kind kind, struct text list, size_t line,
                              struct core_error *error)
{
    struct text uri, other;
    if (!is_attribute_list(list) || !find_attribute(list, "URI", &uri))
        return core_error_set(error, CORE_INVALID, "line %zu names no URI", line + 1);
    if (find_attribute(list, "BYTERANGE", &other))
        return core_error_set(error, CORE_UNSUPPORTED, "line %zu names a byte range", line + 1);
    bool gap = reading->gap;
    reading->gap = kind == HLS_PART && find_attribute(list, "GAP", &other);
    if (reading->gap && !is_text(other, "YES"))
        return core_error_set(error, CORE_INVALID, "line %zu has a GAP that is not YES", line + 1);
    core_status status = add_item(reading, kind, uri, line);
    reading->gap = gap;
    return status;
}

static core_status read_sequence(struct reading *reading, struct text value, struct core_error *error)
{
    if (reading->playlist->item_count > 0 || !count_of(value, INT64_MAX, &reading->sequence))
        return core_error_set(error, CORE_INVALID,
                              "EXT-X-MEDIA-SEQUENCE is no number, or comes after a segment");
    return CORE_OK;
}

static core_status read_tag(struct reading *reading, size_t number, struct core_error *error)
{
    struct hls_playlist *playlist = reading->playlist;
    const struct hls_line *line = &playlist->lines[number];
    struct text value, found;
    uint64_t count;
    if (is_tag(line, "#EXTINF", &value)) {
        reading->first_line = number;
    } else if (is_tag(line, "#EXT-X-KEY", &value)) {
        return read_key(reading, value, error);
    } else if (is_tag(line, "#EXT-X-MAP", &value)) {
        return read_named(reading, HLS_MAP, value, number, error);
    } else if (is_tag(line, "#EXT-X-PART", &value)) {
        return read_named(reading, HLS_PART, value, number, error);
    } else if (is_tag(line, "#EXT-X-MEDIA-SEQUENCE", &value)) {
        return read_sequence(reading, value, error);
    } else if (is_tag(line, "#EXT-X-GAP", &value)) {
        reading->gap = true;
    } else if (is_tag(line, "#EXT-X-TARGETDURATION", &value)) {
        playlist->target_s = number_of(value);
    } else if (is_tag(line, "#EXT-X-PART-INF", &value) && find_attribute(value, "PART-TARGET", &found)) {
        playlist->part_target_s = number_of(found);
    } else if (is_tag(line, "#EXT-X-VERSION", &value) && count_of(value, 1000, &count)) {
        playlist->version = (unsigned)count;
    } else if (is_tag(line, "#EXT-X-STREAM-INF", &value)) {
        playlist->master = reading->variant = true;
    } else if (is_tag(line, "#EXT-X-MEDIA", &value)) {
        playlist->master = true;
        return find_attribute(value, "URI", &found) ? add_item(reading, HLS_VARIANT, found, number) : CORE_OK;
    } else if (is_tag(line, "#EXT-X-BYTERANGE", &value) || is_tag(line, "#EXT-X-SKIP", &value)) {
        return core_error_set(error, CORE_UNSUPPORTED, "line %zu: %.*s", number + 1, (int)line->bytes,
                              line->text);
    }
    return CORE_OK;
}

static core_status read_uri(struct reading *reading, size_t number)
{
    const struct hls_line *line = &reading->playlist->lines[number];
    core_status status = add_item(reading, reading->variant ? HLS_VARIANT : HLS_SEGMENT,
                                  (struct text){line->text, line->bytes}, number);
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
    struct text value;
    core_status status = CORE_OK;
    if (playlist->line_count == 0 || !is_tag(&playlist->lines[0], "#EXTM3U", &value))
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

/* ---- writing ---- */

#define VERSION_IV  2u /* EXT-X-KEY with IV */
#define VERSION_GAP 8u /* EXT-X-GAP */

struct writing {
    FILE *out;
    const struct hls_cover *cover; /* in force; NULL: none yet */
    bool has_media;
};

static bool covers_alike(const struct hls_cover *one, const struct hls_cover *two)
{
    return one != NULL && one->has_iv == two->has_iv && strcmp(one->key_uri, two->key_uri) == 0 &&
           (!one->has_iv || memcmp(one->iv, two->iv, CORE_BLOCK_BYTES) == 0);
}

static void write_key(struct writing *writing, const struct hls_cover *cover)
{
    char iv[2 * CORE_BLOCK_BYTES + 1];
    if (covers_alike(writing->cover, cover))
        return;
    writing->cover = cover;
    fprintf(writing->out, "#EXT-X-KEY:METHOD=AES-128,URI=\"%s\"", cover->key_uri);
    if (cover->has_iv)
        fprintf(writing->out, ",IV=0x%s", core_hex_format(cover->iv, CORE_BLOCK_BYTES, iv));
    fputc('\n', writing->out);
}

static void write_line(struct writing *writing, const struct hls_line *line, const char *addition)
{
    fwrite(line->text, 1, line->bytes, writing->out);
    fputs(addition, writing->out);
    if (line->end_bytes > 0)
        fwrite(line->text + line->bytes, 1, line->end_bytes, writing->out);
    else
        fputc('\n', writing->out);
}

/* Of the items before `end`: what the playlist must say to be understood. */
static unsigned version_of(const struct hls_playlist *playlist, const struct hls_place *places, size_t end)
{
    unsigned version = playlist->version;
    for (size_t i = 0; i < end; i++) {
        unsigned needed = places[i].state == HLS_GONE ? VERSION_GAP
                          : places[i].cover->has_iv   ? VERSION_IV
                                                      : 1;
        if (needed > version)
            version = needed;
    }
    return version;
}

static bool is_waiting(const struct hls_item *item, const struct hls_place *place)
{
    return place->state == HLS_WAITING || (place->state == HLS_GONE && item->kind == HLS_MAP);
}

/* A line that begins, is or has nothing to do with the item. */
static void write_item_line(struct writing *writing, const struct hls_line *line, size_t number,
                            const struct hls_item *item, const struct hls_place *place)
{
    bool gone = place->state == HLS_GONE;
    if ((number == item->first_line || number == item->line) && !gone)
        write_key(writing, place->cover);
    if (number == item->line && gone && item->kind == HLS_SEGMENT && !item->gap)
        fputs("#EXT-X-GAP\n", writing->out);
    write_line(writing, line,
               number == item->line && gone && item->kind == HLS_PART && !item->gap ? ",GAP=YES" : "");
    writing->has_media |= number == item->line && item->kind != HLS_MAP;
}

static void write_lines(struct writing *writing, const struct hls_playlist *playlist,
                        const struct hls_place *places, size_t item_end, size_t line_end)
{
    struct text value;
    size_t item = 0;
    unsigned version = version_of(playlist, places, item_end);
    for (size_t i = 0; i < line_end; i++) {
        const struct hls_line *line = &playlist->lines[i];
        while (item < item_end && playlist->items[item].line < i)
            item++;
        if (is_tag(line, "#EXT-X-KEY", &value) || is_tag(line, "#EXT-X-VERSION", &value))
            continue;
        if (item < item_end)
            write_item_line(writing, line, i, &playlist->items[item], &places[item]);
        else
            write_line(writing, line, "");
        if (i == 0 && version > 1)
            fprintf(writing->out, "#EXT-X-VERSION:%u\n", version);
    }
}

core_status hls_playlist_render(const struct hls_playlist *playlist, const struct hls_place *places,
                                char **text, size_t *bytes)
{
    size_t items = 0, lines = playlist->line_count;
    *text = NULL;
    *bytes = 0;
    struct writing writing = {.out = open_memstream(text, bytes)};
    if (writing.out == NULL)
        return CORE_NO_MEMORY;
    while (items < playlist->item_count && !is_waiting(&playlist->items[items], &places[items]))
        items++;
    if (items < playlist->item_count)
        lines = items == 0 ? 1 : playlist->items[items - 1].line + 1;
    write_lines(&writing, playlist, places, items, lines);
    bool failed = ferror(writing.out) != 0;
    if (fclose(writing.out) != 0 || failed) {
        free(*text);
        *text = NULL;
        return CORE_NO_MEMORY;
    }
    if (!writing.has_media) {
        free(*text);
        *text = NULL;
    }
    return CORE_OK;
}

/* ---- names ---- */

static int hex_digit(char digit)
{
    uint8_t value;
    size_t count;
    char two[2] = {'0', digit};
    return core_hex_parse(two, 2, &value, 1, &count) ? value : -1;
}

/* Without %XX; false: too long, or broken. */
static bool decode(struct text uri, char *path, size_t room)
{
    size_t length = 0;
    for (size_t i = 0; i < uri.bytes && uri.at[i] != '?' && uri.at[i] != '#'; i++) {
        char byte = uri.at[i];
        if (byte == '%') {
            int high = i + 2 < uri.bytes ? hex_digit(uri.at[i + 1]) : -1;
            int low = high >= 0 ? hex_digit(uri.at[i + 2]) : -1;
            if (low < 0)
                return false;
            byte = (char)(high << 4 | low);
            i += 2;
        }
        if (length + 1 >= room || (byte >= 0 && byte < ' ') || byte == 127)
            return false;
        path[length++] = byte;
    }
    path[length] = '\0';
    return length > 0;
}

/* Puts a name behind the path, or takes the last one off it. */
static bool step(char *path, struct text name)
{
    size_t length = strlen(path);
    if (is_text(name, "."))
        return true;
    if (is_text(name, "..")) {
        char *slash = strrchr(path, '/');
        *(slash != NULL ? slash : path) = '\0';
        return length > 0;
    }
    if (name.bytes == 0 || name.at[0] == '.' || length + name.bytes + 2 > HLS_PATH_BYTES)
        return false;
    if (length > 0)
        path[length++] = '/';
    memcpy(path + length, name.at, name.bytes);
    path[length + name.bytes] = '\0';
    return true;
}

core_status hls_path_resolve(const char *base, const char *uri, size_t uri_bytes, char path[HLS_PATH_BYTES])
{
    char decoded[HLS_PATH_BYTES];
    const char *slash = strrchr(base, '/');
    const char *scheme = memchr(uri, ':', uri_bytes), *first = memchr(uri, '/', uri_bytes);
    if ((scheme != NULL && (first == NULL || scheme < first)) ||
        !decode((struct text){uri, uri_bytes}, decoded, sizeof decoded))
        return CORE_INVALID;
    snprintf(path, HLS_PATH_BYTES, "%.*s", slash == NULL ? 0 : (int)(slash - base), base);
    for (const char *at = decoded;;) {
        size_t bytes = strcspn(at, "/");
        if (!step(path, (struct text){at, bytes}))
            return CORE_INVALID;
        if (at[bytes] == '\0')
            return path[0] != '\0' ? CORE_OK : CORE_INVALID;
        at += bytes + 1;
    }
}

bool hls_path_is_playlist(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL && (strcmp(dot, ".m3u8") == 0 || strcmp(dot, ".m3u") == 0);
}
