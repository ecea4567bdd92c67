/* millrace-bench ts: many transport streams through `millrace ts` and a server of its own, in a network namespace of
 * its own; every packet that comes out is descrambled and compared with what was sent. Beside it the same work by
 * OpenSSL, called in the process that has the sockets. */
#include "bench/bench.h"
#include "bench/daemon.h"
#include "bench/document.h"
#include "bench/options.h"
#include "bench/ts/inline.h"
#include "bench/ts/traffic.h"
#include "core/realtime.h"
#include "core/value.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_NS (30 * CORE_NS_PER_S) /* until every service is heard */
#define TICK_NS  (5 * CORE_NS_PER_MS)

struct options {
    struct bench_options_server server;
    struct bench_ts_options traffic;
    const char *program;
    core_ns period_ns, jitter_ns; /* of the words; of the input, as the services' file has it */
    double seconds;
    int priority;
    bool hold;
};

struct figures {
    struct bench_ts_figures traffic;
    double cpu_ns, server_cpu_ns; /* a packet: both processes together, of that the server */
    double inline_cpu_ns;         /* a packet; 0: not measured */
    double cores;
    int64_t late, dropped, refused_words, late_words; /* as millrace ts counts */
    int64_t delay_max_ns, pcr_jitter_max_ns;
};

/* ---- options ---- */

enum {
    OPTION_HOLD = 0x500,
    OPTION_RTP,
    OPTION_PERIOD,
    OPTION_PRIORITY,
    OPTION_MILLRACE,
    OPTION_SEED,
    OPTION_JITTER
};

static const struct argp_option option_table[] = {
    {"services", 'n', "N", 0, "Services (default 100)", 0},
    {"rate", 'r', "RATE", 0, "Of each (default 4Mbit/s)", 0},
    {"bound", 'b', "TIME", 0, "Of each (default 5ms)", 0},
    {"jitter", OPTION_JITTER, "TIME", 0, "Of their arrival, as they are declared (default 10ms)", 0},
    {"seconds", 's', "SECONDS", 0, "To measure (default 10)", 0},
    {"period", OPTION_PERIOD, "TIME", 0, "A new word every so long (default 1s)", 0},
    {"rtp", OPTION_RTP, NULL, 0, "RTP", 0},
    {"hold", OPTION_HOLD, NULL, 0, "Services with hold: true", 0},
    {"priority", OPTION_PRIORITY, "N", 0,
     "millrace ts runs at this priority of SCHED_FIFO, 1 to 99, if permitted", 0},
    {"millrace", OPTION_MILLRACE, "PROGRAM", 0, "The command (default: the one built beside this program)",
     0},
    {"seed", OPTION_SEED, "N", 0, "Of words and payloads (default: drawn, and told)", 0},
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
        options->traffic.services = core_options_count(state, "services", argument, 1, 1000);
        return 0;
    case 'r':
        options->traffic.rate_bits_per_s = core_options_rate(state, "rate", argument, 1, 1e4, 1e9);
        return 0;
    case 'b':
        options->traffic.bound_ns =
            core_options_duration(state, "bound", argument, 0, CORE_NS_PER_MS, CORE_NS_PER_S);
        return 0;
    case OPTION_JITTER:
        options->jitter_ns = core_options_duration(state, "jitter", argument, 0, 0, CORE_NS_PER_S);
        return 0;
    case 's':
        options->seconds = bench_option_seconds(state, "seconds", argument, 1, 86400);
        return 0;
    case OPTION_PERIOD:
        options->period_ns =
            core_options_duration(state, "period", argument, 0, 300 * CORE_NS_PER_MS, 3600 * CORE_NS_PER_S);
        return 0;
    case OPTION_RTP:
        options->traffic.rtp = true;
        return 0;
    case OPTION_HOLD:
        options->hold = true;
        return 0;
    case OPTION_PRIORITY:
        options->priority = (int)core_options_count(state, "priority", argument, 1, 99);
        return 0;
    case OPTION_MILLRACE:
        options->program = argument;
        return 0;
    case OPTION_SEED:
        options->traffic.seed = core_options_count(state, "seed", argument, 0, UINT64_MAX);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = option_table,
    .parser = parse_option,
    .doc = "Send transport streams through millrace ts in a network namespace, and check every packet.",
    .children = bench_options_server,
};

/* ---- a network of our own ---- */

