#include "bench/daemon.h"

#include "client/millrace.h"
#include "config/shipped.h"
#include "core/time.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_NS   (60 * CORE_NS_PER_S) /* with as many threads as may be, and under a sanitizer */
#define LINE_BYTES 400                  /* of its log, for a person */
#define TRY_NS     (50 * CORE_NS_PER_MS)

static void path_in(const struct bench_daemon *daemon, const char *name, char *path, size_t size)
{
    (void)snprintf(path, size, "%s/%s", daemon->folder, name);
}

/* What a person named, as the server finds it from its own folder. */
static core_status profile_find(const char *name, char full[PATH_MAX], struct core_error *error)
{
    char path[PATH_MAX];
    core_status status = config_shipped_find(CONFIG_SHIPPED_PROFILE, name, NULL, path, sizeof path, error);
    if (status == CORE_OK && !realpath(path, full))
        status = core_error_errno(error, "--profile %s", name);
    return status;
}

void bench_daemon_log(const struct bench_daemon *daemon, char *path, size_t size)
{
    path_in(daemon, "log", path, size);
}

static core_status config_write(const struct bench_daemon *daemon, const struct bench_daemon_options *options,
                                struct core_error *error)
{
    char path[128], full[PATH_MAX];
    if (options->profile) {
        core_status status = profile_find(options->profile, full, error);
        if (status != CORE_OK)
            return status;
    }
    path_in(daemon, "millraced.yaml", path, sizeof path);
    FILE *file = fopen(path, "we");
    if (!file)
        return core_error_errno(error, "%s", path);
    (void)fprintf(file, "listeners:\n  - address: %s\n    mode: 0600\n%s", daemon->address,
                  options->listeners ? options->listeners : "");
    (void)fprintf(file, "admin: %s\nlog: {level: %s}\noverload: {tighten: false}\n", daemon->admin,
                  options->level ? options->level : "warning");
    if (options->keys)
        (void)fputs(options->keys, file);
    if (options->profile)
        (void)fprintf(file, "profile: %s\n", full);
    return fclose(file) == 0 ? CORE_OK : core_error_errno(error, "%s", path);
}

/* In the child: never returns. */
static void become(const struct bench_daemon *daemon, const struct bench_daemon_options *options)
{
    char config[128], log[128];
    path_in(daemon, "millraced.yaml", config, sizeof config);
    bench_daemon_log(daemon, log, sizeof log);
    int descriptor =
        options->log > 0 ? options->log : open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (descriptor >= 0) {
        (void)dup2(descriptor, STDOUT_FILENO);
        (void)dup2(descriptor, STDERR_FILENO);
    }
    (void)setsid(); /* Ctrl-C is for us; the server is then stopped in order */
    (void)execl(options->program, options->program, config, (char *)NULL);
    perror(options->program);
    _exit(127);
}

/* The last line of the server's log, for a person. */
static void log_last(const struct bench_daemon *daemon, char line[LINE_BYTES])
{
    char path[128], next[LINE_BYTES];
    bench_daemon_log(daemon, path, sizeof path);
    FILE *file = fopen(path, "re");
    (void)snprintf(line, LINE_BYTES, "it logged nothing");
    while (file && fgets(next, sizeof next, file)) {
        next[strcspn(next, "\n")] = '\0';
        memcpy(line, next, LINE_BYTES);
    }
    if (file)
        (void)fclose(file);
}

static core_status answers(struct bench_daemon *daemon, struct core_error *error)
{
    core_ns end_ns = core_time_now_ns() + START_NS;
    char line[LINE_BYTES];
    while (core_time_now_ns() < end_ns) {
        struct millrace *connection;
        if (millrace_connect(daemon->address, NULL, 1000, &connection, error->text) == MILLRACE_OK) {
            millrace_disconnect(connection);
            return CORE_OK;
        }
        if (waitpid(daemon->process, NULL, WNOHANG) == daemon->process) {
            daemon->process = 0;
            break;
        }
        core_time_sleep_until(core_time_now_ns() + TRY_NS);
    }
    log_last(daemon, line);
    return core_error_set(error, CORE_SYSTEM, "the server did not start: %s", line);
}

static void folder_remove(const struct bench_daemon *daemon)
{
    static const char *const names[] = {"millraced.yaml", "log", "socket", "admin"};
    char path[128];
    for (size_t at = 0; at < sizeof names / sizeof *names; at++) {
        path_in(daemon, names[at], path, sizeof path);
        (void)unlink(path);
    }
    (void)rmdir(daemon->folder);
}

core_status bench_daemon_start(struct bench_daemon *daemon, const struct bench_daemon_options *options,
                               struct core_error *error)
{
    *daemon = (struct bench_daemon){.folder = "/tmp/millrace-bench-XXXXXX"};
    if (!mkdtemp(daemon->folder))
        return core_error_errno(error, "%s", daemon->folder);
    (void)snprintf(daemon->address, sizeof daemon->address, "unix:%s/socket", daemon->folder);
    (void)snprintf(daemon->admin, sizeof daemon->admin, "unix:%s/admin", daemon->folder);
    core_status status = config_write(daemon, options, error);
    if (status == CORE_OK && (daemon->process = fork()) < 0)
        status = core_error_errno(error, "fork");
    if (status != CORE_OK) {
        folder_remove(daemon);
        return status;
    }
    if (daemon->process == 0)
        become(daemon, options);
    status = answers(daemon, error);
    if (status != CORE_OK) {
        struct core_error ignored; /* the first reason counts */
        (void)!bench_daemon_stop(daemon, &ignored);
    }
    return status;
}

core_status bench_daemon_stop(struct bench_daemon *daemon, struct core_error *error)
{
    core_status status = CORE_OK;
    int exited = 0;
    char line[LINE_BYTES];
    if (daemon->process > 0) {
        (void)kill(daemon->process, SIGTERM);
        (void)waitpid(daemon->process, &exited, 0);
        daemon->process = 0;
    }
    log_last(daemon, line);
    if (exited != 0)
        status = core_error_set(error, CORE_SYSTEM, "the server stopped with status %d: %s",
                                WIFEXITED(exited) ? WEXITSTATUS(exited) : -1, line);
    folder_remove(daemon);
    return status;
}
