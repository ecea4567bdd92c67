/* millrace-bench pipeline: streams through a plan, CPU workers and GPUs together, without sockets; the stages
 * of every batch against the model. */
#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/options.h"
#include "bench/pipeline/report.h"
#include "bench/pool.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RATE_STEPS 24 /* of the search for the highest rate: to 1 in 10,000 of a range of 1,000 */
#define RATE_MIN   0.01
#define RATE_MAX   8000.0

enum {
    KEY_GPUS = 256,
    KEY_CPUS,
    KEY_ALONE,
    KEY_RATE,
    KEY_DEADLINE,
    KEY_PACKET,
    KEY_BURST,
    KEY_CIPHER,
    KEY_COMPARE,
    KEY_UNWRITTEN,
    KEY_PROGRAM,
    KEY_IN,
    KEY_OUT,
    KEY_PLAN,
    KEY_SEED
};

struct options {
    const char *profile, *workload, *engine;
    struct bench_gpu_program program;
    const struct partition_plan_method *method;
    int gpus, workers;
    uint32_t streams, generators, compared;
    double seconds;
    double rate_mbit; /* 0: the workload's; INFINITY: the highest that has a plan */
    struct core_stream_spec spec;
    core_ns in_ns, out_ns; /* negative: the profile's */
    uint64_t seed;
    bool unwritten, gpus_alone, plan, json;
};

static const struct argp_option option_table[] = {
    {"profile", 'P', "PROFILE", 0,
     "Hardware profile: a path or a shipped one's name (default emulated-small)", 0},
    {"backend", 'b', "NAME", 0, "cuda, or emulated: the cards of the profile, played (default emulated)", 0},
    {"gpus", KEY_GPUS, "N", 0, "So many cards of the profile's first kind, and no other", 0},
    {"cpus", KEY_CPUS, "N", 0, "So many CPU workers (default: as the profile says)", 0},
    {"gpus-alone", KEY_ALONE, NULL, 0, "No stream on a CPU worker", 0},
    {"workload", 'w', "WORKLOAD", 0,
     "Draw the streams from it: a path or a shipped one's name (default const)", 0},
    {"streams", 'n', "N", 0, "Number of streams (default 100)", 0},
    {"rate", KEY_RATE, "RATE", 0,
     "Streams all alike, as of 5Mbit/s, instead of a workload; `max`: the highest rate that has a plan", 0},
    {"deadline", KEY_DEADLINE, "TIME", 0, "With --rate: latency bound (default 40ms)", 0},
    {"packet", KEY_PACKET, "BYTES", 0, "With --rate: packet (default 1408)", 0},
    {"burst", KEY_BURST, "N", 0, "With --rate: packets at once (default 1)", 0},
    {"cipher", KEY_CIPHER, "NAME", 0, "With --rate: aes-128-cbc, ... (default aes-128-cbc)", 0},
    {"method", 'm', "NAME", 0, "Method of partitioning (default rectangle)", 0},
    {"plan", KEY_PLAN, NULL, 0,
     "Tell the plan, and run nothing: of a GPU, its load beside the limit of its copies", 0},
    {"seconds", 's', "TIME", 0, "How long packets are made (default 5)", 0},
    {"generators", 'g', "N", 0, "Threads that make packets (default 1)", 0},
    {"compare", KEY_COMPARE, "N", 0, "Streams whose every packet is compared with OpenSSL (default 16)", 0},
    {"unwritten", KEY_UNWRITTEN, NULL, 0,
     "Write no payload but that of compared streams: where the generators' memory would be the limit", 0},
    {"engine", 'e', "NAME", 0, "CPU engine: auto, vaes, ipsec-mb, openssl (default: the profile's)", 0},
    {"gpu-program", KEY_PROGRAM, "PATH", 0, "millrace-gpu (default: the one of this build)", 0},
    {"in-us", KEY_IN, "TIME", 0,
     "Margin for the hand-over, instead of the profile's, which has sockets in it", 0},
    {"out-us", KEY_OUT, "TIME", 0, "Margin for the way out, likewise", 0},
    {"no-realtime", 'R', NULL, 0, "Threads at the default priority", 0},
    {"seed", KEY_SEED, "N", 0, "Seed of keys, phases and draws (default 1)", 0},
    {"json", 'j', NULL, 0, "One JSON document", 0},
    {0},
};

static const struct partition_plan_method *parse_method(struct argp_state *state, const char *name)
{
    const struct partition_plan_method *method = partition_plan_method_find(name);
    if (method == NULL || !method->places)
        argp_error(state, "--method %s: there is no such method that places streams", name);
    return method;
}

