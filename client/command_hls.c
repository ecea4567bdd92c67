/* millrace hls: its options, its loop, and what it says. */
#include "client/hls/http.h"
#include "client/hls/watch.h"

#include "core/secret.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PROGRESS_NS CORE_NS_PER_S
#define TURN_MS     100
#define DRAIN_NS    (5 * CORE_NS_PER_S)

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

enum {
    OPTION_KEYS = 0x400,
    OPTION_KEY_URI,
    OPTION_KEY_INFO,
    OPTION_ROTATE,
    OPTION_WAIT,
    OPTION_BANDWIDTH,
    OPTION_MEMORY
};

struct hls_options {
    struct core_options_server server;
    const char *input, *output, *listen;
};

struct hls_command {
    struct hls_options options;
    struct hls hls;
    struct hls_watch watch;
    struct hls_http http;
};

static const struct argp_option option_table[] = {
    {"input", 'i', "FOLDER", 0, "take clear segments and playlists from this folder and those in it", 0},
    {"listen", 'l', "ADDRESS", 0,
     "take them by HTTP PUT or POST, serve the output and /metrics: unix:/path, tcp:127.0.0.1:port", 0},
    {"output", 'o', "FOLDER", 0, "write encrypted segments and their playlists here", 0},
    {"keys", OPTION_KEYS, "FOLDER", 0, "draw keys at random and write them here, each a private file", 0},
    {"key-uri", OPTION_KEY_URI, "TEMPLATE", 0,
     "where players find a key: {id} is the name of its file without .key, {rendition} that of its playlist",
     0},
    {"rotate", OPTION_ROTATE, "N", 0, "a new key every N media segments [100]", 0},
    {"key-info", OPTION_KEY_INFO, "FILE", 0,
     "take keys as FILE says, an hls_key_info_file of ffmpeg; read again when it has changed", 0},
    {"wait", OPTION_WAIT, "TIME", 0,
     "that a file may wait for its encryption [a quarter of the target duration, at most 1s]", 0},
    {"bandwidth", OPTION_BANDWIDTH, "RATE", 0, "of a rendition, at least [as its files are]", 0},
    {"memory", OPTION_MEMORY, "BYTES", 0, "of clear files that wait [256MiB]", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct hls_command *command = state->input;
    struct hls *hls = &command->hls;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &command->options.server;
        return 0;
    case 'i':
        command->options.input = argument;
        return 0;
    case 'l':
        command->options.listen = argument;
        return 0;
    case 'o':
        command->options.output = argument;
        return 0;
    case OPTION_KEYS:
        hls->keys.folder = argument;
        return 0;
    case OPTION_KEY_URI:
        hls->keys.uri_template = argument;
        return 0;
    case OPTION_KEY_INFO:
        hls->keys.info_file = argument;
        return 0;
    case OPTION_ROTATE:
        hls->keys.rotate = (unsigned)core_options_count(state, "rotate", argument, 1, 1000000);
        return 0;
    case OPTION_WAIT:
        hls->wait_ns = core_options_duration(state, "wait", argument, 0, CORE_NS_PER_MS, CORE_LATENCY_NS_MAX);
        return 0;
    case OPTION_BANDWIDTH:
        hls->link.bandwidth_bits_per_s = core_options_rate(state, "bandwidth", argument, 1, 1, 1e12);
        return 0;
    case OPTION_MEMORY:
        hls->memory_max = core_options_bytes(state, "memory", argument, 1 << 20, UINT64_C(1) << 40);
        return 0;
    case ARGP_KEY_END:
        if (command->options.output == NULL ||
            (command->options.input == NULL && command->options.listen == NULL))
            argp_error(state, "give --output, and --input or --listen");
        if ((hls->keys.info_file != NULL) == (hls->keys.folder != NULL) ||
            (hls->keys.folder != NULL) != (hls->keys.uri_template != NULL))
            argp_error(state, "give --keys and --key-uri, or --key-info");
        if (hls->keys.uri_template != NULL && strstr(hls->keys.uri_template, "{id}") == NULL)
            argp_error(state, "--key-uri: {id} must be in it");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&core_options_server_argp, 0, "Server:", 1}, {0}};
static const struct argp argp = {
    .options = option_table,
    .parser = parse,
    .doc = "Stands beside an HLS packager: encrypts its segments (METHOD=AES-128) as they come, and "
           "publishes its playlists with the keys in them. A new start goes on with the next segment."
           "\vThe server must speak version 3 of the protocol and allow IVs (client_iv: true). Ctrl-C stops "
           "when what has come is published.",
    .children = children,
};

/* ---- the run ---- */

static void sleep_until_needed(struct hls_command *command)
{
    struct pollfd ready[3] = {
        {.fd = command->watch.descriptor, .events = POLLIN},
        {.fd = hls_http_descriptor(&command->http), .events = POLLIN},
        {.fd = hls_link_descriptor(&command->hls.link), .events = hls_link_events(&command->hls.link)},
    };
    int http_ms = hls_http_wait_ms(&command->http, TURN_MS);
    int count = poll(ready, 3, hls_link_wait_ms(&command->hls.link, core_time_now_ns(), http_ms));
    if (count > 0 && ready[0].revents != 0)
        hls_watch_read(&command->watch);
    if (count <= 0 || http_ms == 0 || ready[1].revents != 0)
        hls_http_turn(&command->http);
}

