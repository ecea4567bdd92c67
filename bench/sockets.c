/* millrace-bench sockets: what the sockets alone carry, and how much of that the server carries while it
 * keeps every deadline.
 *
 * A round measures the bare echo (echo.h) with a write for every packet, then with batched writes, and, where
 * a server is given, the highest rate that it sustains without a miss (sustain.h) over as many connections
 * and with packets of the same size. Ratios are taken inside a round. */
#include "bench/bench.h"
#include "bench/daemon.h"
#include "bench/document.h"
#include "bench/echo.h"
#include "bench/options.h"
#include "bench/sustain.h"
#include "core/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS    2000
#define ROUNDS_MAX 100
#define GOAL       0.5 /* of the echo that writes every packet */
#define HEADROOM   2.0 /* how far beyond that echo the server's rate is looked for */

struct options {
    size_t connections, packet_bytes, outstanding;
    double seconds;
    unsigned rounds;
    bool batch; /* only the batched echo */
    bool json;
    const char *server, *profile;
};

/* Megabytes per second each way. */
struct round {
    double single, batched, server;
    char beyond[400]; /* what kept the server from more */
};

enum measure { SINGLE, BATCHED, SERVER, TO_SINGLE, TO_BATCHED, MEASURES };

static core_status echo_measure(const struct options *options, bool batch, double *mb_per_s,
                                struct core_error *error)
{
    struct bench_echo_options echo = {.connections = options->connections,
                                      .packet_bytes = options->packet_bytes,
                                      .outstanding = options->outstanding,
                                      .duration_ns = (core_ns)(options->seconds * 1e9),
                                      .batch = batch};
    struct bench_echo_result result;
    core_status status = bench_echo_run(&echo, &result, error);
    if (status == CORE_OK)
        *mb_per_s = result.bytes_per_s / 1e6;
    return status;
}

static core_status round_measure(const struct options *options, const char *address, struct round *round,
                                 struct core_error *error)
{
    core_status status = CORE_OK;
    *round = (struct round){0};
    if (!options->batch)
        status = echo_measure(options, false, &round->single, error);
    if (status == CORE_OK)
        status = echo_measure(options, true, &round->batched, error);
    if (status != CORE_OK || !address)
        return status;
    struct bench_sustain_options sustain = {.address = address,
                                            .connections = options->connections,
                                            .packet_bytes = (uint32_t)options->packet_bytes,
                                            .streams = STREAMS,
                                            .trial_ns = (core_ns)(options->seconds * 1e9)};
    double yardstick = options->batch ? round->batched : round->single;
    struct bench_sustained found;
    status = bench_sustain_find(&sustain, yardstick * HEADROOM * 1e6, &found, error);
    if (status != CORE_OK)
        return status;
    round->server = found.bytes_per_s / 1e6;
    memcpy(round->beyond, found.beyond, sizeof round->beyond);
    return CORE_OK;
}

static void round_add(struct bench_samples *figures, const struct round *round)
{
    bench_samples_add(&figures[SINGLE], round->single);
    bench_samples_add(&figures[BATCHED], round->batched);
    bench_samples_add(&figures[SERVER], round->server);
    if (round->single > 0)
        bench_samples_add(&figures[TO_SINGLE], round->server / round->single);
    bench_samples_add(&figures[TO_BATCHED], round->server / round->batched);
}

/* ---- reports ---- */

static void header_print(const struct options *options)
{
    printf("%zu-byte packets over %zu Unix connections, MB/s each way\n\n", options->packet_bytes,
           options->connections);
    printf("  %-8s %18s %14s", "round", "echo, each packet", "echo, batched");
    if (options->server)
        printf(" %18s %9s %9s", "server, no miss", "/ each", "/ batched");
    putchar('\n');
}

static void row_print(const struct options *options, const char *name, double single, double batched,
                      double server, double to_single, double to_batched)
{
    printf("  %-8s ", name);
    if (options->batch)
        printf("%18s ", "-");
    else
        printf("%18.0f ", single);
    printf("%14.0f", batched);
    if (options->server && options->batch)
        printf(" %18.0f %9s %9.2f", server, "-", to_batched);
    else if (options->server)
        printf(" %18.0f %9.2f %9.2f", server, to_single, to_batched);
    putchar('\n');
}

static void round_print(const struct options *options, unsigned number, const struct round *round)
{
    char name[16];
    (void)snprintf(name, sizeof name, "%u", number);
    row_print(options, name, round->single, round->batched, round->server, round->server / round->single,
              round->server / round->batched);
    if (round->beyond[0])
        printf("           beyond that: %s\n", round->beyond);
    (void)fflush(stdout);
}

static void percentile_print(const struct options *options, const char *name, struct bench_samples *figures,
                             double percent)
{
    double values[MEASURES];
    for (int at = 0; at < MEASURES; at++)
        values[at] = bench_samples_percentile(&figures[at], percent);
    row_print(options, name, values[SINGLE], values[BATCHED], values[SERVER], values[TO_SINGLE],
              values[TO_BATCHED]);
}

static void summary_print(const struct options *options, struct bench_samples *figures)
{
    if (options->rounds > 1) {
        percentile_print(options, "least", figures, 0);
        percentile_print(options, "median", figures, 50);
        percentile_print(options, "most", figures, 100);
    }
    if (!options->server || options->batch)
        return;
    double median = bench_samples_percentile(&figures[TO_SINGLE], 50);
    printf(
        "\n%s  with %d streams, every byte right and every deadline (20 to 100 ms) kept, the server carries "
        "%.2f of\n      the echo that reads and writes nothing else (goal: %.2f)\n",
        median >= GOAL ? "PASS" : "FAIL", STREAMS, median, GOAL);
}

