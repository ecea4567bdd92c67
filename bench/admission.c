/* millrace-bench admission: how fast a server answers OPEN and QUERY, alone and among many open streams. */
#include "bench/bench.h"
#include "bench/crowd.h"
#include "bench/daemon.h"
#include "bench/document.h"
#include "bench/options.h"
#include "bench/samples.h"

#include <stdio.h>
#include <stdlib.h>

#define ANSWER_MS      5000
#define STREAMS_MAX    60000
#define GOAL_OPEN_S    5.0 /* for 10,000 OPENs */
#define GOAL_SERVER_US 1000.0

struct options {
    struct bench_options_server server;
    uint32_t streams, probes;
};

struct figures {
    double open_s;                   /* all OPENs, from the first sent to the last answered */
    struct bench_samples decided_us; /* grants, at the server: frame read to decision */
    struct bench_samples granted_us; /* grants and ... */
    struct bench_samples refused_us; /* ... refusals with their offers, at the client: there and back */
};

static const struct argp_option option_table[] = {
    {"streams", 'n', "N", 0, "Streams that stand open (default 10000)", 0},
    {"probes", 'p', "N", 0, "Answers of each kind to time (default 2000)", 0},
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
        options->streams = (uint32_t)core_options_count(state, "streams", argument, 1, STREAMS_MAX);
        return 0;
    case 'p':
        options->probes = (uint32_t)core_options_count(state, "probes", argument, 10, 1000000);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = option_table,
    .parser = parse_option,
    .doc = "Time the answers of a server to OPEN and QUERY while many streams stand open.",
    .children = bench_options_server,
};

/* One grant: OPEN, then CLOSE so that the crowd stays as it is. */
static core_status probe_grant(struct millrace *connection, uint32_t index, struct figures *figures,
                               struct core_error *error)
{
    static const uint8_t key[32];
    const struct core_stream_spec spec = bench_crowd_spec(index);
    struct millrace_open open = client_contract_open(&spec);
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_closed closed = {.size = sizeof closed};

    open.key_kind = MILLRACE_KEY_INLINE;
    open.key = key;
    open.key_bytes = core_cipher_key_bytes(spec.cipher);
    core_ns start_ns = core_time_now_ns();
    core_status status =
        (core_status)millrace_open_stream(connection, &open, ANSWER_MS, &opened, NULL, error->text);
    if (status != CORE_OK)
        return status;
    bench_samples_add(&figures->granted_us, (double)(core_time_now_ns() - start_ns) / 1e3);
    bench_samples_add(&figures->decided_us, (double)opened.decided_ns / 1e3);
    return (core_status)millrace_close_stream(connection, opened.stream, ANSWER_MS, &closed, error->text);
}

/* One refusal: a rate that no server has room for, so that both offers are looked for. */
static core_status probe_refusal(struct millrace *connection, uint32_t index, struct figures *figures,
                                 struct core_error *error)
{
    const struct core_stream_spec spec = bench_crowd_spec(index);
    struct millrace_open open = client_contract_open(&spec);
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_refused refused = {.size = sizeof refused};

    open.packet_bytes = 60000;
    open.interval_ns = 20 * CORE_NS_PER_US + index;
    core_ns start_ns = core_time_now_ns();
    core_status status =
        (core_status)millrace_query(connection, &open, ANSWER_MS, &opened, &refused, error->text);
    if (status != CORE_REFUSED)
        return status == CORE_OK
                   ? core_error_set(error, CORE_MISMATCH, "24 Gbit/s in one stream were granted")
                   : status;
    bench_samples_add(&figures->refused_us, (double)(core_time_now_ns() - start_ns) / 1e3);
    return CORE_OK;
}

static core_status measure(const struct options *options, const char *address, struct figures *figures,
                           struct core_error *error)
{
    struct millrace *connection = NULL;
    struct bench_crowd crowd = {0};
    core_status status = (core_status)millrace_connect(address, NULL, ANSWER_MS, &connection, error->text);

