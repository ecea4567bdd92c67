#include "core/keyfile.h"

#include "core/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

core_status core_keyfile_check(int descriptor, const char *path, struct core_error *error)
{
    struct stat about;

    if (fstat(descriptor, &about) != 0)
        return core_error_errno(error, "%s: can not be examined", path);
    if (about.st_uid != geteuid() && about.st_uid != 0)
        return core_error_set(error, CORE_DENIED,
                              "%s: belongs to user %u, not to this process's user %u or root; chown it", path,
                              (unsigned)about.st_uid, (unsigned)geteuid());
    if (about.st_mode & (S_IRWXG | S_IRWXO))
        return core_error_set(error, CORE_DENIED,
                              "%s: its mode %04o lets others in; keys must be private: chmod 600 it", path,
                              (unsigned)(about.st_mode & 07777));
    return CORE_OK;
}

static core_status regular_check(int descriptor, const char *path, size_t bytes_max, struct core_error *error)
{
    struct stat about;

    if (fstat(descriptor, &about) != 0)
        return core_error_errno(error, "%s: can not be examined", path);
    if (!S_ISREG(about.st_mode))
        return core_error_set(error, CORE_INVALID, "%s: is not a regular file", path);
    if ((unsigned long long)about.st_size > bytes_max)
        return core_error_set(error, CORE_INVALID, "%s:1: %lld bytes are too much; at most %zu are read",
                              path, (long long)about.st_size, bytes_max);
    return CORE_OK;
}

core_status core_keyfile_open(const char *path, size_t bytes_max, int *descriptor, struct core_error *error)
{
    /* O_NONBLOCK: a FIFO must not hang the server. */
    const int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (opened < 0)
        return core_error_errno(error, "%s: can not be opened", path);
    core_status status = regular_check(opened, path, bytes_max, error);
    if (status == CORE_OK)
        status = core_keyfile_check(opened, path, error);
    if (status == CORE_OK)
        *descriptor = opened;
    else
        close(opened);
    return status;
}

core_status core_keyfile_read(const char *path, size_t bytes_max, char **text, size_t *bytes,
                              struct core_error *error)
{
    int descriptor;
    ssize_t got = 1;
    size_t have = 0;
    core_status status = core_keyfile_open(path, bytes_max, &descriptor, error);

    if (status != CORE_OK)
        return status;
    char *room = core_secret_alloc(bytes_max + 1);
    if (!room)
        status = core_error_set(error, CORE_NO_MEMORY, "%s: no more room in secret memory", path);
    while (room && have < bytes_max && got != 0) {
        got = read(descriptor, room + have, bytes_max - have);
        if (got < 0 && errno != EINTR) {
            status = core_error_errno(error, "%s: can not be read", path);
            break;
        }
        have += got > 0 ? (size_t)got : 0;
    }
    close(descriptor);
    if (status != CORE_OK) {
        core_secret_free(room, bytes_max + 1);
        return status;
    }
    *text = room;
    *bytes = have;
    return CORE_OK;
}
