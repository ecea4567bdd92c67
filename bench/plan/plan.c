/* millrace-bench plan: how long planning takes on one core, by method and number of streams. */
#include "bench/bench.h"
#include "bench/options.h"
#include "bench/plan/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SIZES_MAX       16
#define REPETITIONS_MAX 1000
#define REPETITIONS_MIN 5
#define PROBES          5000 /* of each kind, beside an admission state, in a second */
#define PROBES_LEAST    50
#define HEADROOM        1.5 /* how much slower the standing streams are than a new plan could carry */

struct options {
    struct bench_setup setup;
    size_t sizes[SIZES_MAX];
    size_t size_count;
    double seconds, limit_s;
    bool check;
};

static const struct argp_option option_table[] = {
    {"streams", 'n', "N", 0, "So many streams, and others named so (default 1000, 12000, 100000, 1000000)",
     0},
    {"check", 'c', NULL, 0, "Check each plan that is accepted, beside the time that is measured", 0},
    {"limit", 'l', "TIME", 0, "Ask no method that took longer for more streams still (default 2)", 0},
    {"seconds", 't', "TIME", 0,
     "Time to spend on a row of the table, for plans; of the rest 5000 a second, at the most 5000 (default "
     "1; 5 plans and 50 of the rest at the least)",
     0},
    {0},
};

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    static const size_t usual[] = {1000, 12000, 100000, 1000000};
    struct options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->setup;
        return 0;
    case 'n':
        if (options->size_count == SIZES_MAX)
            argp_error(state, "--streams: at most %d of them", SIZES_MAX);
        options->sizes[options->size_count++] =
            (size_t)core_options_count(state, "streams", argument, 1, BENCH_POOL_MAX);
        return 0;
    case 't':
        options->seconds = bench_option_seconds(state, "seconds", argument, 0, 600);
        return 0;
    case 'l':
        options->limit_s = bench_option_seconds(state, "limit", argument, 0, 3600);
        return 0;
    case 'c':
        options->check = true;
        return 0;
    case ARGP_KEY_END:
        for (size_t i = 0; options->size_count < sizeof usual / sizeof *usual && options->sizes[i] == 0; i++)
            options->sizes[options->size_count++] = usual[i];
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    NULL,
    "Time plans of so many streams, by method: of sets that the method just accepts, and of sets that it "
    "just "
    "refuses.\v"
    "The sets are the first streams of a pool in slow motion: intervals and latency bounds are all longer by "
    "one factor, so that any number fits the machine; the factor is found within 10 % of where the method "
    "changes its answer.",
    bench_setup_options,
    NULL,
    NULL};

static core_status time_plans(const struct options *options, struct bench_plan_timing *timing,
                              struct core_stream_spec *specs, struct core_error *error)
{
    core_status status = bench_plan_slow_down(timing->of, timing->slowness, specs, error);
    const core_ns end_ns = core_time_now_ns() + (core_ns)(options->seconds * 1e9);

    while (status == CORE_OK && timing->wall.count < timing->wall.capacity &&
           (timing->wall.count < REPETITIONS_MIN || core_time_now_ns() < end_ns)) {
        struct partition_plan *plan = NULL;
        const core_ns cpu_ns = core_time_thread_cpu_ns(), start_ns = core_time_now_ns();
        status = bench_plan_make(timing->of, specs, &plan, error);
        bench_samples_add(&timing->wall, (double)(core_time_now_ns() - start_ns) / 1e6);
        bench_samples_add(&timing->cpu, (double)(core_time_thread_cpu_ns() - cpu_ns) / 1e6);
        if (status == CORE_OK && plan->accepted != timing->accepted)
            status = core_error_set(error, CORE_MISMATCH, "%s gave two answers for the same streams",
                                    timing->of->method->name);
        if (status == CORE_OK && options->check)
            status = bench_plan_check(timing->of, specs, plan, error);
        partition_plan_destroy(plan);
    }
    return status;
}

/* *ms: half of the plans took longer; the greater of this and what it was. */
static core_status measure_side(const struct options *options, struct bench_plan_timing timing,
                                struct core_stream_spec *specs, struct bench_plan_report *report, double *ms,
                                struct core_error *error)
{
    core_status status = bench_samples_init(&timing.wall, REPETITIONS_MAX);

    if (status == CORE_OK)
        status = bench_samples_init(&timing.cpu, REPETITIONS_MAX);
    if (status == CORE_OK)
        status = time_plans(options, &timing, specs, error);
    if (status == CORE_OK) {
        const double half = bench_samples_percentile(&timing.wall, 50);
        *ms = half > *ms ? half : *ms;
        bench_plan_report_cold(report, &timing);
    }
    bench_samples_free(&timing.wall);
    bench_samples_free(&timing.cpu);
    return status;
}

/* What a method showed with fewer streams. */
struct experience {
    double hint; /* slowness that it accepted */
    double ms;
};

static void tell(const struct options *options, const char *what, size_t streams)
{
    if (options->setup.progress)
        fprintf(stderr, "\r\033[K%s, %zu streams", what, streams);
}