static bool write_text(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    bool written = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);
    if (file >= 0)
        close(file);
    return written;
}

static bool enter_as_user(void)
{
    char users[32], groups[32];
    snprintf(users, sizeof users, "0 %u 1", (unsigned)geteuid());
    snprintf(groups, sizeof groups, "0 %u 1", (unsigned)getegid());
    return unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 && write_text("/proc/self/uid_map", users) &&
           write_text("/proc/self/setgroups", "deny") && write_text("/proc/self/gid_map", groups);
}

static core_status enter_namespace(struct core_error *error)
{
    struct ifreq request = {.ifr_name = "lo"};
    if (geteuid() == 0 ? unshare(CLONE_NEWNET) != 0 : !enter_as_user())
        return core_error_errno(error, "no network namespace is permitted here");
    int socket_of_any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    request.ifr_flags = IFF_UP | IFF_LOOPBACK | IFF_RUNNING | IFF_MULTICAST;
    bool up = socket_of_any >= 0 && ioctl(socket_of_any, SIOCSIFFLAGS, &request) == 0;
    if (socket_of_any >= 0)
        close(socket_of_any);
    return up ? CORE_OK : core_error_errno(error, "the interface lo");
}

/* ---- millrace ts ---- */

struct program {
    pid_t process;
    char folder[64];
    int *words; /* a FIFO for each service */
};

static core_status write_services(const struct options *options, const struct program *program,
                                  struct core_error *error)
{
    char path[128], in[32], out[32];
    snprintf(path, sizeof path, "%s/ts.yaml", program->folder);
    FILE *file = fopen(path, "we");
    if (file == NULL)
        return core_error_errno(error, "%s", path);
    fputs("services:\n", file);
    for (size_t i = 0; i < options->traffic.services; i++) {
        bench_ts_group(i, false, in);
        bench_ts_group(i, true, out);
        fprintf(file,
                "  - name: s%zu\n    input: %s\n    input_interface: lo\n    output: %s\n"
                "    output_interface: lo\n    rate_mbit_per_s: %g\n    bound_ms: %g\n    jitter_ms: %g\n"
                "    hold: %s\n    words: {file: w%zu}\n",
                i, in, out, options->traffic.rate_bits_per_s / 1e6, (double)options->traffic.bound_ns / 1e6,
                (double)options->jitter_ns / 1e6, options->hold ? "true" : "false", i);
        snprintf(path, sizeof path, "%s/w%zu", program->folder, i);
        if (mkfifo(path, 0600) != 0 ||
            (program->words[i] = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK)) < 0) {
            fclose(file);
            return core_error_errno(error, "%s", path);
        }
    }
    return fclose(file) == 0 ? CORE_OK : core_error_errno(error, "%s", program->folder);
}

/* In the child. */
static _Noreturn void become(const struct options *options, const struct program *program,
                             const char *address)
{
    char config[128], report[128];
    snprintf(config, sizeof config, "%s/ts.yaml", program->folder);
    snprintf(report, sizeof report, "%s/report", program->folder);
    int file = open(report, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file >= 0)
        (void)dup2(file, STDOUT_FILENO);
    if (options->priority > 0)
        core_thread_priority_take(options->priority);
    (void)setsid();
    (void)execlp(options->program, options->program, "ts", "--json", "--server", address, config,
                 (char *)NULL);
    perror(options->program);
    _exit(127);
}

static core_status start_program(const struct options *options, struct program *program, const char *address,
                                 struct core_error *error)
{
    const char *folder = getenv("TMPDIR");
    snprintf(program->folder, sizeof program->folder, "%.40s/millrace-ts-XXXXXX", folder ? folder : "/tmp");
    program->words = calloc(options->traffic.services, sizeof *program->words);
    if (program->words == NULL || mkdtemp(program->folder) == NULL)
        return core_error_errno(error, "%s", program->folder);
    core_status status = write_services(options, program, error);
    if (status)
        return status;
    program->process = fork();
    if (program->process == 0)
        become(options, program, address);
    return program->process > 0 ? CORE_OK : core_error_errno(error, "millrace ts does not start");
}

