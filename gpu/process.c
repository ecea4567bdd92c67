#include "gpu/process.h"

#include "core/log.h"
#include "gpu/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define VISIBLE "CUDA_VISIBLE_DEVICES="

extern char **environ;

char **gpu_process_environment(const char *visible)
{
    size_t count = 0, kept = 0;
    while (environ != NULL && environ[count] != NULL)
        count++;
    const size_t bytes = (count + 2) * sizeof(char *);
    char **made = calloc(1, bytes + sizeof VISIBLE + GPU_UUID_BYTES);
    if (made == NULL)
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (visible == NULL || strncmp(environ[i], VISIBLE, sizeof VISIBLE - 1) != 0)
            made[kept++] = environ[i];
    if (visible == NULL)
        return made;
    made[kept] = (char *)made + bytes;
    snprintf(made[kept], sizeof VISIBLE + GPU_UUID_BYTES, VISIBLE "%s", visible);
    return made;
}

/* Every source number is above every target number first: no dup2 overwrites a source that is still needed.
 */
static int raised(int descriptor)
{
    return fcntl(descriptor, F_DUPFD_CLOEXEC, GPU_CHILD_DESCRIPTORS + 8);
}

static int actions_fill(posix_spawn_file_actions_t *actions, const int sources[], int count)
{
    int failed = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (failed == 0)
        failed = posix_spawn_file_actions_addopen(actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    for (int i = 0; i < count && failed == 0; i++)
        failed = posix_spawn_file_actions_adddup2(actions, sources[i], GPU_CHILD_SOCKET + i);
    if (failed == 0)
        failed = posix_spawn_file_actions_addclosefrom_np(actions, GPU_CHILD_DESCRIPTORS);
    return failed;
}

/* Signals and scheduling as a fresh process has them: threads of a server block some, and run before others.
 * But signals to the whole group are held back until the child ignores them. */
static int attributes_fill(posix_spawnattr_t *attributes)
{
    const struct sched_param default_priority = {0};
    sigset_t group, all;
    sigemptyset(&group);
    sigaddset(&group, SIGTERM);
    sigaddset(&group, SIGINT);
    sigaddset(&group, SIGHUP);
    sigaddset(&group, SIGUSR1);
    sigaddset(&group, SIGUSR2);
    sigfillset(&all);
    posix_spawnattr_setsigmask(attributes, &group);
    posix_spawnattr_setsigdefault(attributes, &all);
    posix_spawnattr_setschedpolicy(attributes, SCHED_OTHER);
    posix_spawnattr_setschedparam(attributes, &default_priority);
    return posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                                    POSIX_SPAWN_SETSCHEDULER);
}

