#include "inputgen/replay_process.h"

#include "core/proc.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
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
    return process > 0 && core_proc_read(path, text, size);
}

core_ns inputgen_process_cpu_ns(pid_t process)
{
    char text[1024];
    const core_ns tick_ns = CORE_NS_PER_S / sysconf(_SC_CLK_TCK);
    if (!proc_read(process, "stat", text, sizeof text))
        return -1;
    const char *fields = core_proc_stat(text);
    const core_ns user_ns = core_proc_figure(fields, 12, tick_ns);
    const core_ns system_ns = core_proc_figure(fields, 13, tick_ns);
    return user_ns < 0 || system_ns < 0 ? -1 : user_ns + system_ns;
}

int64_t inputgen_process_resident_bytes(pid_t process)
{
    char text[256];
    return proc_read(process, "statm", text, sizeof text) ? core_proc_figure(text, 2, sysconf(_SC_PAGESIZE))
                                                          : -1;
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