/* The next word of each service, to come into force at this Unix time; 0: now. */
static core_status give_words(const struct options *options, const struct program *program, uint64_t number,
                              double when_s, struct core_error *error)
{
    for (size_t i = 0; i < options->traffic.services; i++) {
        char line[96], hex[33], when[40] = "";
        uint8_t word[16];
        bench_ts_word(options->traffic.seed, i, number, word);
        if (when_s > 0)
            snprintf(when, sizeof when, " @%.3f", when_s);
        int bytes = snprintf(line, sizeof line, "%s %s%s\n", number % 2 != 0 ? "odd" : "even",
                             core_hex_format(word, sizeof word, hex), when);
        if (write(program->words[i], line, (size_t)bytes) != bytes)
            return core_error_errno(error, "millrace ts takes no words");
    }
    return CORE_OK;
}

static double unix_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static core_ns process_cpu_ns(pid_t process)
{
    clockid_t clock;
    struct timespec used = {0};
    if (clock_getcpuclockid(process, &clock) == 0)
        clock_gettime(clock, &used);
    return (core_ns)used.tv_sec * CORE_NS_PER_S + used.tv_nsec;
}

/* What millrace ts itself says. */
static core_status read_report(const struct program *program, struct figures *figures,
                               struct core_error *error)
{
    char path[128];
    json_error_t why;
    size_t i;
    json_t *service, *reason;
    const char *name;
    snprintf(path, sizeof path, "%s/report", program->folder);
    json_t *report = json_load_file(path, 0, &why);
    if (report == NULL)
        return core_error_set(error, CORE_INVALID, "millrace ts has written no report: %s", why.text);
    json_array_foreach(json_object_get(report, "services"), i, service)
    {
        json_t *delay = json_object_get(service, "delay_ns"), *pcr = json_object_get(service, "pcr_delay_ns");
        figures->late += json_integer_value(json_object_get(service, "late"));
        figures->late_words += json_integer_value(json_object_get(service, "late_words"));
        figures->refused_words += json_integer_value(json_object_get(service, "refused_words"));
        figures->delay_max_ns =
            core_time_max(figures->delay_max_ns, json_integer_value(json_object_get(delay, "max")));
        figures->pcr_jitter_max_ns =
            core_time_max(figures->pcr_jitter_max_ns, json_integer_value(json_object_get(pcr, "max")) -
                                                          json_integer_value(json_object_get(pcr, "min")));
        json_object_foreach(json_object_get(service, "dropped"), name,
                            reason) if (strcmp(name, "early") != 0 &&
                                        strcmp(name, "away") != 0) /* these are of the start */
            figures->dropped += json_integer_value(reason);
    }
    json_decref(report);
    return CORE_OK;
}

static void stop_process(pid_t process)
{
    if (process <= 0)
        return;
    kill(process, SIGTERM);
    waitpid(process, NULL, 0);
}

static void stop_program(const struct options *options, struct program *program)
{
    char path[128];
    for (size_t i = 0; i < options->traffic.services && program->words != NULL; i++) {
        close(program->words[i]);
        snprintf(path, sizeof path, "%s/w%zu", program->folder, i);
        unlink(path);
    }
    static const char *const names[] = {"ts.yaml", "report"};
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", program->folder, names[i]);
        unlink(path);
    }
    rmdir(program->folder);
    free(program->words);
}

/* ---- what is measured ---- */

static core_status await_services(const struct options *options, struct bench_ts_traffic *traffic,
                                  struct core_error *error)
{
    core_ns until_ns = core_time_now_ns() + START_NS;
    while (bench_ts_heard(traffic) < options->traffic.services) {
        if (core_time_now_ns() > until_ns)
            return core_error_set(error, CORE_TIMEOUT, "only %zu of %zu services have come out",
                                  bench_ts_heard(traffic), options->traffic.services);
        core_time_sleep_until(core_time_now_ns() + TICK_NS);
    }
    core_time_sleep_until(core_time_now_ns() + CORE_NS_PER_S / 2);
    return CORE_OK;
}

/* Each word is given a good half of its predecessor's time ahead. */
static core_status change_words(const struct options *options, const struct program *program,
                                struct core_error *error)
{
    core_ns begin_ns = core_time_now_ns();
    core_ns end_ns = begin_ns + (core_ns)(options->seconds * 1e9);
    double begin_s = unix_now_s(), period_s = (double)options->period_ns / 1e9;
    for (uint64_t number = 1; begin_ns + (core_ns)number * options->period_ns < end_ns; number++) {
        core_time_sleep_until(begin_ns + (core_ns)number * options->period_ns - options->period_ns / 10 * 6);
        core_status status = give_words(options, program, number, begin_s + (double)number * period_s, error);
        if (status)
            return status;
    }
    core_time_sleep_until(end_ns);
    return CORE_OK;
}

