/* millrace-bench lanes: what a packet costs a server and its client on one machine, through lanes and through
 * sockets, beside what it would cost without a server.
 *
 * Each round has, one after another, so that ratios are of the same minute: a bare ring, the same with encryption in
 * it, OpenSSL in the producer (lane_limits.h), and a server of its own to which streams bring packets at one rate: a
 * generator's over 16 sockets, 16 lanes and one lane, every byte compared; and those of a producer that has them at
 * hand (lane_producer.h) over one socket and one lane. CPU times are those of threads and processes. */
#include "bench/bench.h"
#include "bench/daemon.h"
#include "bench/document.h"
#include "bench/lane_limits.h"
#include "bench/lane_producer.h"
#include "bench/options.h"
#include "bench/sustain.h"
#include "core/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX  100
#define CONNECTIONS 16

struct options {
    struct bench_options_server server;
    uint32_t streams, packet_bytes;
    double bits_per_s, seconds;
    unsigned rounds;
    bool sustain;
};

enum way { RING, RING_ENCRYPTS, OPENSSL, SOCKETS, LANES, LANE, PRODUCER_SOCKET, PRODUCER_LANE, WAYS };

static const struct {
    const char *name, *key;
    const char *scheme; /* of the server's address; NULL: there is none */
    size_t connections; /* of the generator; 0: a producer's own */
} ways[WAYS] = {{"bare ring", "ring", NULL, 0},
                {"bare ring that encrypts", "ring_encrypts", NULL, 0},
                {"OpenSSL in the producer", "openssl", NULL, 0},
                {"server, 16 sockets", "sockets_16", "socket", CONNECTIONS},
                {"server, 16 lanes", "lanes_16", "unix", CONNECTIONS},
                {"server, one lane", "lane", "unix", 1},
                {"producer, one socket", "producer_socket", "socket", 0},
                {"producer, one lane", "producer_lane", "unix", 0}};

enum measure { SERVER_US, CLIENT_US, RATE, P50_US, P999_US, SUSTAINED, MEASURES };

static const struct {
    const char *name, *key;
    int digits;
} measures[MEASURES] = {{"server CPU, us/packet", "server_us", 2},
                        {"client CPU, us/packet", "client_us", 2},
                        {"GB/s", "gb_per_s", 3}, /* without a server all that goes */
                        {"p50, us", "p50_us", 0},
                        {"p99.9, us", "p999_us", 0},
                        {"without a miss, GB/s", "sustained_gb_per_s", 3}};

struct figures {
    struct bench_samples of[MEASURES];
    uint64_t packets, lost, missed; /* of all rounds; lost: did not come back right */
};

/* ---- one round ---- */

static core_status limit_measure(const struct options *options, enum way way, struct figures *figures,
                                 struct core_error *error)
{
    const struct bench_lane_limits_options limits = {
        .streams = options->streams,
        .packet_bytes = (options->packet_bytes + CORE_BLOCK_BYTES - 1) / CORE_BLOCK_BYTES * CORE_BLOCK_BYTES,
        .duration_ns = (core_ns)(options->seconds * 1e9)};
    struct bench_lane_limits_result result;
    core_status status = way == OPENSSL ? bench_lane_openssl(&limits, &result, error)
                                        : bench_lane_ring(&limits, way == RING_ENCRYPTS, &result, error);
    if (status != CORE_OK)
        return status;
    if (way != OPENSSL)
        bench_samples_add(&figures->of[SERVER_US], result.server_ns / 1e3);
    bench_samples_add(&figures->of[CLIENT_US], result.client_ns / 1e3);
    bench_samples_add(&figures->of[RATE], result.packets_per_s * limits.packet_bytes / 1e9);
    return CORE_OK;
}

static const char *path_of(const struct bench_daemon *daemon)
{
    return daemon->address + strlen("unix:");
}

static void report_take(struct figures *figures, const struct inputgen_report *report)
{
    const struct inputgen_figures *all = &report->all;
    const double packets = (double)all->received;
    figures->packets += all->planned;
    figures->lost += all->planned - all->received + all->rejected + all->mismatched + all->disordered;
    figures->missed += all->missed;
    if (all->received == 0)
        return;
    if (report->server_cpu_ns >= 0)
        bench_samples_add(&figures->of[SERVER_US], (double)report->server_cpu_ns / packets / 1e3);
    bench_samples_add(&figures->of[CLIENT_US], (double)report->generator_cpu_ns / packets / 1e3);
    bench_samples_add(&figures->of[RATE], (double)all->payload_bytes / (double)report->run_ns);
    bench_samples_add(&figures->of[P50_US], (double)core_histogram_percentile_ns(&all->service, 50) / 1e3);
    bench_samples_add(&figures->of[P999_US], (double)core_histogram_percentile_ns(&all->service, 99.9) / 1e3);
}

