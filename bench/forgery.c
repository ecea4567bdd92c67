/* millrace-bench forgery: whether the time of an answer tells a forged message from a genuine one. */
#include "bench/bench.h"
#include "bench/daemon.h"
#include "bench/document.h"
#include "bench/options.h"
#include "bench/samples.h"
#include "client/millrace.h"
#include "core/time.h"

#include <math.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>

#define ANSWER_MS        5000
#define CLEAR_BYTES_MAX  65536
#define MAC_BYTES        MILLRACE_MAC_BYTES
#define CRITICAL_PERCENT 1 /* how often two samples of the same distribution are taken for two */
#define CRITICAL         1.628

struct options {
    struct bench_options_server server;
    uint32_t messages, bytes;
};

struct streams {
    struct millrace *connection;
    uint32_t encrypts, decrypts;
};

static const struct argp_option option_table[] = {
    {"messages", 'n', "N", 0, "Messages of both kinds together (default 20000)", 0},
    {"bytes", 'b', "BYTES", 0, "Of a message, in whole blocks (default 1408)", 0},
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
        options->messages = (uint32_t)core_options_count(state, "messages", argument, 100, 10000000);
        return 0;
    case 'b':
        options->bytes =
            (uint32_t)core_options_bytes(state, "bytes", argument, 16, CLEAR_BYTES_MAX) / 16 * 16;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = option_table,
    .parser = parse_option,
    .doc =
        "Have a server of its own decrypt messages with a MAC, one at a time, in half of which one bit is "
        "turned, in an order that is drawn, and compare the times until they are answered.\v"
        "The two distributions are told apart by the test of Kolmogorov and Smirnov, at the level of 1 %: of "
        "100 runs of a server that tells nothing, one fails.\n"
        "Exit status: 0 the times tell nothing, and each forged message was told; 1 they do, one was not, or "
        "it "
        "could not be measured; 2 usage.",
    .children = bench_options_server,
};

static core_status open_stream(struct streams *streams, const struct options *options,
                               enum millrace_direction direction, uint32_t *stream, struct core_error *error)
{
    static const uint8_t key[16];
    struct millrace_open open = {.size = sizeof open,
                                 .packet_bytes = options->bytes + MAC_BYTES,
                                 .burst_packets = 16,
                                 .interval_ns = 100 * CORE_NS_PER_US,
                                 .latency_ns = 200 * CORE_NS_PER_MS,
                                 .cipher = MILLRACE_CIPHER_AES_128_CBC,
                                 .unit = MILLRACE_UNIT_MESSAGE,
                                 .iv_source = MILLRACE_IV_COUNTER,
                                 .direction = direction,
                                 .mac = MILLRACE_MAC_HMAC_SHA_256_128,
                                 .key_kind = MILLRACE_KEY_INLINE,
                                 .key = key,
                                 .key_bytes = sizeof key};
    struct millrace_opened opened = {.size = sizeof opened};
    struct millrace_refused refused = {.size = sizeof refused};
    core_status status = (core_status)millrace_open_stream(streams->connection, &open, ANSWER_MS, &opened,
                                                           &refused, error->text);
    *stream = opened.stream;
    return status;
}

/* One message there and back, half of them with one bit turned between. */
static core_status probe(const struct streams *streams, const struct options *options,
                         struct bench_samples kinds[2], uint32_t *wrong, struct core_error *error)
{
    static uint8_t clear[CLEAR_BYTES_MAX], body[CLEAR_BYTES_MAX + 64], back[CLEAR_BYTES_MAX + 64];
    struct millrace_result result = {.size = sizeof result};
    uint32_t draw[2], bytes = 0, back_bytes = 0;

    if (RAND_bytes((uint8_t *)draw, sizeof draw) != 1)
        return core_error_set(error, CORE_SYSTEM, "the system has no random numbers");
    core_status status =
        (core_status)millrace_encrypt(streams->connection, streams->encrypts, clear, options->bytes,
                                      ANSWER_MS, body, &bytes, &result, error->text);
    if (status != CORE_OK)
        return status;
    const bool forged = draw[0] % 2 != 0;
    const uint32_t bit = draw[1] % (8 * bytes);
    if (forged)
        body[bit / 8] ^= (uint8_t)(1u << bit % 8);
    const core_ns start_ns = core_time_now_ns();
    status = (core_status)millrace_encrypt(streams->connection, streams->decrypts, body, bytes, ANSWER_MS,
                                           back, &back_bytes, &result, error->text);
    bench_samples_add(&kinds[forged], (double)(core_time_now_ns() - start_ns) / 1e3);
    const bool told = status == CORE_REFUSED || result.status != MILLRACE_RESULT_OK;
    *wrong += told != forged || (forged ? result.status != MILLRACE_RESULT_FORGED || back_bytes != 0
                                        : memcmp(back, clear, options->bytes) != 0);
    return told ? CORE_OK : status;
}

