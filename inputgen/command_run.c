#include "inputgen/command_run.h"

#include "inputgen/kinds.h"
#include "inputgen/shipped.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum option_key {
    OPTION_SEED = 0x100, /* the commands' own begin at 0x200 */
    OPTION_STREAMS,
    OPTION_KINDS,
    OPTION_KEY_NAME,
    OPTION_KEYRING,
    OPTION_SCALE,
    OPTION_SLOWER,
    OPTION_SIZES,
    OPTION_PHASES,
    OPTION_BURSTS,
    OPTION_TICK,
    OPTION_REALTIME,
    OPTION_DRAIN,
    OPTION_SERVER_PID,
    OPTION_JSON
};

static const struct argp_option argp_options[] = {
    {"connections", 'n', "N", 0, "Connections the streams are dealt to (default 16)", 0},
    {"threads", 't', "N", 0, "Sending threads (default: one for every two cores)", 0},
    {"duration", 'd', "TIME", 0, "Send for so long, as 20s or 1min (default: as the list says)", 2},
    {"streams", OPTION_STREAMS, "N", 0, "Draw so many streams from WORKLOAD (default: as it says)", 2},
    {"kinds", OPTION_KINDS, "KIND=PERCENT", 0,
     "Make shares of the streams of WORKLOAD of these kinds, as hls=20,dvb-cissa=10", 2},
    {"seed", OPTION_SEED, "N", 0, "Of streams drawn, payloads, lengths and phases (default 1)", 2},
    {"scale", OPTION_SCALE, "F", 0, "Multiply every stream's rate by F", 2},
    {"slower", OPTION_SLOWER, "PERCENT", 0,
     "Send so much slower than declared, to catch up after a stall (default 0)", 2},
    {"sizes", OPTION_SIZES, "full|uniform", 0, "Length of packets: the longest, or drawn up to it", 2},
    {"phases", OPTION_PHASES, "listed|random", 0,
     "When streams begin: as listed, or up to one interval later at random", 2},
    {"bursts", OPTION_BURSTS, NULL, 0, "Send whole bursts at once, as the contracts just allow", 2},
    {"tick", OPTION_TICK, "TIME", 0, "Shortest time between two batches (default 500us or less)", 2},
    {"realtime", OPTION_REALTIME, "off|auto", 0, "Ask for SCHED_FIFO, to keep the schedule (default auto)",
     2},
    {"drain", OPTION_DRAIN, "TIME", 0, "Wait so long past the last deadline for results (default 5s)", 2},
    {"key-name", OPTION_KEY_NAME, "NAME", 0, "Use this key of the server (default: a random key each)", 3},
    {"keyring", OPTION_KEYRING, "FILE", 0, "Keyring with that key, to check the results", 3},
    {"server-pid", OPTION_SERVER_PID, "PID", 0, "Whose CPU time to report (default: behind the Unix socket)",
     5},
    {"json", OPTION_JSON, NULL, 0, "Report as one JSON document", 5},
    {"quiet", 'q', NULL, 0, "No progress, and no report but faults", 5},
    {0}};

/* Is it `other`, rather than `usual`? Neither is a usage error. */
static bool choice(struct argp_state *state, const char *name, const char *text, const char *usual,
                   const char *other)
{
    if (strcmp(text, usual) != 0 && strcmp(text, other) != 0)
        argp_error(state, "--%s: '%s' is neither %s nor %s", name, text, usual, other);
    return strcmp(text, other) == 0;
}

/* A list is named .csv; all else is a workload, from which the streams are drawn. */
static bool list_is_csv(const char *name)
{
    const char *suffix = name ? strrchr(name, '.') : NULL;
    return suffix && strcmp(suffix, ".csv") == 0;
}

