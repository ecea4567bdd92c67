/* millrace-bench calibrate: a hardware profile of this machine, for the server's `profile:`.
 *
 * The first round chooses burst and piece size, the others measure with the same; of every figure the largest
 * is kept, and how far the rounds lie apart is told. Then the GPUs (bench/gpu/calibrate.h). */
#include "server/calibrate/calibrate.h"
#include "bench/bench.h"
#include "bench/gpu/journal.h"
#include "bench/gpu/profile.h"
#include "bench/machine.h"
#include "bench/options.h"
#include "config/profile.h"
#include "core/log.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS_MAX 20
#define IO_SHARE   4 /* of a round's time, as of the I/O half on workers */

#define PART_IS_OVER 75 /* exit status: EX_TEMPFAIL */

enum gpus { GPUS_AUTO, GPUS_NONE, GPUS_EMULATED };

struct options {
    const char *output, *engine;
    double seconds;
    unsigned rounds;
    bool realtime;
    enum gpus gpus;
    const char *gpu_profile, *gpu_program, *journal;
    double gpu_seconds, part_seconds;
    uint64_t gpu_arena_bytes, pinned_bytes;
    enum core_cipher gpu_cipher;
};

enum {
    KEY_GPUS = 256,
    KEY_GPU_PROFILE,
    KEY_GPU_PROGRAM,
    KEY_GPU_SECONDS,
    KEY_GPU_CIPHER,
    KEY_GPU_ARENA,
    KEY_PINNED,
    KEY_JOURNAL,
    KEY_PART
};

static const struct argp_option option_table[] = {
    {"output", 'o', "FILE", 0, "Where the profile goes (default: standard output)", 0},
    {"engine", 'e', "NAME", 0, "Engine to measure: auto, ipsec-mb, openssl, ... (default auto)", 0},
    {"seconds", 's', "TIME", 0, "Time of one round (default 6)", 0},
    {"rounds", 'r', "N", 0, "Rounds (default 3)", 0},
    {"no-realtime", 'n', NULL, 0, "Without SCHED_FIFO, for a server that will run with realtime: off", 0},
    {"gpus", KEY_GPUS, "WHICH", 0,
     "auto: those that are there; none; emulated: see --gpu-profile (default auto)", 0},
    {"gpu-seconds", KEY_GPU_SECONDS, "TIME", 0, "Time for each card (default 60)", 0},
    {"gpu-cipher", KEY_GPU_CIPHER, "NAME", 0,
     "Cipher that kernels are measured with: the slowest makes promises for all (default aes-256-cbc)", 0},
    {"pinned-bytes", KEY_PINNED, "BYTES", 0, "Host memory that batches may pin (default a quarter)", 0},
    {"gpu-journal", KEY_JOURNAL, "FILE", 0,
     "Keep in FILE what was measured of GPUs, until the profile is there; measure nothing again that it has",
     0},
    {"part", KEY_PART, "TIME", 0,
     "With --gpu-journal: end after so long, with exit status 75; the same command goes on", 0},
    {"gpu-program", KEY_GPU_PROGRAM, "PATH", 0, "millrace-gpu (default: the one of this build)", 0},
    {"gpu-profile", KEY_GPU_PROFILE, "PROFILE", 0,
     "With --gpus emulated: the profile whose cards are played (default emulated-small)", 0},
    {"gpu-arena-bytes", KEY_GPU_ARENA, "BYTES", 0,
     "Largest batch that is measured (default: what there is memory for)", 0},
    {0},
};

static enum gpus parse_gpus(struct argp_state *state, const char *text)
{
    static const char *const names[] = {
        [GPUS_AUTO] = "auto", [GPUS_NONE] = "none", [GPUS_EMULATED] = "emulated"};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(names[i], text) == 0)
            return (enum gpus)i;
    argp_error(state, "--gpus %s: auto, none or emulated", text);
    return GPUS_AUTO;
}

