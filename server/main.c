/* millraced: options, signals, readiness; everything else is server.h. */
#include "core/log.h"
#include "core/options.h"
#include "core/standard.h"
#include "server/journal.h"
#include "server/server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef MILLRACE_HAS_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

/* At the end, for what is left of the log: longer would hold up the end where nobody reads it. */
#define LOG_TIMEOUT_NS CORE_NS_PER_S
#define LEAVE_LOOK_MS  20

enum { EXIT_LOST = 1, EXIT_USAGE = 2, EXIT_START = 3, EXIT_IN_USE = 4 };

struct options {
    const char *config;
    bool check;
};

static const struct argp_option option_table[] = {
    {"check-config", 'c', NULL, 0, "Check all that would prevent a start, and start nothing", 0},
    {0},
};

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case 'c':
        options->check = true;
        return 0;
    case ARGP_KEY_ARG:
        if (options->config != NULL)
            argp_error(state, "one configuration file, please");
        options->config = argument;
        return 0;
    case ARGP_KEY_END:
        if (options->config == NULL && options->check)
            argp_error(state, "which configuration file?");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    "[CONFIG.yaml]",
    "The Millrace server: encrypts live streams before their deadlines.\v"
    "Without a configuration file all is as by default, and the sockets are millraced.sock and admin.sock "
    "in $XDG_RUNTIME_DIR/millrace, or in /run/millrace for root; the folder is made.\n\n"
    "Signals: SIGTERM or SIGINT finish and deliver what was accepted, then stop; SIGHUP reads keyring, TLS "
    "certificates and log level again; SIGUSR1 begins maintenance, in which clients and HAProxy are told to "
    "go "
    "elsewhere, and SIGUSR2 ends it.\n\n"
    "Exit status: 0 stopped and nothing lost; 1 stopped, but accepted packets could not be delivered within "
    "timeouts.drain_ms; 2 usage; 3 the configuration or the start failed; 4 the check found nothing but an "
    "address "
    "in use, as where the server runs.",
    NULL,
    NULL,
    NULL,
};

static void apply_log(const struct config_server *config)
{
    struct core_log_options log = {.level = config->log_level,
                                   .format = config->log_format,
                                   .descriptor = STDERR_FILENO,
                                   .per_s = 10,
                                   .burst = 20};
#ifdef MILLRACE_HAS_SYSTEMD
    if (config->log_format == CORE_LOG_TEXT) /* who wants JSON wants lines */
        log.sink = server_journal_sink();
#endif
    core_log_configure(&log);
}

/* What waits for a restart. */
static void report_differences(const struct config_server *config, const struct config_server *fresh)
{
    char text[1200];
    if (config_server_differences(config, fresh, text, sizeof text)[0] != '\0')
        core_log(CORE_LOG_WARNING, "reload.restart", "changed, but in force only after a restart: %s", text);
}

/* SIGHUP: a bad file changes nothing. */
static void reload(struct server *server, const struct config_server *config, const char *path)
{
    struct config_server *fresh;
    struct core_error error = {""};

    if (path == NULL) {
        core_log(CORE_LOG_WARNING, "reload.failed",
                 "nothing to reload: the server runs without a configuration file");
        return;
    }
    core_status status = config_server_load(path, &fresh, &error);
    if (status == CORE_OK) {
        status = server_reload(server, fresh, &error);
        if (status == CORE_OK)
            report_differences(config, fresh);
        config_server_free(fresh);
    }
    if (status == CORE_OK)
        core_log(CORE_LOG_INFO, "reload.done",
                 "reloaded from %s and in force: log level, keyring, and certificates, keys and client CAs "
                 "of TLS listeners",
                 path);
    else
        core_log(CORE_LOG_ERROR, "reload.failed", "%s; the configuration in force is unchanged", error.text);
}

/* How often systemd's watchdog is to hear of us, in ms; -1: never. */
static int watchdog_ms(void)
{
#ifdef MILLRACE_HAS_SYSTEMD
    uint64_t watchdog_us = 0;
    if (sd_watchdog_enabled(0, &watchdog_us) > 0)
        return (int)(watchdog_us / 2000);
#endif
    return -1;
}

/* Keeps it content, as long as all threads go round. */
static void feed_watchdog(const struct server *server)
{
#ifdef MILLRACE_HAS_SYSTEMD
    char text[96];
    if (server_lives(server, text, sizeof text))
        (void)sd_notify(0, "WATCHDOG=1");
#else
    (void)server;
#endif
}

/* Blocks until a signal comes, or for timeout_ms (-1: for ever). 0: none has come. */
static int wait_for_signal(const struct server *server, int descriptor, int timeout_ms)
{
    struct signalfd_siginfo info;
    struct pollfd ready = {.fd = descriptor, .events = POLLIN};
    const int feed_ms = watchdog_ms();

    while (poll(&ready, 1, timeout_ms >= 0 ? timeout_ms : feed_ms) == 0) {
        if (feed_ms >= 0)
            feed_watchdog(server);
        if (timeout_ms >= 0)
            return 0;
    }
    return read(descriptor, &info, sizeof info) == sizeof info ? (int)info.ssi_signo : 0;
}

