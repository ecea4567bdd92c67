#include "core/log.h"
#include "core/secret.h"
#include "gpu/child.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SECRET_BYTES 4096 /* least there is: what this process has of keys lies elsewhere */

/* What ends a whole process group - Ctrl-C, a closed terminal, a service manager - is the server's business:
 * it delivers what is under way, for which it needs its children, and stops them then. A child ends by STOP,
 * or with its server: the socket's end, which the kernel sees to however the server ends. The mask is the
 * spawn's, which holds these signals back until they are ignored. */
static void signals_set(void)
{
    sigset_t none;
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
}

core_status gpu_child_protect(struct core_error *error)
{
    bool locked;
    signals_set();
    if (close_range(GPU_CHILD_DESCRIPTORS, ~0U, 0) != 0)
        return core_error_errno(error, "can not close inherited descriptors");
    const core_status status = core_secret_init(SECRET_BYTES, &locked, error);
    if (status != CORE_OK)
        return status;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return core_error_errno(error, "can not forbid new privileges");
    return CORE_OK;
}