static error_t parse_gpu_option(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case KEY_GPUS:
        options->gpus = parse_gpus(state, argument);
        return 0;
    case KEY_GPU_PROFILE:
        options->gpu_profile = argument;
        return 0;
    case KEY_GPU_PROGRAM:
        options->gpu_program = argument;
        return 0;
    case KEY_GPU_SECONDS:
        options->gpu_seconds = bench_option_seconds(state, "gpu-seconds", argument, 0.1, 3600);
        return 0;
    case KEY_GPU_CIPHER:
        if (core_cipher_parse(argument, &options->gpu_cipher) != CORE_OK)
            argp_error(state, "--gpu-cipher %s: aes-128-cbc, aes-192-cbc or aes-256-cbc", argument);
        return 0;
    case KEY_GPU_ARENA:
        options->gpu_arena_bytes =
            core_options_bytes(state, "gpu-arena-bytes", argument, 1 << 16, GPU_REGION_ARENA_BYTES_MAX);
        return 0;
    case KEY_JOURNAL:
        options->journal = argument;
        return 0;
    case KEY_PART:
        options->part_seconds = bench_option_seconds(state, "part", argument, 0.1, 3600);
        return 0;
    case KEY_PINNED:
        options->pinned_bytes =
            core_options_bytes(state, "pinned-bytes", argument, 1, CONFIG_PROFILE_MEMORY_BYTES_MAX);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

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
        options->seconds = bench_option_seconds(state, "seconds", argument, 0.5, 3600);
        return 0;
    case 'r':
        options->rounds = (unsigned)core_options_count(state, "rounds", argument, 1, ROUNDS_MAX);
        return 0;
    case 'n':
        options->realtime = false;
        return 0;
    default:
        return parse_gpu_option(key, argument, state);
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
enum { FIGURES = 13 };
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
    figures[count++] = &profile->io.by_lane_per_packet_ns;
    figures[count++] = &profile->io.by_lane_per_byte_fs;
    figures[count++] = &profile->margins.in_ns;
    figures[count++] = &profile->margins.out_ns;
}

static const char *const figure_names[FIGURES] = {
    "per_piece_ns",        "aes_128_cbc per_byte_fs", "aes_128_cbc lane_ns", "aes_192_cbc per_byte_fs",
    "aes_192_cbc lane_ns", "aes_256_cbc per_byte_fs", "aes_256_cbc lane_ns", "io per_packet_ns",
    "io per_byte_fs",      "lane per_packet_ns",      "lane per_byte_fs",    "margin in_ns",
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
    fprintf(stderr, "%s%-26s %12s %12s\n", isatty(STDERR_FILENO) ? "\r\033[K" : "", "figure", "kept",
            "smallest");
    for (int i = 0; i < FIGURES; i++)
        fprintf(stderr, "%-26s %12lld %12lld\n", figure_names[i], (long long)*figures[i],
                (long long)smallest[i]);
}

/* The server that is measured is driven as hard as it goes, by a profile that is none yet: no news. */
static bool alarm_drop(const struct core_log_entry *entry)
{
    return strncmp(entry->cause, "overload.", strlen("overload.")) == 0 ||
           strcmp(entry->cause, "start.profile") == 0 || strcmp(entry->cause, "gpu.ready") == 0;
}

static void log_set_up(void)
{
    struct core_log_options log = core_log_configured();
    log.sink = alarm_drop;
    core_log_configure(&log);
}

/* What packets of streams on cards cost an I/O thread. */
static core_status io_measure(const struct options *options, const char *program,
                              struct config_profile *profile, struct core_error *error)
{
    const enum config_realtime realtime = options->realtime ? CONFIG_REALTIME_AUTO : CONFIG_REALTIME_OFF;
    struct config_profile_io io;
    const core_status status = server_calibrate_io_of_gpus(
        profile, program, realtime, (core_ns)(options->seconds * 1e9 / IO_SHARE), &io, error);
    if (status == CORE_OK)
        fprintf(stderr, "  packets of GPUs cost an I/O thread %lld ns and %.3f ns a byte\n",
                (long long)io.per_packet_ns, (double)io.per_byte_fs / 1e6);
    return status;
}