static int spawn(pid_t *pid, const struct gpu_process_options *options, char *const arguments[],
                 const int sources[], int count)
{
    char **environment = gpu_process_environment(options->uuid);
    if (environment == NULL)
        return ENOMEM;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    int failed = actions_fill(&actions, sources, count);
    if (failed == 0)
        failed = attributes_fill(&attributes);
    if (failed == 0)
        failed = posix_spawn(pid, options->program, &actions, &attributes, arguments, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    free(environment);
    return failed;
}

static void close_all(const int *descriptors, int count)
{
    for (int i = 0; i < count; i++)
        close(descriptors[i]);
}

/* Copies of `wanted`, all of them or none. */
static core_status raise_all(int *sources, const int *wanted, int count, struct core_error *error)
{
    for (int i = 0; i < count; i++) {
        sources[i] = raised(wanted[i]);
        if (sources[i] >= 0)
            continue;
        const core_status status = core_error_errno(error, "can not make descriptors for a GPU's process");
        close_all(sources, i);
        return status;
    }
    return CORE_OK;
}

/* Starts the program with the child's end of the socket. */
static core_status spawn_with(struct gpu_process *process, const struct gpu_process_options *options,
                              char *const arguments[], int socket, struct core_error *error)
{
    enum { COUNT = GPU_CHILD_DESCRIPTORS - GPU_CHILD_SOCKET };
    const int *inherited = options->inherited;
    const int wanted[COUNT] = {socket, inherited[0], inherited[1]};
    int sources[COUNT];
    core_status status = raise_all(sources, wanted, COUNT, error);
    if (status != CORE_OK)
        return status;
    errno = spawn(&process->pid, options, arguments, sources, COUNT);
    if (errno != 0) {
        status = core_error_errno(error, "can not start %s", options->program);
        process->pid = 0;
    }
    close_all(sources, COUNT);
    return status;
}

/* Closes what is open. The process, if there is one, has been collected. */
static void forget(struct gpu_process *process)
{
    if (process->descriptor >= 0)
        close(process->descriptor);
    if (process->socket >= 0)
        close(process->socket);
    *process = GPU_PROCESS_NONE;
}

core_status gpu_process_start(struct gpu_process *process, const struct gpu_process_options *options,
                              struct core_error *error)
{
    int pair[2];
    char number[16], name[32], uuid[GPU_UUID_BYTES], user[CORE_USER_TEXT_BYTES];
    snprintf(number, sizeof number, "%u", options->device);
    snprintf(name, sizeof name, "%s", options->backend);
    snprintf(uuid, sizeof uuid, "%s", options->uuid != NULL ? options->uuid : "");
    const bool json = core_log_configured().format == CORE_LOG_JSON; /* its lines come among ours */
    char *arguments[16] = {"millrace-gpu", "--serve", "--backend",    name,
                           "--device",     number,    "--log-format", json ? "json" : "text"};
    int count = 8;
    if (options->uuid != NULL) {
        arguments[5] = "0"; /* of those that it sees */
        arguments[count++] = "--uuid";
        arguments[count++] = uuid;
    }
    if (options->user != NULL) {
        arguments[count++] = "--user";
        arguments[count++] = core_user_text(options->user, user);
    }
    *process = GPU_PROCESS_NONE;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        return core_error_errno(error, "can not make a socket for a GPU's process");
    process->socket = pair[0];
    const core_status status = spawn_with(process, options, arguments, pair[1], error);
    close(pair[1]);
    if (status != CORE_OK) {
        forget(process);
        return status;
    }
    process->descriptor = (int)syscall(SYS_pidfd_open, process->pid, 0); /* close-on-exec by itself */
    if (process->descriptor >= 0)
        return CORE_OK;
    (void)core_error_errno(error, "can not watch a GPU's process (pidfd_open)");
    gpu_process_kill(process);
    gpu_process_collect(process);
    return CORE_SYSTEM;
}

bool gpu_process_ended(const struct gpu_process *process, struct gpu_process_end *end)
{
    struct pollfd ended = {.fd = process->descriptor, .events = POLLIN};
    siginfo_t about = {.si_pid = 0};
    *end = (struct gpu_process_end){.signalled = false};
    if (poll(&ended, 1, 0) <= 0)
        return false;
    /* It is read and left where it is. Where somebody else collected it, how it ended is not known. */
    if (waitid(P_PIDFD, (id_t)process->descriptor, &about, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        about.si_pid != 0)
        *end = (struct gpu_process_end){.signalled = about.si_code != CLD_EXITED, .code = about.si_status};
    return true;
}

bool gpu_process_thread_ended(const struct gpu_process *process, pid_t thread)
{
    return process->pid > 0 && thread > 0 && tgkill(process->pid, thread, 0) != 0 && errno == ESRCH;
}

void gpu_process_collect(struct gpu_process *process)
{
    const bool is_watched = process->descriptor >= 0;
    const id_t name = (id_t)(is_watched ? process->descriptor : process->pid);
    while (process->pid > 0 && waitid(is_watched ? P_PIDFD : P_PID, name, NULL, WEXITED) != 0 &&
           errno == EINTR)
        ;
    forget(process);
}

void gpu_process_kill(const struct gpu_process *process)
{
    if (process->descriptor >= 0)
        (void)syscall(SYS_pidfd_send_signal, process->descriptor, SIGKILL, NULL, 0U);
    else if (process->pid > 0)
        (void)kill(process->pid, SIGKILL); /* just started, so the number is still its own */
}
