/* millrace-bench siege: what honest streams notice of attacks on their server. */
#include "bench/siege/siege.h"

#include "bench/bench.h"
#include "bench/document.h"
#include "bench/options.h"
#include "bench/siege/honest.h"
#include "bench/siege/report.h"
#include "client/command.h"
#include "core/address.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define QUICK_S    0.3
#define NOTHING_NS (30 * CORE_NS_PER_S)
#define HANG_MS    50
#define PATIENT_MS 10000 /* of --quick: no card of a busy machine is taken for hung */
#define MS(value)  ((value)*CORE_NS_PER_MS)
#define ORDINARY   .streams = 16, .latency_min_ns = MS(60), .latency_max_ns = MS(120)
#define SHORT      .streams = 16, .latency_min_ns = MS(5), .latency_max_ns = MS(5)
#define ALL_SERVED (SIEGE_ON_TIME | SIEGE_MET)
#define ONE_WORKER "threads: {workers: 1}\n"
#define MANY_CONNECTIONS                                                                                     \
    "limits: {connections: 16384, connections_per_peer: 16384, connections_per_listener: 16384}\n"

static const struct siege_attack attacks[] = {
    {.name = "none", .what = "no attack", .goals = ALL_SERVED | SIEGE_OPENS, ORDINARY},
    {.name = "updates-live",
     .what = "TLS KeyUpdates before HELLO, live",
     .run = siege_updates_live,
     .goals = ALL_SERVED,
     ORDINARY},
    {.name = "updates-made",
     .what = "60,000 TLS KeyUpdates before HELLO, made beforehand",
     .run = siege_updates_made,
     .goals = ALL_SERVED,
     ORDINARY},
    {.name = "updates-requested",
     .what = "TLS KeyUpdates behind HELLO, answers never read",
     .run = siege_updates_requested,
     .goals = ALL_SERVED,
     ORDINARY},
    {.name = "hellos",
     .what = "64 ClientHellos at once, again and again",
     .run = siege_hellos,
     .goals = ALL_SERVED | SIEGE_OPENS,
     ORDINARY},
    {.name = "queries",
     .what = "10,000 QUERYs of closed connections",
     .run = siege_queries,
     .goals = ALL_SERVED | SIEGE_OPENS,
     ORDINARY},
    {.name = "silent",
     .what = "4,096 silent connections",
     .run = siege_silent,
     .goals = ALL_SERVED | SIEGE_OPENS,
     ORDINARY},
    {.name = "modify-huge",
     .what = "MODIFY to 100 s of latency every 1 us",
     .run = siege_modify_huge,
     .goals = ALL_SERVED,
     .emulated = true,
     .profile = "emulated-demo",
     ORDINARY},
    {.name = "modify-storm",
     .what = "MODIFYs as fast as they are answered",
     .run = siege_modify_storm,
     .goals = ALL_SERVED,
     .emulated = true,
     .profile = "emulated-demo",
     ORDINARY},
    {.name = "none-short", .what = "no attack, bounds of 5 ms", .goals = ALL_SERVED, SHORT},
    {.name = "connections",
     .what = "2,000 connections at once, twice a second",
     .run = siege_connections,
     .goals = ALL_SERVED,
     .keys = MANY_CONNECTIONS,
     SHORT},
    {.name = "admin",
     .what = "200 slow connections at the admin port",
     .run = siege_admin,
     .goals = ALL_SERVED,
     ORDINARY},
    {.name = "log",
     .what = "a log that nobody reads, 100 bad clients a second",
     .run = siege_garbage,
     .goals = ALL_SERVED,
     .log_full = true,
     ORDINARY},
    {.name = "stop",
     .what = "the server stopped for 1 s",
     .run = siege_stop,
     .goals = SIEGE_COUNTED,
     .streams = 10,
     .latency_min_ns = MS(20),
     .latency_max_ns = MS(20)},
    {.name = "cards",
     .what = "cards' processes killed while /proc of them is read",
     .run = siege_cards,
     .goals = SIEGE_MET,
     .emulated = true,
     .keys = ONE_WORKER,
     .profile = "emulated-pair",
     .guaranteed = true,
     .rounds = 17,
     .packet_bytes = 1400,
     .streams = 200,
     .latency_min_ns = MS(300),
     .latency_max_ns = MS(400)},
    {.name = "threads",
     .what = "workers: 64, io: 64",
     .run = siege_threads,
     .keys = "threads: {workers: 64, io: 64}\n"},
};
#define ATTACKS (sizeof attacks / sizeof attacks[0])

struct options {
    struct bench_options_server server;
    const char *only;
    double duration_s;
    bool quick;
};

/* ---- options ---- */

