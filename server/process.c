#include "server/process.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static uint64_t resident_bytes(void)
{
    char line[128] = "";
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL)
        return 0;
    const char *second = fgets(line, sizeof line, file) != NULL ? strchr(line, ' ') : NULL;
    fclose(file);
    return second == NULL ? 0 : strtoull(second, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
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
