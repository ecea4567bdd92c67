#include "inputgen/replay_process.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

pid_t inputgen_process_behind(int socket)
{
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
        return 0;
    return peer.pid;
}

/* Reads the small file /proc/<process>/<name> as text; false if there is none. */
static bool proc_read(pid_t process, const char *name, char *text, size_t size)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)process, name);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    size_t bytes = fread(text, 1, size - 1, file);
    (void)fclose(file);
    text[bytes] = '\0';
    return bytes > 0;
}

core_ns inputgen_process_cpu_ns(pid_t process)
{
    char text[1024];
    if (process <= 0 || !proc_read(process, "stat", text, sizeof text))
        return -1;
    /* Field 2, the command's name, is in brackets and may hold anything: fields are counted from its end. */
    const char *fields = strrchr(text, ')');
    uint64_t user = 0, system = 0;
    if (!fields ||
        sscanf(fields + 1, /* NOLINT(cert-err34-c): the kernel writes these */
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64, &user, &system) != 2)
        return -1;
    return (core_ns)(user + system) * (CORE_NS_PER_S / sysconf(_SC_CLK_TCK));
}

int64_t inputgen_process_resident_bytes(pid_t process)
{
    char text[256];
    int64_t pages = 0;
    if (process <= 0 || !proc_read(process, "statm", text, sizeof text) ||
        sscanf(text, "%*d %" SCNd64, &pages) != 1) /* NOLINT(cert-err34-c): the kernel writes these */
        return -1;
    return pages * sysconf(_SC_PAGESIZE);
}

int64_t inputgen_process_descriptors(pid_t process)
{
    char path[64];
    int64_t count = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)process);
    DIR *folder = process > 0 ? opendir(path) : NULL;
    if (!folder)
        return -1;
    for (const struct dirent *entry; (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    (void)closedir(folder);
    return count;
}

int64_t inputgen_process_threads(pid_t process)
{
    char path[64];
    struct stat folder;
    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)process);
    if (process <= 0 || stat(path, &folder) != 0)
        return -1;
    return (int64_t)folder.st_nlink - 2; /* a folder for each, beside . and .. */
}
