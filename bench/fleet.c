/* millrace-bench fleet: many nodes behind weights that are some seconds old, in virtual time. */
#include "bench/fleet.h"

#include "bench/bench.h"
#include "bench/options.h"
#include "bench/pictures.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define GOAL_PERCENT  1.0 /* refused more than by the planner that sees all, at GOAL_LOAD */
#define GOAL_LOAD     0.9
#define GOAL_ATTEMPTS 3 /* as a pool has them (client/pool.c) */
#define AGE_NS        (2 * CORE_NS_PER_S)

struct bench {
    struct bench_options_output output;
    uint32_t streams; /* that come to the largest fleet */
    struct bench_fleet_mix mix;
    struct bench_csv csv;
    double worst_percent; /* refused beyond the planner's, where the goal is */
};

static const struct argp_option option_table[] = {
    {"streams", 'n', "N", 0, "Streams that come to the largest fleet (default 1000000)", 0}, {0}};

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct bench *bench = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &bench->output;
        return 0;
    case 'n':
        bench->streams = (uint32_t)core_options_count(state, "streams", argument, 1000, 100000000);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = option_table,
    .parser = parse_option,
    .children = bench_options_output,
    .doc =
        "Fleets of 10 to 1,000 nodes in virtual time, with the server's own admission: streams come and go, "
        "and are placed by weights as HAProxy has them from agent-check, beside one planner that sees all "
        "nodes.\v"
        "fleet.csv, a line a run: how much is refused and what load is reached, by nodes, load, age of the "
        "weights and attempts; and how long the streams of a lost node are without one. The same seed gives "
        "the same files. Takes some minutes of one core. Needs gnuplot for the PNG files. Exit status 1: "
        "more than 1 % more was refused than by that planner, at 90 % load with 3 attempts."};

/* Each for 0 to so many attempts; streams per million of those that come to the largest fleet. */
static const struct bench_fleet_run runs[] = {
    {10, GOAL_LOAD, AGE_NS, 5, 50000, 0},     {30, GOAL_LOAD, AGE_NS, 5, 50000, 0},
    {100, GOAL_LOAD, AGE_NS, 5, 80000, 0},    {300, GOAL_LOAD, AGE_NS, 3, 200000, 0},
    {1000, GOAL_LOAD, AGE_NS, 2, 1000000, 0}, {100, 0.8, AGE_NS, 3, 80000, 0},
    {100, 0.95, AGE_NS, 3, 80000, 0},         {100, 1, AGE_NS, 3, 80000, 0},
    {100, GOAL_LOAD, 5 * AGE_NS, 3, 80000, 0}};

static double put_row(const struct bench *bench, const struct bench_fleet_run *run,
                      const struct bench_fleet_result *result)
{
    const double asked = fmax(1, (double)result->asked);
    const double refused_percent = 100 * (double)result->refused / asked;
    fprintf(bench->csv.file, "%u,%.2f,%.0f,%u,%" PRIu64 ",%.4f,%.4f,%.2f,%.2f,%u,%u,%.2f,%.2f,%.2f\n",
            run->nodes, run->load, (double)run->weight_every_ns / 1e9, run->attempts, result->asked,
            refused_percent, (double)result->attempts / asked, 100 * result->reached, 100 * result->fullest,
            result->lost, result->homeless, result->half_ms, result->most_ms, result->last_ms);
    if (bench->output.progress)
        fprintf(stderr, "%u nodes, load %.2f, %u attempts: %.4f %% refused\n", run->nodes, run->load,
                run->attempts, refused_percent);
    return refused_percent;
}

