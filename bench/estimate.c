/* millrace-bench estimate: what a machine would carry of a workload, by method of partitioning, with the
 * rules of the server or those of the SYSTOR 2012 paper. */
#include "bench/bench.h"
#include "bench/estimate_report.h"
#include "bench/options.h"
#include "bench/setup.h"

#include <stdio.h>
#include <unistd.h>

enum { KEY_MESSAGES = 256 };

struct options {
    struct bench_setup setup;
    uint32_t pool, packet_bytes, burst_packets;
    bool messages;
};

static const struct argp_option option_table[] = {
    {"pool", 'p', "N", 0, "Streams to draw (default 200000)", 0},
    {"packet", 'k', "BYTES", 0, "Bytes of every packet, at the same rates (default: as the workload says)",
     0},
    {"burst", 'b', "N", 0, "Packets at once of every stream (default: as the workload says)", 0},
    {"messages", KEY_MESSAGES, NULL, 0,
     "Every packet is a message, with an IV of its own (default: a stream is one chain)", 0},
    {0},
};

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->setup;
        return 0;
    case 'p':
        options->pool = (uint32_t)core_options_count(state, "pool", argument, 1, BENCH_POOL_MAX);
        return 0;
    case 'k':
        options->packet_bytes =
            (uint32_t)core_options_bytes(state, "packet", argument, 1, CORE_PACKET_BYTES_MAX);
        return 0;
    case KEY_MESSAGES:
        options->messages = true;
        return 0;
    case 'b':
        options->burst_packets = (uint32_t)core_options_count(state, "burst", argument, 1, CORE_BURST_MAX);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    NULL,
    "Estimate what a machine carries of a workload: the largest N such that the first N streams of a random "
    "pool have a plan that keeps every deadline.\v"
    "Shipped workloads: const, uni, norm, norm2, exp, fig7 and headline of the SYSTOR 2012 paper; demo, "
    "gigabit and mixed. Rates are of payload.\n\nExample: millrace-bench estimate --workload exp --gpus 8 "
    "--cpus 2 "
    "--paper",
    bench_setup_options,
    NULL,
    NULL};

static void on_progress(void *argument, const struct partition_plan_method *method, size_t accepted,
                        size_t refused)
{
    (void)argument;
    if (refused == 0)
        fprintf(stderr, "\r\033[K%s: more than %zu streams", method->name, accepted);
    else
        fprintf(stderr, "\r\033[K%s: %zu to %zu streams", method->name, accepted, refused - 1);
}

/* Bounds first: what they say is where the others begin to look. */
static core_status find_all(const struct bench_setup *setup, const struct bench_pool *pool,
                            struct bench_estimate *estimate, struct core_error *error)
{
    struct bench_capacity_options one = {.machine = estimate->machine,
                                         .pool = pool,
                                         .paper = setup->paper,
                                         .seed = setup->seed,
                                         .progress = setup->progress ? on_progress : NULL};

    for (int places = 0; places <= 1; places++)
        for (size_t i = 0; i < setup->method_count; i++) {
            if (setup->methods[i]->places != (places == 1))
                continue;
            one.method = setup->methods[i];
            const core_status status = bench_capacity_find(&one, &estimate->capacities[i], error);
            if (status != CORE_OK)
                return status;
            one.hint = estimate->capacities[i].streams;
            if (places == 0)
                estimate->bound_bits_per_s = estimate->capacities[i].total_bits_per_s;
        }
    return CORE_OK;
}

static core_status run(const struct options *options, struct core_error *error)
{
    const struct bench_setup *setup = &options->setup;
    struct bench_machine machine;
    struct bench_pool pool = {0};
    struct bench_capacity capacities[BENCH_SETUP_METHODS_MAX] = {0};
    struct bench_estimate estimate = {.workload = setup->workload,
                                      .machine = &machine,
                                      .pool = options->pool,
                                      .seed = setup->seed,
                                      .paper = setup->paper,
                                      .capacities = capacities,
                                      .count = setup->method_count};
    core_status status = bench_setup_machine(setup, &machine, error);

    if (status == CORE_OK)
        status = bench_pool_open(&pool,
                                 &(struct bench_pool_request){.workload = setup->workload,
                                                              .count = options->pool,
                                                              .seed = setup->seed,
                                                              .packet_bytes = options->packet_bytes,
                                                              .burst_packets = options->burst_packets,
                                                              .messages = options->messages},
                                 error);
    if (status == CORE_OK)
        status = find_all(setup, &pool, &estimate, error);
    if (setup->progress)
        fputs("\r\033[K", stderr);
    if (status == CORE_OK && setup->json)
        status = bench_estimate_print_json(&estimate, error);
    else if (status == CORE_OK)
        bench_estimate_print(&estimate);
    for (size_t i = 0; i < setup->method_count; i++)
        bench_capacity_free(&capacities[i]);
    bench_pool_free(&pool);
    bench_machine_close(&machine);
    return status;
}

int bench_estimate(int argc, char **argv)
{
    struct options options = {.setup = BENCH_SETUP_DEFAULTS, .pool = 200000};
    struct core_error error = {""};

    if (core_options_parse(&argp, argc, argv, &options) != 0)
        return 2;
    if (run(&options, &error) == CORE_OK)
        return 0;
    fprintf(stderr, "millrace-bench estimate: %s\n", error.text);
    return 1;
}
