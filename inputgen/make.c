/* millrace-gen make: a workload and a seed -> a list of streams. */
#include "core/options.h"
#include "inputgen/commands.h"
#include "inputgen/kinds.h"
#include "inputgen/shipped.h"
#include "inputgen/streams.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct arguments {
    const char *workload;
    const char *kinds;  /* NULL: as the workload says */
    const char *output; /* NULL: standard output */
    uint64_t seed;
    bool has_seed;
    uint32_t streams;    /* 0: as the workload says */
    core_ns duration_ns; /* 0: as the workload says */
    bool quiet;
};

static const struct argp_option options[] = {
    {"seed", 's', "N", 0, "Seed of the draws, 0 to 2^64-1; required: the same seed gives the same list", 0},
    {"streams", 'n', "N", 0, "Number of streams (default: as the workload says)", 0},
    {"duration", 'd', "TIME", 0, "When streams stop, as 20s or 1min (default: as the workload says)", 0},
    {"kinds", 'k', "KIND=PERCENT", 0, "Make shares of the streams of these kinds, as hls=20,dvb-cissa=10", 0},
    {"output", 'o', "FILE", 0, "Write the list to FILE (default: standard output)", 0},
    {"quiet", 'q', NULL, 0, "Do not print the summary on standard error", 0},
    {0},
};

static const char documentation[] =
    "Draw a list of streams from a workload.\v"
    "WORKLOAD is a path, or the bare name of a shipped workload: const, uni, norm, norm2 and exp of the "
    "SYSTOR "
    "2012 paper, demo, gigabit, formats. The list is CSV, one stream a line; the same workload, kinds, "
    "number "
    "of streams, duration and seed give the same list on every machine.\n\n" INPUTGEN_KINDS_HELP
    "\n\nExample: millrace-gen make demo --seed 1 -o demo.csv";

static error_t option_parse(int key, char *text, struct argp_state *state)
{
    struct arguments *arguments = state->input;

    switch (key) {
    case 's':
        arguments->seed = core_options_count(state, "seed", text, 0, UINT64_MAX);
        arguments->has_seed = true;
        return 0;
    case 'n':
        arguments->streams = (uint32_t)core_options_count(state, "streams", text, 1, INPUTGEN_STREAMS_MAX);
        return 0;
    case 'd':
        arguments->duration_ns = core_options_duration(state, "duration", text, CORE_NS_PER_S, CORE_NS_PER_MS,
                                                       86400 * CORE_NS_PER_S);
        return 0;
    case 'k':
        arguments->kinds = text;
        return 0;
    case 'o':
        arguments->output = text;
        return 0;
    case 'q':
        arguments->quiet = true;
        return 0;
    case ARGP_KEY_ARG:
        if (arguments->workload)
            argp_error(state, "one workload at a time, please: '%s' is one too many", text);
        arguments->workload = text;
        return 0;
    case ARGP_KEY_END:
        if (!arguments->workload)
            argp_error(state, "which workload? Try `millrace-gen make demo --seed 1`");
        if (!arguments->has_seed)
            argp_error(state, "--seed is missing: a list must be repeatable");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void summary_print(const struct inputgen_streams *list)
{
    double bits_per_s = 0, packets_per_s = 0;
    core_ns shortest_ns = CORE_NS_NEVER, longest_ns = 0;

    for (size_t i = 0; i < list->count; i++) {
        const struct core_stream_spec *spec = &list->streams[i].spec;
        bits_per_s += core_stream_rate_bits_per_s(spec);
        packets_per_s += 1e9 / (double)spec->interval_ns;
        if (spec->latency_ns < shortest_ns)
            shortest_ns = spec->latency_ns;
        if (spec->latency_ns > longest_ns)
            longest_ns = spec->latency_ns;
    }
    fprintf(stderr, "%zu streams, %.1f Mbit/s, %.0f packets/s, deadlines %.3f to %.3f ms\n", list->count,
            bits_per_s / 1e6, packets_per_s, (double)shortest_ns / 1e6, (double)longest_ns / 1e6);
}

static core_status list_write(const struct inputgen_streams *list, const char *path, struct core_error *error)
{
    FILE *file = path ? fopen(path, "we") : stdout;

    if (!file)
        return core_error_errno(error, "%s: can not be written", path);
    core_status status = inputgen_streams_write(list, file, error);
    if (status == CORE_OK && fflush(file) != 0)
        status = core_error_errno(error, "%s: can not be written", path ? path : "standard output");
    if (path && fclose(file) != 0 && status == CORE_OK)
        status = core_error_errno(error, "%s: can not be written", path);
    return status;
}

static core_status make(const struct arguments *arguments, struct core_error *error)
{
    struct config_workload *workload;
    struct inputgen_streams *list = NULL;
    core_status status = inputgen_workload_open(arguments->workload, &workload, error);

    if (status != CORE_OK)
        return status;
    if (arguments->kinds)
        status = inputgen_kinds_share(workload, arguments->kinds, error);
    if (status == CORE_OK)
        status = inputgen_streams_make(workload, arguments->streams, arguments->duration_ns, arguments->seed,
                                       &list, error);
    if (status != CORE_OK)
        goto free_workload;
    status = list_write(list, arguments->output, error);
    if (status == CORE_OK && !arguments->quiet)
        summary_print(list);
    inputgen_streams_free(list);
free_workload:
    config_workload_free(workload);
    return status;
}

int inputgen_command_make(int argc, char **argv)
{
    static const struct argp parser = {
        .options = options, .parser = option_parse, .args_doc = "WORKLOAD", .doc = documentation};
    struct arguments arguments = {.workload = NULL};
    struct core_error error;

    if (core_options_parse(&parser, argc, argv, &arguments) != 0)
        return 1;
    if (make(&arguments, &error) == CORE_OK)
        return 0;
    fprintf(stderr, "millrace-gen make: %s\n", error.text);
    return 1;
}
