#include "config/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static core_status regular_file_size(int descriptor, const char *path, size_t bytes_max, size_t *bytes,
                                     struct core_error *error)
{
    struct stat status;

    if (fstat(descriptor, &status) != 0)
        return core_error_errno(error, "%s: can not be examined", path);
    if (!S_ISREG(status.st_mode))
        return core_error_set(error, CORE_INVALID, "%s: is not a regular file", path);
    if ((unsigned long long)status.st_size > bytes_max)
        return core_error_set(error, CORE_INVALID, "%s:1: %lld bytes are too much; at most %zu are read",
                              path, (long long)status.st_size, bytes_max);
    *bytes = (size_t)status.st_size;
    return CORE_OK;
}

/* Reads up to `room` bytes; -1 on an error. */
static ssize_t read_all(int descriptor, char *buffer, size_t room)
{
    size_t have = 0;

    while (have < room) {
        const ssize_t got = read(descriptor, buffer + have, room - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        have += (size_t)got;
    }
    return (ssize_t)have;
}

core_status config_file_read(const char *path, size_t bytes_max, char **text, size_t *bytes,
                             struct core_error *error)
{
    char *buffer = NULL;
    size_t size = 0;
    core_status status;
    /* O_NONBLOCK: opening a FIFO by mistake must not hang. */
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (descriptor < 0)
        return core_error_errno(error, "%s: can not be opened", path);
    status = regular_file_size(descriptor, path, bytes_max, &size, error);
    if (status != CORE_OK)
        goto close;
    buffer = malloc(size + 1);
    if (!buffer) {
        status = core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", path);
        goto close;
    }
    const ssize_t got = read_all(descriptor, buffer, size);
    if (got < 0) {
        status = core_error_errno(error, "%s: can not be read", path);
        free(buffer);
        goto close;
    }
    buffer[got] = '\0';
    *text = buffer;
    *bytes = (size_t)got;
close:
    close(descriptor);
    return status;
}

static core_status write_all(int descriptor, const char *text, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t wrote = write(descriptor, text, bytes);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return CORE_SYSTEM;
        text += wrote;
        bytes -= (size_t)wrote;
    }
    return CORE_OK;
}

core_status config_file_replace(const char *path, const char *text, size_t bytes, struct core_error *error)
{
    core_status status = CORE_OK;
    char *temporary;

    if (asprintf(&temporary, "%s.%ld.new", path, (long)getpid()) < 0)
        return core_error_set(error, CORE_NO_MEMORY, "%s: out of memory", path);
    const int descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0) {
        status = core_error_errno(error, "%s: can not be created", temporary);
        goto release;
    }
    if (write_all(descriptor, text, bytes) != CORE_OK || fsync(descriptor) != 0) {
        status = core_error_errno(error, "%s: can not be written", temporary);
        close(descriptor);
        goto discard;
    }
    if (close(descriptor) != 0 || rename(temporary, path) != 0) {
        status = core_error_errno(error, "%s: can not be replaced", path);
        goto discard;
    }
    goto release;
discard:
    unlink(temporary);
release:
    free(temporary);
    return status;
}

char *config_file_beside(const char *from, const char *path)
{
    const char *slash = strrchr(from, '/');
    char *joined;

    if (path[0] == '/' || !slash)
        return strdup(path);
    return asprintf(&joined, "%.*s/%s", (int)(slash - from), from, path) < 0 ? NULL : joined;
}
