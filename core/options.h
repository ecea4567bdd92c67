/* What the command lines of all programs have in common: help and version, subcommands, the server's address,
 * and values with their ranges. One table each, so that an option means the same everywhere.
 *
 * For main threads. Wrong usage ends the process with status 2, as argp does. */
#ifndef MILLRACE_CORE_OPTIONS_H
#define MILLRACE_CORE_OPTIONS_H

#include "core/status.h"
#include "core/time.h"

#include <argp.h>
#include <stddef.h>
#include <stdint.h>

/* argp_parse, and with it -h, -?, --help, --usage, -V and --version. Wrong usage ends the process there. 0,
 * or what argp_parse returns, as ENOMEM, which has been told: not all options have been read. */
CORE_CHECKED int core_options_parse(const struct argp *argp, int argc, char **argv, void *input);

/* ---- programs that are several ---- */

struct core_options_command {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is "program name" */
    const char *summary;
};

/* Runs the one that argv[1] names, or shows help or version; returns what main is to return. `notes` ends the
 * help page, broken into lines by the caller. */
struct core_options_program {
    const char *name, *summary, *notes; /* the last two may be NULL */
    const struct core_options_command *commands;
    size_t command_count;
};
int core_options_run(const struct core_options_program *program, int argc, char **argv);

/* ---- where the server is ---- */

struct core_options_server {
    const char *address;                                             /* never NULL */
    const char *ca_file, *certificate_file, *key_file, *server_name; /* for TLS; NULL: not given */
    int timeout_ms;                                                  /* for an answer */
};
extern const struct argp core_options_server_argp; /* for argp_child; input: struct core_options_server */

/* $MILLRACE_SERVER, else core_address_default; 10 s. */
void core_options_server_init(struct core_options_server *server);

/* ---- values: what is none, or out of range, is a usage error that names the option ---- */

double core_options_number(const struct argp_state *state, const char *name, const char *text, double minimum,
                           double maximum);
uint64_t core_options_count(const struct argp_state *state, const char *name, const char *text,
                            uint64_t minimum, uint64_t maximum);
uint64_t core_options_bytes(const struct argp_state *state, const char *name, const char *text,
                            uint64_t minimum, uint64_t maximum);
/* A number without a unit counts bare_ns each; 0: it needs one. */
core_ns core_options_duration(const struct argp_state *state, const char *name, const char *text,
                              core_ns bare_ns, core_ns minimum_ns, core_ns maximum_ns);
double core_options_rate(const struct argp_state *state, const char *name, const char *text,
                         double bare_bits_per_s, double minimum, double maximum);

#endif
