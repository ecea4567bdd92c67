/* libmillraced: the server inside a process of somebody else's (core/embedded.h). One thread does what millraced's
 * main does; all others of the server have its signal mask, and the processes of GPUs end with it. */
#include "server/embedded.h"

#include "core/log.h"
#include "core/realtime.h"
#include "core/secret.h"
#include "core/time.h"
#include "server/server.h"

#include <limits.h>
#include <openssl/ssl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOG_TIMEOUT_NS  CORE_NS_PER_S
#define LANE_BYTES      (UINT64_C(64) << 20) /* where nobody else connects and the configuration says nothing */
#define STACK_BYTES     ((size_t)1 << 20)
#define END_PATIENCE_NS (10 * CORE_NS_PER_S) /* of a process that ends, for who starts or stops the server */

/* The one server of the process; all but `process` and `ending` is guarded by the lock. */
static struct {
    pthread_mutex_t lock;
    _Atomic bool ending; /* the process: nothing starts any more */
    _Atomic pid_t
        process; /* atomic: that it was started in; 0: none. Also read without the lock, after a fork */
    uint32_t connections;
    bool ends_with_process;
    char path[PATH_MAX]; /* without links */
    struct config_server *config;
    struct config_profile *profile;
    struct server *server;
    pthread_t thread;
    sem_t started, ended;
    core_status status; /* of the start */
    struct core_error error;
} embedded = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_once_t fork_is_handled = PTHREAD_ONCE_INIT;

/* ---- on the server's own thread ---- */

static void apply_log(const struct config_server *config)
{
    const struct core_log_options log = {.level = config->log_level,
                                         .format = config->log_format,
                                         .descriptor = STDERR_FILENO,
                                         .per_s = 10,
                                         .burst = 20};
    core_log_configure(&log);
}

static core_status load(struct core_error *error)
{
    core_status status = config_server_load_embedded(embedded.path, &embedded.config, error);
    if (status == CORE_OK)
        status = config_server_profile(embedded.config, &embedded.profile, error);
    if (status == CORE_OK && embedded.config->listener_count == 0 && embedded.config->limits.lane_bytes == 0)
        embedded.config->limits.lane_bytes = LANE_BYTES;
    return status;
}

static core_status begin(struct core_error *error)
{
    char text[256];
    if (!core_log_stop(LOG_TIMEOUT_NS))
        return core_error_set(error, CORE_SYSTEM,
                              "standard error is not read, and the log of the server before waits for that");
    core_status status = load(error);
    if (status != CORE_OK)
        return status;
    apply_log(embedded.config);
    status = core_log_start(error);
    if (status == CORE_OK)
        status = server_start_embedded(&embedded.server, embedded.config, embedded.profile, error);
    if (status == CORE_OK)
        core_log(CORE_LOG_INFO, "start.ready", "ready inside process %d: %s", (int)getpid(),
                 server_describe(embedded.server, text, sizeof text));
    return status;
}

static void stop_server(void)
{
    const uint64_t lost = server_stop(embedded.server);
    embedded.server = NULL;
    if (lost > 0)
        core_log(CORE_LOG_ERROR, "stop.lost",
                 "stopped; %llu accepted packets could not be delivered within timeouts.drain_ms",
                 (unsigned long long)lost);
    else
        core_log(CORE_LOG_INFO, "stop.done", "stopped; nothing was lost");
}

static void *run(void *unused)
{
    embedded.status = begin(&embedded.error);
    sem_post(&embedded.started);
    if (embedded.status == CORE_OK) {
        while (sem_wait(&embedded.ended) != 0)
            ;
        stop_server();
    }
    (void)core_log_stop(LOG_TIMEOUT_NS);
    core_secret_end();
    config_profile_free(embedded.profile);
    config_server_free(embedded.config);
    embedded.profile = NULL;
    embedded.config = NULL;
    return unused;
}

/* ---- on the caller's thread, under the lock ---- */

