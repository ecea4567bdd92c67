/* millrace-bench memory: what an idle stream costs a server, and whether opening and closing leaves anything
 * behind. */
#include "bench/bench.h"
#include "bench/crowd.h"
#include "bench/daemon.h"
#include "bench/document.h"
#include "bench/options.h"
#include "core/proc.h"
#include "core/stream.h"
#include "cpu/scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ANSWER_MS       5000
#define STREAMS_MAX     60000
#define GOAL_IDLE_BYTES 4096.0
#define GROWTH_SHARE    0.02 /* of what the streams take: noise of the allocator, not growth */

struct options {
    struct bench_options_server server;
    uint32_t streams, churn;
};

struct figures {
    double idle_bytes;     /* one stream beyond its declared burst, its key state included */
    double key_bytes;      /* of that, from the locked heap that is there from the start */
    uint64_t cycles;       /* streams opened and closed */
    int64_t before, after; /* resident bytes with no stream open: after the first round, after the last */
    int64_t streams_bytes; /* resident bytes that the streams of one round take */
};

static const struct argp_option option_table[] = {
    {"streams", 'n', "N", 0, "Streams open at once (default 10000)", 0},
    {"churn", 'c', "N", 0, "Streams to open and close after that (default 720000: 200 a second for an hour)",
     0},
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
        options->streams = (uint32_t)core_options_count(state, "streams", argument, 100, STREAMS_MAX);
        return 0;
    case 'c':
        options->churn = (uint32_t)core_options_count(state, "churn", argument, 0, 100000000);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = option_table,
    .parser = parse_option,
    .doc = "Measure a server's memory by stream, and its growth as streams come and go.",
    .children = bench_options_server,
};

static core_status resident_bytes(pid_t process, int64_t *bytes, struct core_error *error)
{
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%d/statm", (int)process);
    if (!core_proc_read(path, text, sizeof text))
        return core_error_errno(error, "%s", path);
    *bytes = core_proc_figure(text, 2, sysconf(_SC_PAGESIZE));
    if (*bytes <= 0)
        return core_error_set(error, CORE_SYSTEM, "%s: no figures", path);
    return CORE_OK;
}

/* A key state as the locked heap hands it out: in powers of two. */
static double key_state_bytes(void)
{
    struct core_error error;
    const struct cpu_engine_ops *ops = cpu_engine_find("auto", &error);
    double bytes = 64;
    while (ops != NULL && bytes < (double)cpu_stream_bytes(ops, 1))
        bytes *= 2;
    return bytes;
}

static double declared_bytes(uint32_t streams)
{
    double bytes = 0;
    for (uint32_t i = 0; i < streams; i++) {
        struct core_stream_spec spec = bench_crowd_spec(i);
        bytes += (double)spec.burst_packets * core_stream_held_bytes(&spec);
    }
    return bytes;
}

static core_status measure_idle(const struct options *options, struct bench_crowd *crowd, pid_t process,
                                struct figures *figures, struct core_error *error)
{
    int64_t empty, full;
    core_status status = resident_bytes(process, &empty, error);
    if (status == CORE_OK)
        status = bench_crowd_open(crowd, 0, options->streams, error);
    if (status == CORE_OK)
        status = resident_bytes(process, &full, error);
    if (status != CORE_OK)
        return status;
    figures->streams_bytes = full - empty;
    figures->key_bytes = key_state_bytes();
    figures->idle_bytes =
        ((double)(full - empty) - declared_bytes(options->streams)) / options->streams + figures->key_bytes;
    return bench_crowd_close(crowd, error);
}

static core_status churn(const struct options *options, struct bench_crowd *crowd, pid_t process,
                         struct figures *figures, struct core_error *error)
{
    core_status status = resident_bytes(process, &figures->before, error);
    while (status == CORE_OK && figures->cycles < options->churn) {
        status = bench_crowd_open(crowd, (uint32_t)figures->cycles, options->streams, error);
        if (status == CORE_OK)
            status = bench_crowd_close(crowd, error);
        figures->cycles += options->streams;
        if (isatty(STDERR_FILENO))
            fprintf(stderr, "\r%llu of %u streams opened and closed", (unsigned long long)figures->cycles,
                    options->churn);
    }
    if (isatty(STDERR_FILENO))
        fputc('\n', stderr);
    return status == CORE_OK ? resident_bytes(process, &figures->after, error) : status;
}

static core_status measure(const struct options *options, const struct bench_daemon *daemon,
                           struct figures *figures, struct core_error *error)
{
    struct millrace *connection = NULL;
    struct bench_crowd crowd = {0};
    core_status status =
        (core_status)millrace_connect(daemon->address, NULL, ANSWER_MS, &connection, error->text);

    if (status == CORE_OK)
        status = bench_crowd_init(&crowd, connection, options->streams, error);
    if (status == CORE_OK)
        status = measure_idle(options, &crowd, daemon->process, figures, error);
    if (status == CORE_OK)
        status = churn(options, &crowd, daemon->process, figures, error);
    bench_crowd_free(&crowd);
    millrace_disconnect(connection);
    return status;
}

static bool goals_met(const struct figures *figures)
{
    return figures->idle_bytes < GOAL_IDLE_BYTES &&
           (double)(figures->after - figures->before) <= GROWTH_SHARE * (double)figures->streams_bytes;
}

static core_status report(const struct options *options, const struct figures *figures,
                          struct core_error *error)
{
    bool met = goals_met(figures);
    if (options->server.json) {
        json_t *document =
            json_pack("{s:i,s:f,s:f,s:I,s:I,s:I,s:b}", "streams", (int)options->streams, "idle_bytes",
                      figures->idle_bytes, "key_bytes", figures->key_bytes, "cycles",
                      (json_int_t)figures->cycles, "resident_before", (json_int_t)figures->before,
                      "resident_after", (json_int_t)figures->after, "goals_met", (int)met);
        return bench_document_print(document, error);
    }
    printf("%u idle streams: %.0f bytes each beyond their declared burst, %.0f of them key state\n",
           options->streams, figures->idle_bytes, figures->key_bytes);
    printf("%llu streams opened and closed: %.1f MiB resident before, %.1f MiB after\n\n",
           (unsigned long long)figures->cycles, (double)figures->before / (1 << 20),
           (double)figures->after / (1 << 20));
    printf("%s  under 4 KiB an idle stream, and nothing left behind.\n", met ? "PASS" : "FAIL");
    return CORE_OK;
}

int bench_memory(int argc, char **argv)
{
    struct options options = {.streams = 10000, .churn = 720000};
    struct figures figures = {0};
    struct bench_daemon daemon;
    struct core_error error = {""};

    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    core_status status = bench_daemon_start(
        &daemon,
        &(struct bench_daemon_options){.program = options.server.program, .profile = options.server.profile},
        &error);
    if (status == CORE_OK) {
        status = measure(&options, &daemon, &figures, &error);
        core_status stopped = bench_daemon_stop(&daemon, status == CORE_OK ? &error : NULL);
        status = status == CORE_OK ? stopped : status;
    }
    if (status == CORE_OK)
        status = report(&options, &figures, &error);
    if (status != CORE_OK) {
        fprintf(stderr, "millrace-bench memory: %s\n", error.text);
        return 1;
    }
    return goals_met(&figures) ? 0 : 1;
}
