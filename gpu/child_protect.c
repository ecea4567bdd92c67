#include "core/log.h"
#include "core/realtime.h"
#include "core/secret.h"
#include "gpu/child.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define SECRET_BYTES    4096 /* least there is: what this process has of keys lies elsewhere */
#define DESCRIPTORS_MAX 1024 /* a driver opens some dozens a card; the server's own limit is far higher */

/* What is sent to a whole process group or unit - Ctrl-C, a closed terminal, a service manager, maintenance - is
 * the server's business: it delivers what is under way, for which it needs its children, and stops them then. A
 * child ends by STOP, or with its server, which the kernel sees to however the server ends. The mask is the
 * spawn's, which holds these signals back until they are ignored. */
static void signals_set(void)
{
    sigset_t none;
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
}

/* The kernel ends this process with the server: also where it is stopped, or hangs, and could not see to it
 * itself. A server that was gone before the kernel knew of that has closed its end of the socket. */
static core_status end_with_server(struct core_error *error)
{
    struct pollfd server = {.fd = GPU_CHILD_SOCKET, .events = POLLRDHUP};
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0)
        return core_error_errno(error, "can not ask to end with the server (PR_SET_PDEATHSIG)");
    int gone = poll(&server, 1, 0);
    while (gone < 0 && errno == EINTR) /* it was stopped and goes on */
        gone = poll(&server, 1, 0);
    if (gone != 0)
        return core_error_set(error, CORE_CLOSED, "the server is gone");
    return CORE_OK;
}

/* The server's limit is for thousands of connections. */
static core_status limit_descriptors(struct core_error *error)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max > DESCRIPTORS_MAX) {
        limit = (struct rlimit){.rlim_cur = DESCRIPTORS_MAX, .rlim_max = DESCRIPTORS_MAX};
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
            return core_error_errno(error, "can not limit descriptors (RLIMIT_NOFILE)");
    }
    return CORE_OK;
}

core_status gpu_child_begin(struct core_error *error)
{
    signals_set();
    return end_with_server(error);
}

/* Nothing that is to come needs root, once the loop's priority is there for it to inherit and the limit of
 * locked memory is out of the way. To end with the server must be asked for again. */
static core_status user_change(const struct gpu_child *child, struct core_error *error)
{
    const struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    if (child->user == NULL)
        return CORE_OK;
    core_thread_priority_take(child->channel.start.fifo_priority);
    (void)setrlimit(RLIMIT_MEMLOCK, &unlimited); /* else the lock says what is wrong (core_memory_lock) */
    const core_status status = core_user_become(child->user, error);
    if (status != CORE_OK)
        return core_error_prefix(error, status, "gpus.user, which may be root, does not work here");
    return end_with_server(error);
}

core_status gpu_child_protect(const struct gpu_child *child, struct core_error *error)
{
    bool locked;
    core_status status = user_change(child, error); /* first: it makes dumps possible again */
    if (status == CORE_OK && close_range(GPU_CHILD_DESCRIPTORS, ~0U, 0) != 0)
        status = core_error_errno(error, "can not close inherited descriptors");
    if (status == CORE_OK)
        status = limit_descriptors(error);
    if (status == CORE_OK)
        status = core_secret_init(SECRET_BYTES, &locked, error);
    if (status != CORE_OK)
        return status;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return core_error_errno(error, "can not forbid new privileges");
    return CORE_OK;
}
