/* millrace ping */
#include "client/command.h"

#include "core/histogram.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct options {
    struct core_options_server server;
    uint64_t count;
    core_ns interval_ns;
};

static const struct argp_option option_table[] = {
    {"count", 'c', "N", 0, "how many [4]", 0},
    {"interval", 'i', "TIME", 0, "between two [200ms]", 0},
    {"json", 'j', NULL, 0, "print a JSON object, also of an error", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->server;
        return 0;
    case 'c':
        if (!core_count_parse(argument, 1000000000, &options->count) || options->count == 0)
            argp_error(state, "--count %s: give a number from 1 up", argument);
        return 0;
    case 'i':
        if (!core_duration_parse(argument, 0, &options->interval_ns))
            argp_error(state, "--interval %s: give a time, as 200ms", argument);
        return 0;
    case 'j':
        command_want_json();
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&core_options_server_argp, 0, "Server:", 1}, {0}};
static const struct argp argp = {
    .options = option_table,
    .parser = parse,
    .doc = "Measures the way to the server and back: its I/O thread answers a PING at once, beside its other "
           "work."
           "\v" COMMAND_EXIT_HELP,
    .children = children,
};

static void print_summary(const char *address, const struct core_histogram *times)
{
    char least[CORE_TEXT_BYTES], middle[CORE_TEXT_BYTES], most[CORE_TEXT_BYTES];
    printf("%s: %" PRIu64 " answers, min %s, median %s, max %s\n", address, core_histogram_total(times),
           core_duration_format(core_histogram_minimum_ns(times), least),
           core_duration_format(core_histogram_percentile_ns(times, 50), middle),
           core_duration_format(core_histogram_maximum_ns(times), most));
}

static int print_json(const char *address, const struct core_histogram *times)
{
    return command_print_json(json_pack("{s:s, s:I, s:{s:f, s:f, s:f}}", "server", address, "answers",
                                        (json_int_t)core_histogram_total(times), "round_trip_us", "min",
                                        (double)core_histogram_minimum_ns(times) / 1e3, "p50",
                                        (double)core_histogram_percentile_ns(times, 50) / 1e3, "max",
                                        (double)core_histogram_maximum_ns(times) / 1e3));
}

static int ping(const struct options *options, struct millrace *connection, struct core_histogram *times)
{
    core_ns next_ns = core_time_now_ns();
    for (uint64_t i = 0; i < options->count; i++, next_ns += options->interval_ns) {
        core_ns round_trip_ns;
        struct core_error error;
        char text[CORE_TEXT_BYTES];
        core_time_sleep_until(next_ns);
        if (millrace_ping(connection, options->server.timeout_ms, &round_trip_ns, error.text) != MILLRACE_OK)
            return command_fail(COMMAND_FAILED, "ping %" PRIu64 ": %s", i + 1, error.text);
        core_histogram_record(times, round_trip_ns);
        if (command_wants_json())
            continue;
        printf("%" PRIu64 ": %s\n", i + 1, core_duration_format(round_trip_ns, text));
        fflush(stdout);
    }
    return COMMAND_OK;
}

int command_ping(int argc, char **argv)
{
    static struct core_histogram times;
    struct options options = {.count = 4, .interval_ns = 200 * CORE_NS_PER_MS};
    core_options_server_init(&options.server);
    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return COMMAND_FAILED;
    struct millrace *connection = command_connect(&options.server);
    if (connection == NULL)
        return COMMAND_FAILED;
    core_histogram_init(&times);
    int exit = ping(&options, connection, &times);
    millrace_disconnect(connection);
    if (!command_wants_json())
        print_summary(options.server.address, &times);
    else if (exit == COMMAND_OK)
        exit = print_json(options.server.address, &times);
    return exit;
}
