#include "bench/bench.h"
#include "core/standard.h"

#include <argp.h>
#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    bench_run *run;
    const char *summary;
};

static const struct command commands[] = {
    {"calibrate", bench_calibrate, "measures this machine and writes its hardware profile"},
    {"crypto", bench_crypto, "a worker against IPsec-MB called bare and against OpenSSL"},
    {"sockets", bench_sockets, "a bare echo over sockets, and what the server carries of it without a miss"},
    {"admission", bench_admission, "how fast a server answers who may join it"},
    {"memory", bench_memory,
     "what an idle stream costs a server, and whether it keeps anything of closed ones"},
    {"estimate", bench_estimate, "what a machine would carry of a workload, by method of partitioning"},
    {"plan", bench_plan, "how long planning takes"},
    {"kernel", bench_kernel, "one GPU by itself: against OpenSSL, and its kernel's speed beside its copies"},
    {"pipeline", bench_pipeline, "streams through CPU workers and GPUs by a plan, stages against the model"},
    {"figures", bench_figures, "the figures of SYSTOR 2012, computed anew"},
};

#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static void usage_print(FILE *file)
{
    fputs("Usage: millrace-bench COMMAND [OPTION...]\n\n", file);
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        fprintf(file, "  %-10s %s\n", commands[i].name, commands[i].summary);
    }
    fputs("\nmillrace-bench COMMAND --help tells the options of a command.\n", file);
}

int main(int argc, char **argv)
{
    argp_err_exit_status = 2;
    if (!core_standard_open()) {
        return 2;
    }
    if (argc < 2) {
        usage_print(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0) {
        usage_print(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("millrace-bench " MILLRACE_VERSION);
        return 0;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            char name[64];
            snprintf(name, sizeof name, "millrace-bench %s", commands[i].name);
            argv[1] = name;
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "millrace-bench: no command \"%s\"\n\n", argv[1]);
    usage_print(stderr);
    return 2;
}
