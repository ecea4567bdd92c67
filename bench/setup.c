#include "bench/setup.h"

#include "bench/options.h"

#include <stdio.h>
#include <string.h>

enum { KEY_GPUS = 1024, KEY_CPUS, KEY_PAPER, KEY_PROGRESS }; /* beyond those of the subcommands */

static const struct argp_option option_table[] = {
    {"profile", 'P', "PROFILE", 0, "Hardware profile: a path or a shipped one's name (default gtx285-x2)", 0},
    {"gpus", KEY_GPUS, "N", 0, "So many cards of the profile's first kind, and no other", 0},
    {"cpus", KEY_CPUS, "N", 0, "So many CPU workers (default: as the profile says)", 0},
    {"workload", 'w', "WORKLOAD", 0, "A path or a shipped one's name (default norm)", 0},
    {"method", 'm', "NAME", 0, "Only this method, and others named so (default: all)", 0},
    {"seed", 's', "N", 0, "Seed of the draws and of methods that deal at random (default 1)", 0},
    {"paper", KEY_PAPER, NULL, 0, "By the rules of SYSTOR 2012, which promise less", 0},
    {"json", 'j', NULL, 0, "One JSON document", 0},
    {"progress", KEY_PROGRESS, NULL, 0, "Tell how far it is, even if standard error is no terminal", 0},
    {0},
};

static void add_method(struct argp_state *state, struct bench_setup *setup, const char *name)
{
    const struct partition_plan_method *method = partition_plan_method_find(name);
    char names[256] = "";

    for (const struct partition_plan_method *each = partition_plan_methods; each->name != NULL; each++)
        snprintf(names + strlen(names), sizeof names - strlen(names), " %s", each->name);
    if (method == NULL)
        argp_error(state, "--method %s: there is no such method; there are:%s", name, names);
    if (setup->method_count == BENCH_SETUP_METHODS_MAX)
        argp_error(state, "--method: at most %d of them", BENCH_SETUP_METHODS_MAX);
    setup->methods[setup->method_count++] = method;
}

static void add_all_methods(struct bench_setup *setup)
{
    for (const struct partition_plan_method *method = partition_plan_methods;
         method->name != NULL && setup->method_count < BENCH_SETUP_METHODS_MAX; method++)
        setup->methods[setup->method_count++] = method;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct bench_setup *setup = state->input;

    switch (key) {
    case 'P':
        setup->profile = argument;
        return 0;
    case KEY_GPUS:
        setup->gpus = (int)core_options_count(state, "gpus", argument, 0, CONFIG_PROFILE_GPU_COUNT_MAX);
        return 0;
    case KEY_CPUS:
        setup->workers = (int)core_options_count(state, "cpus", argument, 1, CONFIG_PROFILE_WORKERS_MAX);
        return 0;
    case 'w':
        setup->workload = argument;
        return 0;
    case 'm':
        add_method(state, setup, argument);
        return 0;
    case 's':
        setup->seed = core_options_count(state, "seed", argument, 0, UINT64_MAX);
        return 0;
    case KEY_PAPER:
        setup->paper = true;
        return 0;
    case 'j':
        setup->json = true;
        return 0;
    case KEY_PROGRESS:
        setup->progress = true;
        return 0;
    case ARGP_KEY_END:
        if (setup->method_count == 0)
            add_all_methods(setup);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {option_table, parse_option, NULL, NULL, NULL, NULL, NULL};
const struct argp_child bench_setup_options[] = {{&argp, 0, NULL, 0}, {0}};

core_status bench_setup_machine(const struct bench_setup *setup, struct bench_machine *machine,
                                struct core_error *error)
{
    const core_status status = bench_machine_open(machine, setup->profile, error);

    return status == CORE_OK ? bench_machine_set(machine, setup->gpus, setup->workers, error) : status;
}
