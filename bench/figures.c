/* millrace-bench figures: the figures of SYSTOR 2012, computed anew, by the paper's rules and by the
 * server's. */
#include "bench/figures.h"

#include "bench/bench.h"
#include "bench/pictures.h"

#include <stdio.h>
#include <stdlib.h>

#define PROFILE "gtx285-x2"

enum { KEY_POOL = 256, KEY_QUICK };

static const struct argp_option option_table[] = {
    {"pool", KEY_POOL, "N", 0, "Streams to draw of each workload (default 200000)", 0},
    {"quick", KEY_QUICK, NULL, 0, "Only 1 and 2 GPUs, small pools: to see that it works", 0},
    {0},
};

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct bench_figures_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->output;
        return 0;
    case KEY_POOL:
        options->pool = (uint32_t)core_options_count(state, "pool", argument, 1000, BENCH_POOL_MAX);
        return 0;
    case KEY_QUICK:
        options->gpus = 2;
        options->pool = 3000;
        options->streams = 500;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    NULL,
    "Compute the figures of SYSTOR 2012 anew: the rectangle (Fig. 7), the methods on five workloads (Fig. "
    "10), "
    "scaling to 8 GPUs (Fig. 11, 12), the transfer rates (Table 1), by the paper's rules and by the "
    "server's, "
    "on the profile " PROFILE ".\v"
    "The same seed gives the same files. Takes a few minutes of one core. Needs gnuplot for the PNG files.",
    bench_options_output,
    NULL,
    NULL};

static core_status run(struct bench_figures *figures, struct core_error *error)
{
    core_status status = bench_pictures_folder(figures->options.output.folder, error);
    if (status == CORE_OK)
        status = bench_machine_open(figures->machine, PROFILE, error);
    if (status == CORE_OK)
        status = bench_figures_compute(figures, error);
    if (status == CORE_OK)
        status = bench_figures_write(figures, error);
    if (status == CORE_OK)
        status = bench_figures_plot(figures, error);
    bench_figures_free(figures);
    bench_machine_close(figures->machine);
    return status;
}

int bench_figures(int argc, char **argv)
{
    struct bench_machine machine = {.file = NULL};
    struct bench_figures_options options = {.pool = 200000, .gpus = BENCH_FIGURES_GPUS, .streams = 10000};
    struct core_error error = {"out of memory"};

    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    struct bench_figures *figures = calloc(1, sizeof *figures);
    core_status status = CORE_NO_MEMORY;
    if (figures != NULL) {
        figures->options = options;
        figures->machine = &machine;
        status = run(figures, &error);
    }
    free(figures);
    if (status == CORE_OK)
        return 0;
    fprintf(stderr, "millrace-bench figures: %s\n", error.text);
    return 1;
}
