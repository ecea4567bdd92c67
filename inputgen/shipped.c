#include "inputgen/shipped.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLDER_COUNT 3

static const char suffix[] = ".yaml";

/* Fills in the folder beside the program; empty if the system does not tell where that is. */
static void program_folder(char *folder, size_t size)
{
    char program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);

    folder[0] = '\0';
    if (length <= 0)
        return;
    program[length] = '\0';
    char *slash = strrchr(program, '/');
    if (!slash)
        return;
    *slash = '\0';
    if ((size_t)snprintf(folder, size, "%s/../share/millrace/workloads", program) >= size)
        folder[0] = '\0';
}

/* Appends " a b c", the workloads in the folder, to the text. */
static void names_append(const char *folder, char *text, size_t size)
{
    struct dirent **entries;
    const int count = scandir(folder, &entries, NULL, alphasort);

    if (count < 0)
        return;
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        const size_t length = strlen(name), used = strlen(text);
        if (length > sizeof suffix && strcmp(name + length - (sizeof suffix - 1), suffix) == 0)
            snprintf(text + used, size - used, " %.*s", (int)(length - (sizeof suffix - 1)), name);
        free(entries[i]);
    }
    free(entries);
}

core_status inputgen_workload_open(const char *name, struct config_workload **workload,
                                   struct core_error *error)
{
    char beside[PATH_MAX], names[256] = "";
    const char *const folders[FOLDER_COUNT] = {beside, MILLRACE_WORKLOADS_SOURCE,
                                               MILLRACE_WORKLOADS_INSTALLED};

    if (strpbrk(name, "/."))
        return config_workload_load(name, workload, error);
    program_folder(beside, sizeof beside);
    for (size_t i = 0; i < FOLDER_COUNT; i++) {
        char path[PATH_MAX];
        const int length = snprintf(path, sizeof path, "%s/%s%s", folders[i], name, suffix);
        if (length > 0 && (size_t)length < sizeof path && access(path, R_OK) == 0)
            return config_workload_load(path, workload, error);
        if (!names[0])
            names_append(folders[i], names, sizeof names);
    }
    return core_error_set(error, CORE_NOT_FOUND,
                          "no shipped workload is called '%.40s'; there are:%s. A path must contain a '/' or "
                          "a '.'",
                          name, names[0] ? names : " none here");
}