static void argument_check(struct argp_state *state, const struct inputgen_command *command)
{
    if (!command->list)
        argp_error(state, "a stream list (CSV) or a workload is needed");
    if (command->streams && list_is_csv(command->list))
        argp_error(state, "--streams is for workloads: a list has the streams it has");
    if (command->kinds && list_is_csv(command->list))
        argp_error(state, "--kinds is for workloads: a list has the streams it has");
    if (command->options.key_name && !command->keyring_path)
        argp_error(state, "--key-name needs --keyring FILE: results are checked with the same key");
}

static bool parse_run_option(int key, char *text, struct argp_state *state,
                             struct inputgen_replay_options *options)
{
    switch (key) {
    case 'n':
        options->connections = (unsigned)core_options_count(state, "connections", text, 1, 100000);
        return true;
    case 't':
        options->threads = (unsigned)core_options_count(state, "threads", text, 1, 1024);
        return true;
    case 'd':
        options->duration_ns = core_options_duration(state, "duration", text, CORE_NS_PER_S, CORE_NS_PER_MS,
                                                     1000000 * CORE_NS_PER_S);
        return true;
    case OPTION_SEED:
        options->seed = core_options_count(state, "seed", text, 0, UINT64_MAX);
        return true;
    case OPTION_SCALE:
        options->scale = core_options_number(state, "scale", text, 1e-6, 1e6);
        return true;
    case OPTION_SLOWER:
        options->slower = core_options_number(state, "slower", text, 0, 1000) / 100;
        return true;
    case OPTION_SIZES:
        options->uniform_sizes = choice(state, "sizes", text, "full", "uniform");
        return true;
    case OPTION_PHASES:
        options->random_phases = choice(state, "phases", text, "listed", "random");
        return true;
    case OPTION_BURSTS:
        options->bursts = true;
        return true;
    case OPTION_REALTIME:
        options->ordinary_priority = choice(state, "realtime", text, "auto", "off");
        return true;
    case OPTION_TICK:
        options->tick_ns =
            core_options_duration(state, "tick", text, CORE_NS_PER_US, CORE_NS_PER_US, CORE_NS_PER_S);
        return true;
    case OPTION_DRAIN:
        options->drain_ns = core_options_duration(state, "drain", text, CORE_NS_PER_S, CORE_NS_PER_MS,
                                                  100000 * CORE_NS_PER_S);
        return true;
    case OPTION_KEY_NAME:
        options->key_name = text;
        return true;
    case OPTION_SERVER_PID:
        options->server = (pid_t)core_options_count(state, "server-pid", text, 1, 4194304);
        return true;
    default:
        return false;
    }
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct inputgen_command *command = state->input;
    if (parse_run_option(key, text, state, &command->options))
        return 0;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &command->server;
        return 0;
    case OPTION_STREAMS:
        command->streams = (uint32_t)core_options_count(state, "streams", text, 1, 10000000);
        return 0;
    case OPTION_KINDS:
        command->kinds = text;
        return 0;
    case OPTION_KEYRING:
        command->keyring_path = text;
        return 0;
    case OPTION_JSON:
        command->json = true;
        return 0;
    case 'q':
        command->quiet = true;
        return 0;
    case ARGP_KEY_ARG:
        if (command->list)
            argp_error(state, "one list or workload at a time");
        command->list = text;
        return 0;
    case ARGP_KEY_END:
        argument_check(state, command);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child argp_children[] = {{&core_options_server_argp, 0, NULL, 1}, {0}};

const struct argp inputgen_command_argp = {
    .options = argp_options, .parser = parse_option, .children = argp_children};

void inputgen_command_init(struct inputgen_command *command, const char *program)
{
    *command = (struct inputgen_command){.program = program, .options.seed = 1};
    core_options_server_init(&command->server);
}

/* ---- lists and keys ---- */

core_status inputgen_command_list(const char *name, const char *kinds, uint32_t count, core_ns duration_ns,
                                  uint64_t seed, struct inputgen_streams **list, struct core_error *error)
{
    if (list_is_csv(name))
        return inputgen_streams_read(name, list, error);
    struct config_workload *workload;
    core_status status = inputgen_workload_open(name, &workload, error);
    if (status != CORE_OK)
        return status;
    if (kinds)
        status = inputgen_kinds_share(workload, kinds, error);
    if (status == CORE_OK)
        status = inputgen_streams_make(workload, count, duration_ns, seed, list, error);
    config_workload_free(workload);
    return status;
}

static core_status key_find(struct inputgen_command *command, struct core_error *error)
{
    struct inputgen_replay_options *options = &command->options;
    const struct config_key *key = config_keyring_find(command->keyring, options->key_name);
    if (!key)
        return core_error_set(error, CORE_NOT_FOUND, "%s has no key '%s'", command->keyring_path,
                              options->key_name);
    options->key = key->bytes;
    options->key_cipher = key->cipher;
    return CORE_OK;
}

/* "config/workloads/demo.yaml" -> "demo" */
static char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    const char *dot = strrchr(base, '.');
    return strndup(base, dot && dot != base ? (size_t)(dot - base) : strlen(base));
}

