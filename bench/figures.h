/* The figures of SYSTOR 2012, computed anew: what is computed, and what writes it. One thread.
 *
 * Everything here is the same for the same seed, on every machine. */
#ifndef MILLRACE_BENCH_FIGURES_H
#define MILLRACE_BENCH_FIGURES_H

#include "bench/capacity.h"
#include "bench/options.h"

#define BENCH_FIGURES_WORKLOADS 5
#define BENCH_FIGURES_GPUS      8
#define BENCH_FIGURES_METHODS   16
#define BENCH_FIGURES_RULES     2 /* the paper's, the server's */

struct bench_figures_options {
    struct bench_options_output output;
    uint32_t pool;    /* streams to draw of each workload */
    uint32_t gpus;    /* 1 .. BENCH_FIGURES_GPUS */
    uint32_t streams; /* of Fig. 7 */
};

/* What one method carries of one workload on so many GPUs. */
struct bench_figures_cell {
    size_t streams;
    double total_bits_per_s, cpu_bits_per_s, gpu_bits_per_s;
    struct bench_capacity_gpus gpus;
    double below_bound_percent; /* NaN for the bound itself */
    enum perfmodel_limit binding;
    size_t refused_below;
    bool whole_pool;
};

struct bench_figures {
    struct bench_figures_options options;
    struct bench_machine *machine; /* the paper's: gtx285-x2; set to other numbers of cards on the way */
    struct bench_pool pools[BENCH_FIGURES_WORKLOADS];
    size_t method_count; /* of partition_plan_methods */
    struct bench_figures_cell cells[BENCH_FIGURES_RULES][BENCH_FIGURES_WORKLOADS][BENCH_FIGURES_GPUS]
                                   [BENCH_FIGURES_METHODS];
};

/* By their indices: "paper" or "server", "const" ... "exp", "1 GPU" is 0. */
extern const char *const bench_figures_rules[BENCH_FIGURES_RULES];
extern const char *const bench_figures_workloads[BENCH_FIGURES_WORKLOADS];

/* Are the streams of this method's plan for Fig. 7 a file and a picture? By the paper's rules its own method
 * on one card; by the server's that one, and `bands` where there is such a method, on two. */
bool bench_figures_fig7_drawn(int rules, uint32_t gpus, const struct partition_plan_method *method);

/* Draws the pools and fills the cells. */
CORE_CHECKED core_status bench_figures_compute(struct bench_figures *figures, struct core_error *error);
void bench_figures_free(struct bench_figures *figures);

/* Writes the CSV files. Fig. 7 is planned here. */
CORE_CHECKED core_status bench_figures_write(struct bench_figures *figures, struct core_error *error);

/* Writes figures.gp, the gnuplot script that makes the PNG files of the CSV files, and runs it.
 * CORE_NOT_FOUND where there is no gnuplot. */
CORE_CHECKED core_status bench_figures_plot(const struct bench_figures *figures, struct core_error *error);

#endif