static core_status producer_measure(const struct options *options, enum way way,
                                    const struct bench_daemon *daemon, struct figures *figures,
                                    struct core_error *error)
{
    char address[300];
    (void)snprintf(address, sizeof address, "%s:%s", ways[way].scheme, path_of(daemon));
    const struct bench_lane_producer_options producer = {.address = address,
                                                         .server = daemon->process,
                                                         .streams = options->streams,
                                                         .packet_bytes = options->packet_bytes,
                                                         .bytes_per_s = options->bits_per_s / 8,
                                                         .duration_ns = (core_ns)(options->seconds * 1e9)};
    struct bench_lane_producer_result result;
    const core_status status = bench_lane_producer(&producer, &result, error);
    if (status != CORE_OK)
        return status;
    figures->packets += result.sent;
    figures->lost += result.sent - result.back;
    figures->missed += result.missed;
    bench_samples_add(&figures->of[SERVER_US], result.server_ns / 1e3);
    bench_samples_add(&figures->of[CLIENT_US], result.client_ns / 1e3);
    bench_samples_add(&figures->of[RATE], result.bytes_per_s / 1e9);
    return CORE_OK;
}

/* The rate of one round, and the highest without a miss where that is asked for. */
static core_status server_measure(const struct options *options, enum way way,
                                  const struct bench_daemon *daemon, double ceiling_bytes_per_s,
                                  struct figures *figures, struct core_error *error)
{
    char address[300];
    (void)snprintf(address, sizeof address, "%s:%s", ways[way].scheme, path_of(daemon));
    const struct bench_sustain_options trial = {.address = address,
                                                .connections = ways[way].connections,
                                                .packet_bytes = options->packet_bytes,
                                                .streams = options->streams,
                                                .trial_ns = (core_ns)(options->seconds * 1e9)};
    const struct inputgen_replay_options replay = {.address = address,
                                                   .name = "lanes",
                                                   .connections = (unsigned)ways[way].connections,
                                                   .drain_ns = 2 * CORE_NS_PER_S,
                                                   .timeout_ms = 60000,
                                                   .seed = 1};
    struct inputgen_streams list;
    struct inputgen_report *report;
    struct bench_sustained found;

    if (bench_sustain_list(&trial, options->bits_per_s / 8, &list) != CORE_OK)
        return core_error_set(error, CORE_NO_MEMORY, "out of memory");
    core_status status = inputgen_replay_run(&replay, &list, &report, error);
    free(list.streams);
    if (status != CORE_OK)
        return status;
    report_take(figures, report);
    inputgen_report_free(report);
    if (!options->sustain)
        return CORE_OK;
    status = bench_sustain_find(&trial, ceiling_bytes_per_s, &found, error);
    if (status == CORE_OK)
        bench_samples_add(&figures->of[SUSTAINED], found.bytes_per_s / 1e9);
    return status;
}

static core_status round_measure(const struct options *options, const struct bench_daemon *daemon,
                                 struct figures *figures, struct core_error *error)
{
    core_status status = CORE_OK;
    for (int way = 0; way < WAYS && status == CORE_OK; way++) {
        struct bench_samples *ring = &figures[RING_ENCRYPTS].of[RATE];
        if (ways[way].scheme == NULL)
            status = limit_measure(options, (enum way)way, &figures[way], error);
        else if (ways[way].connections == 0)
            status = producer_measure(options, (enum way)way, daemon, &figures[way], error);
        else
            status = server_measure(options, (enum way)way, daemon, bench_samples_percentile(ring, 100) * 1e9,
                                    &figures[way], error);
    }
    return status;
}

/* ---- reports ---- */

static void cell_print(struct bench_samples *samples, int digits)
{
    if (samples->count == 0) {
        printf(" %22s", "-");
        return;
    }
    char text[64];
    (void)snprintf(text, sizeof text, "%.*f (%.*f, %.*f)", digits, bench_samples_percentile(samples, 50),
                   digits, bench_samples_percentile(samples, 25), digits,
                   bench_samples_percentile(samples, 75));
    printf(" %22s", text);
}

static double median(struct figures *figures, enum way way, enum measure measure)
{
    return bench_samples_percentile(&figures[way].of[measure], 50);
}

static void table_print(const struct options *options, struct figures *figures)
{
    const int columns = options->sustain ? MEASURES : SUSTAINED;
    printf(
        "%u streams of %u-byte packets, %.0f Mbit/s through the server; medians of %u rounds (quartiles)\n\n",
        options->streams, options->packet_bytes, options->bits_per_s / 1e6, options->rounds);
    printf("%-24s", "");
    for (int at = 0; at < columns; at++)
        printf(" %22s", measures[at].name);
    printf(" %9s\n", "missed");
    for (int way = 0; way < WAYS; way++) {
        struct figures *row = &figures[way];
        printf("%-24s", ways[way].name);
        for (int at = 0; at < columns; at++)
            cell_print(&row->of[at], measures[at].digits);
        if (ways[way].scheme != NULL)
            printf(" %9lu", (unsigned long)row->missed);
        putchar('\n');
        if (row->lost > 0)
            printf("  %lu of %lu packets did not come back, or not right\n", (unsigned long)row->lost,
                   (unsigned long)row->packets);
    }
    const double lane = median(figures, LANE, SERVER_US);
    printf("\nThe server's CPU for a packet: through one lane %.2f of what it is through sockets, and %.2f "
           "of what "
           "OpenSSL\ntakes in the producer.\n",
           lane / median(figures, SOCKETS, SERVER_US), lane / median(figures, OPENSSL, CLIENT_US));
}