static void tell_no_more(const struct options *options)
{
    if (options->setup.progress)
        fputs("\r\033[K", stderr);
}

static core_status measure_cold(const struct options *options, const struct bench_plan_case *of,
                                struct experience *experience, struct core_stream_spec *specs,
                                struct bench_plan_report *report, struct core_error *error)
{
    struct bench_plan_edge edge;

    if (experience->ms > options->limit_s * 1e3) {
        bench_plan_report_skipped(report, of, experience->ms);
        return CORE_OK;
    }
    tell(options, of->method->name, of->streams);
    core_status status = bench_plan_find_edge(of, experience->hint, specs, &edge, error);
    tell_no_more(options);
    if (status == CORE_OK && edge.accepted > 0) {
        const struct bench_plan_timing timing = {.of = of, .accepted = true, .slowness = edge.accepted};
        experience->hint = edge.accepted;
        status = measure_side(options, timing, specs, report, &experience->ms, error);
    }
    if (status == CORE_OK && edge.refused > 0) {
        const struct bench_plan_timing timing = {.of = of, .accepted = false, .slowness = edge.refused};
        status = measure_side(options, timing, specs, report, &experience->ms, error);
    }
    return status;
}

/* The streams are somewhat slower than a plan anew could carry: so they find room one after the other. */
static core_status measure_standing(const struct options *options, const struct bench_plan_case *of,
                                    double slowness, struct core_stream_spec *specs,
                                    struct bench_plan_report *report, struct core_error *error)
{
    struct bench_standing_times times;

    tell(options, "a standing plan", of->streams);
    const double probes = fmin(fmax(options->seconds * PROBES, PROBES_LEAST), PROBES);
    const core_status status = bench_standing_measure(of, slowness, (uint32_t)probes, specs, &times, error);
    tell_no_more(options);
    if (status != CORE_OK)
        return status;
    bench_plan_report_standing(report, &times);
    bench_standing_times_free(&times);
    return CORE_OK;
}

static core_status measure(const struct options *options, const struct bench_machine *machine,
                           const struct bench_pool *pool, struct core_stream_spec *specs,
                           struct bench_plan_report *report, struct core_error *error)
{
    struct experience by_method[BENCH_SETUP_METHODS_MAX] = {{0}};
    struct bench_plan_case of = {
        .machine = machine, .pool = pool, .paper = options->setup.paper, .seed = options->setup.seed};
    double slowness[SIZES_MAX], hint = 1;
    core_status status = CORE_OK;

    for (size_t s = 0; s < options->size_count; s++) {
        of.streams = options->sizes[s];
        for (size_t m = 0; status == CORE_OK && m < options->setup.method_count; m++) {
            of.method = options->setup.methods[m];
            by_method[m].hint = by_method[m].hint > 0 ? by_method[m].hint : hint;
            status = measure_cold(options, &of, &by_method[m], specs, report, error);
        }
        slowness[s] = hint = by_method[0].hint;
    }
    for (size_t s = 0; status == CORE_OK && !options->setup.paper && s < options->size_count; s++) {
        of.streams = options->sizes[s];
        status = measure_standing(options, &of, slowness[s] * HEADROOM, specs, report, error);
    }
    return status;
}

static size_t largest(const struct options *options)
{
    size_t most = 0;

    for (size_t s = 0; s < options->size_count; s++)
        most = options->sizes[s] > most ? options->sizes[s] : most;
    return most;
}

static core_status run(const struct options *options, struct core_error *error)
{
    const struct bench_setup *setup = &options->setup;
    struct bench_machine machine;
    struct bench_pool pool = {0};
    struct bench_plan_report report;
    struct core_stream_spec *specs = calloc(largest(options), sizeof *specs);
    core_status status = bench_setup_machine(setup, &machine, error);

    if (status == CORE_OK && specs == NULL)
        status = core_error_set(error, CORE_NO_MEMORY, "no memory for %zu streams", largest(options));
    if (status == CORE_OK)
        status = bench_pool_open(&pool,
                                 &(struct bench_pool_request){.workload = setup->workload,
                                                              .count = (uint32_t)largest(options),
                                                              .seed = setup->seed},
                                 error);
    if (status == CORE_OK)
        status = bench_plan_report_begin(&report, setup, &machine, error);
    if (status == CORE_OK) {
        status = measure(options, &machine, &pool, specs, &report, error);
        const core_status told = bench_plan_report_end(&report, status == CORE_OK ? error : NULL);
        status = status == CORE_OK ? told : status;
    }
    free(specs);
    bench_pool_free(&pool);
    bench_machine_close(&machine);
    return status;
}

int bench_plan(int argc, char **argv)
{
    struct options options = {.setup = BENCH_SETUP_DEFAULTS, .seconds = 1, .limit_s = 2};
    struct core_error error = {"out of memory"};

    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    if (run(&options, &error) == CORE_OK)
        return 0;
    fprintf(stderr, "millrace-bench plan: %s\n", error.text);
    return 1;
}
