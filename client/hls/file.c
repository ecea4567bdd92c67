#include "client/hls/file.h"

#include "client/hls/rendition.h"
#include "core/secret.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

#define UNNAMED_NS (60 * CORE_NS_PER_S) /* that a file is kept which no playlist has named */

static int compare_files(const void *one, const void *two)
{
    return strcmp(((const struct hls_file *)one)->path, ((const struct hls_file *)two)->path);
}

struct hls_file *hls_file_find(const struct hls *hls, const char *path)
{
    const struct hls_file wanted = {.path = (char *)(uintptr_t)path};
    struct hls_file *const *found = tfind(&wanted, &hls->files, compare_files);
    return found == NULL ? NULL : *found;
}

struct hls_file *hls_file_make(struct hls *hls, const char *path)
{
    struct hls_file *file = hls_file_find(hls, path);
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

static void drop_job(struct hls *hls, struct hls_file *file)
{
    if (file->state == HLS_FILE_CIPHER) {
        hls->clear_bytes -= file->job->bytes;
        hls_job_free(file->job);
    } else if (file->job != NULL) {
        file->job->owner = NULL; /* comes back for nobody */
    }
    file->job = NULL;
}

void hls_file_clear(struct hls *hls, struct hls_file *file)
{
    drop_job(hls, file);
    if (file->clear != NULL) {
        core_secret_wipe(file->clear, file->bytes);
        hls->clear_bytes -= file->bytes;
    }
    free(file->clear);
    file->clear = NULL;
    file->state = HLS_FILE_MISSING;
    file->since_ns = core_time_now_ns();
}

void hls_file_fill(struct hls *hls, struct hls_file *file, uint8_t *content, size_t bytes)
{
    hls_file_clear(hls, file);
    file->state = HLS_FILE_CLEAR;
    file->clear = content;
    file->bytes = bytes;
    hls->clear_bytes += bytes;
    if (file->owner != NULL)
        hls_rendition_touch(file->owner);
}

void hls_file_drop(struct hls *hls, struct hls_file *file)
{
    hls_file_clear(hls, file);
    tdelete(file, &hls->files, compare_files);
    free(file->path);
    free(file);
}

/* ---- all of them ---- */

struct sweep {
    struct hls_file *unused; /* a list */
    core_ns now_ns;          /* CORE_NS_NEVER: all are */
};

static bool is_unused(const struct hls_file *file, core_ns now_ns)
{
    if (now_ns == CORE_NS_NEVER)
        return true;
    if (file->owner == NULL)
        return now_ns - file->since_ns > UNNAMED_NS;
    return file->turn != file->owner->turn && file->state != HLS_FILE_SENT && file->owner->turn > 0;
}

static void look_at_file(const void *node, VISIT order, void *argument)
{
    struct sweep *sweep = argument;
    struct hls_file *file = *(struct hls_file *const *)node;
    if ((order != postorder && order != leaf) || !is_unused(file, sweep->now_ns))
        return;
    file->next_unused = sweep->unused;
    sweep->unused = file;
}

void hls_files_sweep(struct hls *hls, core_ns now_ns)
{
    struct sweep sweep = {.now_ns = now_ns};
    twalk_r(hls->files, look_at_file, &sweep);
    while (sweep.unused != NULL) {
        struct hls_file *file = sweep.unused;
        sweep.unused = file->next_unused;
        hls_file_drop(hls, file);
    }
}
