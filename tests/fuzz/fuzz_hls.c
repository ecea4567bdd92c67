/* Arbitrary texts as playlists of `millrace hls`, as names in them and as an info file of keys. What it publishes of
 * a playlist it can read again, with the same files under the same keys: a process that begins trusts that. */
#include "client/hls/keys.h"
#include "client/hls/path.h"
#include "client/hls/playlist.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void require_inside(const char *path)
{
    size_t length = strlen(path);
    require(length > 0 && length < HLS_PATH_BYTES && path[0] != '/');
    for (const char *at = path; at != NULL; at = strchr(at, '/')) {
        at += *at == '/';
        require(*at != '\0' && *at != '/' && *at != '.');
    }
}

/* Places that follow from the text alone: some waiting, some gone, two keys, with an IV and without. */
static void place(const struct hls_playlist *playlist, size_t size, struct hls_place *places)
{
    static const struct hls_cover covers[] = {
        {.key_uri = "a"}, {.key_uri = "b"}, {.key_uri = "a", .has_iv = true, .iv = {[15] = 1}}};
    for (size_t i = 0; i < playlist->item_count; i++) {
        size_t draw = (size + i * 7) % 13;
        places[i].cover = &covers[draw % 3];
        places[i].state = playlist->items[i].gap || draw == 3 ? HLS_GONE
                          : draw == 5                         ? HLS_WAITING
                                                              : HLS_READY;
    }
}

static void compare_item(const struct hls_item *given, const struct hls_place *placed,
                         const struct hls_item *read)
{
    require(given->kind == read->kind && given->uri_bytes == read->uri_bytes &&
            memcmp(given->uri, read->uri, read->uri_bytes) == 0 && given->sequence == read->sequence);
    require(read->gap == (placed->state == HLS_GONE));
    if (read->gap)
        return;
    require(strcmp(placed->cover->key_uri, read->cover.key_uri) == 0 &&
            placed->cover->has_iv == read->cover.has_iv &&
            memcmp(placed->cover->iv, read->cover.iv, CORE_BLOCK_BYTES) == 0);
}

static void read_again(const struct hls_playlist *given, const struct hls_place *places, const char *text,
                       size_t bytes)
{
    struct hls_playlist read;
    require(hls_playlist_parse(text, bytes, &read, NULL) == CORE_OK && read.item_count <= given->item_count);
    for (size_t i = 0; i < read.item_count; i++) {
        require(places[i].state != HLS_WAITING);
        compare_item(&given->items[i], &places[i], &read.items[i]);
    }
    hls_playlist_free(&read);
}

static void fuzz_playlist(const char *data, size_t size)
{
    struct hls_playlist playlist;
    char path[HLS_PATH_BYTES], *text;
    size_t bytes;
    if (hls_playlist_parse(data, size, &playlist, NULL) != CORE_OK)
        return;
    for (size_t i = 0; i < playlist.item_count; i++)
        if (hls_path_resolve("live/a.m3u8", playlist.items[i].uri, playlist.items[i].uri_bytes, path) ==
            CORE_OK)
            require_inside(path);
    struct hls_place *places = calloc(playlist.item_count + 1, sizeof *places);
    require(places != NULL);
    place(&playlist, size, places);
    if (!playlist.master && hls_playlist_render(&playlist, places, &text, &bytes) == CORE_OK &&
        text != NULL) {
        read_again(&playlist, places, text, bytes);
        free(text);
    }
    free(places);
    hls_playlist_free(&playlist);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hls_key_info info;
    char *text = malloc(size + 1), path[HLS_PATH_BYTES], uri[HLS_URI_BYTES];
    require(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    fuzz_playlist(text, size);
    if (hls_path_resolve("", text, size, path) == CORE_OK)
        require_inside(path);
    if (hls_key_info_parse(text, &info, NULL) == CORE_OK)
        require(info.uri[0] != '\0' && strchr(info.uri, '"') == NULL && info.path[0] != '\0');
    if (hls_key_uri(text, "0123", "a/b", uri))
        require(strpbrk(uri, "\"\r\n") == NULL);
    free(text);
    return 0;
}
