#include "client/hls/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPORARY ".millrace-hls.tmp" /* the only one: whatever is left of it is written over */

core_status hls_folder_open(const char *folder, int *descriptor, struct core_error *error)
{
    int opened = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0)
        return core_error_errno(error, "the folder %s", folder);
    if (flock(opened, LOCK_EX | LOCK_NB) != 0) {
        close(opened);
        return core_error_set(error, CORE_IN_USE, "another process writes into %s", folder);
    }
    *descriptor = opened;
    return CORE_OK;
}

static core_status read_whole(int file, uint8_t *content, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t count = read(file, content + done, bytes - done);
        if (count <= 0 && !(count < 0 && errno == EINTR))
            return CORE_SYSTEM; /* shorter than it was a moment ago, or unreadable */
        done += count > 0 ? (size_t)count : 0;
    }
    return CORE_OK;
}

core_status hls_file_read(int folder, const char *path, size_t bytes_max, uint8_t **content, size_t *bytes,
                          struct timespec *changed)
{
    struct stat about;
    int file = openat(folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return errno == ENOENT || errno == ENOTDIR ? CORE_NOT_FOUND : CORE_SYSTEM;
    core_status status = CORE_SYSTEM;
    if (fstat(file, &about) == 0 && S_ISREG(about.st_mode))
        status = (size_t)about.st_size > bytes_max ? CORE_FULL : CORE_OK;
    uint8_t *room = status == CORE_OK ? malloc((size_t)about.st_size + 1) : NULL;
    if (room == NULL && status == CORE_OK)
        status = CORE_NO_MEMORY;
    if (status == CORE_OK)
        status = read_whole(file, room, (size_t)about.st_size);
    close(file);
    if (status) {
        free(room);
        return status;
    }
    *content = room;
    *bytes = (size_t)about.st_size;
    *changed = about.st_mtim;
    return CORE_OK;
}

bool hls_file_changed(int folder, const char *path, struct timespec *changed)
{
    struct stat about;
    if (fstatat(folder, path, &about, 0) != 0 || !S_ISREG(about.st_mode))
        return false;
    *changed = about.st_mtim;
    return true;
}

static core_status write_whole(int file, const uint8_t *content, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t count = write(file, content + done, bytes - done);
        if (count < 0 && errno != EINTR)
            return CORE_SYSTEM;
        done += count > 0 ? (size_t)count : 0;
    }
    return CORE_OK;
}

/* The folders on the way to the file. */
static core_status make_folders(int folder, const char *path)
{
    char part[HLS_PATH_BYTES];
    for (const char *slash = strchr(path, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        memcpy(part, path, (size_t)(slash - path));
        part[slash - path] = '\0';
        if (mkdirat(folder, part, 0777) != 0 && errno != EEXIST)
            return CORE_SYSTEM;
    }
    return CORE_OK;
}

core_status hls_file_publish(int folder, const char *path, const void *content, size_t bytes,
                             struct core_error *error)
{
    int file = openat(folder, TEMPORARY, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0)
        return core_error_errno(error, "%s can not be made", path);
    core_status status = write_whole(file, content, bytes);
    if (close(file) != 0)
        status = CORE_SYSTEM;
    if (status || make_folders(folder, path) != CORE_OK || renameat(folder, TEMPORARY, folder, path) != 0)
        return core_error_errno(error, "%s can not be written", path);
    return CORE_OK;
}

void hls_file_remove(int folder, const char *path)
{
    (void)unlinkat(folder, path, 0);
}

bool hls_time_is_later(const struct timespec *one, const struct timespec *two)
{
    return one->tv_sec > two->tv_sec || (one->tv_sec == two->tv_sec && one->tv_nsec > two->tv_nsec);
}
