/* millrace-gen: makes stream lists, and runs streams against a server. */
#include "core/standard.h"
#include "inputgen/commands.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"make", "draw a list of streams from a workload", inputgen_command_make},
    {"replay", "replay streams against a server in real time, check all that comes back",
     inputgen_command_replay},
    {"churn", "open, change and close streams on a running server, check all that comes back",
     inputgen_command_churn},
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static void usage(FILE *file)
{
    fputs("Usage: millrace-gen COMMAND [OPTION...]\n\nCommands:\n", file);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(file, "  %-8s %s\n", commands[i].name, commands[i].summary);
    fputs("\n`millrace-gen COMMAND --help` tells more about one.\n", file);
}

/* argp prints argv[0] in its messages; it should name the command. */
static int command_run(const struct command *command, int argc, char **argv)
{
    static char name[64];

    snprintf(name, sizeof name, "millrace-gen %s", command->name);
    argv[0] = name;
    return command->run(argc, argv);
}

int main(int argc, char **argv)
{
    argp_program_version = "millrace-gen " MILLRACE_VERSION;
    argp_err_exit_status = 2;
    if (!core_standard_open())
        return 2;
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0)) {
        usage(stdout);
        return 0;
    }
    if (argc >= 2 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)) {
        puts(argp_program_version);
        return 0;
    }
    for (size_t i = 0; argc >= 2 && i < COMMAND_COUNT; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return command_run(&commands[i], argc - 1, argv + 1);
    if (argc >= 2)
        fprintf(stderr, "millrace-gen: there is no command '%s'\n", argv[1]);
    usage(stderr);
    return 2;
}
