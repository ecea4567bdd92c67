#include "client/hls/folder.h"

#include "client/hls/path.h"

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
        if (count < 0 && errno != EINTR)
            return CORE_SYSTEM;
        if (count == 0) {
            errno = ESTALE; /* shorter than it was a moment ago */
            return CORE_SYSTEM;
        }
        done += count > 0 ? (size_t)count : 0;
    }
    return CORE_OK;
}

static core_status read_content(int file, const char *path, size_t bytes, uint8_t **content,
                                struct core_error *error)
{
    uint8_t *room = malloc(bytes + 1);
    if (room == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for %s now", path);
    if (read_whole(file, room, bytes) != CORE_OK) {
        free(room);
        return core_error_errno(error, "%s can not be read", path);
    }
    *content = room;
    return CORE_OK;
}

core_status hls_folder_read(int folder, const char *path, size_t bytes_max, uint8_t **content, size_t *bytes,
                            struct stat *about, struct core_error *error)
{
    int file = openat(folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0 && (errno == ENOENT || errno == ENOTDIR))
        return core_error_set(error, CORE_NOT_FOUND, "there is no %s", path);
    if (file < 0)
        return core_error_errno(error, "%s can not be read", path);
    core_status status;
    if (fstat(file, about) != 0 || !S_ISREG(about->st_mode))
        status = core_error_set(error, CORE_INVALID, "%s is no regular file", path);
    else if ((size_t)about->st_size > bytes_max)
        status = core_error_set(error, CORE_INVALID, "%s has %zu bytes, and at most %zu are taken", path,
                                (size_t)about->st_size, bytes_max);
    else
        status = read_content(file, path, (size_t)about->st_size, content, error);
    close(file);
    if (status)
        return status;
    *bytes = (size_t)about->st_size;
    return CORE_OK;
}

bool hls_folder_look(int folder, const char *path, struct stat *about)
{
    return fstatat(folder, path, about, 0) == 0 && S_ISREG(about->st_mode);
}

static bool is_later(const struct timespec *one, const struct timespec *two)
{
    return one->tv_sec > two->tv_sec || (one->tv_sec == two->tv_sec && one->tv_nsec > two->tv_nsec);
}

bool hls_stat_is_later(const struct stat *one, const struct stat *two)
{
    return is_later(&one->st_mtim, &two->st_mtim);
}

bool hls_stat_is_same(const struct stat *one, const struct stat *two)
{
    return one->st_ino == two->st_ino && one->st_size == two->st_size && !hls_stat_is_later(one, two) &&
           !hls_stat_is_later(two, one);
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

/* What errno says of the file; nothing is left of it. */
static core_status failure(int folder, const char *path, struct core_error *error)
{
    bool is_passing =
        errno == ENOSPC || errno == EDQUOT || errno == EMFILE || errno == ENFILE || errno == ENOMEM;
    core_status status = core_error_errno(error, "%s can not be written", path);
    (void)unlinkat(folder, TEMPORARY, 0);
    return is_passing ? CORE_FULL : status;
}

static core_status write_temporary(int folder, const void *content, size_t bytes)
{
    int file = openat(folder, TEMPORARY, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0)
        return CORE_SYSTEM;
    core_status status = write_whole(file, content, bytes);
    int reason = errno;
    if (close(file) != 0 && status == CORE_OK)
        return CORE_SYSTEM;
    errno = reason;
    return status;
}

core_status hls_folder_publish(int folder, const char *path, const void *content, size_t bytes,
                               struct core_error *error)
{
    if (write_temporary(folder, content, bytes) != CORE_OK || make_folders(folder, path) != CORE_OK ||
        renameat(folder, TEMPORARY, folder, path) != 0)
        return failure(folder, path, error);
    return CORE_OK;
}

void hls_folder_remove(int folder, const char *path)
{
    (void)unlinkat(folder, path, 0);
}