    if (status == CORE_OK)
        status = bench_crowd_init(&crowd, connection, options->streams, error);
    core_ns start_ns = core_time_now_ns();
    if (status == CORE_OK)
        status = bench_crowd_open(&crowd, 0, options->streams, error);
    figures->open_s = (double)(core_time_now_ns() - start_ns) / 1e9;
    if (status == CORE_OK)
        status = (core_status)millrace_set_callbacks(connection, NULL, error->text);
    for (uint32_t i = 0; status == CORE_OK && i < options->probes; i++) {
        status = probe_grant(connection, options->streams + i, figures, error);
        if (status == CORE_OK)
            status = probe_refusal(connection, i, figures, error);
    }
    bench_crowd_free(&crowd);
    millrace_disconnect(connection);
    return status;
}

static json_t *percentiles(struct bench_samples *samples)
{
    return json_pack("{s:f,s:f,s:f}", "p50", bench_samples_percentile(samples, 50), "p99",
                     bench_samples_percentile(samples, 99), "max", bench_samples_percentile(samples, 100));
}

static double goal_open_s(const struct options *options)
{
    return GOAL_OPEN_S * options->streams / 10000;
}

static bool goals_met(const struct options *options, struct figures *figures)
{
    return figures->open_s < goal_open_s(options) &&
           bench_samples_percentile(&figures->decided_us, 99) < GOAL_SERVER_US;
}

static void print_row(const char *what, struct bench_samples *samples)
{
    printf("  %-44s %8.0f us %8.0f us %8.0f us\n", what, bench_samples_percentile(samples, 50),
           bench_samples_percentile(samples, 99), bench_samples_percentile(samples, 100));
}

static core_status report(const struct options *options, struct figures *figures, struct core_error *error)
{
    bool met = goals_met(options, figures);
    if (options->server.json) {
        json_t *document = json_pack("{s:i,s:f,s:o,s:o,s:o,s:b}", "streams", (int)options->streams, "open_s",
                                     figures->open_s, "decided_us", percentiles(&figures->decided_us),
                                     "granted_us", percentiles(&figures->granted_us), "refused_us",
                                     percentiles(&figures->refused_us), "goals_met", (int)met);
        return bench_document_print(document, error);
    }
    printf("%u streams opened in %.2f s, %.0f a second\n\n", options->streams, figures->open_s,
           options->streams / figures->open_s);
    printf("  with these open, %u answers of each kind            half      1 in 100        worst\n",
           options->probes);
    print_row("grant, at the server: frame to decision", &figures->decided_us);
    print_row("grant, at the client: there and back", &figures->granted_us);
    print_row("refusal with both offers, there and back", &figures->refused_us);
    printf("\n%s  %u OPENs under %.3g s; 99 of 100 decisions under 1 ms at the server.\n",
           met ? "PASS" : "FAIL", options->streams, goal_open_s(options));
    return CORE_OK;
}

int bench_admission(int argc, char **argv)
{
    struct options options = {.streams = 10000, .probes = 2000};
    struct figures figures = {0};
    struct bench_daemon daemon;
    struct core_error error = {""};

    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    core_status status = bench_samples_init(&figures.decided_us, options.probes);
    if (status == CORE_OK)
        status = bench_samples_init(&figures.granted_us, options.probes);
    if (status == CORE_OK)
        status = bench_samples_init(&figures.refused_us, options.probes);
    if (status == CORE_OK)
        status = bench_daemon_start(&daemon,
                                    &(struct bench_daemon_options){.program = options.server.program,
                                                                   .profile = options.server.profile},
                                    &error);
    if (status == CORE_OK) {
        status = measure(&options, daemon.address, &figures, &error);
        core_status stopped = bench_daemon_stop(&daemon, status == CORE_OK ? &error : NULL);
        status = status == CORE_OK ? stopped : status;
    }
    if (status == CORE_OK)
        status = report(&options, &figures, &error);
    if (status != CORE_OK)
        fprintf(stderr, "millrace-bench admission: %s\n", error.text);
    int result = status == CORE_OK && goals_met(&options, &figures) ? 0 : 1;
    bench_samples_free(&figures.decided_us);
    bench_samples_free(&figures.granted_us);
    bench_samples_free(&figures.refused_us);
    return result;
}