enum { KEY_QUICK = 256 };

static const struct argp_option option_table[] = {
    {"only", 'o', "NAME", 0, "This attack alone; --only help lists them", 0},
    {"duration", 'd', "TIME", 0, "Time of an attack (default 10s)", 0},
    {"quick", KEY_QUICK, NULL, 0, "Every attack once and shortly: does it work?", 0},
    {0},
};

static const struct siege_attack *find(const char *name)
{
    for (size_t at = 0; at < ATTACKS; at++)
        if (strcmp(attacks[at].name, name) == 0)
            return &attacks[at];
    return NULL;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->server;
        return 0;
    case 'o':
        options->only = argument;
        if (find(argument) == NULL) {
            for (size_t at = 0; at < ATTACKS; at++)
                fprintf(stderr, "  %-18s %s\n", attacks[at].name, attacks[at].what);
            argp_error(state, "--only %s: there is no such attack; those above are", argument);
        }
        return 0;
    case 'd':
        options->duration_s = bench_option_seconds(state, "duration", argument, 0.1, 3600);
        return 0;
    case KEY_QUICK:
        options->quick = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = option_table,
    .parser = parse_option,
    .doc = "Attack a server while honest streams run beside, and tell what these noticed.\v"
           "Exit status: 0 every row reached its goals or is unsure, which means that the generator's own "
           "lateness, on a machine that is busy with something else, may be the reason; 1 one did not, or "
           "could not be measured; 2 usage.",
    .children = bench_options_server,
};

/* ---- a server and its attack ---- */

static core_status free_port(uint16_t *port, struct core_error *error)
{
    const struct core_address any = {.transport = CORE_TRANSPORT_TCP, .host = "127.0.0.1"};
    struct core_address bound;
    int descriptor;
    core_status status = core_address_listen(&any, 0, &descriptor, &bound, error);
    if (status != CORE_OK)
        return status;
    (void)close(descriptor);
    *port = bound.port;
    return CORE_OK;
}

/* A pipe that holds a page at most, and that nobody reads; -1: there is none to be had. */
static int pipe_full(int *reader)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    (void)fcntl(ends[1], F_SETPIPE_SZ, 4096);
    *reader = ends[0];
    return ends[1];
}

static core_status start(struct bench_daemon *daemon, const struct options *options,
                         const struct siege_row *row, struct siege *siege, int *reader,
                         struct core_error *error)
{
    char listeners[512], keys[512];
    const struct siege_attack *attack = row->attack;
    core_status status = free_port(&siege->tcp_port, error);
    if (status == CORE_OK)
        do
            status = free_port(&siege->tls_port, error);
        while (status == CORE_OK && siege->tls_port == siege->tcp_port);
    if (status != CORE_OK)
        return status;
    (void)snprintf(listeners, sizeof listeners,
                   "  - address: tcp:127.0.0.1:%u\n  - address: tls:127.0.0.1:%u\n"
                   "    certificate: %s/server.pem\n    key: %s/server.key\n",
                   siege->tcp_port, siege->tls_port, siege->folder, siege->folder);
    (void)snprintf(keys, sizeof keys, "%s", attack->keys ? attack->keys : "");
    if (attack->emulated)
        (void)snprintf(keys + strlen(keys), sizeof keys - strlen(keys),
                       "gpus: {use: emulated, hang_ms: %d}\n", options->quick ? PATIENT_MS : HANG_MS);
    const int log = attack->log_full ? pipe_full(reader) : 0;
    status = bench_daemon_start(
        daemon,
        &(struct bench_daemon_options){.program = options->server.program,
                                       .profile = attack->profile ? attack->profile : options->server.profile,
                                       .listeners = listeners,
                                       .keys = keys,
                                       .level = attack->log_full ? "debug" : NULL,
                                       .log = log},
        error);
    if (log > 0)
        (void)close(log);
    return status;
}

/* The sum of a metric's rows, whatever their labels. */
static uint64_t metric_sum(const char *page, const char *name)
{
    uint64_t sum = 0;
    const size_t length = strlen(name);
    for (const char *line = page; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, name, length) == 0 && (line[length] == ' ' || line[length] == '{'))
            sum += strtoull(line + length + strcspn(line + length, " "), NULL, 10);
    return sum;
}

static core_status look(const struct bench_daemon *daemon, struct siege_row *row, struct core_error *error)
{
    char *page;
    size_t bytes;
    core_status status = command_http_get(daemon->admin, "/metrics", 5000, &page, &bytes, error);
    if (status != CORE_OK)
        return status;
    row->log_lost += metric_sum(page, "millrace_log_lost_total");
    row->turned += metric_sum(page, "millrace_connections_turned_total");
    free(page);
    return CORE_OK;
}

