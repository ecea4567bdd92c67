/* Option values of the subcommands. */
#ifndef MILLRACE_BENCH_OPTIONS_H
#define MILLRACE_BENCH_OPTIONS_H

#include <argp.h>
#include <stddef.h>

/* The number in `text`; anything but one from minimum to maximum ends the program with a usage error that
 * names the option. */
double bench_option_number(struct argp_state *state, const char *name, const char *text, double minimum,
                           double maximum);

/* The millraced that was built or installed with this program; "millraced" (found by PATH) if there is none.
 * Returns path. */
const char *bench_option_server(char *path, size_t size);

#endif