core_status inputgen_command_load(struct inputgen_command *command, struct core_error *error)
{
    struct inputgen_replay_options *options = &command->options;
    options->name = command->name = name_of(command->list);
    options->address = command->server.address;
    options->timeout_ms = command->server.timeout_ms;
    command->tls = (struct millrace_tls){.size = sizeof(struct millrace_tls),
                                         .ca_file = command->server.ca_file,
                                         .certificate_file = command->server.certificate_file,
                                         .key_file = command->server.key_file,
                                         .server_name = command->server.server_name};
    options->tls = &command->tls;
    if (!command->name)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    core_status status =
        inputgen_command_list(command->list, command->kinds, command->streams, options->duration_ns,
                              options->seed, &command->streams_listed, error);
    if (status == CORE_OK && command->keyring_path)
        status = config_keyring_load(command->keyring_path, &command->keyring, error);
    if (status == CORE_OK && options->key_name)
        status = key_find(command, error);
    return status;
}

void inputgen_command_free(struct inputgen_command *command)
{
    inputgen_streams_free(command->streams_listed);
    config_keyring_free(command->keyring);
    free(command->name);
}

/* ---- progress and interruption ---- */

static atomic_bool interrupted;

static void on_signal(int signal_number)
{
    (void)signal_number;
    atomic_store_explicit(&interrupted, true, memory_order_relaxed); /* lock-free: async-signal-safe */
}

static void signals_catch(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL); /* the second one ends us the usual way */
    (void)sigaction(SIGTERM, &action, NULL);
    (void)signal(SIGPIPE, SIG_IGN); /* NOLINT(bugprone-signal-handler): no handler */
}

static void progress_print(void *argument, const struct inputgen_progress *progress)
{
    (void)argument;
    double elapsed_s = (double)progress->elapsed_ns / 1e9, duration_s = (double)progress->duration_ns / 1e9;
    if (elapsed_s < 0)
        elapsed_s = 0;
    (void)fprintf(
        stderr, "\r%5.1f of %.1f s  %12" PRIu64 " packets sent  %" PRIu64 " missed  %" PRIu64 " wrong\033[K",
        elapsed_s < duration_s ? elapsed_s : duration_s, duration_s, progress->sent, progress->missed,
        progress->bad);
}

void inputgen_command_begin(struct inputgen_command *command)
{
    if (!command->quiet && isatty(STDERR_FILENO))
        command->options.progress = progress_print;
    command->options.stop = &interrupted;
    signals_catch();
}

void inputgen_command_end(const struct inputgen_command *command)
{
    if (command->options.progress)
        (void)fprintf(stderr, "\r\033[K");
}

int inputgen_command_complain(const struct inputgen_command *command, enum inputgen_exit exit,
                              const struct core_error *error)
{
    (void)fprintf(stderr, "%s: %s\n", command->program, error->text);
    return (int)exit;
}
