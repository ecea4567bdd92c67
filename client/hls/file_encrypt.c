/* The way of a file from clear to published. */
#include "client/hls/file.h"
#include "client/hls/rendition.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define PATIENCE_NS (2 * CORE_NS_PER_S) /* for a named file that is not there, at least */

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
    else
        rendition->hls->key_error[0] = '\0';
    if (key == NULL)
        return false;
    hls_key_drop(rendition->key);
    rendition->key = key;
    rendition->key_sequence = sequence;
    return true;
}

/* By media sequence number, unless the key comes with an IV; a map needs one that is said. */
static bool choose_cover(struct hls_file *file, const struct hls_item *item, const struct hls_key *key)
{
    file->sequence = item->sequence;
    memcpy(file->cover.key_uri, key->uri, sizeof key->uri);
    file->cover.has_iv = key->has_iv || item->kind == HLS_MAP;
    if (key->has_iv)
        memcpy(file->cover.iv, key->iv, CORE_BLOCK_BYTES);
    else if (item->kind == HLS_MAP)
        return getrandom(file->cover.iv, CORE_BLOCK_BYTES, 0) == CORE_BLOCK_BYTES;
    else
        hls_sequence_iv(item->sequence, file->cover.iv);
    return true;
}

/* ---- there ---- */

static void leave_out(struct hls_file *file, const char *reason)
{
    struct hls_rendition *rendition = file->owner;
    file->state = HLS_FILE_GONE;
    rendition->hls->counts.gone++;
    rendition->hls->say("%s is left out, a gap in %s: %s", file->path, rendition->path, reason);
}

/* Reads it from the input folder, if files come from there. The error says why it is not there. */
static void load(struct hls *hls, struct hls_file *file, struct core_error *error)
{
    uint8_t *content;
    size_t bytes;
    struct stat about;
    core_status status = CORE_NOT_FOUND;
    if (hls->input >= 0)
        status = hls_folder_read(hls->input, file->path, hls->memory_max, &content, &bytes, &about, error);
    if (status == CORE_OK && hls_has_room(hls, bytes)) {
        hls_file_fill(hls, file, content, bytes);
        file->source = about;
    } else if (status == CORE_OK) {
        free(content);
        file->since_ns = core_time_now_ns(); /* it is there: waited for until there is room */
    } else if (status == CORE_NOT_FOUND) {
        (void)core_error_set(error, status, "it never came");
    }
}

/* A file that does not come for so long never will. */
static void give_up(struct hls_file *file, const struct core_error *reason)
{
    struct hls_rendition *rendition = file->owner;
    core_ns target_ns = (core_ns)(rendition->playlist.target_s * 1e9);
    if (file->kind == HLS_MAP || core_time_now_ns() - file->since_ns < core_time_max(target_ns, PATIENCE_NS))
        return;
    leave_out(file, reason->text);
}

static void encrypt(struct hls_file *file, const struct hls_item *item)
{
    struct hls_rendition *rendition = file->owner;
    if (!choose_key(rendition, item->sequence) || !choose_cover(file, item, rendition->key))
        return; /* later */
    struct hls_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return;
    *job = (struct hls_job){.owner = file,
                            .clear = file->clear,
                            .bytes = file->bytes,
                            .kind = file->kind == HLS_PART ? HLS_KIND_PART : HLS_KIND_SEGMENT,
                            .key = hls_key_take(rendition->key)};
    memcpy(job->iv, file->cover.iv, CORE_BLOCK_BYTES);
    if (hls_stream_submit(&rendition->stream, job) == CORE_OK) {
        file->clear = NULL;
        file->job = job;
        file->state = HLS_FILE_SENT;
        return;
    }
    job->clear = NULL; /* the file's still */
    job->bytes = 0;
    hls_job_free(job);
}

/* ---- and back ---- */

static void count_done(struct hls *hls, const struct hls_file *file)
{
    core_ns delay_ns = core_time_now_ns() - file->since_ns;
    core_histogram_record(&hls->delay, delay_ns);
    hls->counts.late += delay_ns > file->owner->stream.wait_ns;
    hls->counts.bytes += file->job->cipher_bytes;
    hls->counts.segments += file->kind == HLS_SEGMENT;
    hls->counts.parts += file->kind == HLS_PART;
    hls->counts.maps += file->kind == HLS_MAP;
}

/* Puts what is encrypted into the output, or waits until that has room. */
static void publish(struct hls *hls, struct hls_file *file)
{
    struct hls_job *job = file->job;
    struct core_error error = {.text = "the server has not encrypted it"};
    core_status status =
        job->failed ? CORE_CLOSED : hls_publish(hls, file->path, job->cipher, job->cipher_bytes, &error);
    file->state = status == CORE_FULL ? HLS_FILE_CIPHER : HLS_FILE_READY;
    if (status == CORE_FULL)
        return;
    if (status == CORE_OK)
        count_done(hls, file);
    else
        leave_out(file, error.text);
    file->job = NULL;
    hls->clear_bytes -= job->bytes;
    hls_job_free(job);
}

void hls_file_done(struct hls *hls, struct hls_job *job)
{
    struct hls_file *file = job->owner;
    if (file != NULL) {
        hls_rendition_touch(file->owner);
        publish(hls, file);
        return;
    }
    hls->clear_bytes -= job->bytes;
    hls_job_free(job);
}

void hls_file_advance(struct hls_file *file, const struct hls_item *item)
{
    struct hls *hls = file->owner->hls;
    struct core_error error;
    if (file->state == HLS_FILE_MISSING)
        load(hls, file, &error);
    if (file->state == HLS_FILE_CLEAR)
        encrypt(file, item);
    if (file->state == HLS_FILE_CIPHER)
        publish(hls, file);
    if (file->state == HLS_FILE_MISSING)
        give_up(file, &error);
}