static double parse_rate(struct argp_state *state, const char *text)
{
    if (strcmp(text, "max") == 0)
        return INFINITY;
    return core_options_rate(state, "rate", text, 1e6, RATE_MIN * 1e6, RATE_MAX * 1e6) / 1e6;
}

/* Those of the streams. */
static error_t parse_stream_option(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case KEY_RATE:
        options->rate_mbit = parse_rate(state, argument);
        return 0;
    case KEY_DEADLINE:
        options->spec.latency_ns = core_options_duration(state, "deadline", argument, CORE_NS_PER_MS,
                                                         10 * CORE_NS_PER_US, 3600 * CORE_NS_PER_S);
        return 0;
    case KEY_PACKET:
        options->spec.packet_bytes =
            (uint32_t)core_options_bytes(state, "packet", argument, 16, CORE_PACKET_BYTES_MAX) / 16 * 16;
        return 0;
    case KEY_BURST:
        options->spec.burst_packets =
            (uint32_t)core_options_count(state, "burst", argument, 1, CORE_BURST_MAX);
        return 0;
    case KEY_CIPHER:
        if (core_cipher_parse(argument, &options->spec.cipher) != CORE_OK)
            argp_error(state, "--cipher %s: aes-128-cbc, aes-192-cbc or aes-256-cbc", argument);
        return 0;
    case 'w':
        options->workload = argument;
        return 0;
    case 'n':
        options->streams = (uint32_t)core_options_count(state, "streams", argument, 1, BENCH_POOL_MAX);
        return 0;
    case KEY_SEED:
        options->seed = core_options_count(state, "seed", argument, 0, UINT64_MAX);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Those of the machine. */
static error_t parse_machine_option(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case 'P':
        options->profile = argument;
        return 0;
    case 'b':
        options->program.backend = argument;
        if (strcmp(argument, "cuda") != 0 && strcmp(argument, "emulated") != 0)
            argp_error(state, "--backend %s: cuda or emulated", argument);
        return 0;
    case KEY_GPUS:
        options->gpus = (int)core_options_count(state, "gpus", argument, 0, CONFIG_PROFILE_GPU_COUNT_MAX);
        return 0;
    case KEY_CPUS:
        options->workers = (int)core_options_count(state, "cpus", argument, 1, CONFIG_PROFILE_WORKERS_MAX);
        return 0;
    case KEY_ALONE:
        options->gpus_alone = true;
        return 0;
    case 'e':
        options->engine = argument;
        return 0;
    case KEY_PROGRAM:
        options->program.path = argument;
        return 0;
    case KEY_IN:
        options->in_ns = core_options_duration(state, "in-us", argument, CORE_NS_PER_US, 0, CORE_NS_PER_S);
        return 0;
    case KEY_OUT:
        options->out_ns = core_options_duration(state, "out-us", argument, CORE_NS_PER_US, 0, CORE_NS_PER_S);
        return 0;
    case 'R':
        options->program.realtime = false;
        return 0;
    default:
        return parse_stream_option(key, argument, state);
    }
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case 'm':
        options->method = parse_method(state, argument);
        return 0;
    case 's':
        options->seconds = bench_option_seconds(state, "seconds", argument, 0.01, 3600);
        return 0;
    case 'g':
        options->generators =
            (uint32_t)core_options_count(state, "generators", argument, 1, BENCH_PIPELINE_GENERATORS_MAX);
        return 0;
    case KEY_COMPARE:
        options->compared = (uint32_t)core_options_count(state, "compare", argument, 0, BENCH_POOL_MAX);
        return 0;
    case KEY_UNWRITTEN:
        options->unwritten = true;
        return 0;
    case KEY_PLAN:
        options->plan = true;
        return 0;
    case 'j':
        options->json = true;
        return 0;
    default:
        return parse_machine_option(key, argument, state);
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    NULL,
    "Make the packets of many streams on schedule, in this process, and run them by a plan on CPU workers "
    "and "
    "GPUs: throughput, missed deadlines, and the times of the GPUs' stages against the model.\v"
    "Exit status: 0 no packet was late or wrong, else 1.\n\nExample: millrace-bench pipeline --profile "
    "profile.yaml --backend cuda --streams 12000 --deadline 40 --rate max --generators 8 --seconds 60",
    NULL,
    NULL,
    NULL};

/* ---- streams ---- */

static void specs_fill(struct core_stream_spec *specs, const struct options *options, double rate_mbit)
{
    for (uint32_t i = 0; i < options->streams; i++) {
        specs[i] = options->spec;
        specs[i].interval_ns = (core_ns)ceil(8e3 * options->spec.packet_bytes / rate_mbit);
    }
}

