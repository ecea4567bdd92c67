#include "client/hls/rendition.h"

#include "client/hls/file.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_NS     (100 * CORE_NS_PER_MS) /* until what only time changes is looked at again */
#define WAIT_NS_MIN (20 * CORE_NS_PER_MS)  /* of what a file may wait, where no option says it */
#define WAIT_NS_MAX CORE_NS_PER_S

struct hls_rendition *hls_rendition_find(const struct hls *hls, const char *path)
{
    struct hls_rendition *rendition = hls->renditions;
    while (rendition != NULL && strcmp(rendition->path, path) != 0)
        rendition = rendition->next;
    return rendition;
}

static void free_rendition(struct hls_rendition *rendition)
{
    hls_playlist_free(&rendition->playlist);
    hls_key_drop(rendition->key);
    free(rendition->published);
    free(rendition->path);
    free(rendition->name);
    free(rendition);
}

struct hls_rendition *hls_rendition_make(struct hls *hls, const char *path)
{
    struct hls_rendition *rendition = hls_rendition_find(hls, path);
    if (rendition != NULL || (rendition = calloc(1, sizeof *rendition)) == NULL)
        return rendition;
    rendition->path = strdup(path);
    rendition->name = strdup(path);
    if (rendition->path == NULL || rendition->name == NULL) {
        free_rendition(rendition);
        return NULL;
    }
    *strrchr(rendition->name, '.') = '\0';
    rendition->hls = hls;
    rendition->look_ns = CORE_NS_NEVER;
    rendition->stream.name = rendition->path;
    hls_stream_add(&hls->link, &rendition->stream);
    rendition->next = hls->renditions;
    hls->renditions = rendition;
    hls->rendition_count++;
    hls_rendition_restore(rendition);
    return rendition;
}

void hls_rendition_set(struct hls_rendition *rendition, struct hls_playlist *playlist)
{
    hls_playlist_free(&rendition->playlist);
    rendition->playlist = *playlist;
    hls_rendition_touch(rendition);
}

void hls_rendition_clear(struct hls_rendition *rendition)
{
    hls_playlist_free(&rendition->playlist);
    free(rendition->published);
    rendition->published = NULL;
}

void hls_renditions_close(struct hls *hls)
{
    while (hls->renditions != NULL) {
        struct hls_rendition *rendition = hls->renditions;
        hls->renditions = rendition->next;
        hls_stream_remove(&rendition->stream);
        free_rendition(rendition);
    }
}

bool hls_rendition_path(const struct hls_rendition *rendition, const struct hls_item *item,
                        char path[HLS_PATH_BYTES])
{
    return hls_path_resolve(rendition->path, item->uri, item->uri_bytes, path) == CORE_OK;
}

/* ---- publishing ---- */

/* The output's playlist becomes this text, which is taken over. True: it is so, or never can be. */
static bool publish(struct hls_rendition *rendition, char *text, size_t bytes)
{
    struct hls *hls = rendition->hls;
    struct core_error error;
    core_status status = CORE_OK;
    bool is_same = rendition->published != NULL && rendition->published_bytes == bytes &&
                   memcmp(rendition->published, text, bytes) == 0;
    if (!is_same)
        status = hls_publish(hls, rendition->path, text, bytes, &error);
    if (status || is_same) {
        if (status && status != CORE_FULL)
            hls->say("%s", error.text);
        free(text);
        return status != CORE_FULL;
    }
    free(rendition->published);
    rendition->published = text;
    rendition->published_bytes = bytes;
    hls->counts.playlists++;
    return true;
}

/* A master playlist is published once every playlist that it names is. */
static bool update_master(struct hls_rendition *rendition)
{
    const struct hls_playlist *playlist = &rendition->playlist;
    char path[HLS_PATH_BYTES];
    for (size_t i = 0; i < playlist->item_count; i++) {
        if (!hls_rendition_path(rendition, &playlist->items[i], path))
            continue; /* elsewhere */
        const struct hls_rendition *named = hls_rendition_find(rendition->hls, path);
        if (named == NULL || named->published == NULL)
            return false;
    }
    char *text = strdup(playlist->text);
    return text != NULL && publish(rendition, text, strlen(text));
}

