#include "server/process.h"

#include "core/proc.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

static uint64_t resident_bytes(void)
{
    char text[128];
    (void)core_proc_read("/proc/self/statm", text, sizeof text);
    const int64_t bytes = core_proc_figure(text, 2, sysconf(_SC_PAGESIZE));
    return bytes < 0 ? 0 : (uint64_t)bytes;
}

static uint64_t open_fds(void)
{
    uint64_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL)
        return 0;
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder))
        count += entry->d_name[0] != '.' ? 1 : 0;
    closedir(folder);
    return count - 1; /* without the folder's own */
}

void server_process_poll(struct server_process *process)
{
    struct rlimit limit = {0};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    *process = (struct server_process){.cpu_ns = core_time_process_cpu_ns(),
                                       .resident_bytes = resident_bytes(),
                                       .open_fds = open_fds(),
                                       .max_fds = limit.rlim_cur};
}
