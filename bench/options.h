/* Option values of the subcommands. */
#ifndef MILLRACE_BENCH_OPTIONS_H
#define MILLRACE_BENCH_OPTIONS_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The number in `text`; anything but one from minimum to maximum ends the program with a usage error that
 * names the option. */
double bench_option_number(struct argp_state *state, const char *name, const char *text, double minimum,
                           double maximum);

/* The same for a whole number, in decimal digits alone. */
uint64_t bench_option_whole(struct argp_state *state, const char *name, const char *text, uint64_t minimum,
                            uint64_t maximum);

/* What the subcommands that start a server of their own are all asked. Their option parsers have
 * bench_options_server_argp as a child, with this as its input. */
struct bench_options_server {
    const char *server; /* as bench_option_server finds it, if none was named */
    const char *profile;
    bool json;
};
extern const struct argp bench_options_server_argp;

/* The millraced that was built or installed with this program; "millraced" (found by PATH) if there is none.
 * Returns path. */
const char *bench_option_server(char *path, size_t size);

#endif