static void show_progress(const struct hls *hls, core_ns now_ns)
{
    static core_ns told_ns;
    char waiting[CORE_TEXT_BYTES], done[CORE_TEXT_BYTES];
    if (!terminal || now_ns - told_ns < PROGRESS_NS)
        return;
    told_ns = now_ns;
    fprintf(stderr,
            "\r\033[K%zu playlists, %" PRIu64 " segments, %s, %s waiting, %" PRIu64 " late, %" PRIu64
            " keys%s",
            hls->rendition_count, hls->counts.segments, core_bytes_format((double)hls->counts.bytes, done),
            core_bytes_format((double)hls->clear_bytes, waiting), hls->counts.late, hls->keys.made,
            hls->link.connection == NULL ? ", no server" : "");
}

static void run(struct hls_command *command)
{
    core_ns until_ns = CORE_NS_PER_S * INT64_C(1000000000);
    bool stopping = false;
    do {
        sleep_until_needed(command);
        hls_turn(&command->hls, core_time_now_ns());
        show_progress(&command->hls, core_time_now_ns());
        if (interrupted && !stopping)
            until_ns = core_time_now_ns() + DRAIN_NS;
        stopping = interrupted != 0;
    } while (!stopping || (hls_is_busy(&command->hls) && core_time_now_ns() < until_ns));
}

static void print_summary(const struct hls *hls)
{
    char text[CORE_TEXT_BYTES];
    const struct hls_counts *counts = &hls->counts;
    if (terminal)
        fputs("\r\033[K", stderr);
    fprintf(stderr,
            "%" PRIu64 " segments, %" PRIu64 " parts, %" PRIu64 " maps, %s; %" PRIu64 " late, %" PRIu64
            " never came; %" PRIu64 " keys; connected anew %" PRIu64 " times; slowest %s\n",
            counts->segments, counts->parts, counts->maps, core_bytes_format((double)counts->bytes, text),
            counts->late, counts->gone, hls->keys.made, hls->link.counts.reconnects,
            core_duration_format(core_histogram_maximum_ns(&hls->delay), (char[CORE_TEXT_BYTES]){0}));
}

static core_status open_input(struct hls_command *command, struct core_error *error)
{
    command->hls.input = -1;
    if (command->options.input == NULL)
        return CORE_OK;
    command->hls.input = open(command->options.input, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return command->hls.input < 0 ? core_error_errno(error, "the folder %s", command->options.input)
                                  : CORE_OK;
}

/* With a slash behind it. */
static bool resolve(const char *folder, char path[PATH_MAX + 1])
{
    if (folder == NULL || realpath(folder, path) == NULL)
        return false;
    size_t length = strlen(path);
    if (path[length - 1] != '/')
        memcpy(path + length, "/", 2);
    return true;
}

/* Is the folder the output, in it, or around it? */
static bool touches(const char *folder, const char *output)
{
    char one[PATH_MAX + 1], two[PATH_MAX + 1];
    if (!resolve(folder, one) || !resolve(output, two))
        return false;
    return strncmp(one, two, strlen(one) < strlen(two) ? strlen(one) : strlen(two)) == 0;
}

/* Players have the output: neither keys nor clear files may be in it. */
static core_status keep_apart(const struct hls_command *command, struct core_error *error)
{
    if (touches(command->options.input, command->options.output) ||
        touches(command->hls.keys.folder, command->options.output))
        return core_error_set(error, CORE_INVALID, "--output: it must be apart from --input and --keys");
    return CORE_OK;
}

/* Every packager's connection takes one. */
static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static core_status start_inputs(struct hls_command *command, struct core_error *error)
{
    core_status status = CORE_OK;
    command->watch.descriptor = -1;
    if (command->options.listen != NULL)
        status = hls_http_start(&command->http, &command->hls, command->options.listen, error);
    if (status == CORE_OK && command->options.input != NULL)
        status = hls_watch_start(&command->watch, &command->hls, command->options.input, error);
    return status;
}

int command_hls(int argc, char **argv)
{
    static struct hls_command command;
    struct core_error error;
    bool locked;
    struct hls *hls = &command.hls;
    const struct sigaction stop = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    core_options_server_init(&command.options.server);
    hls->keys.rotate = 100;
    hls->memory_max = (size_t)256 << 20;
    if (core_options_parse(&argp, argc, argv, &command) != 0)
        return COMMAND_FAILED;
    core_status status = core_secret_init(1 << 20, &locked, &error);
    if (status || (status = hls_folder_open(command.options.output, &hls->output, &error)) ||
        (status = open_input(&command, &error)) || (status = keep_apart(&command, &error)))
        return command_fail(status == CORE_IN_USE ? COMMAND_FAILED : COMMAND_USAGE, "%s", error.text);
    hls->link.server = &command.options.server;
    hls->say = say;
    terminal = isatty(STDERR_FILENO);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    signal(SIGPIPE, SIG_IGN);
    raise_descriptors();
    hls_start(hls);
    status = start_inputs(&command, &error);
    if (status)
        return command_fail(status == CORE_INVALID || status == CORE_UNSUPPORTED ? COMMAND_USAGE
                                                                                 : COMMAND_FAILED,
                            "%s", error.text);
    run(&command);
    print_summary(hls);
    hls_http_stop(&command.http);
    hls_close(hls);
    return COMMAND_OK;
}
