#include "client/hls/watch.h"

#include <dirent.h>
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

static void add_folder(struct hls_watch *watch, const char *path)
{
    char whole[2 * HLS_PATH_BYTES];
    const uint32_t events = IN_CLOSE_WRITE | IN_MOVED_TO | IN_DELETE | IN_CREATE | IN_ONLYDIR;
    snprintf(whole, sizeof whole, "%s/%s", watch->root, path);
    int number = inotify_add_watch(watch->descriptor, whole, events);
    DIR *folder = number < 0 ? NULL : opendir(whole);
    size_t at = 0;
    if (folder == NULL)
        return;
    while (at < watch->count && watch->folders[at].number != number)
        at++;
    if (at < HLS_WATCH_FOLDERS) {
        watch->folders[at].number = number;
        snprintf(watch->folders[at].path, HLS_PATH_BYTES, "%s", path);
        watch->count += at == watch->count;
        scan(watch, path, folder);
    } else {
        watch->hls->say("%s is not watched: more than %d folders", whole, HLS_WATCH_FOLDERS);
    }
    closedir(folder);
}

static void take_event(struct hls_watch *watch, const struct inotify_event *event)
{
    char path[HLS_PATH_BYTES];
    if (event->mask & IN_Q_OVERFLOW) {
        add_folder(watch, "");
        return;
    }
    for (size_t i = 0; i < watch->count; i++) {
        if (watch->folders[i].number != event->wd || event->len == 0 ||
            !join(watch->folders[i].path, event->name, path))
            continue;
        if (event->mask & IN_ISDIR) {
            if (event->mask & (IN_CREATE | IN_MOVED_TO))
                add_folder(watch, path);
        } else if (event->mask & IN_DELETE) {
            hls_remove(watch->hls, path);
        } else if (event->mask & (IN_CLOSE_WRITE | IN_MOVED_TO)) {
            hls_notice(watch->hls, path);
        }
        return;
    }
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
    add_folder(watch, "");
    return watch->count > 0 ? CORE_OK : core_error_set(error, CORE_SYSTEM, "%s can not be watched", root);
}
