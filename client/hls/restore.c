/* Going on where a process before has stopped, by what it has left in the output. */
#include "client/hls/file.h"
#include "client/hls/rendition.h"

#include <stdlib.h>

/* A file that the output's playlist names is done, if it is there and not older than its source. */
static void restore_item(struct hls_rendition *rendition, const struct hls_item *item)
{
    struct hls *hls = rendition->hls;
    char path[HLS_PATH_BYTES];
    struct stat done, source;
    if (item->cover.key_uri[0] == '\0' || item->gap || !hls_rendition_path(rendition, item, path) ||
        !hls_folder_look(hls->output, path, &done))
        return;
    bool has_source = hls->input >= 0 && hls_folder_look(hls->input, path, &source);
    if (has_source && hls_stat_is_later(&source, &done))
        return;
    struct hls_file *file = hls_file_make(hls, path);
    if (file == NULL || file->state != HLS_FILE_MISSING)
        return;
    file->state = HLS_FILE_READY;
    file->kind = item->kind;
    file->owner = rendition;
    file->cover = item->cover;
    file->sequence = item->sequence;
    if (has_source)
        file->source = source;
    if (!item->cover.has_iv)
        hls_sequence_iv(item->sequence, file->cover.iv);
}

void hls_rendition_restore(struct hls_rendition *rendition)
{
    struct hls_playlist playlist;
    struct stat about;
    uint8_t *text;
    size_t bytes;
    if (hls_folder_read(rendition->hls->output, rendition->path, HLS_PLAYLIST_BYTES_MAX, &text, &bytes,
                        &about, NULL) != CORE_OK)
        return;
    rendition->published = (char *)text;
    rendition->published_bytes = bytes;
    if (hls_playlist_parse(rendition->published, bytes, &playlist, NULL) != CORE_OK)
        return;
    for (size_t i = 0; i < playlist.item_count; i++)
        restore_item(rendition, &playlist.items[i]);
    hls_playlist_free(&playlist);
}
