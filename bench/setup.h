/* What the subcommands that plan for a machine are asked: which machine, which streams, by which rules. Their
 * option parsers have bench_setup_options as children, the first of which takes a struct bench_setup as its
 * input. One thread. */
#ifndef MILLRACE_BENCH_SETUP_H
#define MILLRACE_BENCH_SETUP_H

#include "bench/machine.h"
#include "bench/pool.h"
#include "partition/plan.h"

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#define BENCH_SETUP_METHODS_MAX 32

struct bench_setup {
    const char *profile, *workload; /* defaults are the subcommand's to fill in */
    int gpus, workers;              /* BENCH_MACHINE_AS_PROFILE */
    uint64_t seed;
    bool paper, json;
    bool progress;                                                        /* on standard error */
    const struct partition_plan_method *methods[BENCH_SETUP_METHODS_MAX]; /* all, if none was named */
    size_t method_count;
};

#define BENCH_SETUP_DEFAULTS                                                                                 \
    {                                                                                                        \
        .profile = "gtx285-x2", .workload = "norm", .gpus = BENCH_MACHINE_AS_PROFILE,                        \
        .workers = BENCH_MACHINE_AS_PROFILE, .seed = 1, .progress = isatty(STDERR_FILENO) != 0               \
    }

extern const struct argp_child bench_setup_options[];

/* Opens the profile, with the numbers of cards and workers asked for. */
CORE_CHECKED core_status bench_setup_machine(const struct bench_setup *setup, struct bench_machine *machine,
                                             struct core_error *error);

#endif