/* A thread inherits its signal mask from who starts it, whose own is what it was before this returns. */
static core_status start_thread(struct core_error *error)
{
    const struct core_thread_options options = {.name = "millraced", .cpu = -1, .stack_bytes = STACK_BYTES};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const core_status status = core_thread_start(&embedded.thread, &options, run, NULL, NULL, error);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static void forget(void)
{
    sem_destroy(&embedded.started);
    sem_destroy(&embedded.ended);
    atomic_store(&embedded.process, 0);
}

static void stop(void)
{
    sem_post(&embedded.ended);
    pthread_join(embedded.thread, NULL);
    forget();
}

static bool is_forked(void)
{
    const pid_t process = atomic_load(&embedded.process);
    return process != 0 && process != getpid();
}

/* In the child, where another thread may have had the lock and is no more. What it guards says then that there is
 * no server, or whose it is. */
static void unlock_child(void)
{
    pthread_mutex_init(&embedded.lock, NULL);
}

static void handle_fork(void)
{
    (void)pthread_atfork(NULL, NULL, unlock_child); /* without memory: as if nobody forked */
}

/* Whether the lock was free within the patience. It is tried again and again: ThreadSanitizer does not know
 * pthread_mutex_clocklock, the wait by a clock that nobody sets. */
static bool lock_patiently(void)
{
    const core_ns end_ns = core_time_now_ns() + END_PATIENCE_NS;
    while (pthread_mutex_trylock(&embedded.lock) != 0) {
        const core_ns now_ns = core_time_now_ns();
        if (now_ns > end_ns)
            return false;
        core_time_sleep_until(now_ns + CORE_NS_PER_MS);
    }
    return true;
}

/* What a program that ends has not closed: server and keys go before the libraries that they need do. Who has been
 * waiting for results waits no more. */
static void end_with_process(void)
{
    atomic_store(&embedded.ending, true);
    if (is_forked() || !lock_patiently())
        return;
    if (embedded.connections > 0) {
        embedded.config->timeouts.drain_ns = 0;
        embedded.connections = 0;
        stop();
    }
    pthread_mutex_unlock(&embedded.lock);
}

static core_status start(const char *path, struct core_error *error)
{
    if (!embedded.ends_with_process) /* before OpenSSL, whose end is registered first */
        embedded.ends_with_process = OPENSSL_init_ssl(0, NULL) == 1 && atexit(end_with_process) == 0;
    if (!embedded.ends_with_process)
        return core_error_set(error, CORE_SYSTEM, "the process ends, or has no memory left");
    snprintf(embedded.path, sizeof embedded.path, "%s", path);
    sem_init(&embedded.started, 0, 0);
    sem_init(&embedded.ended, 0, 0);
    atomic_store(&embedded.process, getpid());
    core_status status = start_thread(error);
    if (status == CORE_OK) {
        while (sem_wait(&embedded.started) != 0)
            ;
        status = embedded.status;
        if (status == CORE_OK)
            return status;
        pthread_join(embedded.thread, NULL);
        if (error != NULL)
            *error = embedded.error;
    }
    forget();
    return status;
}

/* The server of this configuration runs. */
static core_status ensure(const char *given, struct core_error *error)
{
    char path[PATH_MAX];
    if (atomic_load(&embedded.ending))
        return core_error_set(error, CORE_CLOSED, "the process ends, and the server inside it with it");
    if (realpath(given, path) == NULL)
        return core_error_errno(error, "can not read %s", given);
    if (embedded.connections == 0)
        return start(path, error);
    if (strcmp(path, embedded.path) == 0)
        return CORE_OK;
    return core_error_set(
        error, CORE_INVALID,
        "the server inside this process runs with %s, and there can be one: connect to that, "
        "or close all connections to it first",
        embedded.path);
}

static core_status adopt(int *descriptor, struct core_error *error)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return core_error_errno(error, "no sockets for a connection inside the process");
    const core_status status = server_adopt(embedded.server, ends[1], error);
    if (status == CORE_OK)
        *descriptor = ends[0];
    else
        close(ends[0]);
    return status;
}

/* ---- what the library is for ---- */

static core_status embedded_connect(const char *path, int *descriptor, struct core_error *error)
{
    if (is_forked())
        return core_error_set(error, CORE_UNSUPPORTED,
                              "the server inside the process stayed with the parent when this process was "
                              "forked; connect before, in the parent alone, or after an exec");
    (void)pthread_once(&fork_is_handled, handle_fork);
    pthread_mutex_lock(&embedded.lock);
    core_status status = ensure(path, error);
    if (status == CORE_OK) {
        status = adopt(descriptor, error);
        if (status == CORE_OK)
            embedded.connections++;
        else if (embedded.connections == 0)
            stop();
    }
    pthread_mutex_unlock(&embedded.lock);
    return status;
}

static void embedded_release(void)
{
    if (is_forked())
        return;
    pthread_mutex_lock(&embedded.lock);
    if (embedded.connections > 0 && --embedded.connections == 0) /* not what comes after the process's end */
        stop();
    pthread_mutex_unlock(&embedded.lock);
}

const struct core_embedded millraced_embedded = {
    .version = MILLRACE_VERSION, .connect = embedded_connect, .release = embedded_release};