static core_status plan_make(const struct options *options, const struct partition_plan_input *input,
                             struct partition_plan **plan, struct core_error *error)
{
    partition_plan_destroy(*plan);
    *plan = NULL;
    return partition_plan_make(options->method, input, plan, error);
}

/* The highest rate that has a plan, and that plan. */
static core_status rate_search(const struct options *options, const struct partition_plan_input *input,
                               struct core_stream_spec *specs, struct partition_plan **plan,
                               struct core_error *error)
{
    double low = RATE_MIN, high = RATE_MAX;
    core_status status = CORE_OK;

    for (int step = 0; step < RATE_STEPS && status == CORE_OK; step++) {
        const double rate_mbit = sqrt(low * high);
        specs_fill(specs, options, rate_mbit);
        if (core_stream_spec_check(&specs[0], NULL) != CORE_OK) {
            high = rate_mbit; /* its interval is too short */
            continue;
        }
        status = plan_make(options, input, plan, error);
        if (status == CORE_OK && (*plan)->accepted)
            low = rate_mbit;
        else
            high = rate_mbit;
    }
    if (status != CORE_OK)
        return status;
    specs_fill(specs, options, low);
    return plan_make(options, input, plan, error);
}

static core_status alike_plan(const struct options *options, const struct partition_plan_input *input,
                              struct core_stream_spec *specs, struct partition_plan **plan,
                              struct core_error *error)
{
    if (!isfinite(options->rate_mbit))
        return rate_search(options, input, specs, plan, error);
    specs_fill(specs, options, options->rate_mbit);
    const core_status status = core_stream_spec_check(&specs[0], error);
    return status == CORE_OK ? plan_make(options, input, plan, error) : status;
}

/* ---- the run ---- */

static core_status check_plan(const struct options *options, const struct partition_plan *plan,
                              struct core_error *error)
{
    if (!plan->accepted && options->gpus_alone)
        return core_error_set(error, CORE_REFUSED,
                              "the profile's GPUs alone can not keep the bounds of these %zu streams: fewer "
                              "--streams, a lower --rate, a longer --deadline, or no --gpus-alone",
                              plan->count);
    if (!plan->accepted)
        return core_error_set(error, CORE_REFUSED, "no plan for these streams: %s", plan->reason);
    return CORE_OK;
}

static core_status run_plan(const struct options *options, const struct partition_plan_input *input,
                            const struct partition_plan *plan, const struct gpu_listed *cards, bool *clean,
                            struct core_error *error)
{
    const bool cuda = strcmp(options->program.backend, "cuda") == 0;
    const char *name = options->engine != NULL ? options->engine : input->profile->cpu.engine;
    const struct bench_pipeline_options run = {.input = input,
                                               .plan = plan,
                                               .program = options->program,
                                               .cards = cuda ? cards : NULL,
                                               .engine = cpu_engine_find(name, error),
                                               .generators = options->generators,
                                               .compared = options->compared,
                                               .copied = !options->unwritten,
                                               .duration_ns = (core_ns)(options->seconds * 1e9),
                                               .seed = options->seed};
    struct bench_pipeline_result result;
    const struct bench_pipeline_report report = {.options = &run,
                                                 .result = &result,
                                                 .streams = options->rate_mbit > 0 ? "all alike"
                                                                                   : options->workload};

    if (run.engine == NULL)
        return CORE_UNSUPPORTED;
    core_status status = bench_pipeline_run(&run, &result, error);
    if (status != CORE_OK)
        return status;
    *clean = bench_pipeline_is_clean(&result);
    if (options->json)
        status = bench_pipeline_print_json(&report, error);
    else
        bench_pipeline_print(&report);
    bench_pipeline_result_free(&result);
    return status;
}

static core_status check_cuda(const struct options *options, uint32_t wanted, struct gpu_listed *cards,
                              struct core_error *error)
{
    struct core_error why = {""};
    uint32_t count = 0;
    core_status status = bench_gpu_cards_list(&options->program, cards, &count, &why, error);

    if (status != CORE_OK)
        return status;
    if (count == 0)
        return core_error_set(error, CORE_NOT_FOUND, "%s", why.text);
    if (count < wanted)
        return core_error_set(error, CORE_NOT_FOUND,
                              "the profile has %u cards, this machine %u; --gpus %u takes these alone",
                              wanted, count, count);
    return CORE_OK;
}

