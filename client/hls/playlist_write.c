/* Writing playlists. */
#include "client/hls/playlist.h"

#include "core/value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    struct hls_text value;
    size_t item = 0;
    unsigned version = version_of(playlist, places, item_end);
    for (size_t i = 0; i < line_end; i++) {
        const struct hls_line *line = &playlist->lines[i];
        while (item < item_end && playlist->items[item].line < i)
            item++;
        if (hls_tag_is(line, "#EXT-X-KEY", &value) || hls_tag_is(line, "#EXT-X-VERSION", &value))
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
