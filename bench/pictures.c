#include "bench/pictures.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SCRIPT "figures.gp"
#define LOG    "gnuplot.log"

extern char **environ;

core_status bench_pictures_folder(const char *folder, struct core_error *error)
{
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return core_error_errno(error, "%s: can not be made", folder);
    if (access(folder, W_OK | X_OK) != 0)
        return core_error_errno(error, "%s: can not be written to", folder);
    struct stat what;
    if (stat(folder, &what) != 0 || !S_ISDIR(what.st_mode))
        return core_error_set(error, CORE_INVALID, "%s: is not a folder", folder);
    return CORE_OK;
}

core_status bench_csv_open(const char *folder, struct bench_csv *csv, struct core_error *error,
                           const char *format, ...)
{
    char name[64];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    if ((size_t)snprintf(csv->path, sizeof csv->path, "%s/%s.csv", folder, name) >= sizeof csv->path)
        return core_error_set(error, CORE_INVALID, "%s: the path is too long", folder);
    csv->file = fopen(csv->path, "we");
    return csv->file != NULL ? CORE_OK : core_error_errno(error, "%s: can not be written", csv->path);
}

core_status bench_csv_close(struct bench_csv *csv, struct core_error *error)
{
    const int failed = ferror(csv->file);

    if (fclose(csv->file) != 0 || failed)
        return core_error_errno(error, "%s: can not be written", csv->path);
    return CORE_OK;
}

/* ---- the script ---- */

void bench_pictures_head(FILE *script)
{
    fputs("# Makes the PNG files of the CSV files beside it: gnuplot " SCRIPT "\n"
          "set datafile separator ','\n"
          "set datafile missing ''\n"
          "set style fill solid 0.8 border -1\n"
          "set grid ytics lc rgb '#dddddd'\n"
          "set key outside top center horizontal\n",
          script);
}

void bench_pictures_begin(FILE *script, const char *name, int width, int height, const char *title)
{
    fprintf(script,
            "\nset terminal pngcairo noenhanced size %d,%d font 'sans,11' background rgb 'white'\n"
            "set output '%s.png'\nset title '%s'\n",
            width, height, name, title);
}

/* ---- gnuplot ---- */

static core_status wait_for(pid_t process, struct core_error *error)
{
    int status;

    while (waitpid(process, &status, 0) < 0)
        if (errno != EINTR)
            return core_error_errno(error, "gnuplot");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return core_error_set(error, CORE_SYSTEM,
                              "gnuplot failed; what it says is above, what it was told is "
                              "in " SCRIPT);
    return CORE_OK;
}

static core_status run_gnuplot(const char *folder, struct core_error *error)
{
    static char *arguments[] = {"gnuplot", SCRIPT, NULL};
    posix_spawn_file_actions_t actions;
    pid_t process;

    if (posix_spawn_file_actions_init(&actions) != 0)
        return core_error_set(error, CORE_NO_MEMORY, "no memory to start gnuplot");
    int failed = posix_spawn_file_actions_addchdir_np(&actions, folder);
    if (failed == 0)
        failed = posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, LOG, O_WRONLY | O_CREAT | O_TRUNC,
                                                  0666);
    if (failed == 0)
        failed = posix_spawnp(&process, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed == ENOENT)
        return core_error_set(error, CORE_NOT_FOUND,
                              "there is no gnuplot, so the CSV files are written and the PNG files are not: "
                              "install it (Debian: gnuplot-nox) and run `gnuplot " SCRIPT "` in %s",
                              folder);
    if (failed != 0)
        return core_error_set(error, CORE_SYSTEM, "gnuplot: %s", strerror(failed));
    return wait_for(process, error);
}

static void remove_log(const char *folder)
{
    char path[PATH_MAX];

    if ((size_t)snprintf(path, sizeof path, "%s/" LOG, folder) < sizeof path)
        (void)unlink(path);
}

core_status bench_pictures_draw(const char *folder, void (*put)(const void *context, FILE *script),
                                const void *context, struct core_error *error)
{
    char path[PATH_MAX];

    if ((size_t)snprintf(path, sizeof path, "%s/" SCRIPT, folder) >= sizeof path)
        return core_error_set(error, CORE_INVALID, "%s: the path is too long", folder);
    FILE *file = fopen(path, "we");
    if (file == NULL)
        return core_error_errno(error, "%s: can not be written", path);
    put(context, file);
    const int failed = ferror(file);
    if (fclose(file) != 0 || failed)
        return core_error_errno(error, "%s: can not be written", path);
    const core_status status = run_gnuplot(folder, error);
    if (status == CORE_OK || status == CORE_NOT_FOUND)
        remove_log(folder); /* warnings of lines that are empty, if anything */
    return status;
}