static core_status perform(struct bench *bench, struct bench_fleet_run run, struct core_error *error)
{
    const unsigned most = run.attempts;
    double planner_percent = 0;
    run.streams = (uint32_t)((uint64_t)run.streams * bench->streams / 1000000);
    run.seed = bench->output.seed;
    for (run.attempts = 0; run.attempts <= most; run.attempts++) {
        struct bench_fleet_result result;
        const core_status status = bench_fleet_run(&run, &bench->mix, &result, error);
        if (status)
            return status;
        if (result.asked == 0)
            return core_error_set(
                error, CORE_INVALID,
                "of %u streams at %u nodes none came after the warm-up, so there is nothing to "
                "count: give more with --streams",
                run.streams, run.nodes);
        const double percent = put_row(bench, &run, &result);
        if (run.attempts == 0)
            planner_percent = percent;
        if (run.attempts == GOAL_ATTEMPTS && run.load == GOAL_LOAD)
            bench->worst_percent = fmax(bench->worst_percent, percent - planner_percent);
    }
    return CORE_OK;
}

static core_status write_csv(struct bench *bench, struct core_error *error)
{
    core_status status = bench_csv_open(bench->output.folder, &bench->csv, error, "fleet");
    if (status)
        return status;
    fputs("nodes,load,weights_s,attempts,asked,refused_percent,nodes_asked,reached_percent,fullest_percent,"
          "lost,homeless,half_ms,99_percent_ms,last_ms\n",
          bench->csv.file);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0] && status == CORE_OK; i++)
        status = perform(bench, runs[i], error);
    const core_status closed = bench_csv_close(&bench->csv, status == CORE_OK ? error : NULL);
    return status ? status : closed;
}

static void put_script(const void *context, FILE *file)
{
    (void)context;
    bench_pictures_head(file);
    fputs(
        "set datafile missing NaN\nset yrange [0:*]\nset ylabel '% refused'\n" /* lines go on over other rows */
        "name(a) = a == 0 ? 'planner that sees all' : sprintf('%d asked at most', a)\n",
        file);
    bench_pictures_begin(file, "fleet-nodes", 720, 480, "Refused at 90 % load, weights up to 2 s old");
    fputs(
        "set xlabel 'nodes'\nset logscale x\n"
        "plot for [a=0:5] 'fleet.csv' using ($2 == 0.9 && $3 == 2 && $4 == a ? $1 : NaN):6 with linespoints "
        "lw 2 title name(a)\nunset logscale x\n",
        file);
    bench_pictures_begin(file, "fleet-load", 720, 480, "100 nodes: refused by load, weights up to 2 s old");
    fputs("set xlabel 'load that is offered, % of capacity'\n"
          "plot for [a=0:3] 'fleet.csv' using ($1 == 100 && $3 == 2 && $4 == a ? 100 * $2 : NaN):6 "
          "smooth unique with linespoints lw 2 title name(a)\n",
          file);
}

static core_status run(struct bench *bench, struct core_error *error)
{
    const char *folder = bench->output.folder;
    core_status status = bench_pictures_folder(folder, error);
    if (status == CORE_OK)
        status = bench_fleet_mix_open(&bench->mix, bench->output.seed, error);
    if (status == CORE_OK)
        status = write_csv(bench, error);
    bench_fleet_mix_free(&bench->mix);
    return status ? status : bench_pictures_draw(folder, put_script, bench, error);
}

int bench_fleet(int argc, char **argv)
{
    static struct bench bench = {.streams = 1000000};
    struct core_error error;
    if (core_options_parse(&argp, argc, argv, &bench) != 0)
        return 2;
    if (run(&bench, &error) != CORE_OK) {
        fprintf(stderr, "millrace-bench fleet: %s\n", error.text);
        return 1;
    }
    printf("%s  at %.0f %% load and with %d attempts at most %.3f %% more refused than by a planner that "
           "sees all\n",
           bench.worst_percent <= GOAL_PERCENT ? "PASS" : "FAIL", 100 * GOAL_LOAD, GOAL_ATTEMPTS,
           bench.worst_percent);
    return bench.worst_percent <= GOAL_PERCENT ? 0 : 1;
}
