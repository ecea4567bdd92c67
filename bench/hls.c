/* millrace-bench hls: how many renditions of LL-HLS parts `millrace hls` and a server carry without one late part. */
#include "bench/bench.h"
#include "bench/daemon.h"
#include "bench/document.h"
#include "bench/hls_load.h"
#include "bench/options.h"
#include "core/value.h"

#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define RENDITIONS_MAX 1000 /* as many connections as `millrace hls` takes */
#define FIRST          8
#define TRIAL_NS       (10 * CORE_NS_PER_S)
#define WARM_UP_NS     (2 * CORE_NS_PER_S)
#define START_NS       (20 * CORE_NS_PER_S)
#define TRY_NS         (20 * CORE_NS_PER_MS)

struct options {
    struct bench_options_server server;
    const char *millrace, *folder;
    unsigned renditions; /* 0: to be found */
    core_ns part_ns, deadline_ns, duration_ns;
    double bits_per_s;
};

/* ---- options ---- */

enum { KEY_MILLRACE = 256, KEY_PART, KEY_RATE, KEY_DEADLINE, KEY_FOLDER };

static const struct argp_option option_table[] = {
    {"renditions", 'n', "N", 0, "So many, at most 1000 (default: the most of which no part is late)", 0},
    {"duration", 'd', "TIME", 0, "Time of the run that counts (default 60s)", 0},
    {"part", KEY_PART, "TIME", 0, "Each rendition has a part every so long (default 330ms)", 0},
    {"rate", KEY_RATE, "RATE", 0, "Of a rendition (default 5Mbit/s)", 0},
    {"deadline", KEY_DEADLINE, "TIME", 0, "A part is late after (default 50ms)", 0},
    {"millrace", KEY_MILLRACE, "PROGRAM", 0, "The millrace to start (default: the one beside this program)",
     0},
    {"folder", KEY_FOLDER, "FOLDER", 0, "Where the output is for a while (default /dev/shm)", 0},
    {0},
};

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->server;
        return 0;
    case 'n':
        options->renditions = (unsigned)core_options_count(state, "renditions", argument, 1, RENDITIONS_MAX);
        return 0;
    case 'd':
        options->duration_ns = (core_ns)(bench_option_seconds(state, "duration", argument, 0.1, 86400) * 1e9);
        return 0;
    case KEY_PART:
        options->part_ns =
            core_options_duration(state, "part", argument, 0, 20 * CORE_NS_PER_MS, 10 * CORE_NS_PER_S);
        return 0;
    case KEY_RATE:
        options->bits_per_s = core_options_rate(state, "rate", argument, 1, 1e3, 1e9);
        return 0;
    case KEY_DEADLINE:
        options->deadline_ns =
            core_options_duration(state, "deadline", argument, 0, CORE_NS_PER_MS, 10 * CORE_NS_PER_S);
        return 0;
    case KEY_MILLRACE:
        options->millrace = argument;
        return 0;
    case KEY_FOLDER:
        options->folder = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = option_table,
    .parser = parse_option,
    .doc =
        "Put parts of LL-HLS to `millrace hls` beside a server of their own, at their pace, and look for "
        "them "
        "in its output: each is decrypted and compared. Finds how many renditions are carried without a late "
        "part, in trials of 10 s, and measures these for longer.\v"
        "The latency of a part is from its first byte until a playlist names it; the first 2 s of a run, in "
        "which streams are opened, are not timed.\n"
        "Exit status: 0 no part of the run that counts was late or wrong; 1 one was, or it could not be "
        "measured; 2 usage.",
    .children = bench_options_server,
};

/* ---- a millrace hls ---- */

struct adapter {
    pid_t process;
    char folder[256], socket[300], output[300], keys[300], log[300];
};

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)about;
    (void)kind;
    (void)place;
    return remove(path);
}

