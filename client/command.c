/* main of the `millrace` command: picks the subcommand. */
#include "client/command.h"

#include "core/standard.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *does;
} subcommands[] = {
    {"encrypt", command_encrypt, "send a file or standard input as one stream, write what comes back"},
    {"query", command_query, "ask whether a stream would be admitted, and what would be"},
    {"status", command_status, "show the server's figures, its threads and its streams"},
    {"ping", command_ping, "measure the way to the server and back"},
};
#define SUBCOMMANDS (sizeof subcommands / sizeof subcommands[0])

int command_fail(enum command_exit exit, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("millrace: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return (int)exit;
}

static void print_help(FILE *file)
{
    fputs("Usage: millrace COMMAND [OPTION...]\n"
          "Client of millraced, the server that encrypts live streams before hard deadlines.\n\n",
          file);
    for (size_t i = 0; i < SUBCOMMANDS; i++)
        fprintf(file, "  %-10s%s\n", subcommands[i].name, subcommands[i].does);
    fputs("\n`millrace COMMAND --help` says more.\n\n" COMMAND_EXIT_HELP "\n", file);
}

int main(int argc, char **argv)
{
    argp_err_exit_status = COMMAND_USAGE;
    const char *name = argc > 1 ? argv[1] : "";
    if (!core_standard_open())
        return COMMAND_FAILED;
    for (size_t i = 0; i < SUBCOMMANDS; i++) {
        if (strcmp(name, subcommands[i].name) != 0)
            continue;
        static char program[64]; /* what usage messages call us */
        snprintf(program, sizeof program, "millrace %s", name);
        argv[1] = program;
        return subcommands[i].run(argc - 1, argv + 1);
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "-?") == 0) {
        print_help(stdout);
        return COMMAND_OK;
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        puts("millrace " MILLRACE_VERSION);
        return COMMAND_OK;
    }
    if (argc > 1)
        fprintf(stderr, "millrace: there is no command \"%s\"\n\n", name);
    print_help(stderr);
    return COMMAND_USAGE;
}