static void set_contract(struct hls_rendition *rendition)
{
    const struct hls_playlist *playlist = &rendition->playlist;
    double target_s = playlist->target_s > 0 ? playlist->target_s : 1;
    double shortest_s = playlist->part_target_s > 0 ? playlist->part_target_s : target_s;
    core_ns wait_ns = (core_ns)(shortest_s * 1e9 / 4);
    wait_ns = wait_ns < WAIT_NS_MIN ? WAIT_NS_MIN : wait_ns > WAIT_NS_MAX ? WAIT_NS_MAX : wait_ns;
    rendition->stream.paces[HLS_KIND_SEGMENT].every_s = target_s;
    rendition->stream.paces[HLS_KIND_PART].every_s = shortest_s;
    rendition->stream.wait_ns = rendition->hls->wait_ns > 0 ? rendition->hls->wait_ns : wait_ns;
}

static struct hls_place place_item(struct hls_rendition *rendition, const struct hls_item *item)
{
    char path[HLS_PATH_BYTES];
    if (item->gap || !hls_rendition_path(rendition, item, path))
        return (struct hls_place){HLS_GONE, NULL};
    struct hls_file *file = hls_file_make(rendition->hls, path);
    if (file == NULL)
        return (struct hls_place){HLS_WAITING, NULL};
    if (file->owner == NULL && file->state == HLS_FILE_MISSING)
        file->since_ns = core_time_now_ns();
    file->owner = rendition;
    file->kind = item->kind;
    file->turn = rendition->turn;
    hls_file_advance(file, item);
    if (file->state == HLS_FILE_READY && item->sequence != file->sequence)
        file->cover.has_iv = true; /* it has another number now */
    return (struct hls_place){file->state == HLS_FILE_READY  ? HLS_READY
                              : file->state == HLS_FILE_GONE ? HLS_GONE
                                                             : HLS_WAITING,
                              &file->cover};
}

/* True: all of it is published. */
static bool update_media(struct hls_rendition *rendition)
{
    const struct hls_playlist *playlist = &rendition->playlist;
    struct hls_place *places = calloc(playlist->item_count + 1, sizeof *places);
    char *text = NULL;
    size_t bytes;
    bool is_whole = places != NULL;
    if (places == NULL)
        return false;
    rendition->turn++;
    set_contract(rendition);
    for (size_t i = 0; i < playlist->item_count; i++) {
        places[i] = place_item(rendition, &playlist->items[i]);
        is_whole &= places[i].state != HLS_WAITING;
    }
    if (hls_playlist_render(playlist, places, &text, &bytes) != CORE_OK)
        is_whole = false;
    else if (text != NULL)
        is_whole &= publish(rendition, text, bytes);
    free(places);
    return is_whole;
}

void hls_rendition_touch(struct hls_rendition *rendition)
{
    struct hls *hls = rendition->hls;
    if (rendition->changed)
        return;
    rendition->changed = true;
    rendition->next_changed = hls->changed;
    hls->changed = rendition;
}

static void update(struct hls_rendition *rendition, core_ns now_ns)
{
    struct hls *hls = rendition->hls;
    bool is_done = rendition->playlist.master ? update_master(rendition) : update_media(rendition);
    rendition->look_ns = is_done ? CORE_NS_NEVER : now_ns + LOOK_NS;
    if (rendition->look_ns < hls->look_ns)
        hls->look_ns = rendition->look_ns;
}

/* Time alone has changed something. */
static void look(struct hls *hls, core_ns now_ns)
{
    hls->look_ns = CORE_NS_NEVER;
    for (struct hls_rendition *rendition = hls->renditions; rendition != NULL; rendition = rendition->next)
        if (rendition->look_ns <= now_ns)
            hls_rendition_touch(rendition);
        else if (rendition->look_ns < hls->look_ns)
            hls->look_ns = rendition->look_ns;
}

void hls_renditions_update(struct hls *hls, core_ns now_ns)
{
    if (hls->look_ns <= now_ns)
        look(hls, now_ns);
    while (hls->changed != NULL) {
        struct hls_rendition *rendition = hls->changed;
        hls->changed = rendition->next_changed;
        rendition->changed = false; /* what it does to its files may touch it again: no more than once each */
        update(rendition, now_ns);
    }
}