static core_status measure(const struct options *options, const struct program *program, pid_t server,
                           struct figures *figures, struct core_error *error)
{
    struct bench_ts_traffic *traffic;
    core_status status = bench_ts_start(&options->traffic, &traffic, error);
    if (status == CORE_OK)
        status = give_words(options, program, 0, 0, error);
    if (status == CORE_OK)
        status = await_services(options, traffic, error);
    if (status)
        return status;
    core_ns begin_ns = core_time_now_ns();
    core_ns server_ns = process_cpu_ns(server), program_ns = process_cpu_ns(program->process);
    bench_ts_measure(traffic);
    status = change_words(options, program, error);
    server_ns = process_cpu_ns(server) - server_ns;
    program_ns = process_cpu_ns(program->process) - program_ns;
    core_ns took_ns = core_time_now_ns() - begin_ns;
    bench_ts_stop(traffic, &figures->traffic);
    double packets = (double)figures->traffic.packets;
    figures->cpu_ns = (double)(server_ns + program_ns) / packets;
    figures->server_cpu_ns = (double)server_ns / packets;
    figures->cores = (double)(server_ns + program_ns) / (double)took_ns;
    return status;
}

static core_status measure_millrace(const struct options *options, struct figures *figures,
                                    struct core_error *error)
{
    struct bench_daemon daemon;
    struct program program = {0};
    struct core_error other;
    const struct bench_daemon_options server = {.program = options->server.program,
                                                .profile = options->server.profile,
                                                .keys = "client_iv: true\ngpus: none\n"};
    core_status status = bench_daemon_start(&daemon, &server, error);
    if (status)
        return status;
    status = start_program(options, &program, daemon.address, error);
    if (status == CORE_OK)
        status = measure(options, &program, daemon.process, figures, error);
    stop_process(program.process);
    if (status == CORE_OK)
        status = read_report(&program, figures, error);
    stop_program(options, &program);
    core_status stopped = bench_daemon_stop(&daemon, status == CORE_OK ? error : &other);
    return status ? status : stopped;
}

/* For a third of the time. */
static core_status measure_inline(const struct options *options, struct figures *figures,
                                  struct core_error *error)
{
    struct bench_ts_traffic *traffic;
    static struct bench_ts_figures relayed;
    pid_t process = fork();
    if (process == 0)
        bench_ts_inline(options->traffic.services, options->traffic.seed);
    core_status status = bench_ts_start(&options->traffic, &traffic, error);
    if (status == CORE_OK)
        status = await_services(options, traffic, error);
    if (status == CORE_OK) {
        core_ns used_ns = process_cpu_ns(process);
        bench_ts_measure(traffic);
        core_time_sleep_until(core_time_now_ns() + (core_ns)(options->seconds / 3 * 1e9));
        used_ns = process_cpu_ns(process) - used_ns;
        bench_ts_stop(traffic, &relayed);
        figures->inline_cpu_ns = (double)used_ns / (double)relayed.packets;
        if (relayed.wrong > 0)
            status = core_error_set(error, CORE_MISMATCH, "what OpenSSL scrambled is wrong");
    }
    stop_process(process);
    return status;
}

/* ---- what is told ---- */

static bool is_right(const struct figures *figures)
{
    const struct bench_ts_figures *traffic = &figures->traffic;
    return traffic->wrong == 0 && traffic->lost == 0 && traffic->reordered == 0 && traffic->late == 0 &&
           figures->late == 0 && figures->dropped == 0 && figures->late_words == 0 &&
           figures->refused_words == 0;
}

