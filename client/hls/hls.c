#include "client/hls/hls.h"

#include "core/secret.h"

#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define PLAYLIST_BYTES_MAX ((size_t)8 << 20)
#define UNNAMED_NS         (60 * CORE_NS_PER_S) /* that a file is kept which no playlist has named */
#define SWEEP_NS           CORE_NS_PER_S
#define PATIENCE_NS        (2 * CORE_NS_PER_S)   /* for a named file that is not there, at least */
#define WAIT_NS_MIN        (20 * CORE_NS_PER_MS) /* of what a file may wait, where no option says it */
#define WAIT_NS_MAX        CORE_NS_PER_S

enum file_state {
    FILE_MISSING, /* named, and not there */
    FILE_CLEAR,   /* here, in clear */
    FILE_SENT,    /* on its way */
    FILE_READY,   /* encrypted and in the output */
    FILE_GONE     /* given up */
};

/* A segment, a part or a map. */
struct file {
    char *path;
    enum file_state state;
    uint8_t *clear; /* if CLEAR */
    size_t bytes;
    core_ns since_ns;            /* MISSING, or here */
    struct timespec changed;     /* of the input folder's file that was read */
    struct hls_rendition *owner; /* whose playlist named it; NULL: none yet */
    uint64_t turn;               /* of the owner, that named it last */
    enum hls_item_kind kind;
    struct hls_cover cover; /* its IV is always there */
    uint64_t sequence;
    struct hls_job *job; /* if SENT */
};

struct hls_rendition {
    struct hls_rendition *next;
    struct hls *hls;
    char *path, *name;
    struct hls_playlist playlist; /* the newest; no lines: none yet */
    bool changed;                 /* there is something to be looked at */
    uint64_t turn;
    struct hls_stream stream;
    struct hls_key *key;   /* of the newest segment; NULL: none yet */
    uint64_t key_sequence; /* the newest media sequence number under it */
    char *published;       /* what the output has; NULL: not known */
    size_t published_bytes;
};

/* ---- files ---- */

static int compare_files(const void *one, const void *two)
{
    return strcmp(((const struct file *)one)->path, ((const struct file *)two)->path);
}

static struct file *find_file(const struct hls *hls, const char *path)
{
    const struct file wanted = {.path = (char *)(uintptr_t)path};
    struct file *const *found = tfind(&wanted, &hls->files, compare_files);
    return found == NULL ? NULL : *found;
}

static struct file *make_file(struct hls *hls, const char *path)
{
    struct file *file = find_file(hls, path);
    if (file != NULL)
        return file;
    file = calloc(1, sizeof *file);
    if (file != NULL && (file->path = strdup(path)) != NULL &&
        tsearch(file, &hls->files, compare_files) != NULL) {
        file->since_ns = core_time_now_ns();
        return file;
    }
    if (file != NULL)
        free(file->path);
    free(file);
    return NULL;
}

/* Whatever it was, it is not there. */
static void clear_file(struct hls *hls, struct file *file)
{
    if (file->job != NULL)
        file->job->owner = NULL; /* comes back for nobody */
    if (file->clear != NULL) {
        core_secret_wipe(file->clear, file->bytes);
        hls->clear_bytes -= file->bytes;
    }
    free(file->clear);
    file->clear = NULL;
    file->job = NULL;
    file->state = FILE_MISSING;
    file->since_ns = core_time_now_ns();
}

static void drop_file(struct hls *hls, struct file *file)
{
    clear_file(hls, file);
    tdelete(file, &hls->files, compare_files);
    free(file->path);
    free(file);
}

static void fill_file(struct hls *hls, struct file *file, uint8_t *content, size_t bytes)
{
    clear_file(hls, file);
    file->state = FILE_CLEAR;
    file->clear = content;
    file->bytes = bytes;
    hls->clear_bytes += bytes;
    if (file->owner != NULL)
        file->owner->changed = true;
}

bool hls_has_room(const struct hls *hls, size_t bytes)
{
    return bytes <= hls->memory_max && hls->clear_bytes <= hls->memory_max - bytes;
}

/* ---- renditions ---- */

static struct hls_rendition *find_rendition(const struct hls *hls, const char *path)
{
    struct hls_rendition *rendition = hls->renditions;
    while (rendition != NULL && strcmp(rendition->path, path) != 0)
        rendition = rendition->next;
    return rendition;
}

static bool item_path(const struct hls_rendition *rendition, const struct hls_item *item,
                      char path[HLS_PATH_BYTES])
{
    return hls_path_resolve(rendition->path, item->uri, item->uri_bytes, path) == CORE_OK;
}