static core_status measure(const struct options *options, const char *address, struct bench_samples kinds[2],
                           uint32_t *wrong, struct core_error *error)
{
    struct streams streams;
    core_status status =
        (core_status)millrace_connect(address, NULL, ANSWER_MS, &streams.connection, error->text);

    if (status != CORE_OK)
        return status;
    status = open_stream(&streams, options, MILLRACE_DIRECTION_ENCRYPT, &streams.encrypts, error);
    if (status == CORE_OK)
        status = open_stream(&streams, options, MILLRACE_DIRECTION_DECRYPT, &streams.decrypts, error);
    for (uint32_t i = 0; status == CORE_OK && i < options->messages; i++)
        status = probe(&streams, options, kinds, wrong, error);
    millrace_disconnect(streams.connection);
    return status;
}

/* The greatest distance of their distribution functions. Both are sorted, by having been asked for a percentile. */
static double distance_of(const struct bench_samples *a, const struct bench_samples *b)
{
    double greatest = 0;
    for (uint32_t i = 0, j = 0; i < a->count && j < b->count;) {
        const double value = fmin(a->values[i], b->values[j]);
        while (i < a->count && a->values[i] <= value)
            i++;
        while (j < b->count && b->values[j] <= value)
            j++;
        greatest = fmax(greatest, fabs((double)i / a->count - (double)j / b->count));
    }
    return greatest;
}

static void print_row(const char *what, struct bench_samples *samples)
{
    printf("  %-10s %8u %9.1f us %9.1f us %9.1f us %9.1f us\n", what, samples->count,
           bench_samples_percentile(samples, 25), bench_samples_percentile(samples, 50),
           bench_samples_percentile(samples, 75), bench_samples_percentile(samples, 99));
}

static core_status report(const struct options *options, struct bench_samples kinds[2], uint32_t wrong,
                          bool *good, struct core_error *error)
{
    const double medians_us[] = {bench_samples_percentile(&kinds[0], 50),
                                 bench_samples_percentile(&kinds[1], 50)};
    const double distance = distance_of(&kinds[0], &kinds[1]);
    const double limit = CRITICAL * sqrt(1.0 / kinds[0].count + 1.0 / kinds[1].count);

    *good = wrong == 0 && distance <= limit;
    if (options->server.json)
        return bench_document_print(json_pack("{s:i,s:i,s:f,s:i,s:f,s:f,s:f,s:i,s:b}", "bytes",
                                              (int)options->bytes, "genuine", (int)kinds[0].count,
                                              "genuine_p50_us", medians_us[0], "forged", (int)kinds[1].count,
                                              "forged_p50_us", medians_us[1], "distance", distance, "limit",
                                              limit, "wrong", (int)wrong, "good", (int)*good),
                                    error);
    printf("messages of %u bytes, there and back\n\n", options->bytes);
    printf("  %-10s %8s %12s %12s %12s %12s\n", "", "messages", "1 in 4", "half", "3 in 4", "99 in 100");
    print_row("genuine", &kinds[0]);
    print_row("forged", &kinds[1]);
    printf("\n%s  distance of the distributions %.4f, at most %.4f (%d %%); %u messages judged wrongly\n",
           *good ? "PASS" : "FAIL", distance, limit, CRITICAL_PERCENT, wrong);
    return CORE_OK;
}

int bench_forgery(int argc, char **argv)
{
    struct options options = {.messages = 20000, .bytes = 1408};
    struct bench_samples kinds[2] = {{0}, {0}};
    struct bench_daemon daemon;
    struct core_error error = {""};
    uint32_t wrong = 0;
    bool good = false;

    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    core_status status = bench_samples_init(&kinds[0], options.messages);
    if (status == CORE_OK)
        status = bench_samples_init(&kinds[1], options.messages);
    if (status == CORE_OK)
        status = bench_daemon_start(&daemon,
                                    &(struct bench_daemon_options){.program = options.server.program,
                                                                   .profile = options.server.profile,
                                                                   .keys = "client_iv: true\n"},
                                    &error);
    if (status == CORE_OK) {
        status = measure(&options, daemon.address, kinds, &wrong, &error);
        core_status stopped = bench_daemon_stop(&daemon, status == CORE_OK ? &error : NULL);
        status = status == CORE_OK ? stopped : status;
    }
    if (status == CORE_OK)
        status = report(&options, kinds, wrong, &good, &error);
    if (status != CORE_OK)
        fprintf(stderr, "millrace-bench forgery: %s\n", error.text);
    bench_samples_free(&kinds[0]);
    bench_samples_free(&kinds[1]);
    return status == CORE_OK && good ? 0 : 1;
}