static core_status json_print(const struct options *options, struct bench_samples *figures,
                              struct core_error *error)
{
    json_t *root = json_pack("{s:I,s:I,s:I,s:I,s:o}", "packet_bytes", (json_int_t)options->packet_bytes,
                             "connections", (json_int_t)options->connections, "outstanding",
                             (json_int_t)options->outstanding, "rounds", (json_int_t)options->rounds,
                             "echo_batched_mb_per_s", bench_document_samples(&figures[BATCHED]));
    if (!options->batch)
        json_object_set_new(root, "echo_single_mb_per_s", bench_document_samples(&figures[SINGLE]));
    if (options->server) {
        json_object_set_new(root, "streams", json_integer(STREAMS));
        json_object_set_new(root, "server_mb_per_s", bench_document_samples(&figures[SERVER]));
        json_object_set_new(root, "server_to_batched", bench_document_samples(&figures[TO_BATCHED]));
    }
    if (options->server && !options->batch)
        json_object_set_new(root, "server_to_single", bench_document_samples(&figures[TO_SINGLE]));
    return bench_document_print(root, error);
}

/* ---- the command ---- */

static core_status rounds_run(const struct options *options, const char *address,
                              struct bench_samples *figures, struct core_error *error)
{
    for (unsigned number = 1; number <= options->rounds; number++) {
        struct round round;
        core_status status = round_measure(options, address, &round, error);
        if (status != CORE_OK)
            return status;
        round_add(figures, &round);
        if (!options->json)
            round_print(options, number, &round);
    }
    return CORE_OK;
}

static core_status measure(const struct options *options, struct bench_samples *figures,
                           struct core_error *error)
{
    struct bench_daemon daemon;
    if (!options->server)
        return rounds_run(options, NULL, figures, error);
    core_status status = bench_daemon_start(
        &daemon, &(struct bench_daemon_options){.program = options->server, .profile = options->profile},
        error);
    if (status != CORE_OK)
        return status;
    status = rounds_run(options, daemon.address, figures, error);
    core_status stopped = bench_daemon_stop(&daemon, status == CORE_OK ? error : NULL);
    return status == CORE_OK ? stopped : status;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case 'n':
        options->connections = (size_t)core_options_count(state, "connections", text, 1, 10000);
        return 0;
    case 'p':
        options->packet_bytes = (size_t)core_options_bytes(state, "packet", text, 1, CORE_PACKET_BYTES_MAX);
        return 0;
    case 'o':
        options->outstanding = (size_t)core_options_count(state, "outstanding", text, 1, 1024);
        return 0;
    case 's':
        options->seconds = bench_option_seconds(state, "seconds", text, 0.1, 3600);
        return 0;
    case 'r':
        options->rounds = (unsigned)core_options_count(state, "rounds", text, 1, ROUNDS_MAX);
        return 0;
    case 'b':
        options->batch = true;
        return 0;
    case 'j':
        options->json = true;
        return 0;
    case 'S':
        options->server = text;
        return 0;
    case 'P':
        options->profile = text;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option argp_options[] = {
    {"connections", 'n', "N", 0, "Unix connections (default 16)", 0},
    {"packet", 'p', "BYTES", 0, "Bytes of a packet (default 1400)", 0},
    {"outstanding", 'o', "N", 0, "The echo's messages under way on a connection (default 4)", 0},
    {"seconds", 's', "TIME", 0, "Time of one measurement or trial (default 3)", 0},
    {"rounds", 'r', "N", 0, "Rounds (default 1, with a server 3)", 0},
    {"batch", 'b', NULL, 0, "Only the echo with batched writes", 0},
    {"millraced", 'S', "PROGRAM", 0, "Compare with this server program: a round then takes some 10 trials",
     0},
    {"profile", 'P', "PROFILE", 0,
     "Its hardware profile: a path or a shipped one's name (default: it measures at start)", 0},
    {"json", 'j', NULL, 0, "Report as JSON", 0},
    {0},
};
static const struct argp argp = {
    .options = argp_options,
    .parser = parse_option,
    .doc =
        "What a bare echo over Unix sockets carries, one thread echoing and one sending, with a write for "
        "every packet and with batched writes; and what the server carries over as many connections without "
        "missing one deadline.\v"
        "Exit status: 0 measured (and the server carries at least half of the echo with a write for every "
        "packet); 1 it does not, or it could not be measured; 2 usage."};

int bench_sockets(int argc, char **argv)
{
    struct options options = {.connections = 16, .packet_bytes = 1400, .outstanding = 4, .seconds = 3};
    struct bench_samples figures[MEASURES] = {0};
    struct core_error error = {.text = "out of memory"};
    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    if (options.rounds == 0)
        options.rounds = options.server ? 3 : 1;
    core_status status = bench_samples_init_each(figures, MEASURES, options.rounds);
    if (status == CORE_OK && !options.json)
        header_print(&options);
    if (status == CORE_OK)
        status = measure(&options, figures, &error);
    if (status == CORE_OK && options.json)
        status = json_print(&options, figures, &error);
    else if (status == CORE_OK)
        summary_print(&options, figures);
    if (status != CORE_OK)
        (void)fprintf(stderr, "millrace-bench sockets: %s\n", error.text);
    bool goal_missed = status == CORE_OK && options.server && !options.batch &&
                       bench_samples_percentile(&figures[TO_SINGLE], 50) < GOAL;
    bench_samples_free_each(figures, MEASURES);
    return status == CORE_OK && !goal_missed ? 0 : 1;
}