static void sequence_iv(uint64_t sequence, uint8_t iv[CORE_BLOCK_BYTES])
{
    memset(iv, 0, CORE_BLOCK_BYTES);
    for (int i = 0; i < 8; i++)
        iv[CORE_BLOCK_BYTES - 1 - i] = (uint8_t)(sequence >> (8 * i));
}

/* A file that the output's playlist names is done, if it is there and not older than its source. */
static void restore_item(struct hls_rendition *rendition, const struct hls_item *item)
{
    struct hls *hls = rendition->hls;
    char path[HLS_PATH_BYTES];
    struct timespec done, source;
    if (item->cover.key_uri[0] == '\0' || item->gap || !item_path(rendition, item, path) ||
        !hls_file_changed(hls->output, path, &done))
        return;
    bool has_source = hls->input >= 0 && hls_file_changed(hls->input, path, &source);
    if (has_source && hls_time_is_later(&source, &done))
        return;
    struct file *file = make_file(hls, path);
    if (file == NULL || file->state != FILE_MISSING)
        return;
    file->state = FILE_READY;
    file->kind = item->kind;
    file->owner = rendition;
    file->cover = item->cover;
    file->sequence = item->sequence;
    if (has_source)
        file->changed = source;
    if (!item->cover.has_iv)
        sequence_iv(item->sequence, file->cover.iv);
}

/* Goes on where a process before has stopped. */
static void restore(struct hls_rendition *rendition)
{
    struct hls_playlist playlist;
    struct timespec changed;
    uint8_t *text;
    size_t bytes;
    if (hls_file_read(rendition->hls->output, rendition->path, PLAYLIST_BYTES_MAX, &text, &bytes, &changed) !=
        CORE_OK)
        return;
    rendition->published = (char *)text;
    rendition->published_bytes = bytes;
    if (hls_playlist_parse(rendition->published, bytes, &playlist, NULL) != CORE_OK)
        return;
    for (size_t i = 0; i < playlist.item_count; i++)
        restore_item(rendition, &playlist.items[i]);
    hls_playlist_free(&playlist);
}

static struct hls_rendition *make_rendition(struct hls *hls, const char *path)
{
    struct hls_rendition *rendition = calloc(1, sizeof *rendition);
    if (rendition == NULL)
        return NULL;
    rendition->path = strdup(path);
    rendition->name = strdup(path);
    if (rendition->path == NULL || rendition->name == NULL) {
        free(rendition->path);
        free(rendition->name);
        free(rendition);
        return NULL;
    }
    *strrchr(rendition->name, '.') = '\0';
    rendition->hls = hls;
    rendition->stream.name = rendition->path;
    hls_stream_add(&hls->link, &rendition->stream);
    rendition->next = hls->renditions;
    hls->renditions = rendition;
    hls->rendition_count++;
    restore(rendition);
    return rendition;
}

/* ---- keys ---- */

/* Told once, since it is tried again and again. */
static void tell_key_error(struct hls *hls, const struct core_error *error)
{
    if (strcmp(hls->key_error, error->text) != 0)
        hls->say("%s", error->text);
    snprintf(hls->key_error, sizeof hls->key_error, "%s", error->text);
}

/* What belongs to one media sequence number is under one key. Numbers that run backwards begin something new,
 * and so a new key. */
static bool choose_key(struct hls_rendition *rendition, uint64_t sequence)
{
    struct hls_keys *keys = &rendition->hls->keys;
    struct hls_key *key = NULL;
    struct core_error error;
    if (rendition->key != NULL && sequence == rendition->key_sequence)
        return true;
    core_status status = CORE_OK;
    if (keys->info_file != NULL)
        status = hls_keys_given(keys, &key, &error);
    else if (rendition->key != NULL && sequence > rendition->key_sequence &&
             sequence / keys->rotate == rendition->key_sequence / keys->rotate)
        key = hls_key_take(rendition->key);
    else
        status = hls_keys_draw(keys, rendition->name, &key, &error);
    if (status)
        tell_key_error(rendition->hls, &error);
    if (key == NULL)
        return false;
    rendition->hls->key_error[0] = status ? rendition->hls->key_error[0] : '\0';
    hls_key_drop(rendition->key);
    rendition->key = key;
    rendition->key_sequence = sequence;
    return true;
}