static core_status check_emulated(const struct options *options, struct core_error *error)
{
    const char *path = options->program.path;

    if (strchr(path, '/') == NULL || access(path, X_OK) == 0) /* a bare name is looked for when it is run */
        return CORE_OK;
    return core_error_errno(error, "%s can not be run; give its path with --gpu-program", path);
}

/* What was asked for is there, also where the plan then needs none of it. Fills in the cards of backend cuda. */
static core_status check_gpus(const struct options *options, const struct bench_machine *machine,
                              struct gpu_listed *cards, struct core_error *error)
{
    const uint32_t gpus = bench_machine_gpus(machine);
    const bool cuda = strcmp(options->program.backend, "cuda") == 0;

    if (gpus > 0 && options->plan)
        return CORE_OK;
    if (gpus > 0)
        return cuda ? check_cuda(options, gpus, cards, error) : check_emulated(options, error);
    if (options->gpus_alone && options->gpus == 0)
        return core_error_set(error, CORE_INVALID, "--gpus-alone needs a GPU, and --gpus 0 leaves none");
    if (options->gpus_alone)
        return core_error_set(error, CORE_INVALID, "--gpus-alone needs a GPU, and profile %s has none",
                              machine->profile.name);
    if (cuda && options->gpus != 0)
        return core_error_set(
            error, CORE_INVALID,
            "--backend cuda: profile %s has no GPU; `millrace-bench calibrate` measures them",
            machine->profile.name);
    return CORE_OK;
}

/* What the options change of the profile. A worker that takes a second for every piece gets no stream. */
static void profile_set(const struct options *options, struct config_profile *profile)
{
    if (options->gpus_alone)
        profile->cpu.per_piece_ns = CORE_NS_PER_S;
    if (options->in_ns >= 0)
        profile->margins.in_ns = options->in_ns;
    if (options->out_ns >= 0)
        profile->margins.out_ns = options->out_ns;
}

static core_status run(const struct options *options, bool *clean, struct core_error *error)
{
    struct gpu_listed cards[BENCH_GPU_CARDS_MAX];
    struct bench_machine machine;
    struct bench_pool pool = {0};
    struct partition_plan *plan = NULL;
    core_status status = bench_machine_open(&machine, options->profile, error);

    if (status == CORE_OK)
        status = bench_machine_set(&machine, options->gpus, options->workers, error);
    if (status == CORE_OK)
        status = check_gpus(options, &machine, cards, error);
    if (status == CORE_OK)
        status = bench_pool_open(&pool,
                                 &(struct bench_pool_request){.workload = options->workload,
                                                              .count = options->streams,
                                                              .seed = options->seed},
                                 error);
    const struct partition_plan_input input = {.specs = pool.specs,
                                               .count = pool.count,
                                               .profile = &machine.profile,
                                               .workers = machine.workers,
                                               .seed = options->seed};
    if (status == CORE_OK) {
        profile_set(options, &machine.profile);
        status = options->rate_mbit > 0 ? alike_plan(options, &input, pool.specs, &plan, error)
                                        : plan_make(options, &input, &plan, error);
    }
    if (status == CORE_OK)
        status = check_plan(options, plan, error);
    if (status == CORE_OK && !options->plan)
        status = run_plan(options, &input, plan, cards, clean, error);
    else if (status == CORE_OK)
        bench_pipeline_print_plan(&input, plan);
    *clean |= options->plan;
    partition_plan_destroy(plan);
    bench_pool_free(&pool);
    bench_machine_close(&machine);
    return status;
}

int bench_pipeline(int argc, char **argv)
{
    char program[PATH_MAX];
    struct options options = {.profile = "emulated-small",
                              .workload = "const",
                              .program = {.path = bench_gpu_program_find(program, sizeof program),
                                          .backend = "emulated",
                                          .realtime = true},
                              .method = partition_plan_method_find("rectangle"),
                              .gpus = BENCH_MACHINE_AS_PROFILE,
                              .workers = BENCH_MACHINE_AS_PROFILE,
                              .streams = 100,
                              .generators = 1,
                              .compared = 16,
                              .seconds = 5,
                              .spec = {.packet_bytes = 1408,
                                       .burst_packets = 1,
                                       .latency_ns = 40 * CORE_NS_PER_MS,
                                       .cipher = CORE_CIPHER_AES_128_CBC,
                                       .padding = CORE_PADDING_NONE},
                              .in_ns = -1,
                              .out_ns = -1,
                              .seed = 1};
    struct core_error error = {""};
    bool clean = false;

    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    if (run(&options, &clean, &error) == CORE_OK)
        return clean ? 0 : 1;
    fprintf(stderr, "millrace-bench pipeline: %s\n", error.text);
    return 1;
}
