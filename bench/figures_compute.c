#include "bench/figures.h"

#include <math.h>
#include <stdio.h>

const char *const bench_figures_rules[BENCH_FIGURES_RULES] = {"paper", "server"};
const char *const bench_figures_workloads[BENCH_FIGURES_WORKLOADS] = {"const", "uni", "norm", "norm2", "exp"};

static struct bench_figures_cell cell_of(const struct bench_capacity *capacity)
{
    return (struct bench_figures_cell){.streams = capacity->streams,
                                       .total_bits_per_s = capacity->total_bits_per_s,
                                       .cpu_bits_per_s = capacity->cpu_bits_per_s,
                                       .gpu_bits_per_s = capacity->gpu_bits_per_s,
                                       .gpus = bench_capacity_gpus(capacity),
                                       .below_bound_percent = NAN,
                                       .binding = capacity->binding,
                                       .refused_below = capacity->refused_below,
                                       .whole_pool = capacity->whole_pool};
}

/* A method begins to look where the one before ended on these cards; the first, where the cards before
 * promise it. */
static core_status compute_cells(struct bench_figures *figures, int rules, int workload, uint32_t gpus,
                                 struct core_error *error)
{
    struct bench_figures_cell(*of)[BENCH_FIGURES_METHODS] = figures->cells[rules][workload];
    struct bench_capacity_options options = {.machine = figures->machine,
                                             .pool = &figures->pools[workload],
                                             .paper = rules == 0,
                                             .seed = figures->options.output.seed};
    double bound = 0;

    for (size_t m = 0; m < figures->method_count; m++) {
        struct bench_capacity capacity;
        options.method = &partition_plan_methods[m];
        options.hint = gpus > 1 ? of[gpus - 2][m].streams * gpus / (gpus - 1) : options.hint;
        const core_status status = bench_capacity_find(&options, &capacity, error);
        if (status != CORE_OK)
            return status;
        of[gpus - 1][m] = cell_of(&capacity);
        bench_capacity_free(&capacity);
        options.hint = of[gpus - 1][m].streams;
        if (!options.method->places)
            bound = of[gpus - 1][m].total_bits_per_s;
    }
    for (size_t m = 0; m < figures->method_count; m++)
        if (partition_plan_methods[m].places && bound > 0)
            of[gpus - 1][m].below_bound_percent = 100 * (1 - of[gpus - 1][m].total_bits_per_s / bound);
    return CORE_OK;
}

core_status bench_figures_compute(struct bench_figures *figures, struct core_error *error)
{
    const struct bench_figures_options *options = &figures->options;
    core_status status = CORE_OK;

    while (partition_plan_methods[figures->method_count].name != NULL &&
           figures->method_count < BENCH_FIGURES_METHODS)
        figures->method_count++;
    for (int w = 0; status == CORE_OK && w < BENCH_FIGURES_WORKLOADS; w++) {
        const struct bench_pool_request request = {
            .workload = bench_figures_workloads[w], .count = options->pool, .seed = options->output.seed};
        status = bench_pool_open(&figures->pools[w], &request, error);
        for (int rules = 0; status == CORE_OK && rules < BENCH_FIGURES_RULES; rules++)
            for (uint32_t gpus = 1; status == CORE_OK && gpus <= options->gpus; gpus++) {
                if (options->output.progress)
                    fprintf(stderr, "\r\033[K%s, by the %s's rules, %u GPUs", bench_figures_workloads[w],
                            bench_figures_rules[rules], gpus);
                status = bench_machine_set(figures->machine, (int)gpus, BENCH_MACHINE_AS_PROFILE, error);
                if (status == CORE_OK)
                    status = compute_cells(figures, rules, w, gpus, error);
            }
    }
    if (options->output.progress)
        fputs("\r\033[K", stderr);
    return status;
}

void bench_figures_free(struct bench_figures *figures)
{
    for (int w = 0; w < BENCH_FIGURES_WORKLOADS; w++)
        bench_pool_free(&figures->pools[w]);
}