/* By media sequence number, unless the key comes with an IV; a map needs one that is said. */
static bool choose_cover(struct file *file, const struct hls_item *item, const struct hls_key *key)
{
    file->sequence = item->sequence;
    memcpy(file->cover.key_uri, key->uri, sizeof key->uri);
    file->cover.has_iv = key->has_iv || item->kind == HLS_MAP;
    if (key->has_iv)
        memcpy(file->cover.iv, key->iv, CORE_BLOCK_BYTES);
    else if (item->kind == HLS_MAP)
        return getrandom(file->cover.iv, CORE_BLOCK_BYTES, 0) == CORE_BLOCK_BYTES;
    else
        sequence_iv(item->sequence, file->cover.iv);
    return true;
}

/* ---- encryption ---- */

static void encrypt_file(struct hls_rendition *rendition, struct file *file, const struct hls_item *item)
{
    if (!choose_key(rendition, item->sequence) || !choose_cover(file, item, rendition->key))
        return; /* the next turn may */
    struct hls_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return;
    *job = (struct hls_job){
        .owner = file, .clear = file->clear, .bytes = file->bytes, .key = hls_key_take(rendition->key)};
    memcpy(job->iv, file->cover.iv, CORE_BLOCK_BYTES);
    file->clear = NULL;
    file->job = job;
    file->state = FILE_SENT;
    if (hls_stream_submit(&rendition->stream, job) == CORE_OK)
        return;
    file->clear = job->clear;
    job->clear = NULL;
    file->job = NULL;
    file->state = FILE_CLEAR;
    hls_job_free(job);
}

static void count_done(struct hls *hls, const struct file *file, const struct hls_job *job)
{
    core_ns delay_ns = core_time_now_ns() - file->since_ns;
    core_histogram_record(&hls->delay, delay_ns);
    hls->counts.late += delay_ns > file->owner->stream.wait_ns;
    hls->counts.bytes += job->cipher_bytes;
    hls->counts.segments += file->kind == HLS_SEGMENT;
    hls->counts.parts += file->kind == HLS_PART;
    hls->counts.maps += file->kind == HLS_MAP;
}

/* hls_link's: a file is encrypted, or can not be. */
static void on_done(void *argument, struct hls_job *job)
{
    struct hls *hls = argument;
    struct file *file = job->owner;
    struct core_error error;
    hls->clear_bytes -= job->bytes;
    if (file != NULL) {
        file->job = NULL;
        file->owner->changed = true;
        file->state = FILE_READY;
        if (job->failed ||
            hls_file_publish(hls->output, file->path, job->cipher, job->cipher_bytes, &error) != CORE_OK) {
            hls->say("%s is left out: %s", file->path,
                     job->failed ? "the server has not encrypted it" : error.text);
            file->state = FILE_GONE;
            hls->counts.gone++;
        } else {
            count_done(hls, file, job);
        }
    }
    hls_job_free(job);
}

/* Reads it from the input folder, if files come from there. */
static void load_file(struct hls *hls, struct file *file)
{
    uint8_t *content;
    size_t bytes;
    struct timespec changed;
    if (hls->input < 0)
        return;
    core_status status = hls_file_read(hls->input, file->path, hls->memory_max, &content, &bytes, &changed);
    if (status == CORE_OK && hls_has_room(hls, bytes)) {
        fill_file(hls, file, content, bytes);
        file->changed = changed;
    } else if (status == CORE_OK) {
        free(content);
        file->since_ns = core_time_now_ns(); /* it is there: waited for until there is room */
    }
}

/* A file that does not come for so long never will. */
static void give_up(struct hls_rendition *rendition, struct file *file)
{
    core_ns target_ns = (core_ns)(rendition->playlist.target_s * 1e9);
    if (file->kind == HLS_MAP || core_time_now_ns() - file->since_ns < core_time_max(target_ns, PATIENCE_NS))
        return;
    file->state = FILE_GONE;
    rendition->hls->counts.gone++;
    rendition->hls->say("%s never came: a gap in %s", file->path, rendition->path);
}

/* ---- publishing ---- */

static struct hls_place place_item(struct hls_rendition *rendition, const struct hls_item *item)
{
    struct hls *hls = rendition->hls;
    char path[HLS_PATH_BYTES];
    struct file *file = item->gap || !item_path(rendition, item, path) ? NULL : make_file(hls, path);
    if (file == NULL)
        return (struct hls_place){HLS_GONE, NULL};
    if (file->owner == NULL && file->state == FILE_MISSING)
        file->since_ns = core_time_now_ns();
    file->owner = rendition;
    file->kind = item->kind;
    file->turn = rendition->turn;
    if (file->state == FILE_MISSING)
        load_file(hls, file);
    if (file->state == FILE_CLEAR)
        encrypt_file(rendition, file, item);
    if (file->state == FILE_MISSING)
        give_up(rendition, file);
    if (file->state == FILE_READY && item->sequence != file->sequence)
        file->cover.has_iv = true; /* it has another number now */
    return (struct hls_place){file->state == FILE_READY  ? HLS_READY
                              : file->state == FILE_GONE ? HLS_GONE
                                                         : HLS_WAITING,
                              &file->cover};
}

