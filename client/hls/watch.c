#include "client/hls/watch.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

static bool join(const char *folder, const char *name, char path[HLS_PATH_BYTES])
{
    int bytes = snprintf(path, HLS_PATH_BYTES, "%s%s%s", folder, folder[0] != '\0' ? "/" : "", name);
    return name[0] != '.' && bytes < HLS_PATH_BYTES;
}

static void add_folder(struct hls_watch *watch, const char *path);

/* Folders and other files first, so that a playlist finds what it names. */
static void scan(struct hls_watch *watch, const char *path, DIR *folder)
{
    char inner[HLS_PATH_BYTES];
    struct stat about;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (!join(path, entry->d_name, inner) || fstatat(dirfd(folder), entry->d_name, &about, 0) != 0)
            continue;
        if (S_ISDIR(about.st_mode))
            add_folder(watch, inner);
        else
            hls_notice(watch->hls, inner);
    }
}

/* The place of the folder with this number. watch->count: it has none. */
static size_t find_place(const struct hls_watch *watch, int number)
{
    size_t at = 0;
    while (at < watch->count && watch->folders[at].number != number)
        at++;
    return at;
}

static core_status try_folder(struct hls_watch *watch, const char *path, struct core_error *error)
{
    char whole[2 * HLS_PATH_BYTES];
    const uint32_t events = IN_CLOSE_WRITE | IN_MOVED_TO | IN_DELETE | IN_CREATE | IN_ONLYDIR;
    snprintf(whole, sizeof whole, "%s/%s", watch->root, path);
    DIR *folder = opendir(whole);
    int number = folder == NULL ? -1 : inotify_add_watch(watch->descriptor, whole, events);
    size_t at = find_place(watch, number);
    core_status status = CORE_OK;
    if (number < 0) {
        status = core_error_errno(error, "%s can not be watched%s", whole,
                                  errno == ENOSPC ? ": fs.inotify.max_user_watches" : "");
    } else if (at == HLS_WATCH_FOLDERS) {
        status = core_error_set(error, CORE_FULL, "%s is not watched: more than %d folders", whole,
                                HLS_WATCH_FOLDERS);
    } else {
        watch->folders[at].number = number;
        snprintf(watch->folders[at].path, HLS_PATH_BYTES, "%s", path);
        watch->count += at == watch->count;
        scan(watch, path, folder);
    }
    if (folder != NULL)
        closedir(folder);
    return status;
}

static void add_folder(struct hls_watch *watch, const char *path)
{
    struct core_error error;
    if (try_folder(watch, path, &error) != CORE_OK)
        watch->hls->say("%s", error.text);
}

static void drop_folder(struct hls_watch *watch, size_t at)
{
    watch->folders[at] = watch->folders[--watch->count];
}

static void take_change(struct hls_watch *watch, const struct inotify_event *event, const char *path)
{
    if (event->mask & IN_ISDIR) {
        if (event->mask & (IN_CREATE | IN_MOVED_TO))
            add_folder(watch, path);
    } else if (event->mask & IN_DELETE) {
        hls_remove(watch->hls, path);
    } else if (event->mask & (IN_CLOSE_WRITE | IN_MOVED_TO)) {
        hls_notice(watch->hls, path);
    }
}

static void take_event(struct hls_watch *watch, const struct inotify_event *event)
{
    char path[HLS_PATH_BYTES];
    size_t at = find_place(watch, event->wd);
    if (event->mask & IN_Q_OVERFLOW) /* some are lost */
        add_folder(watch, "");
    else if (at == watch->count)
        return;
    else if (event->mask & IN_IGNORED)
        drop_folder(watch, at);
    else if (event->len > 0 && join(watch->folders[at].path, event->name, path))
        take_change(watch, event, path);
}

void hls_watch_read(struct hls_watch *watch)
{
    _Alignas(struct inotify_event) char events[16384];
    ssize_t bytes = read(watch->descriptor, events, sizeof events);
    for (ssize_t at = 0; at < bytes;) {
        const struct inotify_event *event = (const void *)(events + at);
        take_event(watch, event);
        at += (ssize_t)(sizeof *event + event->len);
    }
}

core_status hls_watch_start(struct hls_watch *watch, struct hls *hls, const char *root,
                            struct core_error *error)
{
    watch->hls = hls;
    watch->root = root;
    watch->count = 0;
    watch->descriptor = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (watch->descriptor < 0)
        return core_error_errno(error, "inotify");
    return try_folder(watch, "", error);
}
