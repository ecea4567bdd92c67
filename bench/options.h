/* Options of the subcommands. */
#ifndef MILLRACE_BENCH_OPTIONS_H
#define MILLRACE_BENCH_OPTIONS_H

#include "core/options.h"

#include <stdbool.h>
#include <stddef.h>

/* How long to measure, in seconds; a number without a unit is that. */
double bench_option_seconds(const struct argp_state *state, const char *name, const char *text,
                            double minimum_s, double maximum_s);

/* The first of the places, relative to this program's folder, where there is a program; if there is none, its name, as
 * the first place has it, for PATH to be searched. Returns path. */
const char *bench_program_beside(const char *const *places, size_t count, char *path, size_t size);

/* What the subcommands that start a server of their own are all asked. Their option parsers have
 * bench_options_server as children, the first of which takes this as its input. */
struct bench_options_server {
    const char *program; /* what was named; else the millraced beside this program, else that of PATH */
    const char *profile;
    bool json;
};
extern const struct argp_child bench_options_server[];

/* What the subcommands that compute a folder of figures are all asked, likewise with bench_options_output. */
struct bench_options_output {
    const char *folder; /* never NULL behind the options */
    uint64_t seed;      /* default 1 */
    bool progress;      /* tell how far it is: asked for, or standard error is a terminal */
};
extern const struct argp_child bench_options_output[];

#endif
