#include "client/hls/hls.h"

#include "client/hls/file.h"
#include "client/hls/rendition.h"

#include <stdlib.h>

#define SWEEP_NS         CORE_NS_PER_S
#define PUBLISH_PAUSE_NS CORE_NS_PER_S /* after the output had no room */

bool hls_has_room(const struct hls *hls, size_t bytes)
{
    return bytes <= hls->memory_max && hls->clear_bytes <= hls->memory_max - bytes;
}

core_status hls_publish(struct hls *hls, const char *path, const void *content, size_t bytes,
                        struct core_error *error)
{
    bool had_room = hls->publish_not_before_ns == 0;
    core_ns now_ns = core_time_now_ns();
    if (now_ns < hls->publish_not_before_ns)
        return CORE_FULL;
    core_status status = hls_folder_publish(hls->output, path, content, bytes, error);
    if (status == CORE_FULL && had_room)
        hls->say("%s; what is ready waits, and is tried again every second", error->text);
    if (status == CORE_OK && !had_room)
        hls->say("files can be written again");
    if (status == CORE_OK || status == CORE_FULL)
        hls->publish_not_before_ns = status == CORE_OK ? 0 : now_ns + PUBLISH_PAUSE_NS;
    return status;
}

/* ---- what comes ---- */

/* Reads a playlist as one of a packager's. */
static core_status read_playlist(const uint8_t *content, size_t bytes, struct hls_playlist *playlist,
                                 struct core_error *error)
{
    core_status status = hls_playlist_parse((const char *)content, bytes, playlist, error);
    if (status)
        return status;
    for (size_t i = 0; i < playlist->item_count; i++)
        if (playlist->items[i].cover.key_uri[0] != '\0') {
            hls_playlist_free(playlist);
            return core_error_set(error, CORE_UNSUPPORTED, "it is encrypted already");
        }
    return CORE_OK;
}

static core_status put_playlist(struct hls *hls, const char *path, const uint8_t *content, size_t bytes,
                                struct core_error *error)
{
    struct hls_playlist playlist;
    core_status status = read_playlist(content, bytes, &playlist, error);
    struct hls_rendition *rendition = status ? NULL : hls_rendition_make(hls, path);
    if (rendition != NULL) {
        hls_rendition_set(rendition, &playlist);
        return CORE_OK;
    }
    hls->counts.refused++;
    if (status)
        return core_error_prefix(error, status, "%s", path);
    hls_playlist_free(&playlist);
    return core_error_set(error, CORE_FULL, "no memory for %s now", path);
}

core_status hls_put(struct hls *hls, const char *path, uint8_t *content, size_t bytes,
                    struct core_error *error)
{
    if (hls_path_is_playlist(path)) {
        core_status status = put_playlist(hls, path, content, bytes, error);
        free(content);
        return status;
    }
    struct hls_file *file = hls_has_room(hls, bytes) ? hls_file_make(hls, path) : NULL;
    if (file == NULL) {
        free(content);
        return core_error_set(error, CORE_FULL, "no memory for %s now", path);
    }
    hls_file_fill(hls, file, content, bytes);
    return CORE_OK;
}

void hls_notice(struct hls *hls, const char *path)
{
    struct stat about;
    struct core_error error;
    uint8_t *content;
    size_t bytes;
    if (hls_path_is_playlist(path)) {
        core_status status =
            hls_folder_read(hls->input, path, HLS_PLAYLIST_BYTES_MAX, &content, &bytes, &about, &error);
        if (status == CORE_OK)
            status = hls_put(hls, path, content, bytes, &error);
        if (status && status != CORE_NOT_FOUND)
            hls->say("%s", error.text);
        return;
    }
    struct hls_file *file = hls_file_find(hls, path);
    if (file == NULL || !hls_folder_look(hls->input, path, &about) || hls_stat_is_same(&about, &file->source))
        return;
    hls_file_clear(hls, file);
    if (file->owner != NULL)
        hls_rendition_touch(file->owner);
}

void hls_remove(struct hls *hls, const char *path)
{
    struct hls_file *file = hls_file_find(hls, path);
    struct hls_rendition *rendition = hls_rendition_find(hls, path);
    if (file != NULL)
        hls_file_drop(hls, file);
    if (rendition != NULL)
        hls_rendition_clear(rendition);
    hls_folder_remove(hls->output, path);
}

/* ---- turns ---- */

void hls_turn(struct hls *hls, core_ns now_ns)
{
    hls_link_receive(&hls->link, now_ns);
    hls_renditions_update(hls, now_ns);
    hls_link_send(&hls->link, now_ns);
    if (now_ns - hls->swept_ns >= SWEEP_NS) {
        hls_files_sweep(hls, now_ns);
        hls->swept_ns = now_ns;
    }
}

bool hls_is_busy(const struct hls *hls)
{
    return hls_link_is_busy(&hls->link);
}

static void on_done(void *argument, struct hls_job *job)
{
    hls_file_done(argument, job);
}

void hls_start(struct hls *hls)
{
    core_histogram_init(&hls->delay);
    hls->look_ns = CORE_NS_NEVER;
    hls->link.argument = hls;
    hls->link.done = on_done;
    hls->link.say = hls->say;
}

void hls_close(struct hls *hls)
{
    hls_files_sweep(hls, CORE_NS_NEVER);
    hls_renditions_close(hls);
    hls_link_close(&hls->link);
    hls_keys_close(&hls->keys);
}
