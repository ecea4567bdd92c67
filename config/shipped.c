#include "config/shipped.h"

#include "config/file.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROOT_COUNT 3

static const char suffix[] = ".yaml";

static const struct {
    const char *noun, *folder;
} kinds[] = {
    [CONFIG_SHIPPED_WORKLOAD] = {"workload", "workloads"},
    [CONFIG_SHIPPED_PROFILE] = {"profile", "profiles"},
};

/* Fills in ../share/millrace beside the program's folder; empty if the system does not tell where that is. */
static void beside_program(char *root, size_t size)
{
    char program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);

    root[0] = '\0';
    if (length <= 0)
        return;
    program[length] = '\0';
    char *slash = strrchr(program, '/');
    if (!slash)
        return;
    *slash = '\0';
    if ((size_t)snprintf(root, size, "%s/../share/millrace", program) >= size)
        root[0] = '\0';
}

/* Appends " a b c", what the folder has, to the text. */
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

static bool path_join(char *path, size_t size, const char *root, const char *folder, const char *name)
{
    const int length = name ? snprintf(path, size, "%s/%s/%s%s", root, folder, name, suffix)
                            : snprintf(path, size, "%s/%s", root, folder);
    return length > 0 && (size_t)length < size;
}

static core_status path_beside(const char *name, const char *from, char *path, size_t size,
                               struct core_error *error)
{
    char *beside = config_file_beside(from ? from : "", name);

    if (!beside)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    const bool fits = (size_t)snprintf(path, size, "%s", beside) < size;
    free(beside);
    return fits ? CORE_OK : core_error_set(error, CORE_INVALID, "%.60s...: the path is too long", name);
}

core_status config_shipped_find(enum config_shipped_kind kind, const char *name, const char *from, char *path,
                                size_t size, struct core_error *error)
{
    char beside[PATH_MAX], names[256] = "";
    const char *const roots[ROOT_COUNT] = {beside, MILLRACE_SHIPPED_SOURCE, MILLRACE_SHIPPED_INSTALLED};

    if (strpbrk(name, "/."))
        return path_beside(name, from, path, size, error);
    beside_program(beside, sizeof beside);
    for (size_t i = 0; i < ROOT_COUNT; i++) {
        char folder[PATH_MAX];
        if (path_join(path, size, roots[i], kinds[kind].folder, name) && access(path, R_OK) == 0)
            return CORE_OK;
        if (!names[0] && path_join(folder, sizeof folder, roots[i], kinds[kind].folder, NULL))
            names_append(folder, names, sizeof names);
    }
    return core_error_set(error, CORE_NOT_FOUND,
                          "no shipped %s is called '%.40s'; there are:%s. A path must contain a '/' or a '.'",
                          kinds[kind].noun, name, names[0] ? names : " none here");
}
