/* What the commands that run streams against a server share: options, stream lists, signals, progress. On the
 * main thread. */
#ifndef MILLRACE_INPUTGEN_COMMAND_RUN_H
#define MILLRACE_INPUTGEN_COMMAND_RUN_H

#include "config/keyring.h"
#include "core/options.h"
#include "inputgen/replay.h"

enum inputgen_exit {
    INPUTGEN_EXIT_WELL = 0,
    INPUTGEN_EXIT_FAULT = 1,
    INPUTGEN_EXIT_USAGE = 2,
    INPUTGEN_EXIT_NO_RUN = 3
};

struct inputgen_command {
    const char *program; /* "millrace-gen replay": begins every complaint */
    const char *list;    /* a path that ends in .csv, or a workload */
    uint32_t streams;    /* of a workload: 0: as it says */
    const char *kinds;   /* of a workload: shares of its streams (kinds.h); NULL: none */
    struct core_options_server server;
    struct inputgen_replay_options options; /* address, TLS and timeout by inputgen_command_load */
    struct millrace_tls tls;
    const char *keyring_path;
    bool json, quiet;

    /* of inputgen_command_load */
    struct inputgen_streams *streams_listed;
    struct config_keyring *keyring;
    char *name;
};

/* The defaults. */
void inputgen_command_init(struct inputgen_command *command, const char *program);

/* The shared options, for argp_child; input: struct inputgen_command. Takes the list as the one argument. */
extern const struct argp inputgen_command_argp;

/* Reads a list by path, or draws it from a workload: `count` streams (0: as it says), shares of them of some kinds
 * (NULL: none). *list is the caller's. */
CORE_CHECKED core_status inputgen_command_list(const char *name, const char *kinds, uint32_t count,
                                               core_ns duration_ns, uint64_t seed,
                                               struct inputgen_streams **list, struct core_error *error);

/* Loads the list and the key, and fills in the options what follows from them. */
CORE_CHECKED core_status inputgen_command_load(struct inputgen_command *command, struct core_error *error);
void inputgen_command_free(struct inputgen_command *command);

/* Catches SIGINT and SIGTERM (options.stop), ignores SIGPIPE, and shows progress on a terminal. */
void inputgen_command_begin(struct inputgen_command *command);
void inputgen_command_end(const struct inputgen_command *command); /* clears the line of progress */

/* Prints the error on standard error; returns exit. */
int inputgen_command_complain(const struct inputgen_command *command, enum inputgen_exit exit,
                              const struct core_error *error);

#endif