bool siege_goes_on(const struct siege *siege)
{
    const core_ns now_ns = core_time_now_ns();
    return now_ns < siege->end_ns || (siege->done == 0 && now_ns < siege->end_ns + NOTHING_NS);
}

static core_status attack_beside(struct siege *siege, struct siege_row *row, core_ns duration_ns,
                                 struct core_error *error)
{
    struct siege_honest *honest = NULL;
    core_status status = CORE_OK;
    if (row->attack->streams > 0)
        status = siege_honest_start(row->attack, siege->daemon->address, &honest, error);
    siege->end_ns = core_time_now_ns() + duration_ns;
    if (status == CORE_OK && row->attack->run)
        status = row->attack->run(siege, error);
    else if (status == CORE_OK)
        core_time_sleep_until(siege->end_ns);
    if (honest) {
        const core_status stopped =
            siege_honest_stop(honest, &row->figures, status == CORE_OK ? error : NULL);
        status = status == CORE_OK ? stopped : status;
    }
    row->done += siege->done;
    row->notice_ns = siege->notice_ns;
    row->noticed_late = siege->noticed_late;
    row->failed |= siege->failed;
    memcpy(row->note, siege->note, sizeof row->note);
    return status;
}

static core_status round_run(const struct options *options, const char *folder, struct siege_row *row,
                             struct core_error *error)
{
    struct bench_daemon daemon;
    const double seconds = options->quick ? QUICK_S : options->duration_s;
    const struct bench_daemon_options another = {.program = options->server.program,
                                                 .profile = options->server.profile};
    int reader = -1;
    struct siege siege = {.daemon = &daemon,
                          .server = &another,
                          .folder = folder,
                          .notice_ns = row->notice_ns,
                          .noticed_late = row->noticed_late};
    core_status status = start(&daemon, options, row, &siege, &reader, error);
    if (status == CORE_OK) {
        status = attack_beside(&siege, row, (core_ns)(seconds * 1e9), error);
        if (status == CORE_OK)
            status = look(&daemon, row, error);
        const core_status stopped = bench_daemon_stop(&daemon, status == CORE_OK ? error : NULL);
        status = status == CORE_OK ? stopped : status;
    }
    if (reader >= 0)
        (void)close(reader);
    return status;
}

/* ---- the command ---- */

static void row_run(const struct options *options, const char *folder, struct siege_row *row)
{
    struct core_error error = {""};
    const unsigned rounds = row->attack->rounds > 1 && !options->quick ? row->attack->rounds : 1;
    core_status status = CORE_OK;
    for (unsigned at = 0; status == CORE_OK && at < rounds; at++)
        status = round_run(options, folder, row, &error);
    if (status != CORE_OK) {
        row->failed = true;
        (void)snprintf(row->note, sizeof row->note, "%.239s", error.text);
    }
    siege_judge(row);
}

static int siege_all(const struct options *options, const char *folder, json_t *rows)
{
    int failures = 0;
    if (!options->server.json)
        siege_head_print();
    for (size_t at = 0; at < ATTACKS; at++) {
        struct siege_row row = {.attack = &attacks[at]};
        if (options->only && strcmp(options->only, attacks[at].name) != 0)
            continue;
        row_run(options, folder, &row);
        failures += row.verdict == SIEGE_FAIL;
        if (options->server.json)
            (void)json_array_append_new(rows, siege_row_json(&row));
        else
            siege_row_print(&row);
    }
    return failures;
}

/* As many descriptors as the system permits: the attackers need some thousand. */
static void descriptors_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static void folder_remove(const char *folder)
{
    static const char *const names[] = {"server.pem", "server.key"};
    char path[128];
    for (size_t at = 0; at < sizeof names / sizeof *names; at++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[at]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

int bench_siege(int argc, char **argv)
{
    struct options options = {.duration_s = 10};
    struct core_error error = {""};
    char folder[] = "/tmp/millrace-siege-XXXXXX";
    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    (void)signal(SIGPIPE, SIG_IGN);
    descriptors_raise();
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        return 1;
    }
    json_t *rows = json_array();
    core_status status = siege_certificate_write(folder, &error);
    const int failures = status == CORE_OK ? siege_all(&options, folder, rows) : 1;
    folder_remove(folder);
    if (status == CORE_OK && options.server.json)
        status = bench_document_print(json_pack("{s:O,s:i}", "attacks", rows, "failed", failures), &error);
    else if (status == CORE_OK)
        siege_legend_print();
    json_decref(rows);
    if (status != CORE_OK)
        fprintf(stderr, "millrace-bench siege: %s\n", error.text);
    return status == CORE_OK && failures == 0 ? 0 : 1;
}
