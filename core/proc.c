#include "core/proc.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool core_proc_read(const char *path, char *text, size_t size)
{
    size_t used = 0;
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t got = descriptor < 0 ? 0 : 1; got > 0 && used < size - 1;) {
        got = read(descriptor, text + used, size - 1 - used);
        used += got > 0 ? (size_t)got : 0;
    }
    if (descriptor >= 0)
        close(descriptor);
    text[used] = '\0';
    return used > 0;
}

int64_t core_proc_figure(const char *text, unsigned index, int64_t unit)
{
    const int64_t most = CORE_PROC_FIGURE_MAX / unit;
    int64_t value = 0;
    for (; index > 1; index--) {
        text += strcspn(text, " \n");
        text += strspn(text, " ");
    }
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        const int digit = *at - '0';
        if (digit > most || value > (most - digit) / 10)
            return -1;
        value = value * 10 + digit;
    }
    return at == text || (*at != ' ' && *at != '\n' && *at != '\0') ? -1 : value * unit;
}

bool core_proc_list_has(const char *list, unsigned number)
{
    while (*list >= '0' && *list <= '9') {
        char *end;
        const unsigned long first = strtoul(list, &end, 10);
        const unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        if (number >= first && number <= last)
            return true;
        list = *end == ',' ? end + 1 : "";
    }
    return false;
}

const char *core_proc_stat(const char *text)
{
    const char *behind = strrchr(text, ')');
    return behind != NULL && behind[1] == ' ' ? behind + 2 : "";
}

void core_proc_processor(const char *cpuinfo, char *text, size_t size)
{
    static const char field[] = "model name";
    snprintf(text, size, "unknown processor");
    for (const char *line = cpuinfo; *line != '\0'; line += *line == '\n' ? 1 : 0) {
        const size_t bytes = strcspn(line, "\n"), name = strcspn(line, ":\n");
        if (strncmp(line, field, sizeof field - 1) == 0 && bytes > name + 2) {
            snprintf(text, size, "%.*s", (int)(bytes - name - 2), line + name + 2);
            return;
        }
        line += bytes;
    }
}

bool core_proc_group(const char *membership, char *group, size_t size)
{
    for (const char *line = membership; *line != '\0'; line += *line == '\n' ? 1 : 0) {
        const size_t bytes = strcspn(line, "\n");
        if (strncmp(line, "0::/", 4) == 0)
            return (size_t)snprintf(group, size, "%.*s", (int)(bytes - 3), line + 3) < size;
        line += bytes;
    }
    return false;
}

/* "150000 100000": in a period of 100 ms so much; "max 100000" */
unsigned core_proc_quota(const char *cpu_max)
{
    const int64_t quota = core_proc_figure(cpu_max, 1, 1), period = core_proc_figure(cpu_max, 2, 1);
    if (quota < 0 || period <= 0)
        return UINT_MAX;
    const double thousandths = (double)quota * 1000 / (double)period;
    return thousandths < 1 ? 1 : thousandths < UINT_MAX ? (unsigned)thousandths : UINT_MAX;
}
