#include "gpu/ask.h"

#include "gpu/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Reads to the end. False: that has not come by until_ns, or there is more than `size` holds. */
static bool read_all(int descriptor, char *text, size_t size, core_ns until_ns)
{
    for (size_t used = 0; used < size;) {
        struct pollfd ready = {.fd = descriptor, .events = POLLIN};
        core_ns left_ns = until_ns - core_time_now_ns();
        if (left_ns <= 0)
            return false;
        if (poll(&ready, 1, (int)(left_ns / CORE_NS_PER_MS) + 1) <= 0)
            continue;
        ssize_t got = read(descriptor, text + used, size - used);
        if (got == 0)
            text[used] = '\0';
        if (got <= 0)
            return got == 0;
        used += (size_t)got;
    }
    return false;
}

/* Collects the process, which is killed if it has not ended by until_ns. Whether it exited with 0. */
static bool collect(pid_t process, core_ns until_ns)
{
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(process, &status, WNOHANG)) == 0) {
        if (core_time_now_ns() >= until_ns)
            kill(process, SIGKILL);
        core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_MS);
    }
    return ended == process && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* With its output, and what it says of errors, to `write_end`. Returns 0 or an errno. */
static int start(const struct gpu_question *question, int write_end, pid_t *process)
{
    char **environment = gpu_process_environment(question->visible);
    posix_spawn_file_actions_t actions;

    if (environment == NULL)
        return ENOMEM;
    posix_spawn_file_actions_init(&actions);
    int failed = posix_spawn_file_actions_adddup2(&actions, write_end, STDOUT_FILENO);
    if (failed == 0)
        failed = posix_spawn_file_actions_adddup2(&actions, write_end, STDERR_FILENO);
    if (failed == 0)
        failed = posix_spawnp(process, question->program, &actions, NULL, question->arguments, environment);
    posix_spawn_file_actions_destroy(&actions);
    free(environment);
    return failed;
}

static core_status run(const struct gpu_question *question, char *text, struct core_error *error)
{
    const core_ns until_ns = core_time_now_ns() + question->limit_ns;
    pid_t process = 0;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return core_error_errno(error, "can not make a pipe");
    const int failed = start(question, ends[1], &process);
    close(ends[1]);
    bool good = failed == 0 && read_all(ends[0], text, GPU_ASK_BYTES, until_ns);
    if (failed == 0)
        good = collect(process, good ? until_ns : 0) && good;
    close(ends[0]);
    errno = failed;
    if (failed != 0) {
        (void)core_error_errno(error, "%s can not be run", question->program);
        return CORE_NOT_FOUND;
    }
    return good ? CORE_OK
                : core_error_set(error, CORE_SYSTEM, "%s %s failed", question->program,
                                 question->arguments[1]);
}

const char *gpu_ask_words(const char *answer, int *bytes)
{
    static const char own[] = "millrace-gpu: ";
    for (const char *line = answer, *end; *line != '\0'; line = *end == '\0' ? end : end + 1) {
        end = strchrnul(line, '\n');
        if (strncmp(line, own, sizeof own - 1) != 0)
            continue;
        *bytes = (int)(end - line) - (int)(sizeof own - 1);
        return *bytes > 0 ? line + sizeof own - 1 : NULL;
    }
    return NULL;
}

core_status gpu_ask(const struct gpu_question *question, char **answer, struct core_error *error)
{
    int bytes = 0;
    *answer = calloc(1, GPU_ASK_BYTES + 1); /* ended, however much comes */
    if (*answer == NULL)
        return core_error_set(error, CORE_NO_MEMORY, "no memory for what %s says", question->program);
    const core_status status = run(question, *answer, error);
    const char *words = gpu_ask_words(*answer, &bytes);
    if (status == CORE_OK || words == NULL)
        return status;
    return core_error_set(error, status, "%s %s: %.*s", question->program, question->arguments[1], bytes,
                          words);
}
