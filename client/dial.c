#include "client/dial.h"

#include "client/connection.h"
#include "core/realtime.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define STACK_BYTES ((size_t)1 << 20) /* for the libraries that look names up */

static void *connect_server(void *argument)
{
    struct client_dial *dial = argument;
    if (dial->version_max == 0)
        dial->status = (core_status)millrace_connect(dial->address, &dial->tls, dial->timeout_ms,
                                                     &dial->connection, dial->error.text);
    else
        dial->status = client_connect(dial->address, &dial->tls, dial->version_max, dial->timeout_ms,
                                      &dial->connection, &dial->error);
    (void)!eventfd_write(dial->ended, 1);
    return NULL;
}

/* Signals are for the thread that polls. */
static core_status start(struct client_dial *dial, struct core_error *error)
{
    const struct core_thread_options options = {.name = "dial", .cpu = -1, .stack_bytes = STACK_BYTES};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    core_status status = core_thread_start(&dial->thread, &options, connect_server, dial, NULL, error);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

core_status client_dial_begin(struct client_dial *dial, struct core_error *error)
{
    dial->connection = NULL;
    dial->ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (dial->ended < 0)
        return core_error_errno(error, "connecting to the server: eventfd");
    core_status status = start(dial, error);
    if (status)
        close(dial->ended);
    dial->begun = status == CORE_OK;
    return status;
}

static void finish(struct client_dial *dial)
{
    pthread_join(dial->thread, NULL);
    close(dial->ended);
    dial->begun = false;
}

core_status client_dial_take(struct client_dial *dial, struct millrace **connection, struct core_error *error)
{
    eventfd_t count;
    if (eventfd_read(dial->ended, &count) != 0)
        return CORE_AGAIN;
    finish(dial);
    *connection = dial->connection;
    *error = dial->error;
    return dial->status;
}

int client_dial_descriptor(const struct client_dial *dial)
{
    return dial->begun ? dial->ended : -1;
}

void client_dial_close(struct client_dial *dial)
{
    if (!dial->begun)
        return;
    finish(dial);
    if (dial->status == CORE_OK)
        millrace_disconnect(dial->connection);
}