static core_status gpus_measure(const struct options *options, struct bench_gpu_journal *journal,
                                struct config_profile *profile, struct core_error *error)
{
    char program[512];
    struct bench_machine played = {0};
    struct bench_gpu_profile_options measure = {.machine = {.program = {.path = options->gpu_program,
                                                                        .backend = "cuda",
                                                                        .realtime = options->realtime},
                                                            .arena_bytes = options->gpu_arena_bytes,
                                                            .cipher = options->gpu_cipher},
                                                .time_ns = (core_ns)(options->gpu_seconds * 1e9),
                                                .pinned_bytes = options->pinned_bytes,
                                                .progress = isatty(STDERR_FILENO) != 0,
                                                .journal = options->journal != NULL ? journal : NULL};
    core_status status = CORE_OK;

    if (options->gpus == GPUS_NONE)
        return CORE_OK;
    if (measure.machine.program.path == NULL)
        measure.machine.program.path = bench_gpu_program_find(program, sizeof program);
    if (options->gpus == GPUS_EMULATED) {
        status = bench_machine_open(&played, options->gpu_profile, error);
        measure.machine.program.backend = "emulated";
        measure.machine.emulated = played.file;
    }
    if (status == CORE_OK)
        status = bench_gpu_profile_measure(&measure, profile, stderr, error);
    bench_machine_close(&played);
    return status == CORE_OK && profile->gpu_count > 0
               ? io_measure(options, measure.machine.program.path, profile, error)
               : status;
}

/* A journal that is done with is not there for the next calibration. */
static int conclude(const struct options *options, struct bench_gpu_journal *journal, core_status status,
                    const struct core_error *error)
{
    bench_gpu_journal_close(journal);
    if (status != CORE_OK)
        fprintf(stderr, "millrace-bench calibrate: %s\n", error->text);
    if (options->journal != NULL && status == CORE_OK)
        (void)unlink(options->journal);
    return status == CORE_OK ? 0 : options->journal != NULL && status == CORE_AGAIN ? PART_IS_OVER : 1;
}

int bench_calibrate(int argc, char **argv)
{
    struct options options = {.engine = "auto",
                              .seconds = 6,
                              .rounds = 3,
                              .realtime = true,
                              .gpu_profile = "emulated-small",
                              .gpu_seconds = 60,
                              .gpu_cipher = CORE_CIPHER_AES_256_CBC};
    const core_ns start_ns = core_time_now_ns();
    struct config_profile *kept = NULL;
    struct bench_gpu_journal journal = {0};
    struct core_error error = {""};
    int64_t smallest[FIGURES] = {0};
    char comment[256];

    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    log_set_up();
    const struct cpu_engine_ops *engine = cpu_engine_find(options.engine, &error);
    core_status status = engine == NULL ? CORE_UNSUPPORTED : CORE_OK;
    if (status == CORE_OK && options.journal != NULL)
        status = bench_gpu_journal_open(
            &journal, options.journal,
            options.part_seconds > 0 ? start_ns + (core_ns)(options.part_seconds * 1e9) : CORE_NS_NEVER,
            &error);
    if (status == CORE_OK)
        status = measure(&options, engine, &kept, smallest, &error);
    if (status == CORE_OK) {
        report_spread(kept, smallest);
        status = gpus_measure(&options, &journal, kept, &error);
    }
    if (status == CORE_OK) {
        snprintf(comment, sizeof comment,
                 "Measured by millrace-bench calibrate, %u rounds of %.1f s, the largest of every figure.",
                 options.rounds, options.seconds);
        status = config_profile_save(kept, options.output == NULL ? "/dev/stdout" : options.output, comment,
                                     &error);
    }
    config_profile_free(kept);
    return conclude(&options, &journal, status, &error);
}
