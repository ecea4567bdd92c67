/* millrace ts: its options, its loop, and what it says. */
#include "client/ts/metrics.h"
#include "client/ts/sockets.h"

#include "core/secret.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define LOOK_NS         (5 * CORE_NS_PER_MS) /* for what is not told by a descriptor */
#define PROGRESS_NS     CORE_NS_PER_S
#define DRAIN_NS        CORE_NS_PER_S
#define EVENTS          1024
#define GATHER          20 /* this part of the shortest bound passes between two turns: fewer, larger ones */
#define SECRET_BYTES    (1 << 20)
#define SECRET_BYTES_OF 8192 /* a service's */

static volatile sig_atomic_t interrupted; /* by this signal */

static void on_signal(int number)
{
    interrupted = number;
}

static bool terminal; /* standard error is one: progress is shown */

static void say(const char *format, ...) CORE_PRINTF(1, 2);
static void say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs(terminal ? "\r\033[Kmillrace: " : "millrace: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

/* ---- options ---- */

enum { OPTION_CHECK = 0x400, OPTION_JSON };

struct ts_command {
    struct core_options_server server;
    const char *file, *listen;
    bool check;
    struct config_ts *config;
    struct ts_set set;
    struct ts_metrics metrics;
    int poller, linked; /* the latter: the link's descriptor that it has; -1: none */
    bool linked_for_writing;
    core_ns gather_ns, turned_ns;
};

static const struct argp_option option_table[] = {
    {"listen", 'l', "ADDRESS", 0, "serve /metrics: unix:/path, tcp:127.0.0.1:port", 0},
    {"check", OPTION_CHECK, 0, 0, "only read FILE, and say what is wrong with it", 0},
    {"json", OPTION_JSON, 0, 0, "report as JSON on standard output at the end", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct ts_command *command = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &command->server;
        return 0;
    case 'l':
        command->listen = argument;
        return 0;
    case OPTION_CHECK:
        command->check = true;
        return 0;
    case OPTION_JSON:
        command_want_json();
        return 0;
    case ARGP_KEY_ARG:
        if (command->file != NULL)
            return ARGP_ERR_UNKNOWN;
        command->file = argument;
        return 0;
    case ARGP_KEY_END:
        if (command->file == NULL)
            argp_error(state, "give the FILE of the services");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&core_options_server_argp, 0, "Server:", 1}, {0}};
static const struct argp argp = {
    .options = option_table,
    .parser = parse,
    .args_doc = "FILE",
    .doc = "Scrambles MPEG transport streams (DVB-CISSA) between UDP or RTP sockets: the services that FILE "
           "names, in YAML (docs/operations/ts.md)."
           "\vThe server must speak version 3 of the protocol and allow IVs (client_iv: true). Ctrl-C stops.",
    .children = children,
};

/* ---- the run ---- */

static bool watch(const struct ts_command *command, int operation, int descriptor, uint32_t events,
                  void *what)
{
    struct epoll_event event = {.events = events, .data.ptr = what};
    return epoll_ctl(command->poller, operation, descriptor, &event) == 0;
}

/* A connection that has ended is in the poller no longer. */
static void watch_link(struct ts_command *command)
{
    struct ts_link *link = &command->set.link;
    int descriptor = ts_link_descriptor(link);
    bool writes = ts_link_wants_write(link);
    uint32_t events = EPOLLIN | (writes ? EPOLLOUT : 0u);
    if (descriptor >= 0 && (descriptor != command->linked || writes != command->linked_for_writing) &&
        !watch(command, EPOLL_CTL_MOD, descriptor, events, link))
        (void)watch(command, EPOLL_CTL_ADD, descriptor, events, link);
    command->linked = descriptor;
    command->linked_for_writing = writes;
}

static void wait_events(struct ts_command *command, core_ns until_ns, bool receives)
{
    static struct epoll_event events[EVENTS];
    core_time_sleep_until(core_time_min(command->turned_ns + command->gather_ns, until_ns));
    core_ns wait_ns = core_time_max(until_ns - core_time_now_ns(), 0);
    const struct timespec wait = {.tv_sec = wait_ns / CORE_NS_PER_S, .tv_nsec = wait_ns % CORE_NS_PER_S};
    watch_link(command);
    int count = epoll_pwait2(command->poller, events, EVENTS, &wait, NULL);
    command->turned_ns = core_time_now_ns();
    core_ns offset_ns = ts_clock_offset_ns();
    for (int i = 0; i < count; i++)
        if (events[i].data.ptr == &command->metrics)
            ts_metrics_turn(&command->metrics);
        else if (events[i].data.ptr != &command->set.link && receives)
            ts_service_receive(events[i].data.ptr, offset_ns);
}

/* Returns when to be called again, if nothing comes before. */
static core_ns turn(struct ts_command *command, core_ns *looked_ns)
{
    struct ts_set *set = &command->set;
    core_ns now_ns = core_time_now_ns();
    ts_link_flush(&set->link);
    ts_link_read(&set->link);
    if (now_ns - *looked_ns >= LOOK_NS) {
        ts_link_look(&set->link, now_ns);
        *looked_ns = now_ns;
    }
    core_ns next_ns = *looked_ns + LOOK_NS;
    for (size_t i = 0; i < set->count; i++) {
        ts_service_push(&set->services[i]);
        next_ns = core_time_min(next_ns, ts_service_release(&set->services[i], now_ns));
    }
    ts_link_flush(&set->link);
    return next_ns;
}

static void show_progress(const struct ts_set *set, core_ns now_ns)
{
    static core_ns told_ns;
    static uint64_t told_bytes;
    char rate[CORE_TEXT_BYTES];
    size_t open = 0;
    if (!terminal || now_ns - told_ns < PROGRESS_NS)
        return;
    const struct ts_counts sum = ts_report_sum(set);
    double bits_per_s = (double)(sum.bytes - told_bytes) * 8e9 / (double)(now_ns - told_ns);
    for (size_t i = 0; i < set->count; i++)
        open += set->services[i].stream.id != 0;
    told_ns = now_ns;
    told_bytes = sum.bytes;
    fprintf(stderr,
            "\r\033[K%zu of %zu services, %s, %" PRIu64 " datagrams, %" PRIu64 " late, %" PRIu64 " dropped%s",
            open, set->count, core_rate_format(bits_per_s, rate), sum.datagrams, sum.late,
            ts_report_dropped(&sum), set->link.connection == NULL ? ", no server" : "");
}

static void run(struct ts_command *command)
{
    core_ns until_ns = CORE_NS_NEVER, looked_ns = 0, next_ns = 0;
    do {
        wait_events(command, next_ns, interrupted == 0);
        next_ns = turn(command, &looked_ns);
        show_progress(&command->set, core_time_now_ns());
        if (interrupted != 0 && until_ns == CORE_NS_NEVER)
            until_ns = core_time_now_ns() + DRAIN_NS;
    } while (interrupted == 0 || (ts_link_is_busy(&command->set.link) && core_time_now_ns() < until_ns));
}

/* ---- from the beginning to the end ---- */

static core_status open_services(struct ts_command *command, struct core_error *error)
{
    struct ts_set *set = &command->set;
    command->poller = epoll_create1(EPOLL_CLOEXEC);
    set->services = calloc(command->config->service_count, sizeof *set->services);
    if (command->poller < 0 || set->services == NULL)
        return core_error_errno(error, "no room for %zu services", command->config->service_count);
    for (; set->count < command->config->service_count; set->count++) {
        struct ts_service *service = &set->services[set->count];
        core_status status =
            ts_service_open(service, &command->config->services[set->count], &set->link, error);
        if (status)
            return status;
        core_ns gather_ns = service->config->bound_ns / GATHER;
        command->gather_ns = set->count == 0 ? gather_ns : core_time_min(gather_ns, command->gather_ns);
        if (!watch(command, EPOLL_CTL_ADD, service->input, EPOLLIN, service))
            return core_error_errno(error, "%s can not be waited for", service->config->name);
    }
    return CORE_OK;
}

static core_status start(struct ts_command *command, struct core_error *error)
{
    bool locked;
    core_status status =
        core_secret_init(SECRET_BYTES + command->config->service_count * SECRET_BYTES_OF, &locked, error);
    if (status || (status = open_services(command, error)))
        return status;
    if (command->listen == NULL)
        return CORE_OK;
    status = ts_metrics_start(&command->metrics, &command->set, command->listen, error);
    if (status == CORE_OK &&
        !watch(command, EPOLL_CTL_ADD, ts_metrics_descriptor(&command->metrics), EPOLLIN, &command->metrics))
        status = core_error_errno(error, "%s can not be waited for", command->listen);
    return status;
}

static void close_services(struct ts_command *command)
{
    ts_metrics_stop(&command->metrics);
    ts_link_close(&command->set.link);
    for (size_t i = 0; i < command->set.count; i++)
        ts_service_close(&command->set.services[i]);
    free(command->set.services);
    close(command->poller);
    config_ts_free(command->config);
}

static int report(const struct ts_set *set)
{
    const struct ts_counts sum = ts_report_sum(set);
    if (terminal)
        fputs("\r\033[K", stderr);
    int status = COMMAND_OK;
    if (command_wants_json())
        status = command_print_json(ts_report_json(set));
    else
        ts_report_text(set, stderr);
    return status == COMMAND_OK && sum.late > 0 ? COMMAND_MISSED : status;
}

int command_ts(int argc, char **argv)
{
    static struct ts_command command = {.linked = -1};
    struct core_error error;
    const struct sigaction stop = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    core_options_server_init(&command.server);
    if (core_options_parse(&argp, argc, argv, &command) != 0)
        return COMMAND_FAILED;
    if (config_ts_load(command.file, &command.config, &error) != CORE_OK)
        return command_fail(COMMAND_USAGE, "%s", error.text);
    if (command.check) {
        config_ts_free(command.config);
        return COMMAND_OK;
    }
    command.set.link = (struct ts_link){
        .server = &command.server, .done = ts_service_done, .lost = ts_service_lost, .say = say};
    terminal = isatty(STDERR_FILENO);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (start(&command, &error) != CORE_OK)
        return command_fail(COMMAND_FAILED, "%s", error.text);
    run(&command);
    int status = report(&command.set);
    close_services(&command);
    return status;
}