/* Before the drain: while clients still have streams, timeouts.leave_ms at the most, or until a second signal. */
static void leave(struct server *server, const struct config_server *config, int descriptor)
{
    const core_ns until_ns = core_time_now_ns() + config->timeouts.leave_ns;
    int number = 0;

    if (config->timeouts.leave_ns == 0)
        return;
    server_leave(server);
    core_log(
        CORE_LOG_INFO, "stop.leave",
        "clients are told to open their %llu streams elsewhere, and have timeouts.leave_ms (%lld ms) for it",
        (unsigned long long)server_streams(server), (long long)(config->timeouts.leave_ns / CORE_NS_PER_MS));
    while (number != SIGTERM && number != SIGINT && server_streams(server) > 0 &&
           core_time_now_ns() < until_ns)
        number = wait_for_signal(server, descriptor, LEAVE_LOOK_MS);
}

static void notify_systemd(const char *state)
{
#ifdef MILLRACE_HAS_SYSTEMD
    (void)sd_notify(0, state);
#else
    (void)state;
#endif
}

static int serve(const struct options *options, const struct config_server *config,
                 const struct config_profile *profile)
{
    struct core_error error = {""};
    struct server *server;
    char text[256];
    sigset_t signals;
    int number;

    /* For all threads and children to come: no program that runs as somebody else is ever started. */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        core_log(CORE_LOG_ERROR, "start.failed", "can not forbid new privileges: %s", strerror(errno));
        return EXIT_START;
    }
    /* Blocked before any thread starts, so that all of them inherit it and only the descriptor delivers. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    int descriptor = signalfd(-1, &signals, SFD_CLOEXEC);
    if (descriptor < 0 || core_log_start(&error) != CORE_OK ||
        server_start(&server, config, profile, &error) != CORE_OK) {
        core_log(CORE_LOG_ERROR, "start.failed", "%s", error.text);
        return EXIT_START;
    }
    if (server_sandbox(server, &error) != CORE_OK) {
        core_log(CORE_LOG_ERROR, "start.failed", "%s", error.text);
        (void)server_stop(server);
        return EXIT_START;
    }
    core_log(CORE_LOG_INFO, "start.ready", "ready: %s", server_describe(server, text, sizeof text));
    notify_systemd("READY=1");
    while ((number = wait_for_signal(server, descriptor, -1)) != SIGTERM && number != SIGINT)
        if (number == SIGHUP)
            reload(server, config, options->config);
        else if (number != 0)
            server_maintain(server, number == SIGUSR1);
    notify_systemd("STOPPING=1");
    leave(server, config, descriptor);
    core_log(CORE_LOG_INFO, "stop.begin", "signal %d: delivering the accepted packets, then stopping",
             number);
    uint64_t lost = server_stop(server);
    close(descriptor);
    if (lost > 0) {
        core_log(CORE_LOG_ERROR, "stop.lost",
                 "stopped; %llu accepted packets could not be delivered within timeouts.drain_ms",
                 (unsigned long long)lost);
        return EXIT_LOST;
    }
    core_log(CORE_LOG_INFO, "stop.done", "stopped; nothing was lost");
    return EXIT_SUCCESS;
}

static void tell(void *argument, const char *text)
{
    (void)argument;
    fprintf(stderr, "%s\n", text);
}

static int check(const struct options *options, const struct config_server *config,
                 const struct config_profile *profile)
{
    core_status status = server_check(config, profile, tell, NULL);
    if (status == CORE_OK)
        printf("%s: good\n", options->config);
    return status == CORE_OK ? EXIT_SUCCESS : status == CORE_IN_USE ? EXIT_IN_USE : EXIT_START;
}

/* All defaults; the folder of the sockets is made. */
static core_status load_default(struct config_server **config, struct core_error *error)
{
    char folder[256];
    core_status status = core_address_default_folder(folder, sizeof folder, error);
    if (status != CORE_OK)
        return core_error_prefix(error, status, "no configuration file is given");
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return core_error_errno(error, "no configuration file is given, and %s can not be made", folder);
    return config_server_default(folder, config, error);
}

static core_status load(const char *path, struct config_server **config, struct config_profile **profile,
                        struct core_error *error)
{
    core_status status = path == NULL ? load_default(config, error) : config_server_load(path, config, error);
    return status == CORE_OK ? config_server_profile(*config, profile, error) : status;
}

int main(int argc, char **argv)
{
    struct options options = {0};
    struct core_error error = {""};
    struct config_server *config = NULL;
    struct config_profile *profile = NULL;
    int result = EXIT_START;

    if (!core_standard_open())
        return EXIT_START;
    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return EXIT_START;
    if (load(options.config, &config, &profile, &error) != CORE_OK)
        fprintf(stderr, "%s\n", error.text);
    else if (options.check)
        result = check(&options, config, profile);
    else {
        apply_log(config);
        result = serve(&options, config, profile);
        (void)core_log_stop(LOG_TIMEOUT_NS);
    }
    config_profile_free(profile);
    config_server_free(config);
    return result;
}