static core_status json_print(const struct options *options, struct figures *figures,
                              struct core_error *error)
{
    json_t *root = json_pack("{s:I,s:I,s:f,s:I}", "streams", (json_int_t)options->streams, "packet_bytes",
                             (json_int_t)options->packet_bytes, "bits_per_s", options->bits_per_s, "rounds",
                             (json_int_t)options->rounds);
    for (int way = 0; way < WAYS; way++) {
        struct figures *row = &figures[way];
        json_t *object =
            json_pack("{s:I,s:I}", "missed", (json_int_t)row->missed, "lost", (json_int_t)row->lost);
        for (int at = 0; at < MEASURES; at++)
            (void)json_object_set_new(object, measures[at].key, bench_document_samples(&row->of[at]));
        (void)json_object_set_new(root, ways[way].key, object);
    }
    return bench_document_print(root, error);
}

/* ---- the command ---- */

static core_status measure(const struct options *options, struct figures *figures, struct core_error *error)
{
    struct bench_daemon daemon;
    core_status status =
        bench_daemon_start(&daemon,
                           &(struct bench_daemon_options){.program = options->server.program,
                                                          .profile = options->server.profile,
                                                          .keys = "limits: {lane_mib: 64}\n"},
                           error);
    if (status != CORE_OK)
        return status;
    for (unsigned number = 1; number <= options->rounds && status == CORE_OK; number++)
        status = round_measure(options, &daemon, figures, error);
    core_status stopped = bench_daemon_stop(&daemon, status == CORE_OK ? error : NULL);
    return status == CORE_OK ? stopped : status;
}

enum { KEY_RATE = 256, KEY_SUSTAIN };

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->server;
        return 0;
    case 'n':
        options->streams = (uint32_t)core_options_count(state, "streams", text, 1, 1000000);
        return 0;
    case 'p':
        options->packet_bytes = (uint32_t)core_options_bytes(state, "packet", text, 16, 65504);
        return 0;
    case 's':
        options->seconds = bench_option_seconds(state, "seconds", text, 0.1, 3600);
        return 0;
    case 'r':
        options->rounds = (unsigned)core_options_count(state, "rounds", text, 1, ROUNDS_MAX);
        return 0;
    case KEY_RATE:
        options->bits_per_s = 1e6 * (double)core_options_count(state, "rate", text, 1, 1000000);
        return 0;
    case KEY_SUSTAIN:
        options->sustain = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option argp_options[] = {
    {"streams", 'n', "N", 0, "Streams, with bounds of 20 to 100 ms (default 10000)", 0},
    {"packet", 'p', "BYTES", 0, "Bytes of a packet (default 1400)", 0},
    {"rate", KEY_RATE, "MBIT", 0, "Payload through the server, in Mbit/s (default 1000)", 0},
    {"seconds", 's', "TIME", 0, "Time of one measurement (default 3)", 0},
    {"rounds", 'r', "N", 0, "Rounds (default 3)", 0},
    {"sustain", KEY_SUSTAIN, NULL, 0,
     "Look for the highest rate without a miss as well: some ten trials each", 0},
    {0},
};
static const struct argp argp = {
    .options = argp_options,
    .parser = parse_option,
    .children = bench_options_server,
    .doc = "What a packet costs a server and its client on one machine, through lanes and sockets, beside a "
           "bare "
           "ring of shared memory and OpenSSL in the producer.\v"
           "Exit status: 0 measured, and every packet came back right; 1 not; 2 usage."};

static core_status run(const struct options *options, struct figures *figures, struct core_error *error)
{
    core_status status = CORE_OK;
    for (int way = 0; way < WAYS && status == CORE_OK; way++)
        status = bench_samples_init_each(figures[way].of, MEASURES, options->rounds);
    if (status == CORE_OK)
        status = measure(options, figures, error);
    if (status == CORE_OK && options->server.json)
        return json_print(options, figures, error);
    if (status == CORE_OK)
        table_print(options, figures);
    return status;
}

int bench_lanes(int argc, char **argv)
{
    struct options options = {
        .streams = 10000, .packet_bytes = 1400, .bits_per_s = 1e9, .seconds = 3, .rounds = 3};
    struct figures figures[WAYS] = {0};
    struct core_error error = {.text = "out of memory"};
    uint64_t lost = 0;

    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    const core_status status = run(&options, figures, &error);
    if (status != CORE_OK)
        (void)fprintf(stderr, "millrace-bench lanes: %s\n", error.text);
    for (int way = 0; way < WAYS; way++) {
        lost += figures[way].lost;
        bench_samples_free_each(figures[way].of, MEASURES);
    }
    return status == CORE_OK && lost == 0 ? 0 : 1;
}
