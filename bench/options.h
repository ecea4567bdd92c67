/* Options of the subcommands. */
#ifndef MILLRACE_BENCH_OPTIONS_H
#define MILLRACE_BENCH_OPTIONS_H

#include "core/options.h"

#include <stdbool.h>
#include <stddef.h>

/* How long to measure, in seconds; a number without a unit is that. */
double bench_option_seconds(const struct argp_state *state, const char *name, const char *text,
                            double minimum_s, double maximum_s);

/* What the subcommands that start a server of their own are all asked. Their option parsers have
 * bench_options_server as children, the first of which takes this as its input. */
struct bench_options_server {
    const char *program; /* what was named; else the millraced beside this program, else that of PATH */
    const char *profile;
    bool json;
};
extern const struct argp_child bench_options_server[];

#endif
