/* millrace-bench calibrate: a hardware profile of this machine, for the server's `profile:`.
 *
 * The first round chooses burst and piece size, the others measure with the same; of every figure the largest
 * is kept, and how far the rounds lie apart is told. */
#include "server/calibrate.h"
#include "bench/bench.h"
#include "bench/options.h"
#include "config/profile.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS_MAX 20

struct options {
    const char *output, *engine;
    double seconds;
    unsigned rounds;
    bool realtime, json;
};

static const struct argp_option option_table[] = {
    {"output", 'o', "FILE", 0, "Where the profile goes (default: standard output)", 0},
    {"engine", 'e', "NAME", 0, "Engine to measure: auto, ipsec-mb, openssl, ... (default auto)", 0},
    {"seconds", 's', "S", 0, "Time of one round (default 6)", 0},
    {"rounds", 'r', "N", 0, "Rounds (default 3)", 0},
    {"no-realtime", 'n', NULL, 0, "Without SCHED_FIFO, for a server that will run with realtime: off", 0},
    {0},
};

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case 'o':
        options->output = argument;
        return 0;
    case 'e':
        options->engine = argument;
        return 0;
    case 's':
        options->seconds = bench_option_number(state, "seconds", argument, 0.5, 3600);
        return 0;
    case 'r':
        options->rounds = (unsigned)bench_option_number(state, "rounds", argument, 1, ROUNDS_MAX);
        return 0;
    case 'n':
        options->realtime = false;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    NULL,
    "Measure this machine and write its hardware profile. Leave the machine alone "
    "meanwhile, or load it as it will be loaded.",
    NULL,
    NULL,
    NULL};

static void on_progress(void *argument, const char *what, double share)
{
    const unsigned *round = argument;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[Kround %u: %3.0f %% %s", *round, 100 * share, what);
}

/* Every figure that a promise rests on, so that rounds can be joined and compared in one way. */
enum { FIGURES = 11 };
static void figures_of(struct config_profile *profile, int64_t *figures[FIGURES])
{
    int count = 0;
    figures[count++] = &profile->cpu.per_piece_ns;
    for (int i = 0; i < CORE_CIPHER_COUNT; i++) {
        figures[count++] = &profile->cpu.per_byte_fs[i];
        figures[count++] = &profile->cpu.lane_ns[i];
    }
    figures[count++] = &profile->io.per_packet_ns;
    figures[count++] = &profile->io.per_byte_fs;
    figures[count++] = &profile->margins.in_ns;
    figures[count++] = &profile->margins.out_ns;
}

static const char *const figure_names[FIGURES] = {"per_piece_ns",        "aes_128_cbc per_byte_fs",
                                                  "aes_128_cbc lane_ns", "aes_192_cbc per_byte_fs",
                                                  "aes_192_cbc lane_ns", "aes_256_cbc per_byte_fs",
                                                  "aes_256_cbc lane_ns", "io per_packet_ns",
                                                  "io per_byte_fs",      "margin in_ns",
                                                  "margin out_ns"};

/* Keeps the largest of every figure; notes the smallest. */
static void join(struct config_profile *kept, struct config_profile *round, int64_t smallest[FIGURES])
{
    int64_t *mine[FIGURES], *theirs[FIGURES];
    figures_of(kept, mine);
    figures_of(round, theirs);
    for (int i = 0; i < FIGURES; i++) {
        if (*theirs[i] > *mine[i])
            *mine[i] = *theirs[i];
        if (*theirs[i] < smallest[i])
            smallest[i] = *theirs[i];
    }
}

static core_status measure(const struct options *options, const struct cpu_engine_ops *engine,
                           struct config_profile **kept, int64_t smallest[FIGURES], struct core_error *error)
{
    unsigned number = 0;
    struct server_calibrate_options calibrate = {
        .engine = engine,
        .realtime = options->realtime ? CONFIG_REALTIME_AUTO : CONFIG_REALTIME_OFF,
        .time_ns = (core_ns)(options->seconds * 1e9),
        .progress = on_progress,
        .progress_argument = &number,
    };
    for (number = 1; number <= options->rounds; number++) {
        struct config_profile *round;
        core_status status = server_calibrate(&calibrate, &round, error);
        if (status != CORE_OK)
            return status;
        if (*kept == NULL) {
            int64_t *figures[FIGURES];
            *kept = round;
            calibrate.burst_pieces = round->cpu.burst_pieces;
            calibrate.piece_bytes = round->cpu.piece_bytes;
            figures_of(round, figures);
            for (int i = 0; i < FIGURES; i++)
                smallest[i] = *figures[i];
            continue;
        }
        join(*kept, round, smallest);
        config_profile_free(round);
    }
    return CORE_OK;
}

static void report_spread(struct config_profile *kept, const int64_t smallest[FIGURES])
{
    int64_t *figures[FIGURES];
    assert(kept != NULL); /* there is at least one round */
    figures_of(kept, figures);
    fprintf(stderr, "\r\033[K%-26s %12s %12s\n", "figure", "kept", "smallest");
    for (int i = 0; i < FIGURES; i++)
        fprintf(stderr, "%-26s %12lld %12lld\n", figure_names[i], (long long)*figures[i],
                (long long)smallest[i]);
}

int bench_calibrate(int argc, char **argv)
{
    struct options options = {.engine = "auto", .seconds = 6, .rounds = 3, .realtime = true};
    struct config_profile *kept = NULL;
    struct core_error error = {""};
    int64_t smallest[FIGURES] = {0};
    char comment[256];

    if (argp_parse(&argp, argc, argv, 0, NULL, &options) != 0)
        return 2;
    const struct cpu_engine_ops *engine = cpu_engine_find(options.engine, &error);
    core_status status =
        engine == NULL ? CORE_UNSUPPORTED : measure(&options, engine, &kept, smallest, &error);
    if (status == CORE_OK) {
        report_spread(kept, smallest);
        snprintf(comment, sizeof comment,
                 "Measured by millrace-bench calibrate, %u rounds of %.1f s, the largest of every figure.",
                 options.rounds, options.seconds);
        status = config_profile_save(kept, options.output == NULL ? "/dev/stdout" : options.output, comment,
                                     &error);
    }
    if (status != CORE_OK)
        fprintf(stderr, "millrace-bench calibrate: %s\n", error.text);
    config_profile_free(kept);
    return status == CORE_OK ? 0 : 1;
}
