/* millrace-gen: makes stream lists, and runs streams against a server. */
#include "core/options.h"
#include "core/standard.h"
#include "core/tls.h"
#include "inputgen/commands.h"

#include <stdio.h>

static const struct core_options_command commands[] = {
    {"make", inputgen_command_make, "draw a list of streams from a workload"},
    {"replay", inputgen_command_replay,
     "replay streams against a server in real time, check what comes back"},
    {"churn", inputgen_command_churn,
     "open, change and close streams on a running server, check all\n"
     "             that comes back"},
};

int main(int argc, char **argv)
{
    const struct core_options_program program = {.name = "millrace-gen",
                                                 .summary = "Makes streams, and runs them against a server.",
                                                 .commands = commands,
                                                 .command_count = sizeof commands / sizeof commands[0]};

    struct core_error error;

    if (!core_standard_open())
        return 2;
    if (core_tls_ready(&error) != CORE_OK) {
        fprintf(stderr, "millrace-gen: %s\n", error.text);
        return 3;
    }
    return core_options_run(&program, argc, argv);
}