/* The output's playlist becomes this text, which is taken over. */
static void publish(struct hls_rendition *rendition, char *text, size_t bytes)
{
    struct hls *hls = rendition->hls;
    struct core_error error;
    if (rendition->published != NULL && rendition->published_bytes == bytes &&
        memcmp(rendition->published, text, bytes) == 0) {
        free(text);
        return;
    }
    if (hls_file_publish(hls->output, rendition->path, text, bytes, &error) != CORE_OK) {
        hls->say("%s", error.text);
        free(text);
        return;
    }
    free(rendition->published);
    rendition->published = text;
    rendition->published_bytes = bytes;
    hls->counts.playlists++;
}

/* A master playlist is published once every playlist that it names is. */
static void update_master(struct hls_rendition *rendition)
{
    const struct hls_playlist *playlist = &rendition->playlist;
    char path[HLS_PATH_BYTES];
    for (size_t i = 0; i < playlist->item_count; i++) {
        if (!item_path(rendition, &playlist->items[i], path))
            continue; /* elsewhere */
        const struct hls_rendition *named = find_rendition(rendition->hls, path);
        if (named == NULL || named->published == NULL)
            return;
    }
    size_t bytes = strlen(playlist->text);
    char *text = strdup(playlist->text);
    if (text != NULL)
        publish(rendition, text, bytes);
}

static void set_contract(struct hls_rendition *rendition)
{
    const struct hls_playlist *playlist = &rendition->playlist;
    double target_s = playlist->target_s > 0 ? playlist->target_s : 1;
    double shortest_s = playlist->part_target_s > 0 ? playlist->part_target_s : target_s;
    core_ns wait_ns = (core_ns)(shortest_s * 1e9 / 4);
    wait_ns = wait_ns < WAIT_NS_MIN ? WAIT_NS_MIN : wait_ns > WAIT_NS_MAX ? WAIT_NS_MAX : wait_ns;
    rendition->stream.target_s = target_s;
    rendition->stream.has_parts = playlist->part_target_s > 0;
    rendition->stream.wait_ns = rendition->hls->wait_ns > 0 ? rendition->hls->wait_ns : wait_ns;
}

static void update_media(struct hls_rendition *rendition)
{
    const struct hls_playlist *playlist = &rendition->playlist;
    struct hls_place *places = calloc(playlist->item_count + 1, sizeof *places);
    char *text = NULL;
    size_t bytes;
    if (places == NULL)
        return;
    rendition->turn++;
    set_contract(rendition);
    bool waits = false;
    for (size_t i = 0; i < playlist->item_count; i++) {
        places[i] = place_item(rendition, &playlist->items[i]);
        waits |= places[i].state == HLS_WAITING;
    }
    if (hls_playlist_render(playlist, places, &text, &bytes) == CORE_OK && text != NULL)
        publish(rendition, text, bytes);
    free(places);
    rendition->changed = waits; /* looked at again */
}

/* ---- what comes ---- */

core_status hls_put(struct hls *hls, const char *path, uint8_t *content, size_t bytes,
                    struct core_error *error)
{
    struct hls_playlist playlist;
    core_status status = CORE_OK;
    if (!hls_path_is_playlist(path)) {
        struct file *file = hls_has_room(hls, bytes) ? make_file(hls, path) : NULL;
        if (file == NULL) {
            free(content);
            return core_error_set(error, CORE_FULL, "no memory for %s now", path);
        }
        fill_file(hls, file, content, bytes);
        return CORE_OK;
    }
    status = hls_playlist_parse((const char *)content, bytes, &playlist, error);
    free(content);
    for (size_t i = 0; status == CORE_OK && i < playlist.item_count; i++)
        if (playlist.items[i].cover.key_uri[0] != '\0') {
            status = core_error_set(error, CORE_UNSUPPORTED, "it is encrypted already");
            hls_playlist_free(&playlist);
        }
    struct hls_rendition *rendition = status ? NULL : find_rendition(hls, path);
    if (rendition == NULL && status == CORE_OK && (rendition = make_rendition(hls, path)) == NULL) {
        hls_playlist_free(&playlist);
        status = core_error_set(error, CORE_FULL, "no memory");
    }
    if (status) {
        hls->counts.refused++;
        return core_error_prefix(error, status, "%s", path);
    }
    hls_playlist_free(&rendition->playlist);
    rendition->playlist = playlist;
    rendition->changed = true;
    return CORE_OK;
}