static void print_text(const struct options *options, const struct figures *figures)
{
    const struct bench_ts_figures *traffic = &figures->traffic;
    char texts[6][CORE_TEXT_BYTES];
    printf("%zu services of %s, bound %s, a new word every %s, seed %" PRIu64 "\n", options->traffic.services,
           core_rate_format(options->traffic.rate_bits_per_s, texts[0]),
           core_duration_format(options->traffic.bound_ns, texts[1]),
           core_duration_format(options->period_ns, texts[2]), options->traffic.seed);
    printf("datagrams compared %" PRIu64 ", wrong %" PRIu64 ", lost %" PRIu64 ", reordered %" PRIu64
           ", late %" PRIu64 "; changes of words %" PRIu64 "\n",
           traffic->received, traffic->wrong, traffic->lost, traffic->reordered, traffic->late,
           traffic->changes);
    printf("from sender to receiver: least %s, median %s, 99.9 %% %s, at most %s\n",
           core_duration_format(core_histogram_minimum_ns(&traffic->delay), texts[0]),
           core_duration_format(core_histogram_percentile_ns(&traffic->delay, 50), texts[1]),
           core_duration_format(core_histogram_percentile_ns(&traffic->delay, 99.9), texts[2]),
           core_duration_format(core_histogram_maximum_ns(&traffic->delay), texts[3]));
    printf("millrace ts: late %" PRId64 ", dropped %" PRId64 ", words late %" PRId64 ", refused %" PRId64
           ", delay at most %s, PCR jitter added at most %s\n",
           figures->late, figures->dropped, figures->late_words, figures->refused_words,
           core_duration_format(figures->delay_max_ns, texts[4]),
           core_duration_format(figures->pcr_jitter_max_ns, texts[5]));
    printf("CPU a packet: %.0f ns (server %.0f ns), %.2f cores; OpenSSL in-process %.0f ns\n",
           figures->cpu_ns, figures->server_cpu_ns, figures->cores, figures->inline_cpu_ns);
    if (traffic->overflow > 0)
        printf("this bench itself has lost %" PRIu64 " datagrams\n", traffic->overflow);
}

static json_t *pack(const struct options *options, const struct figures *figures)
{
    const struct bench_ts_figures *traffic = &figures->traffic;
    return json_pack(
        "{s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}",
        "services", (json_int_t)options->traffic.services, "rate_bits_per_s",
        options->traffic.rate_bits_per_s, "bound_ns", (json_int_t)options->traffic.bound_ns, "datagrams",
        (json_int_t)traffic->received, "wrong", (json_int_t)traffic->wrong, "lost", (json_int_t)traffic->lost,
        "reordered", (json_int_t)traffic->reordered, "late", (json_int_t)traffic->late, "changes",
        (json_int_t)traffic->changes, "delay_median_ns",
        (json_int_t)core_histogram_percentile_ns(&traffic->delay, 50), "delay_p99_9_ns",
        (json_int_t)core_histogram_percentile_ns(&traffic->delay, 99.9), "delay_max_ns",
        (json_int_t)core_histogram_maximum_ns(&traffic->delay), "ts_late", (json_int_t)figures->late,
        "ts_dropped", (json_int_t)figures->dropped, "pcr_jitter_max_ns",
        (json_int_t)figures->pcr_jitter_max_ns, "cpu_ns", figures->cpu_ns, "server_cpu_ns",
        figures->server_cpu_ns, "inline_cpu_ns", figures->inline_cpu_ns);
}

int bench_ts(int argc, char **argv)
{
    static const char *const places[] = {"../client/millrace", "millrace"};
    static char found[640];
    static struct figures figures;
    struct core_error error;
    struct options options = {
        .traffic = {.services = 100, .rate_bits_per_s = 4e6, .bound_ns = 5 * CORE_NS_PER_MS},
        .period_ns = CORE_NS_PER_S,
        .jitter_ns = 10 * CORE_NS_PER_MS,
        .seconds = 10};
    if (getrandom(&options.traffic.seed, sizeof options.traffic.seed, 0) < 0)
        return 1;
    options.traffic.seed >>= 16;
    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 1;
    if (options.program == NULL)
        options.program = bench_program_beside(places, 2, found, sizeof found);
    if (enter_namespace(&error) != CORE_OK) {
        fprintf(stderr, "millrace-bench: %s\n", error.text);
        return 77;
    }
    if (measure_millrace(&options, &figures, &error) != CORE_OK ||
        measure_inline(&options, &figures, &error) != CORE_OK) {
        fprintf(stderr, "millrace-bench: %s\n", error.text);
        return 1;
    }
    if (!options.server.json)
        print_text(&options, &figures);
    else if (bench_document_print(pack(&options, &figures), &error) != CORE_OK)
        return 1;
    return is_right(&figures) ? 0 : 1;
}