static void remove_folder(const struct adapter *adapter)
{
    (void)nftw(adapter->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* In the child: never returns. */
static void become(const struct adapter *adapter, const struct options *options, const char *server)
{
    char listen[320], wait[64];
    int log = open(adapter->log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    snprintf(listen, sizeof listen, "--listen=unix:%s", adapter->socket);
    snprintf(wait, sizeof wait, "--wait=%lldns", (long long)options->deadline_ns);
    if (log >= 0)
        (void)dup2(log, STDERR_FILENO);
    (void)setsid();
    (void)execl(options->millrace, options->millrace, "hls", "--server", server, listen, "--output",
                adapter->output, "--keys", adapter->keys, "--key-uri={id}", "--memory=4GiB", wait,
                (char *)NULL);
    perror(options->millrace);
    _exit(127);
}

/* The last line that it said, for a person. */
static core_status fail(const struct adapter *adapter, const char *what, struct core_error *error)
{
    char line[400] = "it said nothing", next[400];
    FILE *file = fopen(adapter->log, "re");
    while (file != NULL && fgets(next, sizeof next, file) != NULL) {
        next[strcspn(next, "\n")] = '\0';
        memcpy(line, next, sizeof line);
    }
    if (file != NULL)
        (void)fclose(file);
    return core_error_set(error, CORE_SYSTEM, "millrace hls %s: %s", what, line);
}

static core_status await_adapter(struct adapter *adapter, struct core_error *error)
{
    core_ns until_ns = core_time_now_ns() + START_NS;
    while (access(adapter->socket, F_OK) != 0) {
        siginfo_t ended = {0};
        if (core_time_now_ns() > until_ns ||
            waitid(P_PID, (id_t)adapter->process, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            ended.si_pid != 0)
            return fail(adapter, "did not start", error);
        core_time_sleep_until(core_time_now_ns() + TRY_NS);
    }
    return CORE_OK;
}

static core_status stop_adapter(struct adapter *adapter, struct core_error *error)
{
    int exited = 0;
    (void)kill(adapter->process, SIGTERM);
    (void)waitpid(adapter->process, &exited, 0);
    core_status status = exited != 0 ? fail(adapter, "failed", error) : CORE_OK;
    remove_folder(adapter);
    return status;
}

static core_status start_adapter(struct adapter *adapter, const struct options *options, const char *server,
                                 struct core_error *error)
{
    snprintf(adapter->folder, sizeof adapter->folder, "%.200s/millrace-bench-XXXXXX", options->folder);
    if (mkdtemp(adapter->folder) == NULL)
        return core_error_errno(error, "--folder %s", options->folder);
    snprintf(adapter->socket, sizeof adapter->socket, "%s/http", adapter->folder);
    snprintf(adapter->output, sizeof adapter->output, "%s/out", adapter->folder);
    snprintf(adapter->keys, sizeof adapter->keys, "%s/keys", adapter->folder);
    snprintf(adapter->log, sizeof adapter->log, "%s/log", adapter->folder);
    if (mkdir(adapter->output, 0777) != 0 || mkdir(adapter->keys, 0700) != 0 ||
        (adapter->process = fork()) < 0) {
        remove_folder(adapter);
        return core_error_errno(error, "%s", adapter->folder);
    }
    if (adapter->process == 0)
        become(adapter, options, server);
    core_status status = await_adapter(adapter, error);
    if (status)
        (void)!stop_adapter(adapter, NULL); /* the first reason counts */
    return status;
}

/* ---- trials ---- */

static core_status measure(const struct options *options, const char *server, unsigned renditions,
                           bool is_trial, struct hls_load_figures *figures, struct core_error *error)
{
    struct adapter adapter = {0};
    core_status status = start_adapter(&adapter, options, server, error);
    if (status)
        return status;
    const struct hls_load_options load = {
        .socket = adapter.socket,
        .output = adapter.output,
        .keys = adapter.keys,
        .renditions = renditions,
        .part_bytes = (size_t)(options->bits_per_s / 8 * (double)options->part_ns / 1e9),
        .part_ns = options->part_ns,
        .deadline_ns = options->deadline_ns,
        .warm_up_ns = WARM_UP_NS,
        .duration_ns = is_trial && options->duration_ns > TRIAL_NS ? TRIAL_NS : options->duration_ns,
        .until_late = is_trial};
    status = hls_load_run(&load, figures, error);
    core_status stopped = stop_adapter(&adapter, status ? NULL : error);
    return status ? status : stopped;
}

static bool is_carried(const struct hls_load_figures *figures)
{
    return figures->timed > 0 && figures->late == 0 && figures->wrong == 0 && figures->refused == 0;
}

static void print(const struct options *options, unsigned renditions, const char *what,
                  const struct hls_load_figures *figures)
{
    char texts[4][CORE_TEXT_BYTES];
    if (options->server.json)
        return;
    printf("%5u renditions, %s: %" PRIu64 " parts, %" PRIu64 " late (%" PRIu64 " never came), %" PRIu64
           " wrong, %" PRIu64 " refused; median %s, p99.9 %s, max %s; begun %s late at most\n",
           renditions, what, figures->timed, figures->late, figures->lost, figures->wrong, figures->refused,
           core_duration_format(core_histogram_percentile_ns(&figures->latency, 50), texts[0]),
           core_duration_format(core_histogram_percentile_ns(&figures->latency, 99.9), texts[1]),
           core_duration_format(core_histogram_maximum_ns(&figures->latency), texts[2]),
           core_duration_format(figures->sent_late_ns, texts[3]));
    (void)fflush(stdout);
}

/* Twice as many each time, then between the last that was carried and the first that was not, to within 4 %. */
static core_status find(const struct options *options, const char *server, unsigned *found,
                        struct hls_load_figures *figures, struct core_error *error)
{
    unsigned carried = 0, beyond = 0;
    while (beyond == 0 || beyond - carried > 1 + carried / 25) {
        unsigned next = beyond > 0 ? (carried + beyond) / 2 : carried > 0 ? 2 * carried : FIRST;
        next = next > RENDITIONS_MAX ? RENDITIONS_MAX : next;
        core_status status = measure(options, server, next, true, figures, error);
        if (status)
            return status;
        print(options, next, "trial", figures);
        if (!is_carried(figures))
            beyond = next;
        else if ((carried = next) == RENDITIONS_MAX)
            break;
    }
    *found = carried;
    return carried > 0 ? CORE_OK : core_error_set(error, CORE_REFUSED, "not one rendition is carried");
}

/* What trials were too short for is found by the run itself, which is then one of fewer renditions. */
static core_status run(const struct options *options, const char *server, unsigned *renditions,
                       struct hls_load_figures *figures, struct core_error *error)
{
    core_status status = CORE_OK;
    *renditions = options->renditions;
    if (options->renditions == 0 && (status = find(options, server, renditions, figures, error)))
        return status;
    for (;;) {
        status = measure(options, server, *renditions, false, figures, error);
        if (status)
            return status;
        print(options, *renditions, "run", figures);
        if (options->renditions > 0 || is_carried(figures) || *renditions == 1)
            return CORE_OK;
        *renditions -= 1 + *renditions / 20;
    }
}

static core_status report(const struct options *options, unsigned renditions,
                          const struct hls_load_figures *figures, struct core_error *error)
{
    if (!options->server.json)
        return CORE_OK;
    return bench_document_print(
        json_pack("{s:i, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "renditions",
                  (int)renditions, "rate_bits_per_s", options->bits_per_s, "part_s",
                  (double)options->part_ns / 1e9, "deadline_ms", (double)options->deadline_ns / 1e6,
                  "duration_s", (double)options->duration_ns / 1e9, "parts", (json_int_t)figures->timed,
                  "late", (json_int_t)figures->late, "lost", (json_int_t)figures->lost, "wrong",
                  (json_int_t)figures->wrong, "refused", (json_int_t)figures->refused, "median_ms",
                  (double)core_histogram_percentile_ns(&figures->latency, 50) / 1e6, "p999_ms",
                  (double)core_histogram_percentile_ns(&figures->latency, 99.9) / 1e6, "max_ms",
                  (double)core_histogram_maximum_ns(&figures->latency) / 1e6, "begun_late_ms",
                  (double)figures->sent_late_ns / 1e6),
        error);
}

static void find_millrace(struct options *options)
{
    static const char *const places[] = {"../client/millrace", "millrace"};
    static char path[640], self[512];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    for (size_t i = 0; length > 0 && i < sizeof places / sizeof places[0] && options->millrace == NULL; i++) {
        self[length] = '\0';
        *(strrchr(self, '/') + 1) = '\0';
        snprintf(path, sizeof path, "%s%s", self, places[i]);
        if (access(path, X_OK) == 0)
            options->millrace = path;
    }
    if (options->millrace == NULL)
        options->millrace = "millrace";
}

int bench_hls(int argc, char **argv)
{
    struct options options = {.folder = "/dev/shm",
                              .part_ns = 330 * CORE_NS_PER_MS,
                              .deadline_ns = 50 * CORE_NS_PER_MS,
                              .duration_ns = 60 * CORE_NS_PER_S,
                              .bits_per_s = 5e6};
    static struct hls_load_figures figures;
    struct bench_daemon daemon;
    struct core_error error;
    unsigned renditions;
    struct rlimit limit;
    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    find_millrace(&options);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    core_status status = bench_daemon_start(&daemon,
                                            &(struct bench_daemon_options){.program = options.server.program,
                                                                           .profile = options.server.profile,
                                                                           .keys = "client_iv: true\n"},
                                            &error);
    if (status == CORE_OK) {
        status = run(&options, daemon.address, &renditions, &figures, &error);
        core_status stopped = bench_daemon_stop(&daemon, status ? NULL : &error);
        status = status ? status : stopped;
    }
    if (status == CORE_OK)
        status = report(&options, renditions, &figures, &error);
    if (status)
        (void)fprintf(stderr, "millrace-bench hls: %s\n", error.text);
    return status == CORE_OK && is_carried(&figures) ? 0 : 1;
}