void hls_notice(struct hls *hls, const char *path)
{
    struct timespec changed;
    struct core_error error;
    uint8_t *content;
    size_t bytes;
    if (hls_path_is_playlist(path)) {
        if (hls_file_read(hls->input, path, PLAYLIST_BYTES_MAX, &content, &bytes, &changed) == CORE_OK &&
            hls_put(hls, path, content, bytes, &error) != CORE_OK)
            hls->say("%s", error.text);
        return;
    }
    struct file *file = find_file(hls, path);
    if (file == NULL || !hls_file_changed(hls->input, path, &changed) ||
        (changed.tv_sec == file->changed.tv_sec && changed.tv_nsec == file->changed.tv_nsec))
        return;
    clear_file(hls, file);
    if (file->owner != NULL)
        file->owner->changed = true;
}

void hls_remove(struct hls *hls, const char *path)
{
    struct file *file = find_file(hls, path);
    struct hls_rendition *rendition = find_rendition(hls, path);
    if (file != NULL)
        drop_file(hls, file);
    if (rendition != NULL) { /* which may come back as it was */
        hls_playlist_free(&rendition->playlist);
        rendition->changed = false;
        free(rendition->published);
        rendition->published = NULL;
    }
    hls_file_remove(hls->output, path);
}

/* ---- turns ---- */

struct sweep {
    struct file **unused;
    size_t count;
    core_ns now_ns;
};

static void look_at_file(const void *node, VISIT order, void *argument)
{
    struct sweep *sweep = argument;
    struct file *file = *(struct file *const *)node;
    if (order != postorder && order != leaf)
        return;
    bool unused = file->owner == NULL
                      ? sweep->now_ns - file->since_ns > UNNAMED_NS
                      : file->turn != file->owner->turn && file->state != FILE_SENT && file->owner->turn > 0;
    if (unused)
        sweep->unused[sweep->count++] = file;
}

static void count_file(const void *node, VISIT order, void *argument)
{
    (void)node;
    *(size_t *)argument += order == postorder || order == leaf;
}

/* Forgets the files that no playlist names any more. */
static void sweep_files(struct hls *hls, core_ns now_ns)
{
    size_t count = 0;
    if (now_ns - hls->swept_ns < SWEEP_NS)
        return;
    hls->swept_ns = now_ns;
    twalk_r(hls->files, count_file, &count);
    struct sweep sweep = {.unused = calloc(count + 1, sizeof(struct file *)), .now_ns = now_ns};
    if (sweep.unused == NULL)
        return;
    twalk_r(hls->files, look_at_file, &sweep);
    for (size_t i = 0; i < sweep.count; i++)
        drop_file(hls, sweep.unused[i]);
    free(sweep.unused);
}

static void update(struct hls *hls)
{
    for (struct hls_rendition *rendition = hls->renditions; rendition != NULL; rendition = rendition->next)
        if (rendition->playlist.master)
            update_master(rendition);
        else if (rendition->changed)
            update_media(rendition);
}

void hls_turn(struct hls *hls, core_ns now_ns)
{
    update(hls);
    hls_link_turn(&hls->link, now_ns);
    update(hls);
    hls_link_turn(&hls->link, now_ns); /* what has been given to it just now */
    sweep_files(hls, now_ns);
}

bool hls_is_busy(const struct hls *hls)
{
    return hls_link_is_busy(&hls->link);
}

void hls_start(struct hls *hls)
{
    core_histogram_init(&hls->delay);
    hls->link.argument = hls;
    hls->link.done = on_done;
    hls->link.say = hls->say;
}

static void free_file(void *node)
{
    struct file *file = node;
    free(file->clear);
    free(file->path);
    free(file);
}

void hls_close(struct hls *hls)
{
    while (hls->renditions != NULL) {
        struct hls_rendition *rendition = hls->renditions;
        hls->renditions = rendition->next;
        hls_stream_remove(&rendition->stream);
        hls_playlist_free(&rendition->playlist);
        hls_key_drop(rendition->key);
        free(rendition->published);
        free(rendition->path);
        free(rendition->name);
        free(rendition);
    }
    tdestroy(hls->files, free_file);
    hls_link_close(&hls->link);
    hls_keys_close(&hls->keys);
}
